//! Answers as text for people.

mod cluster;
mod journal;

use std::collections::BTreeMap;

use comfy_table::{Cell, Color};
use nowserving_client::{
    BoardReply, CallbackReply, CountsReply, DrawReply, ForecastReply, InfoReply, LineList,
    LineReply, State, StatusReply,
};
use nowserving_insight::settings;
pub use nowserving_insight::settings::scheduled_text as scheduled;
pub use nowserving_insight::words::{
    MAX_PAYLOAD_USUAL, held_back, key_text, lags, many, other_cluster, ranges, why_held_back,
};
pub use nowserving_rehearse::duration;

pub use self::cluster::{caught_up, cluster, last_heard, members_changes, node_state};
pub use self::journal::{changes, clock, created, journal, what as journaled};
use nowserving_protocol::time;
use nowserving_terminal::output::Output;
pub use nowserving_terminal::sheet::{Sheet, number, plain};
use serde_json::Value;

/// An operator's text in one line: escaped is what could change the terminal.
pub fn in_one_line(text: &str) -> String {
    let shown = |c: char| match c {
        '\'' | '"' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

fn state_color(state: State) -> Color {
    match state {
        State::Waiting => Color::Yellow,
        State::Admitted | State::InCheckout => Color::Green,
        State::Gone => Color::DarkGrey,
    }
}

/// A token's status.
pub fn status(status: &StatusReply, output: &Output) -> String {
    let mut sheet = Sheet::pairs(output);
    sheet.pair("line", status.line.as_str());
    sheet.pair("lane", status.lane.as_str());
    sheet.pair("token", status.token);
    let state = Cell::new(status.state.as_str()).fg(state_color(status.state));
    sheet.row(vec![Cell::new("state"), state]);
    sheet.optional("position", position(status));
    let ahead = status.ahead.filter(|_| !status.position_capped);
    sheet.optional("ahead", ahead);
    sheet.optional("turn", status.turn);
    sheet.optional("phase", status.phase.as_ref());
    let held_back = status.held_back_by.as_ref().map(why_held_back);
    sheet.optional("held back by", held_back);
    sheet.optional("epoch", status.epoch);
    sheet.optional("call ahead", status.call_ahead.then_some("prepare now"));
    let guess = by_guess(status.eta_from.as_deref());
    let eta = status.eta_ms.flatten();
    sheet.optional("eta", eta.map(|ms| format!("{}{guess}", duration(ms))));
    sheet.optional("eta p90", status.eta_p90_ms.flatten().map(duration));
    sheet.optional("expires in", status.expires_in_ms.map(duration));
    sheet.optional("units reserved", status.units);
    sheet.optional("reason", status.reason.as_ref());
    sheet.pair("admitted through", status.admitted_through);
    sheet.pair("version", status.version);
    sheet.optional("ticket", status.ticket.as_ref());
    let pass_lasts = status.pass_expires_in_ms.map(duration);
    sheet.optional("pass expires in", pass_lasts);
    sheet.optional("pass", status.pass.as_ref().map(|pass| pass.as_str()));
    sheet.text()
}

/// What to say after a forecast that is no measurement.
pub fn by_guess(eta_from: Option<&str>) -> &'static str {
    match eta_from {
        Some("expected") => " (by the operator's guess)",
        _ => "",
    }
}

/// The answer to a callback.
pub fn callback(reply: &CallbackReply, output: &Output) -> String {
    let mut sheet = Sheet::pairs(output);
    sheet.pair("line", reply.line.as_str());
    sheet.optional("room", reply.room.then_some("enter now"));
    sheet.optional("position", reply.position);
    sheet.pair("version", reply.version);
    sheet.text()
}

/// Where a token stands, in one line.
pub fn place_line(status: &StatusReply) -> String {
    let mut text = format!("token {} {}", status.token, status.state.as_str());
    if let Some(position) = position(status) {
        text.push_str(&format!(", position {position}"));
    }
    if let Some(ahead) = status.ahead.filter(|_| !status.position_capped) {
        text.push_str(&format!(" ({ahead} ahead)"));
    }
    // In a line with one lane, or without others that go first, it says nothing new.
    if let Some(turn) = status.turn.filter(|turn| Some(*turn) != status.position) {
        text.push_str(&format!(", turn {turn}"));
    }
    if status.call_ahead {
        text.push_str(", called ahead");
    }
    if let Some(ms) = status.expires_in_ms {
        text.push_str(&format!(", for {}", duration(ms)));
    }
    if let Some(reason) = &status.reason {
        text.push_str(&format!(", {reason}"));
    }
    format!("{text}, version {}", status.version)
}

/// `8`; past a cap of 100, `100+`.
fn position(status: &StatusReply) -> Option<String> {
    let plus = if status.position_capped { "+" } else { "" };
    status.position.map(|position| format!("{position}{plus}"))
}

/// A board, in one line.
pub fn board_line(board: &BoardReply) -> String {
    let mut text = format!("{}, version {}", seats(board), board.version);
    for lane in &board.lanes {
        text.push_str(&format!(
            "; {}: {} waiting, next {}, done through {}, admitted through {}, accepts through {}",
            lane.lane.as_str(),
            lane.waiting,
            lane.next_token,
            lane.done_through,
            lane.admitted_through,
            lane.accepts_through,
        ));
    }
    text
}

fn seats(board: &BoardReply) -> String {
    format!(
        "{} {}: {} of {} seats held ({} in checkout, {} admitted)",
        board.line.as_str(),
        board.phase,
        board.admitted + board.in_checkout,
        board.seats,
        board.in_checkout,
        board.admitted,
    )
}

/// A board: the seats, then the pointers lane by lane.
pub fn board(board: &BoardReply, output: &Output) -> String {
    let header = "lane, waiting, done\nthrough, admitted\nthrough, accepts\nthrough, next\ntoken";
    let mut sheet = Sheet::new(header, output);
    for lane in &board.lanes {
        let numbers = [
            lane.waiting,
            lane.done_through,
            lane.admitted_through,
            lane.accepts_through,
            lane.next_token,
        ];
        let name = Cell::new(lane.lane.as_str());
        sheet.row(std::iter::once(name).chain(numbers.map(number)).collect());
    }
    format!(
        "{}, version {}\n{}",
        seats(board),
        board.version,
        sheet.text()
    )
}

/// A board and what users may see of the settings.
pub fn info(info: &InfoReply, output: &Output) -> String {
    let settings = serde_json::to_value(&info.settings).unwrap_or_default();
    let draw = info.draw.as_ref().map(|it| format!("\n{}", draw(it)));
    format!(
        "{}\n{}\n{}{}\n{}",
        board(&info.board, output),
        held_back(&info.held_back_by),
        home(info.shard, info.leader),
        draw.unwrap_or_default(),
        settings_table(&settings, output)
    )
}

fn home(shard: u32, leader: Option<u64>) -> String {
    match leader {
        Some(leader) => format!("shard {shard}, led by node {leader}"),
        None => format!("shard {shard}, no leader known"),
    }
}

/// Every setting under the name of its flag, in the form that the flag takes.
fn settings_table(values: &Value, output: &Output) -> String {
    let mut sheet = Sheet::pairs(output);
    for (name, value) in values.as_object().into_iter().flatten() {
        sheet.pair(settings::shown_name(name), settings::text(name, value));
    }
    sheet.text()
}

/// A line as an operator sees it.
pub fn line(line: &LineReply, output: &Output) -> String {
    let mut settings = serde_json::to_value(&line.settings).unwrap_or_default();
    if let (None, Some(first)) = (&line.settings.default_lane, &line.default_lane) {
        settings["default_lane"] = format!("{first} (the first)").into();
    }
    let mut text = board(&line.board, output);
    text.push_str(&format!("\n{}", held_back(&line.held_back_by)));
    text.push_str(&format!("\n{}", home(line.shard, line.leader)));
    if let Some(remaining) = line.deleting {
        text.push_str(&format!(
            "\nbeing deleted: {} still to be ended",
            many(remaining, "token")
        ));
    }
    text.push_str(&capacity_told(line));
    text.push_str(&gate(line));
    if let Some(it) = &line.draw {
        text.push_str(&format!("\n{}", draw(it)));
    }
    text.push_str(&quota(line));
    text.push_str(&counts(&line.counts));
    text.push_str(&forecast(&line.forecast));
    format!(
        "{text}\n{}\nsettings version {}, incarnation {}",
        settings_table(&settings, output),
        line.settings_version,
        line.incarnation
    )
}

/// The seats that a backend told, if one did.
fn capacity_told(line: &LineReply) -> String {
    let Some(told) = &line.capacity_told else {
        return String::new();
    };
    let until = match told.silent {
        true => "it is silent".to_owned(),
        false => format!("for {} more", duration(told.expires_in_ms)),
    };
    format!(
        "\nthe backend told {}; {until}",
        many(told.seats.into(), "seat")
    )
}

/// That nobody is held back, and whom the line would have held back.
fn gate(line: &LineReply) -> String {
    let mut text = match line.settings.gate.as_str() {
        "off" => "\nthe gate is off: everybody is admitted at once".to_owned(),
        "shadow" => "\nthe gate is a shadow: everybody is admitted at once, and counted".to_owned(),
        _ => String::new(),
    };
    if let Some(shadow) = &line.shadow {
        text.push_str(&format!(
            "\nas a shadow: {} admitted, {} would have waited, {} would have been refused; {} over the seats now, {} at most",
            shadow.admitted,
            shadow.held_back,
            shadow.refused,
            shadow.over_seats,
            shadow.over_seats_max,
        ));
    }
    if let Some(imported) = &line.imported {
        let (rows, entered) = (many(imported.rows, "row"), imported.entered);
        text.push_str(&format!(
            "\nimport {}: {rows} done, {entered} entered",
            imported.import_id
        ));
    }
    text
}

/// The draw at the opening, and what proves it.
pub fn draw(draw: &DrawReply) -> String {
    let part = |name: &str, value: &Option<String>| {
        let shown = value
            .as_ref()
            .map(|value| format!("\ndraw {name}: {value}"));
        shown.unwrap_or_default()
    };
    let state = match (draw.state.as_ref(), draw.took_part, draw.drawn) {
        ("awaited", _, _) => "those who wait are drawn when the line opens".to_owned(),
        ("running", Some(took_part), Some(drawn)) => format!("{drawn} of {took_part} are drawn"),
        (state, Some(took_part), _) => format!("{state}, {took_part} took part"),
        (state, _, _) => state.to_owned(),
    };
    [
        format!("draw: {state}"),
        part("commitment", &draw.commitment),
        part("seed", &draw.seed),
        part("beacon", &draw.beacon),
        part("digest", &draw.digest),
    ]
    .concat()
}

/// What is left of the quota, and when it is renewed.
fn quota(line: &LineReply) -> String {
    let left = line.quota_left.map(|left| {
        let renewed = line.quota_renews_at_ms.map(time::text);
        let renewed = renewed.map_or(String::new(), |at| format!("; renewed at {at}"));
        format!("\nquota: {left} left{renewed}")
    });
    left.unwrap_or_default()
}

/// The numbers issued, and the tokens gone by reason and by the state that they left.
fn counts(counts: &CountsReply) -> String {
    let words = |counts: &BTreeMap<String, u64>| {
        let counted = counts.iter().filter(|(_, count)| **count > 0);
        let words: Vec<_> = counted.map(|(of, count)| format!("{count} {of}")).collect();
        words.join(", ")
    };
    let mut text = format!("\n{} issued", many(counts.issued, "number"));
    if counts.drawn > 0 {
        text.push_str(&format!(", {} replaced by the draw", counts.drawn));
    }
    let gone = words(&counts.gone);
    if !gone.is_empty() {
        text.push_str(&format!("; gone: {gone}"));
    }
    for state in ["waiting", "admitted", "in_checkout"] {
        let gone = counts.gone_from.get(state).map(words).unwrap_or_default();
        if !gone.is_empty() {
            text.push_str(&format!("\ngone from {state}: {gone}"));
        }
    }
    let refused = words(&counts.refused);
    if !refused.is_empty() {
        text.push_str(&format!("\nentrants refused: {refused}"));
    }
    text
}

/// The accuracy of the forecasts; empty before the first one was given.
fn forecast(record: &ForecastReply) -> String {
    let told = record.told + record.told_expected;
    if told == 0 {
        return String::new();
    }
    let percent = |part: u64, of: u64| format!("{} %", part * 100 / of);
    let percent_told = percent(told, told + record.untold);
    let mut told = format!("\nforecasts: told to {percent_told} of those who had to wait");
    if record.told_expected > 0 {
        let guessed = record.told_expected;
        told.push_str(&format!(", to {guessed} by the operator's guess"));
    }
    if record.judged == 0 {
        return format!("{told}; none judged yet");
    }
    let within_15: u64 = record.off_by_percent.iter().take(2).sum();
    format!(
        "{told}; {} with a measured one were admitted since: for {} it was right by 15 %, {} waited no \
         longer than the p90",
        record.judged,
        percent(within_15, record.judged),
        percent(record.p90_covered, record.judged),
    )
}

/// A list of lines.
pub fn lines(list: &LineList, output: &Output) -> String {
    let header = "line, phase, seats, queue limit, waiting, admitted, in checkout, labels";
    let mut sheet = Sheet::new(header, output);
    for line in &list.lines {
        let labels: Vec<String> = line
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        sheet.row(vec![
            Cell::new(line.line.as_str()),
            Cell::new(&line.phase),
            number(line.seats),
            number(line.queue_limit),
            number(line.waiting),
            number(line.admitted),
            number(line.in_checkout),
            Cell::new(labels.join(", ")),
        ]);
    }
    let mut text = sheet.text();
    if list.lines.is_empty() {
        text = "no lines".to_owned();
    }
    if let Some(next) = &list.next {
        text.push_str(&format!("\nmore with --after {next}"));
    }
    text
}

#[cfg(test)]
mod tests;
