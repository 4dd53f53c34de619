//! Answers as text for people.

mod journal;
mod settings;

use std::collections::BTreeMap;

use comfy_table::{Attribute, Cell, CellAlignment, Color, Table, TableStyle, presets};
use nowserving_client::{
    BoardReply, ClusterStatus, ForecastReply, HeldBackReply, InfoReply, LineList, LineReply,
    Mapping, MembersChangesReply, NodeStatus, State, StatusReply,
};
use nowserving_rehearse::duration;

pub use self::journal::journal;
use self::settings::settings_table;
use crate::output::Output;

/// A table in the one style of this program: numbers to the right. Styles of cells are dropped where
/// there are no colours.
struct Sheet(Table);

/// Rows of plain words under a header.
pub fn plain(header: &str, rows: Vec<Vec<String>>, output: &Output) -> String {
    let mut sheet = Sheet::new(header, output);
    for row in rows {
        sheet.row(row.into_iter().map(Cell::new).collect());
    }
    sheet.text()
}

impl Sheet {
    /// `header`: the names of the columns, with `, ` between them.
    fn new(header: &str, output: &Output) -> Sheet {
        let mut sheet = Sheet::styled(presets::UTF8_BORDERS_ONLY, output);
        let bold = |text| Cell::new(text).add_attribute(Attribute::Bold);
        sheet.0.set_header(header.split(", ").map(bold));
        sheet
    }

    /// Names and values, without a header.
    fn pairs(output: &Output) -> Sheet {
        Sheet::styled(presets::NOTHING, output)
    }

    fn styled(style: TableStyle, output: &Output) -> Sheet {
        let mut table = Table::new();
        // Whether stdout may be coloured is decided by `Output`, for all output alike.
        table.load_style(style).force_no_tty();
        if output.colour {
            table.enforce_styling();
        }
        Sheet(table)
    }

    fn row(&mut self, cells: Vec<Cell>) {
        self.0.add_row(cells);
    }

    fn pair(&mut self, name: &str, value: impl ToString) {
        self.row(vec![Cell::new(name), Cell::new(value)]);
    }

    fn optional(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.pair(name, value);
        }
    }

    fn text(self) -> String {
        self.0.trim_fmt()
    }
}

fn number(value: impl ToString) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
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
    sheet.optional("epoch", status.epoch);
    sheet.optional("call ahead", status.call_ahead.then_some("prepare now"));
    sheet.optional("eta", status.eta_ms.flatten().map(duration));
    sheet.optional("eta p90", status.eta_p90_ms.flatten().map(duration));
    sheet.optional("expires in", status.expires_in_ms.map(duration));
    sheet.optional("reason", status.reason.as_ref());
    sheet.pair("admitted through", status.admitted_through);
    sheet.pair("version", status.version);
    sheet.optional("ticket", status.ticket.as_ref());
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
    format!(
        "{}\n{}\n{}\n{}",
        board(&info.board, output),
        held_back(&info.held_back_by),
        home(info.shard, info.leader),
        settings_table(&settings, output)
    )
}

/// The reason why nobody is admitted now.
pub fn held_back(held_back: &HeldBackReply) -> String {
    let why = match held_back.by.as_str() {
        "nothing" => "nothing, nobody waits".to_owned(),
        "phase" => {
            let phase = held_back.phase.as_deref().unwrap_or("unknown");
            format!("the phase, {phase}")
        }
        "quota" => "the quota, no unit is left".to_owned(),
        "seats" => "the seats, all are held".to_owned(),
        "admission_rate" => {
            let in_ms = held_back.next_in_ms.unwrap_or_default();
            format!("the admission rate, next in {}", duration(in_ms))
        }
        "admitting" => "nothing, those who wait are being admitted".to_owned(),
        other => other.to_owned(),
    };
    format!("held back by: {why}")
}

fn home(shard: u32, leader: Option<u64>) -> String {
    match leader {
        Some(leader) => format!("shard {shard}, led by node {leader}"),
        None => format!("shard {shard}, no leader known"),
    }
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
    let gone: Vec<String> = line
        .counts
        .gone
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let issued = many(line.counts.issued, "number");
    text.push_str(&format!("\n{issued} issued"));
    if !gone.is_empty() {
        text.push_str(&format!("; gone: {}", gone.join(", ")));
    }
    text.push_str(&forecast(&line.forecast));
    format!(
        "{text}\n{}\nsettings version {}, incarnation {}",
        settings_table(&settings, output),
        line.settings_version,
        line.incarnation
    )
}

/// The accuracy of the forecasts; empty before the first one was given.
fn forecast(record: &ForecastReply) -> String {
    if record.told == 0 {
        return String::new();
    }
    let percent = |part: u64, of: u64| format!("{} %", part * 100 / of);
    let told = percent(record.told, record.told + record.untold);
    let told = format!("\nforecasts: told to {told} of those who had to wait");
    if record.judged == 0 {
        return format!("{told}; none judged yet");
    }
    let within_15: u64 = record.off_by_percent.iter().take(2).sum();
    format!(
        "{told}; {} of these were admitted since: for {} it was right by 15 %, {} waited no longer \
         than the p90",
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

/// The problems, the nodes, then the shards by leader.
pub fn cluster(status: &ClusterStatus, output: &Output) -> String {
    let header = "node, state, votes in, last heard, leads, version, metrics";
    let mut nodes = Sheet::new(header, output);
    for node in &status.nodes {
        let (word, color) = match (node.alive, &node.refused) {
            (true, _) if node.disk_full => ("disk full", Color::Red),
            (true, _) if node.leaving => ("leaving", Color::Yellow),
            (true, _) if node.joining_in > 0 => ("joining", Color::Yellow),
            (true, _) if node.drained => ("drained", Color::Yellow),
            (true, _) if node.refuses_snapshots > 0 => ("refuses a snapshot", Color::Red),
            (true, _) => ("alive", Color::Green),
            (false, Some(_)) => ("refused", Color::Red),
            (false, None) => ("silent", Color::Red),
        };
        nodes.row(vec![
            number(node.id),
            Cell::new(word).fg(color),
            number(u64::from(node.votes_in)),
            Cell::new(last_heard(node, status.answered_by)),
            number(node.leads),
            Cell::new(node.version.as_deref().unwrap_or("-")),
            Cell::new(node.metrics_addr.as_deref().unwrap_or("-")),
        ]);
    }
    let mut leaders: BTreeMap<Option<u64>, Vec<u32>> = BTreeMap::new();
    for shard in &status.shards {
        leaders.entry(shard.leader).or_default().push(shard.shard);
    }
    let mut shards = Sheet::new("leader, shards", output);
    for (leader, numbers) in &leaders {
        let leader = match leader {
            Some(id) => Cell::new(format!("node {id}")),
            None => Cell::new("none").fg(Color::Red),
        };
        shards.row(vec![leader, Cell::new(ranges(numbers))]);
    }
    let mut text = String::new();
    if let Some(numbers) = leaders.get(&None) {
        let ranges = ranges(numbers);
        text.push_str(&format!(
            "without a leader, so that their lines are not served: shards {ranges}\n"
        ));
    }
    text.push_str(&format!(
        "cluster {}, {}, as node {} sees it\n",
        status.cluster,
        many(status.lines, "line"),
        status.answered_by,
    ));
    for node in &status.nodes {
        if let Some(reason) = &node.refused {
            text.push_str(&format!("node {} is refused: {reason}\n", node.id));
        }
    }
    for shard in status.shards.iter().filter(|s| !s.differs.is_empty()) {
        let nodes: Vec<String> = shard.differs.iter().map(u64::to_string).collect();
        text.push_str(&format!(
            "shard {}: the state of node {} differs from that of node {}; see the logs of both\n",
            shard.shard,
            nodes.join(", "),
            status.answered_by
        ));
    }
    text.push_str(&members(status));
    text.push_str(&mapping(status));
    text + &nodes.text() + "\n" + &shards.text()
}

/// A change in progress, the nodes that ask to be added, and the command that adds them.
fn members(status: &ClusterStatus) -> String {
    let members = &status.members;
    let silent = status
        .nodes
        .iter()
        .filter(|node| !node.alive && !node.leaving);
    let silent: Vec<u64> = silent.map(|node| node.id).collect();
    let mut text = String::new();
    if members.shards_changing > 0 {
        let shards = many(members.shards_changing.into(), "shard");
        text.push_str(&format!("members are changing: {shards} to go\n"));
    }
    for it in &members.candidates {
        let was = it.node.map(|id| format!(", configured as node {id},"));
        text.push_str(&format!(
            "a node with disk {}{} asks to be added: {}\n",
            it.disk,
            was.unwrap_or_default(),
            it.reason
        ));
        let replaced = it.node.map_or_else(|| silent.clone(), |id| vec![id]);
        for id in replaced {
            text.push_str(&format!(
                "  nowserving cluster replace-node {id} {}\n",
                it.disk
            ));
        }
        if it.node.is_none() {
            text.push_str(&format!("  nowserving cluster add-node {}\n", it.disk));
        }
    }
    text
}

/// The newest changes of the members.
pub fn members_changes(reply: &MembersChangesReply, output: &Output) -> String {
    let mut sheet = Sheet::new("version, at, change, node, disk, by, reason", output);
    for it in &reply.changes {
        let text = |text: &Option<String>| Cell::new(text.as_deref().unwrap_or("-"));
        let request = &it.request;
        sheet.row(vec![
            number(it.members_version),
            Cell::new(journal::clock(it.at_ms)),
            Cell::new(&it.op),
            Cell::new(
                request
                    .node
                    .map_or_else(|| "-".to_owned(), |id| id.to_string()),
            ),
            Cell::new(
                request
                    .disk
                    .map_or_else(|| "-".to_owned(), |disk| disk.to_string()),
            ),
            text(&request.by),
            text(&request.reason),
        ]);
    }
    match reply.changes.is_empty() {
        true => "no changes".to_owned(),
        false => sheet.text(),
    }
}

/// The problem with the mapping of plain requests, and the line that solves it.
fn mapping(status: &ClusterStatus) -> String {
    let what = match status.mapping {
        Some(Mapping::Missing) => {
            "has no mapping: while a node stands still, plain requests that NATS gives to it are lost"
        }
        Some(Mapping::Wrong) => "has a wrong mapping: plain requests are refused or lost",
        Some(Mapping::Ok) | None => return String::new(),
    };
    let line = status.mapping_line.as_deref().unwrap_or_default();
    format!(
        "the NATS server of node {} {what}; its configuration should have\n  {line}\n",
        status.answered_by
    )
}

fn last_heard(node: &NodeStatus, answered_by: u64) -> String {
    match node.last_heard_ms {
        Some(ms) => format!("{} ago", duration(ms)),
        None if node.id == answered_by => "this one".to_owned(),
        None => "never".to_owned(),
    }
}

/// `0-3, 7`
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let words = ranges.iter().map(|&(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// `1 line`, `2 lines`
fn many(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

#[cfg(test)]
mod tests;
