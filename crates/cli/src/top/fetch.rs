//! Asks the cluster, in a task of its own: the screen never waits for the network.

use std::collections::VecDeque;
use std::time::Duration;

use nowserving_client::{
    Client, Error, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, LIST_TOKENS_MAX, LineName,
    ListTokens,
};
use nowserving_insight::fetch::{Asking, PATIENCE};
use tokio::sync::{mpsc, watch};

use super::model::{LookedInto, Refresh, TokensPage, Update, Want};

pub use nowserving_insight::fetch::DETAILS_MAX;

/// How many entries of a journal are kept, for its pages; `line journal` has the older ones.
const ENTRIES_KEPT: usize = 2_000;
/// A refresh reads so many pages of a journal; a line keeps about 8,192 entries.
const JOURNAL_PAGES: usize = 99;

/// Asks, and keeps what the next refresh continues with.
pub struct Fetcher {
    client: Client,
    asking: Asking,
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
            asking: Asking::new(client),
            journal: None,
        }
    }

    /// Asks for everything that the screen shows.
    ///
    /// # Errors
    /// The state of the cluster or the list of lines cannot be had.
    pub async fn refresh(&mut self, want: &Want) -> Result<Refresh, Error> {
        let answers = self.asking.ask(&want.first).await?;
        let looked_into = match &want.look_into {
            Some((line, page)) => Some(self.look_into(line, page).await),
            None => None,
        };
        Ok(Refresh {
            at: answers.at,
            cluster: answers.cluster,
            more: answers.more,
            list: answers.list,
            details: answers.details,
            looked_into,
        })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
