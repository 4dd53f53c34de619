//! Asks for all that a screen of lines shows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use nowserving_client::{Client, ClusterStatus, Error, LineName, LineSummary, ListLines};
use tokio::time::timeout_at;

use crate::pace::Detail;
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
/// No request of a screen takes longer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Asks, and keeps whose turn it is.
pub struct Asking {
    client: Client,
    /// The last line of which details were asked in turn.
    turn: Option<LineName>,
}

/// What came back.
#[derive(Debug)]
pub struct Answers {
    pub at: Instant,
    pub cluster: ClusterStatus,
    pub list: Vec<LineSummary>,
    /// The cluster has more lines than are listed.
    pub more: bool,
    pub details: Vec<Detail>,
}

impl Asking {
    pub fn new(client: &Client) -> Asking {
        Asking {
            client: client.with_deadline(client.deadline().min(PATIENCE)),
            turn: None,
        }
    }

    /// Asks for the cluster, all lines, and details of these first and of others in turn.
    ///
    /// # Errors
    /// The state of the cluster or the list of lines cannot be had.
    pub async fn ask(&mut self, first: &[LineName]) -> Result<Answers, Error> {
        let admin = self.client.admin();
        let list = all_lines(&admin, ListLines::default(), LINES_MAX);
        let (cluster, list) = tokio::join!(admin.cluster_status(), list);
        let (cluster, list) = (cluster?, list?);
        let all: Vec<&LineName> = list.lines.iter().map(|it| &it.line).collect();
        let chosen = choose(first, &all, &mut self.turn);
        let details = self.details(chosen).await;
        Ok(Answers {
            at: Instant::now(),
            cluster,
            more: list.next.is_some(),
            list: list.lines,
            details,
        })
    }

    /// Of these lines, those that answer in time.
    pub async fn details(&self, chosen: Vec<LineName>) -> Vec<Detail> {
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
}

async fn detail(client: Client, name: LineName) -> Option<Detail> {
    let admin = client.admin().line(name.as_str()).ok()?;
    let line = client.line(name.as_str()).ok()?;
    let (shown, info) = tokio::join!(admin.show(), line.info());
    Some(Detail {
        at: Instant::now(),
        // It may have been deleted, or have no leader now: the list still has it.
        shown: shown.ok()?,
        newcomer_eta_ms: info.as_ref().ok().and_then(|info| info.newcomer_eta_ms),
        newcomer_eta_from: info.ok().and_then(|info| info.newcomer_eta_from),
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
}
