//! Why a line does not move.

use std::collections::HashMap;

use nowserving_client::{JournalEntryReply, LaneSettingsReply, LineReply, ListedToken, State};
use nowserving_line::{QUOTA_TOTAL_MAX, SEATS_MAX};
use nowserving_protocol::admin::{QuotaReply, RenewReply};
use nowserving_protocol::time;
use nowserving_words::{duration, typed};

use crate::finding::Finding;
use crate::settings::{lane_typed, scheduled_text};
use crate::words::{key_text, many};

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

/// A line, and a lane, has so many waiting tokens at most.
const QUEUE_LIMIT_MAX: u64 = 10_000_000;

/// Tokens that hold a seat.
#[derive(Clone, Debug, Default)]
pub struct Seated {
    pub tokens: Vec<ListedToken>,
    /// There are more.
    pub more: bool,
}

/// What is known of a line.
#[derive(Clone, Debug)]
pub struct LineFacts {
    pub line: LineReply,
    pub seated: Seated,
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
    found.extend(draw_that_never_is(facts));
    found.extend(gate(facts));
    found.extend(silent_backend(facts));
    found.extend(room(facts));
    found.extend(full_lanes(facts));
    found.extend(schedule(facts));
    found.extend(scheduled_next(facts));
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
        Finding::problem("no_leader", text).run("nowserving cluster status --wait")
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
    match facts.line.held_back_by.by.as_ref() {
        "phase" => Some(phase(facts)),
        "draw" => Some(draw(facts)),
        "quota" => Some(quota(facts)),
        "seats" => Some(seats(facts)),
        "called" => Some(
            Finding::note(
                "called",
                "the line admits nobody by itself (admission: called), and nobody is called",
            )
            .run(format!("nowserving line call-next {name}"))
            .run(format!("nowserving line set {name} --admission auto")),
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
    found.run(format!("nowserving line open {name}"))
}

/// A line is drawn if it waits for its opening, and only once.
fn draw_that_never_is(facts: &LineFacts) -> Option<Finding> {
    let line = &facts.line;
    let is_wanted = line.settings.opening == "draw" && line.draw.is_none();
    let is_open = matches!(line.board.phase.as_str(), "open" | "draining");
    let text = "the line's opening is a draw, and it has opened without one: it was not in phase pre_open before";
    (is_wanted && is_open).then(|| {
        Finding::note("draw_unused", text)
            .run(format!("nowserving line set {} --opening order", line.line))
    })
}

/// It ends by itself.
fn draw(facts: &LineFacts) -> Finding {
    let draw = facts.line.draw.as_ref();
    let drawn = draw.and_then(|it| Some((it.drawn?, it.took_part?)));
    let text = match drawn {
        Some((drawn, took_part)) => format!(
            "the line draws the order of those who waited for its opening: {drawn} of {took_part} are drawn, and \
             nobody is admitted before all are"
        ),
        None => {
            "the line has opened, and waits for the seed of its draw, which its leader brings in"
                .to_owned()
        }
    };
    Finding::note("draw", text)
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
    let (held, seats) = (held(line), u64::from(line.board.seats));
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
    Some(found.run(format!("nowserving line set {} --gate on", line.line)))
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
    let found = found.detail(units(&facts.line, total));
    let found = match facts.line.quota_renews_at_ms {
        Some(at_ms) => found.detail(format!("it is renewed at {}", time::text(at_ms))),
        None => found,
    };
    let more = total.saturating_mul(2).clamp(1, QUOTA_TOTAL_MAX);
    let rest = quota.map_or_else(String::new, rest_of_quota);
    found.run(format!("nowserving line set {name} --quota {more}{rest}"))
}

/// What became of the units of a quota that is used up, and whether some return.
fn units(line: &LineReply, total: u64) -> String {
    let used = line.quota_used.unwrap_or(0);
    if used >= total {
        return format!("{used} are used: no unit returns");
    }
    format!(
        "{used} are used, and {} held: units return if a seat expires, is left or is kicked, or completes with fewer \
         than it has reserved",
        match held(line) {
            1 => "1 seat is".to_owned(),
            held => format!("{held} seats are"),
        }
    )
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
            let every = typed(*every_ms);
            words.push_str(&format!(" --quota-renew {every}"));
        }
        None => {}
    }
    if quota.per_visit > 1 {
        words.push_str(&format!(" --quota-per-visit {}", quota.per_visit));
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
    found.run(format!("nowserving line set {name} --unset admission_rate"))
}

/// Every seat is held: by whom and since when.
fn seats(facts: &LineFacts) -> Finding {
    let line = &facts.line;
    let (name, board) = (&line.line, &line.board);
    if board.seats == 0 {
        let text = "the line has 0 seats: the backend told so, or its silence set them";
        return more_seats(Finding::note("no_seats", text), line);
    }
    let all = match board.seats {
        1 => "the only seat is held".to_owned(),
        seats => format!("all {seats} seats are held"),
    };
    let over = match held(line).saturating_sub(board.seats.into()) {
        0 => String::new(),
        over => format!(", and {over} over the limit"),
    };
    let text = format!(
        "{all}{over}: {} admitted and not claimed, {} in checkout",
        board.admitted, board.in_checkout
    );
    let mut found = Finding::note("seats", text);
    let holders = holders(facts);
    if facts.seated.more {
        let seen = facts.seated.tokens.len();
        found = found.detail(format!("of the first {seen} holders, in order of number:"));
    }
    found.details.extend(holders.iter().map(Holder::text));
    let unclaimed = board.admitted * 2 > held(line);
    let timeout_ms = line.settings.claim_timeout_ms;
    if unclaimed {
        let timeout = duration(timeout_ms);
        found = found.detail(format!(
            "most holders have not claimed theirs: such a seat is free again after {timeout}"
        ));
    }
    let state = if unclaimed { "admitted" } else { "in_checkout" };
    let found = found.run(format!("nowserving line tokens {name} --state {state}"));
    let found = more_seats(found, line);
    // Of those who are admitted from now on; so it is not the first.
    let found = match unclaimed && timeout_ms > SHORT_CLAIM_TIMEOUT_MS {
        true => found.run_if(
            format!("nowserving line set {name} --claim-timeout 30s"),
            "for those who are admitted from now on",
        ),
        false => found,
    };
    if holders.is_empty() {
        return found;
    }
    let tokens = holders.iter().map(|it| it.token);
    let tokens = tokens.map(|it| format!(" --token {}:{}", it.lane, it.token));
    found.run_if(
        // Most of them are people who shop: to paste it does no harm.
        format!(
            "nowserving line kick {name}{} --dry-run",
            tokens.collect::<String>()
        ),
        "without --dry-run it ends these holders: only if nobody is behind them any more",
    )
}

/// What a backend has told goes before the setting.
fn more_seats(found: Finding, line: &LineReply) -> Finding {
    let name = &line.line;
    match line.capacity_told {
        Some(_) if u64::from(line.settings.seats) > held(line).max(line.board.seats.into()) => {
            found.run(format!("nowserving line capacity {name} --forget"))
        }
        Some(_) => found.advise(format!(
            "look after the service that tells the capacity of {name}"
        )),
        None => {
            // One more than are held, if more are held than there are.
            let least = u32::try_from(held(line))
                .unwrap_or(SEATS_MAX)
                .saturating_add(1);
            let seats = line.board.seats.saturating_mul(2).max(least).min(SEATS_MAX);
            found.run(format!("nowserving line set {name} --seats {seats}"))
        }
    }
}

/// How many seats are held: more than there are, after they were lowered or while the gate held nobody back.
fn held(line: &LineReply) -> u64 {
    line.board.admitted + line.board.in_checkout
}

/// A token that holds a seat.
struct Holder<'a> {
    token: &'a ListedToken,
    /// How long it has its seat, if that is known.
    held_ms: Option<u64>,
}

/// Those that hold their seats for longest. The time of an admission is known from the journal; from the time that is
/// left it could not be told, as that begins with the setting of another time.
fn holders(facts: &LineFacts) -> Vec<Holder<'_>> {
    let admitted = facts.journal.iter().filter_map(|entry| {
        let admits = matches!(entry.what.as_str(), "admitted" | "taken");
        let (lane, token) = (entry.lane.as_ref()?, entry.token?);
        admits.then_some(((lane, token), entry.at_ms))
    });
    let admitted: HashMap<_, u64> = admitted.collect();
    let holder = |token| {
        let it: &ListedToken = token;
        let at_ms = admitted.get(&(&it.lane, it.token));
        let admitted_ago = at_ms.map(|at_ms| facts.at_ms.saturating_sub(*at_ms));
        let held_ms = it.claimed_ago_ms.or(admitted_ago);
        Holder { token, held_ms }
    };
    let mut holders: Vec<Holder<'_>> = facts.seated.tokens.iter().map(holder).collect();
    // Of unknown times, the seat that is free again first is held for longest.
    holders.sort_by_key(|it| (std::cmp::Reverse(it.held_ms), it.token.expires_in_ms));
    holders.truncate(HOLDERS_LISTED);
    holders
}

impl Holder<'_> {
    fn text(&self) -> String {
        let token = self.token;
        let since = self.held_ms.map(duration);
        let since = since.map_or(String::new(), |since| format!(" for {since}"));
        let left = token.expires_in_ms.map(duration);
        let (state, until) = match token.state {
            State::InCheckout => ("in checkout", "renewed"),
            _ => ("admitted", "claimed"),
        };
        let left = left.map_or(String::new(), |left| {
            format!("; free again in {left} unless {until}")
        });
        let key = token.key.as_ref().map(key_text);
        let key = key.map_or(String::new(), |key| format!(" ({key})"));
        format!("{} {}{key}: {state}{since}{left}", token.lane, token.token)
    }
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
            .advise("look after the service that tells the capacity")
            .run(format!("nowserving line capacity {} --forget", line.line)),
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
    let needed = live.saturating_sub(line.board.seats.into());
    let needed = u32::try_from(needed).unwrap_or(u32::MAX);
    Some(
        Finding::warning(code, format!("the line {text} ({live} of {most})"))
            .detail(format!(
                "{} refused as full so far",
                many(refused, "request")
            ))
            .run(format!(
                "nowserving line set {} --queue-limit {}",
                line.line,
                // Room for all who are in the line, and as many again.
                doubled(needed.max(line.settings.queue_limit))
            )),
    )
}

fn doubled(queue_limit: u32) -> u64 {
    (u64::from(queue_limit) * 2).clamp(1, QUEUE_LIMIT_MAX)
}

/// Lanes with a limit of their own that is reached, while the line may have room.
fn full_lanes(facts: &LineFacts) -> Vec<Finding> {
    let line = &facts.line;
    let lanes = &line.settings.lanes;
    let is_full = |lane: &&LaneSettingsReply| {
        let mut boards = line.board.lanes.iter();
        let board = boards.find(|it| it.lane == lane.name);
        let limit = lane.queue_limit.map(u64::from);
        board
            .zip(limit)
            .is_some_and(|(board, limit)| board.waiting >= limit)
    };
    if has_open_gate(line) {
        return Vec::new();
    }
    let full = lanes.iter().filter(is_full);
    full.map(|lane| {
        let limit = lane.queue_limit.unwrap_or_default();
        let name = &lane.name;
        let text = format!("lane {name} is full: it takes {limit} waiting");
        let wider = lanes.iter().map(|it| match it.name == lane.name {
            true => LaneSettingsReply {
                queue_limit: u32::try_from(doubled(limit)).ok(),
                ..it.clone()
            },
            false => it.clone(),
        });
        let wider = wider.map(|it| format!(" --lane {}", lane_typed(&it)));
        Finding::warning("lane_full", text)
            .detail("newcomers who ask for it are refused with line_full".to_owned())
            .run_if(
                format!(
                    "nowserving line set {}{}",
                    line.line,
                    wider.collect::<String>()
                ),
                "--lane sets all lanes, so all are repeated",
            )
    })
    .collect()
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
    Some(found.run_if(
        format!("nowserving line show {}", facts.line.line),
        "shows the schedule, too",
    ))
}

/// The next change that the line makes by itself.
fn scheduled_next(facts: &LineFacts) -> Option<Finding> {
    let name = &facts.line.line;
    let ahead = facts.line.settings.schedule.iter().filter_map(|change| {
        let at_ms = time::parse(&change.at)?;
        (at_ms > facts.at_ms).then_some((at_ms, change))
    });
    let ahead: Vec<_> = ahead.collect();
    let (at_ms, next) = ahead.iter().min_by_key(|(at_ms, _)| *at_ms)?;
    let text = format!(
        "by its schedule the line changes in {}: {}",
        duration(at_ms - facts.at_ms),
        scheduled_text(next)
    );
    let found = Finding::note("schedule", text);
    let found = match ahead.len() - 1 {
        0 => found,
        more => found.detail(format!("and {} after that", many(more as u64, "change"))),
    };
    Some(
        found
            .run_if(
                format!("nowserving line show {name}"),
                "shows the schedule, too",
            )
            .run_if(
                format!("nowserving line set {name} --unset schedule"),
                format!("removes {} from it", many(ahead.len() as u64, "change")),
            ),
    )
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
