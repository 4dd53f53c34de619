//! The nodes and shards.

use std::time::Instant;

use comfy_table::Color;
use nowserving_client::{ClusterStatus, ShardStatus};
use ratatui::style::Style;

use super::trouble;
use crate::tables;
use crate::top::cell::{Palette, Row, cut, left, right, row, short};
use crate::top::model::Model;

/// Rows around what can be scrolled: the title, the trouble and the keys.
const AROUND: usize = 3;

/// All but the title and the keys.
pub fn body(model: &Model, palette: Palette, now: Instant) -> Vec<Row> {
    let mut drawn = vec![trouble(model, palette, now).unwrap_or_default()];
    let rows = model.cluster.as_ref().map(|it| content(it, palette));
    drawn.extend(rows.unwrap_or_default().into_iter().skip(model.scrolled));
    drawn
}

/// How far it can be scrolled.
pub fn scroll_max(model: &Model) -> usize {
    let plain = Palette { colour: false };
    let rows = model.cluster.as_ref().map(|it| content(it, plain).len());
    let fits = usize::from(model.size.1).saturating_sub(AROUND);
    rows.unwrap_or(0).saturating_sub(fits)
}

fn content(status: &ClusterStatus, palette: Palette) -> Vec<Row> {
    let mut drawn = nodes(status, palette);
    drawn.push(Row::default());
    drawn.push(row(
        "SHARD    LEADER     TERM       APPLIED     COMMITTED   BEHIND  VOTERS",
        palette.selected(),
    ));
    drawn.extend(status.shards.iter().map(|it| shard(it, palette)));
    drawn
}

/// The names of the columns, and a row a node.
pub fn nodes(status: &ClusterStatus, palette: Palette) -> Vec<Row> {
    let head = "NODE  STATE        LEADS  VOTES  DISK  HEARD         CAUGHT UP         VERSION";
    let mut drawn = vec![row(head, palette.selected())];
    drawn.extend(status.nodes.iter().map(|node| {
        let (word, color) = tables::node_state(node, status);
        let disk = if node.disk_full { "full" } else { "ok" };
        let text = [
            right(&node.id.to_string(), 4),
            left(word, 11),
            right(&node.leads.to_string(), 5),
            right(&node.votes_in.to_string(), 5),
            left(disk, 4),
            left(&tables::last_heard(node, status.answered_by), 12),
            left(&tables::caught_up(node, status), 16),
            cut(node.version.as_deref().unwrap_or("-"), 16),
        ];
        row(text.join("  "), of(color, palette))
    }));
    drawn
}

fn of(color: Color, palette: Palette) -> Style {
    match color {
        Color::Green => palette.good(),
        Color::Yellow => palette.warn(),
        _ => palette.bad(),
    }
}

fn shard(it: &ShardStatus, palette: Palette) -> Row {
    let leader = it.leader.map(|id| format!("node {id}"));
    let style = match (&leader, it.differs.is_empty()) {
        (Some(_), true) => Style::new(),
        _ => palette.bad(),
    };
    let voters: Vec<String> = it.voters.iter().map(u64::to_string).collect();
    let differs = match it.differs.is_empty() {
        true => String::new(),
        false => format!(", the state of {:?} differs", it.differs),
    };
    let text = [
        right(&it.shard.to_string(), 5),
        right(leader.as_deref().unwrap_or("none"), 8),
        right(&it.term.to_string(), 7),
        right(&it.applied.to_string(), 12),
        right(&it.committed.to_string(), 12),
        right(&short(it.committed.saturating_sub(it.applied)), 7),
        voters.join(" ") + &differs,
    ];
    row(text.join("  "), style)
}
