//! Asks the cluster for all that the doctor judges. An answer that does not come is a finding itself.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nowserving_client::{
    Admin, AdminLine, Client, Code, Error, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, Kind,
    LIST_TOKENS_MAX, LineList, LineSummary, ListLines, ListTokens, LiveState,
};

use crate::cluster::Seen;
use crate::finding::Finding;
use crate::line::{LineFacts, Seated};
use crate::lines::is_stuck;
use crate::pages::all_lines;
use crate::same_cluster::{unreachable, without_nats};
use crate::words::many;

/// The cluster is asked so often at most, to hear as many nodes as there are: any node answers.
const ASKED_MAX: usize = 12;
/// Each question has this much time at most: a doctor that waits for the whole deadline is of no use.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many holders of seats are looked at in each state.
const SEATED_MAX: usize = 5_000;
/// So many pages of the line's journal are read: a line keeps about 8,192 entries.
const JOURNAL_PAGES: usize = 99;
/// So many lines are looked at when none is named.
const LINES_MAX: u64 = 10_000;
/// Of the lines that look as if they were stuck, so many are listed.
const IDLE_LISTED: usize = 20;

/// All that was found out.
#[derive(Debug, Default)]
pub struct Facts {
    /// What could not be found out, and why.
    pub errors: Vec<Finding>,
    /// What this login may not do, in words.
    pub forbidden: Vec<String>,
    /// The NATS server's version and the time that an answer of the cluster took, once there was one.
    pub server: Option<(String, Duration)>,
    /// The answers of different nodes.
    pub seen: Vec<Seen>,
    /// The line that was named.
    pub line: Option<LineFacts>,
    /// Without a name: lines that look as if they were stuck.
    pub lines: Vec<LineSeen>,
}

impl Facts {
    /// Nothing of the cluster is known.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty() && self.line.is_none()
    }

    fn note(&mut self, error: &Error) {
        if error.kind() == Kind::Forbidden {
            let text = error.message().to_owned();
            if !self.forbidden.contains(&text) {
                self.forbidden.push(text);
            }
            return;
        }
        let found = unanswered(error, !self.seen.is_empty());
        // One of a kind says it.
        if self.errors.iter().all(|it| it.code != found.code) {
            self.errors.push(found);
        }
    }

    /// The rights that this login lacks. They keep the doctor from looking, and stop no line.
    pub fn missing_rights(&self) -> Option<Finding> {
        let first = self.forbidden.first()?;
        let found = match self.is_empty() {
            true => Finding::problem("nats_rights", "this login may not ask the cluster"),
            false => {
                let text = "this login may not ask for all that the doctor looks at";
                Finding::warning("nats_rights", text)
            }
        };
        let found = Finding {
            details: self.forbidden.clone(),
            ..found
        };
        // Only replies are subscribed to.
        Some(match first.contains("may not subscribe to") {
            true => found.advise(
                "name the inbox that the login's role may use: --inbox-prefix, NOWSERVING_INBOX_PREFIX or a context (docs/security.md)",
            ),
            false => found.advise(
                "use the login of an operator (--creds, --nkey or a context): docs/security.md has the roles, deploy/nats their rights",
            ),
        })
    }
}

/// A line in the list of all, in which tokens wait and nobody is admitted, as far as a list shows.
#[derive(Debug)]
pub struct LineSeen(LineSummary);

impl LineSeen {
    /// `None` if the line moves.
    pub fn new(line: LineSummary) -> Option<LineSeen> {
        let held = line.admitted + line.in_checkout;
        let is_idle = line.waiting > 0 && held < u64::from(line.seats);
        (is_idle || is_stuck(&line, None)).then_some(LineSeen(line))
    }

    fn finding(&self) -> Finding {
        let LineSummary {
            line,
            waiting,
            seats,
            admitted,
            in_checkout,
            phase,
            ..
        } = &self.0;
        let wait = match waiting {
            1 => "1 waits".to_owned(),
            _ => format!("{waiting} wait"),
        };
        let found = match is_stuck(&self.0, None) {
            true => {
                let why = match seats {
                    0 => "it has 0 seats".to_owned(),
                    _ => format!("its phase is {phase}"),
                };
                let text = format!("line {line}: {wait}, and nobody is admitted: {why}");
                Finding::note("line_stuck", text)
            }
            false => {
                let free = u64::from(*seats).saturating_sub(admitted + in_checkout);
                let are = if free == 1 { "is" } else { "are" };
                let seats = many(u64::from(*seats), "seat");
                let text =
                    format!("line {line} ({phase}): {wait} while {free} of {seats} {are} free");
                Finding::note("seats_idle", text)
            }
        };
        found.run(format!("nowserving doctor {line}"))
    }
}

/// The lines that look as if they were stuck, those in which most wait first.
pub fn idle(lines: &[LineSeen]) -> Vec<Finding> {
    let mut lines: Vec<&LineSeen> = lines.iter().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.0.waiting));
    let (listed, others) = lines.split_at(lines.len().min(IDLE_LISTED));
    let mut found: Vec<Finding> = listed.iter().map(|line| line.finding()).collect();
    if !others.is_empty() {
        let text = format!(
            "tokens wait and nobody is admitted in {}",
            many(others.len() as u64, "more line")
        );
        found.push(Finding::note("seats_idle", text).run("nowserving top"));
    }
    found
}

/// Asks. `client`: or why there is no connection, which is a finding.
///
/// # Errors
/// The line does not exist, or its name is none.
pub async fn gather(line: Option<&str>, client: Result<Client, Error>) -> Result<Facts, Error> {
    let mut facts = Facts::default();
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            facts.note(&error);
            return Ok(facts);
        }
    };
    if !client.is_connected() {
        // A client that connects in the background. Nodes have no part in that, and it is known without waiting.
        facts.errors.push(without_nats(&client));
        return Ok(facts);
    }
    let client = client.with_deadline(client.deadline().min(PATIENCE));
    let admin = client.admin();
    ask_nodes(&client, &admin, &mut facts).await;
    match line {
        Some(name) => ask_line(&admin, name, &mut facts).await?,
        None => ask_lines(&admin, &mut facts).await,
    }
    Ok(facts)
}

/// Why there is no answer. `some`: nodes have answered other questions.
fn unanswered(error: &Error, some: bool) -> Finding {
    let text = error.to_string();
    match error.kind() {
        Kind::Connection => unreachable(text),
        Kind::Unavailable if !some => Finding::problem("no_answer", text)
            .detail("no node serves: none runs, or no quorum of nodes has accepted any yet")
            .advise("look at /readyz of each node, and at the last lines of its log")
            .run("nowserving cluster status --wait"),
        Kind::Refused(Code::BadRequest) => Finding::warning("refused", text)
            .advise("upgrade the nodes, and then this command: they are of different releases"),
        _ => Finding::problem("no_answer", text)
            .detail("a leader answers only while a quorum of nodes confirms its lease")
            .run("nowserving cluster status --wait"),
    }
}

async fn ask_nodes(client: &Client, admin: &Admin, facts: &mut Facts) {
    for _ in 0..ASKED_MAX {
        let (asked, before_ms) = (Instant::now(), wall_ms());
        let status = match admin.cluster_status().await {
            Ok(status) => status,
            Err(error) => {
                if facts.seen.is_empty() {
                    facts.note(&error);
                }
                return;
            }
        };
        let took = asked.elapsed();
        let version = client.nats().server_info().version;
        facts.server.get_or_insert((version, took));
        let here_ms = before_ms.saturating_add(took.as_millis() as u64 / 2);
        let ahead_ms = (status.at_ms as i64).saturating_sub(here_ms as i64);
        let alive = status.nodes.iter().filter(|node| node.alive).count();
        let known = |it: &Seen| it.status.answered_by == status.answered_by;
        if !facts.seen.iter().any(known) {
            facts.seen.push(Seen { status, ahead_ms });
        }
        if facts.seen.len() >= alive {
            return;
        }
    }
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

async fn ask_line(admin: &Admin, name: &str, facts: &mut Facts) -> Result<(), Error> {
    let line = admin.line(name)?;
    let shown = match line.show().await {
        Ok(shown) => shown,
        Err(error) if error.code() == Some(Code::LineNotFound) => return Err(error),
        Err(error) => {
            facts.note(&error);
            return Ok(());
        }
    };
    let seated = match seated(&line).await {
        Ok(seated) => seated,
        Err(error) => {
            facts.note(&error);
            Seated::default()
        }
    };
    let journal = match journal(&line).await {
        Ok(entries) => entries,
        Err(error) => {
            facts.note(&error);
            Vec::new()
        }
    };
    facts.line = Some(LineFacts {
        at_ms: shown.board.at_ms,
        line: shown,
        seated,
        journal,
    });
    Ok(())
}

/// The tokens that hold seats, page by page: those that hold theirs for longest can be on any.
async fn seated(line: &AdminLine) -> Result<Seated, Error> {
    let mut seated = Seated::default();
    for state in [LiveState::InCheckout, LiveState::Admitted] {
        let mut page = ListTokens {
            state: Some(state),
            limit: Some(LIST_TOKENS_MAX),
            ..ListTokens::default()
        };
        let mut count = 0;
        loop {
            let got = line.list_tokens(&page).await?;
            count += got.tokens.len();
            seated.tokens.extend(got.tokens);
            match got.next {
                Some(_) if count >= SEATED_MAX => {
                    seated.more = true;
                    break;
                }
                // A page that ends where it began: no endless loop.
                Some(next) if next != page.after => page.after = next,
                _ => break,
            }
        }
    }
    Ok(seated)
}

/// All that the line keeps, oldest first: pages begin with the oldest entries, and the newest count.
async fn journal(line: &AdminLine) -> Result<Vec<JournalEntryReply>, Error> {
    let mut entries = Vec::new();
    let mut page = Journal {
        limit: Some(JOURNAL_LIMIT_MAX),
        ..Journal::default()
    };
    for _ in 0..JOURNAL_PAGES {
        let reply = line.journal(&page).await?;
        entries.extend(reply.entries);
        page.after = reply.next;
        if page.after.is_none() {
            break;
        }
    }
    Ok(entries)
}

async fn ask_lines(admin: &Admin, facts: &mut Facts) {
    if facts.seen.is_empty() {
        return;
    }
    match all_lines(admin, ListLines::default(), LINES_MAX).await {
        Ok(LineList { lines, .. }) => {
            facts.lines = lines.into_iter().filter_map(LineSeen::new).collect();
        }
        Err(error) => facts.note(&error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_client::ClientOptions;
    use serde_json::json;

    use super::*;
    use crate::finding::Severity;

    fn summary(waiting: u64, held: u64, seats: u32, phase: &str) -> LineSummary {
        let line = json!({
            "line": "shop-1", "incarnation": 1, "version": 9, "phase": phase, "seats": seats,
            "queue_limit": 10, "waiting": waiting, "admitted": 0, "in_checkout": held, "labels": {},
        });
        serde_json::from_value(line).unwrap()
    }

    fn line(waiting: u64, held: u64, seats: u32, phase: &str) -> Option<Finding> {
        let seen = LineSeen::new(summary(waiting, held, seats, phase));
        seen.map(|seen| seen.finding())
    }

    #[test]
    fn lines_that_do_not_move_are_found() {
        assert_eq!(line(0, 0, 5, "paused"), None);
        assert_eq!(line(3, 5, 5, "open"), None);
        for (waiting, held, seats, phase, code, words) in [
            (
                3,
                4,
                5,
                "open",
                "seats_idle",
                "3 wait while 1 of 5 seats is free",
            ),
            (
                1,
                0,
                1,
                "open",
                "seats_idle",
                "1 waits while 1 of 1 seat is free",
            ),
            (2, 0, 0, "open", "line_stuck", "it has 0 seats"),
            (2, 5, 5, "paused", "line_stuck", "its phase is paused"),
        ] {
            let found = line(waiting, held, seats, phase).unwrap();
            assert_eq!(found.code, code, "{found:?}");
            assert!(found.text.contains(words), "{}", found.text);
            assert_eq!(found.commands(), ["nowserving doctor shop-1"]);
        }
    }

    #[test]
    fn of_many_lines_those_with_the_most_waiting_are_listed() {
        let line = |waiting| {
            LineSeen(LineSummary {
                waiting,
                ..summary(0, 0, 5, "open")
            })
        };
        let lines: Vec<LineSeen> = (1..=50).map(line).collect();
        let found = idle(&lines);
        assert_eq!(found.len(), IDLE_LISTED + 1);
        assert!(found[0].text.contains("50 wait"), "{}", found[0].text);
        assert!(found[20].text.contains("in 30 more lines"));
        assert_eq!(idle(&lines[..2]).len(), 2);
    }

    #[test]
    fn missing_rights_are_one_finding_and_stop_no_line() {
        let mut facts = Facts::default();
        assert_eq!(facts.missing_rights(), None);
        let inbox = "this NATS user may not subscribe to _INBOX.x.>";
        facts.forbidden = vec![inbox.to_owned()];
        let found = facts.missing_rights().unwrap();
        assert_eq!(found.severity, Severity::Problem);
        assert!(format!("{:?}", found.mend).contains("--inbox-prefix"));
        let status =
            json!({"cluster": "shop", "lines": 0, "answered_by": 1, "nodes": [], "shards": []});
        let status = serde_json::from_value(status).unwrap();
        facts.seen = vec![Seen {
            status,
            ahead_ms: 0,
        }];
        facts.forbidden = ["list_tokens", "journal"]
            .map(|op| format!("this NATS user may not publish to nowserving.line.x.admin.{op}"))
            .into();
        let found = facts.missing_rights().unwrap();
        assert_eq!(
            (found.severity, found.details.len()),
            (Severity::Warning, 2)
        );
        assert!(format!("{:?}", found.mend).contains("--creds"));
    }

    /// Such a client says of each call that it got no answer: that is no matter of nodes.
    #[tokio::test]
    async fn a_client_that_has_not_connected_is_no_silent_cluster() {
        let mut options = ClientOptions::default();
        options.connect_in_background = true;
        let client = Client::connect_with("nats://127.0.0.1:1", options);
        let facts = gather(None, client.await).await.unwrap();
        let codes: Vec<_> = facts.errors.iter().map(|it| it.code).collect();
        assert_eq!(codes, ["nats_unreachable"]);
    }

    #[tokio::test]
    async fn an_unreachable_server_is_a_finding() {
        // Port 1 of this machine: nobody listens there.
        let error = Client::connect("nats://127.0.0.1:1").await.err().unwrap();
        assert_eq!(unanswered(&error, false).code, "nats_unreachable");
    }
}
