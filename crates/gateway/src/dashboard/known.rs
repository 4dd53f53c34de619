//! What is known of the cluster: the last answers, and the last hour.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nowserving_client::{Client, ClusterStatus, Error, Kind, LineName, LineReply, LineSummary};
use nowserving_insight::fetch::{Answers, DETAILS_MAX};
use nowserving_insight::lines::Lines;
use nowserving_insight::pace::Detail;
use nowserving_insight::same_cluster::without_nats;

use super::history::{Histories, Seen};

/// Nobody has looked for so long: nothing is asked any more, but for the gateway's own lines.
pub const LOOKS_FOR: Duration = Duration::from_secs(10);
/// What is not permitted is tried again after this: each try is a line in the NATS server's log.
const DENIED_FOR: Duration = Duration::from_secs(60);

/// All of it. Answers are made from this alone.
#[derive(Debug, Default)]
pub struct Known {
    pub lines: Lines,
    pub cluster: Option<ClusterStatus>,
    /// When the newest answer came.
    pub refreshed: Option<Instant>,
    /// When the cluster was asked last, whatever came of it.
    asked: Option<Instant>,
    /// Why the last question had no answer.
    pub trouble: Option<Trouble>,
    /// When it was found that the login may not ask.
    denied: Option<Instant>,
    pub histories: Histories,
    /// When somebody looked last.
    looked: Option<Instant>,
    /// The lines on somebody's screen, with the time when they were asked for.
    screens: BTreeMap<LineName, Instant>,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub is_forbidden: bool,
    pub text: String,
}

impl Trouble {
    pub fn of(error: &Error) -> Trouble {
        let is_forbidden = error.kind() == Kind::Forbidden;
        let text = match is_forbidden {
            true => format!("not permitted: {}", error.message()),
            false => format!("the cluster does not answer: {}", error.message()),
        };
        Trouble { is_forbidden, text }
    }

    /// Nothing was asked.
    pub fn without_nats(client: &Client) -> Trouble {
        Trouble {
            is_forbidden: false,
            text: without_nats(client).in_words(),
        }
    }
}

impl Known {
    /// Somebody looks at these lines. Says whether the answer should wait for the next round.
    pub fn look(&mut self, now: Instant, lines: &[LineName], poll: Duration) -> bool {
        self.looked = Some(now);
        let is_old = self
            .asked
            .is_none_or(|asked| now.saturating_duration_since(asked) > poll * 2);
        let mut is_new = false;
        for line in lines {
            let was_there = self.screens.insert(line.clone(), now).is_some();
            let lacks_detail = self
                .lines
                .get(line)
                .is_some_and(|known| known.detail.is_none());
            is_new |= !was_there && lacks_detail;
        }
        while self.screens.len() > DETAILS_MAX {
            let oldest = self.screens.iter().min_by_key(|(_, at)| **at);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            self.screens.remove(&oldest);
        }
        is_old || is_new
    }

    /// The lines on screens, if somebody looks.
    pub fn screens(&mut self, now: Instant) -> Option<Vec<LineName>> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < LOOKS_FOR;
        self.screens.retain(|_, at| is_recent(at));
        let is_looked_at = self.looked.as_ref().is_some_and(is_recent);
        is_looked_at.then(|| self.screens.keys().cloned().collect())
    }

    /// A whole round.
    pub fn take(&mut self, answers: Answers, own: &[LineName]) {
        let Answers {
            at,
            cluster,
            list,
            more,
            details,
        } = answers;
        let Known {
            histories, screens, ..
        } = self;
        let is_kept = |line: &LineName| own.contains(line) || screens.contains_key(line);
        for line in list.iter().filter(|it| is_kept(&it.line)) {
            histories.note(&line.line, Seen::of_list(line, at));
        }
        note(histories, &details, is_kept);
        self.lines.take(list, more, details);
        self.cluster = Some(cluster);
        self.refreshed = Some(at);
        self.asked = Some(at);
        self.denied = None;
        self.trouble = None;
    }

    /// Of the gateway's own lines alone, while nobody looks.
    pub fn take_own(&mut self, details: &[Detail]) {
        note(&mut self.histories, details, |_| true);
    }

    /// What the gateway knows by itself of its own lines, where it may not ask more.
    pub fn take_boards(&mut self, at: Instant, boards: Vec<(LineSummary, Option<u64>)>) {
        for (line, newcomer_eta_ms) in &boards {
            let seen = Seen {
                newcomer_eta_ms: *newcomer_eta_ms,
                ..Seen::of_list(line, at)
            };
            self.histories.note(&line.line, seen);
        }
    }

    /// The same as the list of lines: the cluster's is forbidden.
    pub fn take_instead(&mut self, at: Instant, boards: Vec<(LineSummary, Option<u64>)>) {
        let list: Vec<LineSummary> = boards.iter().map(|(line, _)| line.clone()).collect();
        self.take_boards(at, boards);
        self.lines.take(list, false, Vec::new());
        self.asked = Some(at);
        self.refreshed = Some(at);
    }

    /// The login may not ask, as was found lately.
    pub fn is_denied(&self, now: Instant) -> bool {
        let denied = self.denied;
        denied.is_some_and(|at| now.saturating_duration_since(at) < DENIED_FOR)
    }

    pub fn fail(&mut self, now: Instant, trouble: Trouble) {
        self.asked = Some(now);
        self.denied = trouble.is_forbidden.then_some(now);
        self.trouble = Some(trouble);
    }

    pub fn shown(&self, line: &LineName) -> Option<&LineReply> {
        let known = self.lines.get(line)?;
        known.detail.as_ref().map(|detail| &detail.shown)
    }
}

fn note(histories: &mut Histories, details: &[Detail], is_kept: impl Fn(&LineName) -> bool) {
    for it in details.iter().filter(|it| is_kept(&it.shown.line)) {
        let seen = Seen::of_detail(&it.shown, it.newcomer_eta_ms, it.at);
        histories.note(&it.shown.line, seen);
    }
}

/// Milliseconds since 1970.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
