//! Why a line does not move.

use nowserving_client::{JournalEntryReply, LineReply, ListedToken, State};
use nowserving_line::{QUOTA_TOTAL_MAX, SEATS_MAX};
use nowserving_protocol::admin::{QuotaReply, RenewReply};
use nowserving_protocol::time;
use nowserving_rehearse::duration;

use crate::doctor::finding::Finding;
use crate::tables::{self, many};

/// Holders of seats that are listed.
const HOLDERS_LISTED: usize = 5;
/// A line with this share of its room taken is nearly full, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;
/// A time to claim that is no longer needs no shortening.
const SHORT_CLAIM_TIMEOUT_MS: u64 = 30_000;
/// A change that could not be made longer ago is no news.
const DAY_MS: u64 = 86_400_000;
/// Forecasts are judged once there were so many.
const FORECASTS_JUDGED_MIN: u64 = 20;
/// So many of 100 forecasts should have covered the wait.
const P90_COVERED_PERCENT: u64 = 80;

/// What is known of a line.
#[derive(Clone, Debug)]
pub struct LineFacts {
    pub line: LineReply,
    /// Tokens that hold a seat: the first page.
    pub seated: Vec<ListedToken>,
    /// The newest entries of its journal, oldest first.
    pub journal: Vec<JournalEntryReply>,
    /// The wall clock of the node that answered.
    pub at_ms: u64,
}

/// Everything that holds the line back, or soon will.
pub fn findings(facts: &LineFacts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(leader(facts));
    found.extend(deleting(facts));
    found.extend(held_back(facts));
    found.extend(gate(facts));
    found.extend(silent_backend(facts));
    found.extend(room(facts));
    found.extend(schedule(facts));
    found.extend(forecast(facts));
    found
}

fn leader(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    line.leader.is_none().then(|| {
        let text = format!(
            "shard {} has no leader: the line takes no requests",
            line.shard
        );
        Finding::problem("no_leader", text).mend("nowserving cluster status --wait")
    })
}

fn deleting(facts: &LineFacts) -> Option<Finding> {
    let left = facts.line.deleting?;
    let text = format!(
        "the line is being deleted: {} still to be ended",
        many(left, "token")
    );
    Some(Finding::note("deleting", text))
}

/// The reason that the line itself gives for admitting nobody now.
fn held_back(facts: &LineFacts) -> Option<Finding> {
    let name = &facts.line.line;
    match facts.line.held_back_by.by.as_str() {
        "phase" => Some(phase(facts)),
        "quota" => Some(quota(facts)),
        "seats" => Some(seats(facts)),
        "called" => Some(
            Finding::note(
                "called",
                "the line admits nobody by itself (admission: called), and nobody is called",
            )
            .mend(format!("nowserving line call-next {name}"))
            .mend(format!("nowserving line set {name} --admission auto")),
        ),
        "admission_rate" => Some(admission_rate(facts)),
        "nothing" => nobody_waits(facts),
        _ => None,
    }
}

/// Nobody is held back, as nobody waits: perhaps because nobody can enter, or because a newcomer would not be admitted.
fn nobody_waits(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    if line.deleting.is_some() {
        None
    } else if line.board.phase != "open" {
        Some(phase(facts))
    } else {
        let used_up = line.quota_left == Some(0) && !has_open_gate(line);
        used_up.then(|| quota(facts))
    }
}

fn phase(facts: &LineFacts) -> Finding {
    let name = &facts.line.line;
    let phase = &facts.line.board.phase;
    let does = match phase.as_str() {
        "pre_open" => "it issues numbers and admits nobody yet",
        "closed" => "it issues no numbers and admits nobody",
        "draining" => "it issues no numbers, and admits those who wait",
        _ => "it admits nobody",
    };
    let found = Finding::note("phase", format!("the line's phase is {phase}: {does}"));
    let found = match last_change(facts, "phase") {
        Some(who) => found.detail(who),
        None => found,
    };
    let found = match next_opening(facts) {
        Some(at) => found.detail(format!("by its schedule it opens at {at}")),
        None => found,
    };
    found.mend(format!("nowserving line open {name}"))
}

/// Whether the line's gate holds nobody back.
fn has_open_gate(line: &LineReply) -> bool {
    matches!(line.settings.gate.as_str(), "shadow" | "off")
}

/// Nobody is held back, also where there are more people than seats.
fn gate(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    if !has_open_gate(line) {
        return None;
    }
    let gate = line.settings.gate.as_str();
    let (held, seats) = (
        line.board.admitted + line.board.in_checkout,
        u64::from(line.board.seats),
    );
    let text = format!("the line's gate is {gate}: everybody is admitted at once");
    let found = match held > seats {
        true => Finding::warning("gate_over_seats", text).detail(format!(
            "{held} seats are held, {} over the limit",
            held - seats
        )),
        false => Finding::note("gate", text),
    };
    let found = match last_change(facts, "gate") {
        Some(who) => found.detail(who),
        None => found,
    };
    Some(found.mend(format!("nowserving line set {} --gate on", line.line)))
}

/// When, by whom and why a setting was last changed, as far as the journal knows.
fn last_change(facts: &LineFacts, setting: &str) -> Option<String> {
    let changes = |entry: &&JournalEntryReply| {
        let changes = entry.changes.iter().flatten();
        entry.what == "configured" && changes.into_iter().any(|change| change.setting == setting)
    };
    let entry = facts.journal.iter().rev().find(changes)?;
    let ago = duration(facts.at_ms.saturating_sub(entry.at_ms));
    let who = match (&entry.by, entry.scheduled_at_ms) {
        (Some(by), _) => format!(" by {by}"),
        (None, Some(_)) => " by its schedule".to_owned(),
        (None, None) => String::new(),
    };
    let why = entry.reason.as_ref();
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    Some(format!("changed {ago} ago{who}{why}"))
}

fn next_opening(facts: &LineFacts) -> Option<String> {
    let schedule = facts.line.settings.schedule.iter();
    let opens = |set: &serde_json::Value| set.as_str() == Some("open");
    let mut opening = schedule.filter(|change| change.set.get("phase").is_some_and(opens));
    opening.next().map(|change| change.at.clone())
}

fn quota(facts: &LineFacts) -> Finding {
    let name = &facts.line.line;
    let quota = facts.line.settings.quota.as_ref();
    let total = quota.map_or(0, |quota| quota.total);
    let found = Finding::note(
        "quota",
        format!("the quota of {total} is used up: nobody more is admitted"),
    );
    let found = match facts.line.quota_renews_at_ms {
        Some(at_ms) => found.detail(format!("it is renewed at {}", time::text(at_ms))),
        None => found.detail("units return as seats are given back without a completion"),
    };
    let more = total.saturating_mul(2).clamp(1, QUOTA_TOTAL_MAX);
    let rest = quota.map_or_else(String::new, rest_of_quota);
    found.mend(format!("nowserving line set {name} --quota {more}{rest}"))
}

/// The options of a quota beside its total: a new total without them would put them back to their defaults.
fn rest_of_quota(quota: &QuotaReply) -> String {
    let mut words = String::new();
    if quota.standby_percent > 0 {
        words.push_str(&format!(" --standby-percent {}", quota.standby_percent));
    }
    match &quota.renew {
        Some(RenewReply::Daily { at, zone }) => {
            words.push_str(&format!(" --quota-renew '{at} {zone}'"));
        }
        Some(RenewReply::Every { every_ms }) => {
            let every = crate::duration::typed(*every_ms);
            words.push_str(&format!(" --quota-renew {every}"));
        }
        None => {}
    }
    words
}

fn admission_rate(facts: &LineFacts) -> Finding {
    let name = &facts.line.line;
    let rate = facts.line.settings.admission_rate.as_ref();
    let per_second = rate.map(|rate| serde_json::to_string(&rate.per_second).unwrap_or_default());
    let text = format!(
        "the admission rate ({} a second) has no unit left; seats are free",
        per_second.unwrap_or_default()
    );
    let next = facts.line.held_back_by.next_in_ms.map(duration);
    let found = Finding::note("admission_rate", text);
    let found = match next {
        Some(next) => found.detail(format!("the next token is admitted in {next}")),
        None => found,
    };
    found.mend(format!("nowserving line set {name} --unset admission_rate"))
}

/// Every seat is held: by whom and since when.
fn seats(facts: &LineFacts) -> Finding {
    let line = &facts.line;
    let (name, board) = (&line.line, &line.board);
    let text = format!(
        "all {} are held: {} admitted and not claimed, {} in checkout",
        many(board.seats.into(), "seat"),
        board.admitted,
        board.in_checkout
    );
    let mut found = match board.seats {
        0 => Finding::note(
            "no_seats",
            "the line has 0 seats: the backend told so, or its silence set them",
        ),
        _ => Finding::note("seats", text),
    };
    found.details.extend(holders(&facts.seated));
    let unclaimed = board.admitted * 2 > u64::from(board.seats).max(1);
    let timeout_ms = line.settings.claim_timeout_ms;
    if unclaimed {
        let timeout = duration(timeout_ms);
        found = found.detail(format!(
            "most holders have not claimed theirs: such a seat is free again after {timeout}"
        ));
    }
    let state = if unclaimed { "admitted" } else { "in_checkout" };
    let found = found
        .mend(format!("nowserving line tokens {name} --state {state}"))
        .mend(more_seats(line));
    // Of those who are admitted from now on; so the last of the commands.
    match unclaimed && timeout_ms > SHORT_CLAIM_TIMEOUT_MS {
        true => found.mend(format!("nowserving line set {name} --claim-timeout 30s")),
        false => found,
    }
}

/// What a backend has told goes before the setting.
fn more_seats(line: &LineReply) -> String {
    let name = &line.line;
    match line.capacity_told {
        Some(_) if line.settings.seats > line.board.seats => {
            format!("nowserving line capacity {name} --forget")
        }
        Some(_) => format!("look after the service that tells the capacity of {name}"),
        None => {
            let seats = line.board.seats.saturating_mul(2).clamp(1, SEATS_MAX);
            format!("nowserving line set {name} --seats {seats}")
        }
    }
}

/// Those that hold their seats for longest, or keep them for longest.
fn holders(seated: &[ListedToken]) -> Vec<String> {
    let mut oldest: Vec<&ListedToken> = seated.iter().collect();
    oldest.sort_by_key(|token| std::cmp::Reverse(token.claimed_ago_ms));
    let listed = oldest.into_iter().take(HOLDERS_LISTED);
    listed.map(holder).collect()
}

fn holder(token: &ListedToken) -> String {
    let since = match (token.state, token.claimed_ago_ms) {
        (State::InCheckout, Some(ms)) => format!("in checkout for {}", duration(ms)),
        _ => "admitted, not claimed".to_owned(),
    };
    let left = token.expires_in_ms.map(duration);
    let left = left.map_or(String::new(), |left| {
        format!("; expires in {left} unless renewed")
    });
    let key = token.key.as_ref().map(tables::key_text);
    let key = key.map_or(String::new(), |key| format!(" ({key})"));
    format!("{} {}{key}: {since}{left}", token.lane, token.token)
}

fn silent_backend(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    let told = line.capacity_told.as_ref().filter(|told| told.silent)?;
    let found = Finding::warning(
        "backend_silent",
        format!(
            "the backend that tells the line's seats is silent; it told {} last",
            told.seats
        ),
    );
    let found = found.detail(match line.settings.seats_when_silent {
        Some(seats) => format!(
            "the line has {} meanwhile (seats_when_silent)",
            many(seats.into(), "seat")
        ),
        None => "what it told last stays in force".to_owned(),
    });
    Some(
        found
            .mend("look after the service that tells the capacity")
            .mend(format!("nowserving line capacity {} --forget", line.line)),
    )
}

/// Newcomers are refused, or soon will be. While the gate holds nobody back, seats and queue do not bound the line.
fn room(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    if has_open_gate(line) {
        return None;
    }
    let live = line.counts.waiting + line.counts.admitted + line.counts.in_checkout;
    let most = u64::from(line.settings.queue_limit) + u64::from(line.board.seats);
    let (text, code) = match live {
        _ if most == 0 || live * 100 < most * NEARLY_FULL_PERCENT => return None,
        _ if live >= most => ("is full: newcomers are refused with line_full", "line_full"),
        _ => ("is nearly full", "line_nearly_full"),
    };
    let refused = line
        .counts
        .refused
        .get("line_full")
        .copied()
        .unwrap_or_default();
    Some(
        Finding::warning(code, format!("the line {text} ({live} of {most})"))
            .detail(format!(
                "{} refused as full so far",
                many(refused, "request")
            ))
            .mend(format!(
                "nowserving line set {} --queue-limit {}",
                line.line,
                u64::from(line.settings.queue_limit)
                    .saturating_mul(2)
                    .clamp(1, 10_000_000)
            )),
    )
}

fn schedule(facts: &LineFacts) -> Option<Finding> {
    let failed = facts
        .journal
        .iter()
        .rev()
        .take_while(|it| facts.at_ms.saturating_sub(it.at_ms) < DAY_MS)
        .find(|it| it.what == "schedule_failed")?;
    let at = failed.scheduled_at_ms.map(time::text).unwrap_or_default();
    let text = format!("the scheduled change of {at} could not be made");
    let found = Finding::warning("schedule_failed", text);
    Some(found.mend(format!(
        "nowserving line show {} --json | jq .settings.schedule",
        facts.line.line
    )))
}

fn forecast(facts: &LineFacts) -> Option<Finding> {
    let record = &facts.line.forecast;
    let covered = record.p90_covered * 100 < record.judged * P90_COVERED_PERCENT;
    (record.judged >= FORECASTS_JUDGED_MIN && covered).then(|| {
        let percent = record.p90_covered * 100 / record.judged;
        let text = format!(
            "forecasts are off: eta_p90_ms covered {percent} % of {} waits",
            record.judged
        );
        Finding::warning("forecast_off", text)
            .detail("after a change of seats or rate, forecasts need some departures to follow")
    })
}
