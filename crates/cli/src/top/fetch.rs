//! Asks the cluster, in a task of its own: the screen never waits for the network.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use nowserving_client::{
    Client, Error, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, LIST_TOKENS_MAX, LineName,
    ListLines, ListTokens,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout_at;

use super::model::{LookedInto, Refresh, TokensPage, Update, Want};
use super::pace::Detail;
use crate::pages::all_lines;

/// A cluster with more lines has a screen of the first ones, by name.
const LINES_MAX: u64 = 10_000;
/// Of so many lines a refresh asks for details: those on the screen, then others in turn.
pub const DETAILS_MAX: usize = 64;
/// So many others at least.
const OTHERS_LEAST: usize = 16;
/// So many are asked for at once.
const AT_ONCE: usize = 8;
/// A refresh goes on without the details that have not come by then.
const DETAILS_TIME: Duration = Duration::from_secs(3);
/// No request of a refresh takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many entries of a journal are kept, for its pages; `line journal` has the older ones.
const ENTRIES_KEPT: usize = 2_000;
/// A refresh reads so many pages of a journal; a line keeps about 8,192 entries.
const JOURNAL_PAGES: usize = 99;

/// Asks, and keeps what the next refresh continues with.
pub struct Fetcher {
    client: Client,
    /// The last line of which details were asked in turn.
    turn: Option<LineName>,
    journal: Option<JournalEnd>,
}

/// The newest entries of a line's journal.
struct JournalEnd {
    line: LineName,
    incarnation: u64,
    after: Option<u64>,
    /// Newest first.
    entries: VecDeque<JournalEntryReply>,
}

/// Refreshes at this interval, and at once when another line or page is wanted, until nobody wants it.
pub async fn run(
    mut fetcher: Fetcher,
    every: Duration,
    mut wants: watch::Receiver<Want>,
    updates: mpsc::Sender<Update>,
) {
    let mut looked_into: Option<(LineName, TokensPage)> = None;
    loop {
        let want = wants.borrow_and_update().clone();
        // What is opened during a pause is shown once.
        let opened = want.look_into.is_some() && want.look_into != looked_into;
        looked_into.clone_from(&want.look_into);
        if !want.paused || opened {
            let update = match fetcher.refresh(&want).await {
                Ok(refresh) => Update::Refreshed(Box::new(refresh)),
                Err(error) => Update::Trouble(error.to_string()),
            };
            if updates.send(update).await.is_err() {
                return;
            }
        }
        let next = tokio::time::Instant::now() + every;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                changed = wants.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let new = wants.borrow();
                    // Other lines on the screen have the time of an interval, so that scrolling sends no requests.
                    if new.look_into != want.look_into || new.paused != want.paused {
                        break;
                    }
                }
            }
        }
    }
}

impl Fetcher {
    pub fn new(client: &Client) -> Fetcher {
        Fetcher {
            client: client.with_deadline(client.deadline().min(PATIENCE)),
            turn: None,
            journal: None,
        }
    }

    /// Asks for everything that the screen shows.
    ///
    /// # Errors
    /// The state of the cluster or the list of lines cannot be had.
    pub async fn refresh(&mut self, want: &Want) -> Result<Refresh, Error> {
        let admin = self.client.admin();
        let list = all_lines(&admin, ListLines::default(), LINES_MAX);
        let (cluster, list) = tokio::join!(admin.cluster_status(), list);
        let (cluster, list) = (cluster?, list?);
        let all: Vec<&LineName> = list.lines.iter().map(|it| &it.line).collect();
        let chosen = choose(&want.first, &all, &mut self.turn);
        let details = self.details(chosen).await;
        let looked_into = match &want.look_into {
            Some((line, page)) => Some(self.look_into(line, page).await),
            None => None,
        };
        Ok(Refresh {
            at: Instant::now(),
            cluster,
            more: list.next.is_some(),
            list: list.lines,
            details,
            looked_into,
        })
    }

    async fn details(&self, chosen: Vec<LineName>) -> Vec<Detail> {
        let end = tokio::time::Instant::now() + DETAILS_TIME;
        let asked: Vec<_> = chosen
            .into_iter()
            .map(|name| detail(self.client.clone(), name))
            .collect();
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut details = Vec::new();
        while let Ok(Some(answer)) = timeout_at(end, answers.next()).await {
            details.extend(answer);
        }
        details
    }

    async fn look_into(&mut self, line: &LineName, page: &TokensPage) -> LookedInto {
        let request = ListTokens {
            order: page.order,
            after: page.after.clone(),
            limit: Some(page.limit.clamp(1, LIST_TOKENS_MAX)),
            ..ListTokens::default()
        };
        let tokens = match self.client.admin().line(line.as_str()) {
            Ok(admin) => admin.list_tokens(&request).await,
            Err(error) => Err(error),
        };
        let journal = self.journal(line).await;
        LookedInto {
            line: line.clone(),
            page: page.clone(),
            tokens: tokens.map_err(|error| error.to_string()),
            journal: journal.map_err(|error| error.to_string()),
        }
    }

    /// The newest entries: at first all are read, then those that have come since.
    async fn journal(&mut self, line: &LineName) -> Result<Vec<JournalEntryReply>, Error> {
        let admin = self.client.admin().line(line.as_str())?;
        let kept = self.journal.take().filter(|kept| kept.line == *line);
        let mut end = kept.unwrap_or_else(|| JournalEnd::of(line));
        for _ in 0..JOURNAL_PAGES {
            let page = Journal {
                after: end.after,
                limit: Some(JOURNAL_LIMIT_MAX),
                ..Journal::default()
            };
            let reply = admin.journal(&page).await?;
            if reply.incarnation != end.incarnation && end.after.is_some() {
                end = JournalEnd::of(line);
                continue;
            }
            end.incarnation = reply.incarnation;
            end.add(reply.entries);
            if reply.next.is_none() {
                break;
            }
        }
        let entries = end.entries.iter().cloned().collect();
        self.journal = Some(end);
        Ok(entries)
    }
}

impl JournalEnd {
    fn of(line: &LineName) -> JournalEnd {
        JournalEnd {
            line: line.clone(),
            incarnation: 0,
            after: None,
            entries: VecDeque::new(),
        }
    }

    fn add(&mut self, entries: Vec<JournalEntryReply>) {
        for entry in entries {
            self.after = Some(entry.version);
            self.entries.push_front(entry);
        }
        self.entries.truncate(ENTRIES_KEPT);
    }
}

async fn detail(client: Client, name: LineName) -> Option<Detail> {
    let admin = client.admin().line(name.as_str()).ok()?;
    let line = client.line(name.as_str()).ok()?;
    let (shown, info) = tokio::join!(admin.show(), line.info());
    Some(Detail {
        at: Instant::now(),
        // It may have been deleted, or have no leader now: the list still has it.
        shown: shown.ok()?,
        newcomer_eta_ms: info.ok().and_then(|info| info.newcomer_eta_ms),
    })
}

/// The lines of which details are asked for: those on the screen, then others, each in its turn.
fn choose(first: &[LineName], all: &[&LineName], turn: &mut Option<LineName>) -> Vec<LineName> {
    let known: BTreeSet<&LineName> = all.iter().copied().collect();
    let first = first.iter().filter(|name| known.contains(name));
    let mut chosen: Vec<LineName> = first.cloned().collect();
    // On a very high screen, too, others have their turn.
    let most = DETAILS_MAX.max(chosen.len() + OTHERS_LEAST);
    let taken: BTreeSet<LineName> = chosen.iter().cloned().collect();
    let start = turn.as_ref().map_or(0, |turn| {
        all.iter()
            .position(|name| *name > turn)
            .unwrap_or(all.len())
    });
    let others = all[start..].iter().chain(&all[..start]);
    for name in others.filter(|name| !taken.contains(**name)) {
        if chosen.len() >= most {
            break;
        }
        chosen.push((*name).clone());
        *turn = Some((*name).clone());
    }
    chosen
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_line_has_its_turn_beside_those_on_the_screen() {
        let names: Vec<LineName> = (0..200)
            .map(|nth| format!("line-{nth:03}").parse().unwrap())
            .collect();
        let all: Vec<&LineName> = names.iter().collect();
        let gone: LineName = "gone".parse().unwrap();
        let first = [names[7].clone(), gone, names[150].clone()];
        let (mut turn, mut seen) = (None, BTreeSet::new());
        for _ in 0..4 {
            let chosen = choose(&first, &all, &mut turn);
            assert_eq!(chosen.len(), DETAILS_MAX);
            assert_eq!(chosen[..2], [names[7].clone(), names[150].clone()]);
            let different: BTreeSet<&LineName> = chosen.iter().collect();
            assert_eq!(different.len(), DETAILS_MAX);
            seen.extend(chosen);
        }
        assert_eq!(seen.len(), 200);
        let few = choose(&[], &all[..3], &mut turn);
        assert_eq!(few.len(), 3);
    }

    #[test]
    fn the_newest_entries_of_a_journal_are_kept() {
        let mut end = JournalEnd::of(&"shop-1".parse().unwrap());
        let entries = (1..=3_000).map(|version| JournalEntryReply {
            version,
            ..JournalEntryReply::default()
        });
        end.add(entries.collect());
        assert_eq!((end.after, end.entries.len()), (Some(3_000), ENTRIES_KEPT));
        assert_eq!(end.entries[0].version, 3_000);
    }
}
