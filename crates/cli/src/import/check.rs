//! What a dry run finds: the line takes no new numbers, or has no room for all rows.

use std::collections::{BTreeMap, HashSet};

use nowserving_client::{
    AdminLine, ApiError, BoardReply, Code, Gate, Key, LIST_TOKENS_MAX, LaneName, LaneReply,
    LineReply, ListTokens, Phase,
};

use super::rows::Row;
use crate::tables;

/// The refusal that an import of these rows would end with, as the line is now.
///
/// # Errors
/// The line's tokens cannot be listed.
pub async fn refusal(
    rows: &[Row],
    shown: &LineReply,
    line: &AdminLine,
) -> nowserving_client::Result<Option<ApiError>> {
    if refused(&by_lane(rows.iter(), shown), shown).is_none() {
        return Ok(None);
    }
    // Rows whose keys are in the line, or stand further up in the file, get no number. The keys are read only if it matters: there can be many.
    let mut known = keys(line).await?;
    let fresh = rows.iter().filter(|row| known.insert(row.row.key.clone()));
    Ok(refused(&by_lane(fresh, shown), shown))
}

/// The keys of all live tokens.
async fn keys(line: &AdminLine) -> nowserving_client::Result<HashSet<Key>> {
    let mut page = ListTokens {
        limit: Some(LIST_TOKENS_MAX),
        ..ListTokens::default()
    };
    let mut keys = HashSet::new();
    loop {
        let got = line.list_tokens(&page).await?;
        keys.extend(got.tokens.into_iter().filter_map(|token| token.key));
        match got.next {
            Some(next) if next != page.after => page.after = next,
            _ => return Ok(keys),
        }
    }
}

fn by_lane<'a>(rows: impl Iterator<Item = &'a Row>, shown: &LineReply) -> BTreeMap<LaneName, u64> {
    let mut counts = BTreeMap::new();
    for row in rows {
        if let Some(lane) = row.row.lane.as_ref().or(shown.default_lane.as_ref()) {
            *counts.entry(lane.clone()).or_default() += 1;
        }
    }
    counts
}

fn refused(fresh: &BTreeMap<LaneName, u64>, shown: &LineReply) -> Option<ApiError> {
    if fresh.is_empty() {
        return None;
    }
    let phase = shown.board.phase.as_str();
    if [Phase::Draining.as_str(), Phase::Closed.as_str()].contains(&phase) {
        let message = format!("the line takes no new numbers ({phase})");
        return Some(ApiError::new(Code::LineClosed, message));
    }
    no_room(fresh, &shown.board, line_room(shown))
}

/// Rooms are as they are now: people who leave meanwhile make more.
fn no_room(
    fresh: &BTreeMap<LaneName, u64>,
    board: &BoardReply,
    line_room: Option<u64>,
) -> Option<ApiError> {
    let full = |what: &str, rows: u64, room: u64| {
        let rows = tables::many(rows, "row");
        let message = format!("{what} has room for {room} more, and the file has {rows} for it");
        ApiError::new(Code::LineFull, message)
    };
    let all = fresh.values().sum();
    if let Some(room) = line_room.filter(|room| all > *room) {
        return Some(full("the line", all, room));
    }
    let mut lanes = board.lanes.iter();
    lanes.find_map(|lane| {
        let rows = fresh.get(&lane.lane).copied().unwrap_or_default();
        let room = lane_room(lane);
        (rows > room).then(|| full(&format!("lane {}", lane.lane), rows, room))
    })
}

fn lane_room(lane: &LaneReply) -> u64 {
    (lane.accepts_through + 1).saturating_sub(lane.next_token)
}

/// How many numbers the line can issue over all lanes; `None`: as many as its lanes.
fn line_room(shown: &LineReply) -> Option<u64> {
    let settings = &shown.settings;
    let mut unlimited = settings.lanes.iter().filter(|it| it.queue_limit.is_none());
    if let Some(unlimited) = unlimited.next() {
        let mut lanes = shown.board.lanes.iter();
        return lanes
            .find(|lane| lane.lane == unlimited.name)
            .map(lane_room);
    }
    let counts = &shown.counts;
    let live = counts.waiting + counts.admitted + counts.in_checkout;
    let limit = u64::from(shown.board.seats) + u64::from(settings.queue_limit);
    (settings.gate == Gate::On.as_str()).then(|| limit.saturating_sub(live))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_line_and_each_lane_need_room() {
        let board: BoardReply = serde_json::from_value(serde_json::json!({
            "line": "shop", "incarnation": 1, "version": 2, "at_ms": 3, "phase": "open", "seats": 1,
            "admitted": 0, "in_checkout": 1,
            "lanes": [
                {"lane": "normal", "next_token": 11, "done_through": 0, "admitted_through": 0,
                 "accepts_through": 15, "waiting": 9},
                {"lane": "vip", "next_token": 1, "done_through": 0, "admitted_through": 0,
                 "accepts_through": 2, "waiting": 0},
            ],
        }))
        .unwrap();
        for (normal, vip, says) in [
            (5, 0, None),
            (3, 2, None),
            (
                4,
                2,
                Some("the line has room for 5 more, and the file has 6 rows"),
            ),
            (
                1,
                3,
                Some("lane vip has room for 2 more, and the file has 3 rows"),
            ),
        ] {
            let fresh = [("normal", normal), ("vip", vip)];
            let fresh = fresh.map(|(lane, rows)| (LaneName::try_from(lane).unwrap(), rows));
            let refused = no_room(&fresh.into(), &board, Some(5));
            match (says, refused) {
                (None, None) => {}
                (Some(says), Some(refused)) => {
                    assert_eq!(refused.code, Code::LineFull);
                    assert!(refused.message.starts_with(says), "{refused}");
                }
                (says, refused) => panic!("{says:?}: {refused:?}"),
            }
        }
    }
}
