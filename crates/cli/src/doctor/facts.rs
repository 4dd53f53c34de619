//! Asks the cluster for all that the doctor judges. An answer that does not come is a finding itself.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nowserving_client::{
    Admin, AdminLine, Client, Code, Error, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, Kind,
    LineList, LineSummary, ListLines, ListTokens, ListedToken, LiveState,
};

use crate::args::Global;
use crate::doctor::cluster::Seen;
use crate::doctor::finding::Finding;
use crate::doctor::line::LineFacts;
use crate::line::all_lines;

/// The cluster is asked so often at most, to hear as many nodes as there are: any node answers.
const ASKED_MAX: usize = 12;
/// Each question has this much time at most: a doctor that waits for the whole deadline is of no use.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many holders of seats are looked at.
const SEATED_MAX: u64 = 200;
/// So many pages of the line's journal are read: a line keeps about 4,096 entries.
const JOURNAL_PAGES: usize = 5;
/// So many lines are looked at when none is named.
const LINES_MAX: u64 = 10_000;
/// Of the lines that look as if they were stuck, so many are listed.
const IDLE_LISTED: usize = 20;

/// All that was found out.
#[derive(Debug, Default)]
pub struct Facts {
    /// What could not be found out, and why.
    pub errors: Vec<Finding>,
    /// The NATS server's version and the time that an answer of the cluster took, once there was one.
    pub server: Option<(String, Duration)>,
    /// The answers of different nodes.
    pub seen: Vec<Seen>,
    /// The line that was named.
    pub line: Option<LineFacts>,
    /// Without a name: lines that look as if they were stuck.
    pub lines: Vec<LineSeen>,
}

/// A line in the list of all, that has free seats while tokens wait.
#[derive(Debug)]
pub struct LineSeen(LineSummary);

impl LineSeen {
    /// `None` if the line moves, as far as a list shows.
    fn new(line: LineSummary) -> Option<LineSeen> {
        let held = line.admitted + line.in_checkout;
        (line.waiting > 0 && held < u64::from(line.seats)).then_some(LineSeen(line))
    }

    fn finding(&self) -> Option<Finding> {
        let LineSummary {
            line,
            waiting,
            seats,
            admitted,
            in_checkout,
            phase,
            ..
        } = &self.0;
        let free = u64::from(*seats).checked_sub(admitted + in_checkout)?;
        let text =
            format!("line {line} ({phase}): {waiting} wait while {free} of {seats} seats are free");
        Some(Finding::note("seats_idle", text).mend(format!("nowserving doctor {line}")))
    }
}

/// The lines that look as if they were stuck, those in which most wait first.
pub fn idle(lines: &[LineSeen]) -> Vec<Finding> {
    let mut lines: Vec<&LineSeen> = lines.iter().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.0.waiting));
    let (listed, others) = lines.split_at(lines.len().min(IDLE_LISTED));
    let mut found: Vec<Finding> = listed.iter().filter_map(|line| line.finding()).collect();
    if !others.is_empty() {
        let text = format!(
            "seats are free while tokens wait in {} more lines",
            others.len()
        );
        found.push(Finding::note("seats_idle", text).mend("nowserving top"));
    }
    found
}

/// Asks. Fails only if the line does not exist, or its name is none.
pub async fn gather(line: Option<&str>, global: &Global) -> anyhow::Result<Facts> {
    let mut facts = Facts::default();
    let client = match global.connect().await {
        Ok(client) => client,
        Err(error) => {
            facts.errors.push(unreachable(error)?);
            return Ok(facts);
        }
    };
    let client = client.with_deadline(client.deadline().min(PATIENCE));
    let admin = client.admin();
    ask_nodes(&client, &admin, &mut facts).await;
    match line {
        Some(name) => ask_line(&admin, name, &mut facts).await?,
        None => ask_lines(&admin, &mut facts).await,
    }
    Ok(facts)
}

/// An error that says why the cluster cannot be asked; wrong usage is passed on.
fn unreachable(error: anyhow::Error) -> anyhow::Result<Finding> {
    match error.downcast::<Error>() {
        Ok(error) if error.kind() != Kind::BadArgument => Ok(refused(&error)),
        Ok(error) => Err(error.into()),
        Err(error) => Err(error),
    }
}

/// What an error of a request means.
fn refused(error: &Error) -> Finding {
    let text = error.to_string();
    match error.kind() {
        Kind::Connection => Finding::problem("nats_unreachable", text)
            .mend("start the NATS server, or name it with --nats, NOWSERVING_NATS or a context"),
        Kind::Forbidden => Finding::problem("nats_rights", text).mend(
            "use the login of an operator (--creds, --nkey or a context): docs/security.md has the roles, deploy/nats their rights",
        ),
        Kind::Unavailable => Finding::problem("no_answer", text)
            .detail("no node serves: none runs, or no quorum of nodes has accepted any yet")
            .mend("look at /readyz of each node, and at the last lines of its log")
            .mend("nowserving cluster status --wait"),
        _ => Finding::problem("no_answer", text)
            .detail("a leader answers only while a quorum of nodes confirms its lease")
            .mend("nowserving cluster status --wait"),
    }
}

async fn ask_nodes(client: &Client, admin: &Admin, facts: &mut Facts) {
    for _ in 0..ASKED_MAX {
        let (asked, before_ms) = (Instant::now(), wall_ms());
        let status = match admin.cluster_status().await {
            Ok(status) => status,
            Err(error) => {
                if facts.seen.is_empty() {
                    facts.errors.push(refused(&error));
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

async fn ask_line(admin: &Admin, name: &str, facts: &mut Facts) -> anyhow::Result<()> {
    let line = admin.line(name)?;
    let shown = match line.show().await {
        Ok(shown) => shown,
        Err(error) if error.code() == Some(Code::LineNotFound) => return Err(error.into()),
        Err(error) => {
            // Said already if nothing could be asked.
            if facts.errors.is_empty() {
                facts.errors.push(refused(&error));
            }
            return Ok(());
        }
    };
    let mut seated: Vec<ListedToken> = Vec::new();
    for state in [LiveState::InCheckout, LiveState::Admitted] {
        let page = ListTokens {
            state: Some(state),
            limit: Some(SEATED_MAX),
            ..ListTokens::default()
        };
        match line.list_tokens(&page).await {
            Ok(got) => seated.extend(got.tokens),
            Err(error) => facts.errors.push(refused(&error)),
        }
    }
    let journal = match journal(&line).await {
        Ok(entries) => entries,
        Err(error) => {
            facts.errors.push(refused(&error));
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
        Err(error) => facts.errors.push(refused(&error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn line(waiting: u64, held: u64) -> Option<LineSeen> {
        let line = json!({
            "line": "shop-1", "incarnation": 1, "version": 9, "phase": "open", "seats": 5,
            "queue_limit": 10, "waiting": waiting, "admitted": 0, "in_checkout": held, "labels": {},
        });
        LineSeen::new(serde_json::from_value(line).unwrap())
    }

    #[test]
    fn seats_that_are_idle_while_tokens_wait_are_found() {
        assert!(line(0, 0).is_none());
        assert!(line(3, 5).is_none());
        let found = line(3, 4).unwrap().finding().unwrap();
        assert_eq!(found.code, "seats_idle");
        assert!(found.text.contains("3 wait while 1 of 5"), "{}", found.text);
        assert_eq!(found.mend, ["nowserving doctor shop-1"]);
    }

    #[test]
    fn of_many_lines_those_with_the_most_waiting_are_listed() {
        let lines: Vec<LineSeen> = (1..=50).filter_map(|waiting| line(waiting, 0)).collect();
        let found = idle(&lines);
        assert_eq!(found.len(), IDLE_LISTED + 1);
        assert!(found[0].text.contains("50 wait"), "{}", found[0].text);
        assert!(found[20].text.contains("in 30 more lines"));
        assert_eq!(idle(&lines[..2]).len(), 2);
    }

    #[tokio::test]
    async fn an_unreachable_server_is_a_finding() {
        // Port 1 of this machine: nobody listens there.
        let error = Client::connect("nats://127.0.0.1:1").await.err().unwrap();
        let found = unreachable(error.into()).unwrap();
        assert_eq!(found.code, "nats_unreachable");
        let error = Client::connect("nats://a b").await.err().unwrap();
        assert!(unreachable(error.into()).is_err());
    }
}
