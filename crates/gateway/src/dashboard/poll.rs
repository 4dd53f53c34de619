//! One task asks for all viewers, and for nobody only what the history of the gateway's own lines needs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Instant;

use nowserving_client::{Kind, LineName, LineSummary};
use nowserving_insight::fetch::Asking;
use tokio::time::{sleep, timeout};

use super::history::STEP;
use super::known::{Trouble, wall_ms};
use super::{Dashboard, FRESH_WITHIN, POLL};
use crate::lines::LineView;

/// So many of the gateway's own lines have a history before somebody looks.
const OWN_MAX: usize = 64;

impl Dashboard {
    /// Asks as long as the gateway runs.
    pub async fn poll(&self) -> Infallible {
        let mut asking = Asking::new(&self.client);
        let mut next_sample = Instant::now();
        loop {
            let screens = self.known().screens(Instant::now());
            let is_sample = Instant::now() >= next_sample;
            match &screens {
                Some(first) => self.round(&mut asking, first).await,
                None if is_sample => self.look_at_own(&asking).await,
                None => {}
            }
            if is_sample {
                next_sample = Instant::now().max(next_sample + STEP);
                self.known().histories.sample(Instant::now(), wall_ms());
            }
            let until_sample = next_sample.saturating_duration_since(Instant::now());
            let pause = match screens {
                Some(_) => until_sample.min(POLL),
                None => until_sample,
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    async fn round(&self, asking: &mut Asking, first: &[LineName]) {
        let now = Instant::now();
        if self.known().is_denied(now) {
            let boards = self.boards();
            self.known().take_instead(now, boards);
            self.rounds.send_modify(|rounds| *rounds += 1);
            return;
        }
        let asked = match self.client.is_connected() {
            true => asking.ask(first).await.map_err(|error| Trouble::of(&error)),
            // Each question would wait for its whole time.
            false => Err(Trouble::without_nats(&self.client)),
        };
        match asked {
            Ok(answers) => self.known().take(answers, &self.own),
            Err(trouble) => {
                let (now, boards) = (Instant::now(), self.boards());
                let mut known = self.known();
                match trouble.is_forbidden {
                    true => known.take_instead(now, boards),
                    false => known.take_boards(now, boards),
                }
                known.fail(now, trouble);
            }
        }
        self.rounds.send_modify(|rounds| *rounds += 1);
    }

    async fn look_at_own(&self, asking: &Asking) {
        let own: Vec<LineName> = self.own.iter().take(OWN_MAX).cloned().collect();
        // Each question would wait for its whole time, and so would somebody who looks meanwhile.
        if !self.client.is_connected() {
            return;
        }
        let mut details = Vec::new();
        if !self.known().is_denied(Instant::now()) {
            details = asking.details(own.clone()).await;
        }
        if let Some(first) = own.first().filter(|_| details.is_empty()) {
            self.find_denial(first).await;
        }
        let boards = self.boards();
        let mut known = self.known();
        // Of lines that may not be shown, boards say how many wait.
        known.take_boards(Instant::now(), boards);
        known.take_own(&details);
    }

    /// No line has answered: it may be the right that is missing.
    async fn find_denial(&self, line: &LineName) {
        let now = Instant::now();
        if self.known().is_denied(now) {
            return;
        }
        let Ok(admin) = self.client.admin().line(line.as_str()) else {
            return;
        };
        if let Err(error) = admin.show().await
            && error.kind() == Kind::Forbidden
        {
            self.known().fail(now, Trouble::of(&error));
        }
    }

    /// What the gateway follows anyway.
    fn boards(&self) -> Vec<(LineSummary, Option<u64>)> {
        let lines = self.gateway.lines.values().take(OWN_MAX);
        lines.filter_map(summary).collect()
    }

    /// Notes that somebody looks at these lines, and waits for answers about them if there are none.
    pub async fn look(&self, lines: &[LineName]) {
        let mut rounds = self.rounds.subscribe();
        if self.known().look(Instant::now(), lines, POLL) {
            self.wake.notify_one();
            // One may be under way that does not know of these lines yet.
            let fresh = async {
                for _ in 0..2 {
                    let _ = rounds.changed().await;
                    let known = self.known();
                    if lines.iter().all(|line| known.shown(line).is_some()) {
                        break;
                    }
                }
            };
            let _ = timeout(FRESH_WITHIN, fresh).await;
        }
    }
}

fn summary(view: &LineView) -> Option<(LineSummary, Option<u64>)> {
    let info = view.info()?;
    if view.is_away() {
        return None;
    }
    let board = view.board();
    let board = board.as_deref().unwrap_or(&info.board);
    let line = LineSummary {
        line: board.line.clone(),
        incarnation: board.incarnation,
        version: board.version,
        phase: board.phase.clone(),
        seats: board.seats,
        queue_limit: info.settings.queue_limit,
        waiting: board.lanes.iter().map(|lane| lane.waiting).sum(),
        admitted: board.admitted,
        in_checkout: board.in_checkout,
        // Users do not see them.
        labels: BTreeMap::new(),
    };
    Some((line, info.newcomer_eta_ms))
}
