//! What a dry run finds: the line takes no new numbers, is sold out, or has no room for all rows.

use std::collections::{BTreeMap, HashSet};

use nowserving_client::{
    AdminLine, ApiError, Code, Gate, Key, LIST_TOKENS_MAX, LaneName, LaneReply, LineReply,
    ListTokens, Phase,
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
    let all: Vec<&Row> = rows.iter().collect();
    if refused(&all, shown).is_none() {
        return Ok(None);
    }
    // Rows whose keys are in the line, or stand further up in the file, get no number. The keys are read only if it matters: there can be many.
    let mut known = keys(line).await?;
    let fresh = rows.iter().filter(|row| known.insert(row.row.key.clone()));
    Ok(refused(&fresh.collect::<Vec<_>>(), shown))
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

fn refused(fresh: &[&Row], shown: &LineReply) -> Option<ApiError> {
    if fresh.is_empty() {
        return None;
    }
    let phase = shown.board.phase.as_str();
    if [Phase::Draining.as_str(), Phase::Closed.as_str()].contains(&phase) {
        let message = format!("the line takes no new numbers ({phase})");
        return Some(ApiError::new(Code::LineClosed, message));
    }
    let lanes = fresh.iter().map(|row| row.row.lane.as_ref());
    let lanes = lanes.filter_map(|lane| lane.or(shown.default_lane.as_ref()));
    Capacities::of(shown).refuse(&lanes.collect::<Vec<_>>())
}

/// How many numbers can be issued as the line is now: people who leave meanwhile make more.
struct Capacities {
    /// `None`: as many as the line and its lanes.
    quota: Option<u64>,
    /// `None`: as many as the lanes.
    line: Option<u64>,
    lanes: BTreeMap<LaneName, u64>,
}

impl Capacities {
    fn of(shown: &LineReply) -> Capacities {
        let lanes = shown.board.lanes.iter();
        Capacities {
            quota: quota_capacity(shown),
            line: line_capacity(shown),
            lanes: lanes
                .map(|it| (it.lane.clone(), lane_capacity(it)))
                .collect(),
        }
    }

    /// The refusal of the first row that gets no number, of rows with these lanes. The line asks in the same order.
    fn refuse(&self, rows: &[&LaneName]) -> Option<ApiError> {
        let mut issued: BTreeMap<&LaneName, u64> = BTreeMap::new();
        for (nth, lane) in (0..).zip(rows) {
            let in_lane = issued.entry(lane).or_default();
            let spent = |room: Option<u64>, taken: u64| room.filter(|room| taken >= *room);
            if let Some(room) = spent(self.quota, nth) {
                return Some(no_capacity(Code::SoldOut, "the quota", room, rows.len()));
            }
            if let Some(room) = spent(self.line, nth) {
                return Some(no_capacity(Code::LineFull, "the line", room, rows.len()));
            }
            if let Some(room) = spent(self.lanes.get(lane).copied(), *in_lane) {
                let (what, rows) = (format!("lane {lane}"), rows.iter().filter(|it| it == &lane));
                return Some(no_capacity(Code::LineFull, &what, room, rows.count()));
            }
            *in_lane += 1;
        }
        None
    }
}

fn no_capacity(code: Code, what: &str, room: u64, rows: usize) -> ApiError {
    let rows = tables::many(rows as u64, "row");
    let message = format!("{what} has room for {room} more, and the file has {rows} for it");
    ApiError::new(code, message)
}

fn lane_capacity(lane: &LaneReply) -> u64 {
    (lane.accepts_through + 1).saturating_sub(lane.next_token)
}

/// How many numbers the line can issue over all lanes; `None`: as many as its lanes.
fn line_capacity(shown: &LineReply) -> Option<u64> {
    match unlimited_lane(shown) {
        Some(lane) => Some(lane_capacity(lane)),
        None => room_by_limits(shown),
    }
}

/// A lane without a limit of its own has as much room as the line.
fn unlimited_lane(shown: &LineReply) -> Option<&LaneReply> {
    let mut settings = shown.settings.lanes.iter();
    let name = &settings.find(|it| it.queue_limit.is_none())?.name;
    shown.board.lanes.iter().find(|lane| lane.lane == *name)
}

/// By `seats` and `queue_limit` alone; `None` while the gate holds nobody back.
fn room_by_limits(shown: &LineReply) -> Option<u64> {
    let (settings, counts) = (&shown.settings, &shown.counts);
    let live = counts.waiting + counts.admitted + counts.in_checkout;
    let limit = u64::from(shown.board.seats) + u64::from(settings.queue_limit);
    (settings.gate == Gate::On.as_str()).then(|| limit.saturating_sub(live))
}

/// How many numbers the quota lets the line issue; `None` without one, and while the gate holds nobody back.
fn quota_capacity(shown: &LineReply) -> Option<u64> {
    let by_limits = room_by_limits(shown)?;
    let (quota, left) = (shown.settings.quota.as_ref()?, shown.quota_left?);
    let counts = &shown.counts;
    if left == 0 && counts.admitted + counts.in_checkout == 0 {
        // All of it is used: there is no standby any more.
        return Some(0);
    }
    let percent = u64::from(quota.standby_percent);
    let standby = quota.total.saturating_mul(percent) / 100;
    let per_visit = u64::from(quota.per_visit);
    let wanted = counts.waiting.saturating_mul(per_visit);
    let room = (standby + left).saturating_sub(wanted).div_ceil(per_visit);
    // `quota_left` does not say by how much a quota that was lowered is exceeded. What a lane accepts does.
    let accepted = unlimited_lane(shown).map(lane_capacity);
    Some(
        accepted
            .filter(|it| *it < by_limits)
            .map_or(room, |it| room.min(it)),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{
        LaneSettings, LineName, Lines, Op, Quota, Reply, Settings, Stamp, Timestamp, TokenRef,
    };
    use nowserving_protocol::user::Home;
    use proptest::prelude::*;

    use super::*;
    use crate::import::rows::RowFormat;

    /// A line of a node, with no other one.
    struct Node {
        lines: Lines,
        index: u64,
    }

    impl Node {
        fn new(settings: &Settings) -> Node {
            let mut node = Node {
                lines: Lines::new(),
                index: 0,
            };
            let (line, settings) = (name(), settings.clone());
            node.apply(&Op::Create { line, settings }).unwrap();
            node
        }

        fn apply(&mut self, op: &Op) -> Result<Reply, ApiError> {
            self.index += 1;
            let stamp = Stamp {
                index: self.index,
                op_no: 0,
                now_ms: 1_000,
                wall_ms: 1_000,
            };
            self.lines.apply(stamp, op, None).map_err(ApiError::from)
        }

        fn enter(&mut self, lane: Option<&LaneName>) -> Result<TokenRef, ApiError> {
            let entered = self.apply(&Op::Enter {
                line: name(),
                key: None,
                lane: lane.cloned(),
            });
            entered.map(|reply| match reply {
                Reply::Token(at) => at,
                other => panic!("{other:?}"),
            })
        }

        /// An admitted token goes into checkout and completes.
        fn complete(&mut self, at: TokenRef) -> Result<Reply, ApiError> {
            self.apply(&Op::Claim { line: name(), at })?;
            self.apply(&Op::Complete {
                units: None,
                line: name(),
                at,
                epoch: None,
            })
        }

        fn shown(&self) -> LineReply {
            let now = Timestamp {
                service_ms: 1_000,
                wall_ms: 1_000,
            };
            let home = Home {
                shard: 0,
                leader: None,
            };
            LineReply::new(self.lines.get(&name()).unwrap(), now, home)
        }
    }

    fn name() -> LineName {
        LineName::try_from("shop").unwrap()
    }

    fn vip() -> LaneName {
        LaneName::try_from("vip").unwrap()
    }

    /// Rows of the default lane (`.`) and of lane vip (`v`).
    fn rows(lanes: &str) -> Vec<Row> {
        let lines = lanes.chars().enumerate().map(|(nth, lane)| match lane {
            'v' => format!("{{\"key\":\"{nth}\",\"lane\":\"vip\"}}\n"),
            _ => format!("{{\"key\":\"{nth}\"}}\n"),
        });
        RowFormat::Jsonl.read(&lines.collect::<String>()).unwrap()
    }

    fn dry_run(lanes: &str, shown: &LineReply) -> Option<ApiError> {
        let rows = rows(lanes);
        refused(&rows.iter().collect::<Vec<_>>(), shown)
    }

    /// One seat, which is held, and nine who wait; lane vip holds two.
    fn settings() -> Settings {
        let mut settings = Settings::new(1, 14);
        settings.lanes.push(LaneSettings {
            queue_limit: Some(2),
            ..LaneSettings::new(vip())
        });
        settings
    }

    #[test]
    fn the_line_and_each_lane_need_room() {
        let mut node = Node::new(&settings());
        for _ in 0..10 {
            node.enter(None).unwrap();
        }
        for (lanes, says) in [
            (".....", None),
            ("...vv", None),
            (
                "....vv",
                Some("the line has room for 5 more, and the file has 6 rows"),
            ),
            (
                ".vvv",
                Some("lane vip has room for 2 more, and the file has 3 rows"),
            ),
        ] {
            let refused = dry_run(lanes, &node.shown());
            assert_eq!(refused.is_some(), says.is_some(), "{lanes}");
            if let (Some(refused), Some(says)) = (refused, says) {
                assert_eq!(refused.code, Code::LineFull);
                assert!(refused.message.starts_with(says), "{refused}");
            }
        }
    }

    #[test]
    fn a_quota_that_is_spent_is_sold_out() {
        let mut settings = settings();
        settings.quota = Some(Quota {
            total: 10,
            standby_percent: 20,
            renew: None,
            per_visit: 1,
        });
        let mut node = Node::new(&settings);
        let first = node.enter(None).unwrap();
        for _ in 1..10 {
            node.enter(None).unwrap();
        }
        assert_eq!(dry_run("..", &node.shown()), None);
        let refused = dry_run("...", &node.shown()).unwrap();
        assert_eq!(refused.code, Code::SoldOut);
        let says = "the quota has room for 2 more, and the file has 3 rows";
        assert!(refused.message.starts_with(says), "{refused}");

        settings.quota = Some(Quota {
            total: 1,
            standby_percent: 1_000,
            renew: None,
            per_visit: 1,
        });
        let mut node = Node::new(&settings);
        let only = node.enter(None).unwrap();
        assert_eq!(only, first);
        node.complete(only).unwrap();
        let refused = dry_run(".", &node.shown()).unwrap();
        assert_eq!(refused.code, Code::SoldOut);
        assert!(refused.message.contains("room for 0 more"), "{refused}");
    }

    proptest! {
        /// The refusal of the first row that the line itself refuses.
        #[test]
        fn the_refusal_is_the_lines_own(
            seats in 1_u32..4,
            queue_limit in 0_u32..9,
            quota in proptest::option::of((1_u64..12, 0_u32..200)),
            lowered in proptest::option::of(1_u64..6),
            vip_limit in 0_u32..4,
            per_visit in 1_u32..5,
            entered in 0_usize..12,
            completed in 0_usize..6,
            lanes in "[.v]{1,10}",
        ) {
            let mut settings = Settings::new(seats, queue_limit);
            settings.quota = quota.map(|(total, standby_percent)| Quota {
                total,
                standby_percent,
                renew: None,
                per_visit,
            });
            settings.lanes.push(LaneSettings {
                queue_limit: Some(vip_limit),
                ..LaneSettings::new(vip())
            });
            let mut node = Node::new(&settings);
            let tokens: Vec<_> = (0..entered).filter_map(|_| node.enter(None).ok()).collect();
            for at in tokens.into_iter().take(completed) {
                // Not admitted if the quota is spent.
                let _ = node.complete(at);
            }
            if let (Some(total), Some(quota)) = (lowered, settings.quota) {
                let patch = nowserving_client::SettingsPatch {
                    quota: Some(nowserving_client::Change::Set(Quota { total, ..quota })),
                    ..Default::default()
                };
                node.apply(&Op::Configure {
                    line: name(),
                    patch: Box::new(patch),
                    if_version: None,
                    incarnation: None,
                }).unwrap();
            }
            let shown = node.shown();
            // Newcomers that are admitted at once take room that any lane has: only the first of them is foreseen.
            let held = shown.counts.admitted + shown.counts.in_checkout;
            prop_assume!(shown.counts.waiting > 0 || held >= seats.into());
            let dry_run = dry_run(&lanes, &shown).map(|refused| refused.code);
            let rows = rows(&lanes);
            let mut real = rows.iter().map(|row| node.enter(row.row.lane.as_ref()));
            let real = real.find_map(Result::err).map(|refused| refused.code);
            prop_assert_eq!(dry_run.is_some(), real.is_some(), "{:?}", shown);
            // The reply does not always show by how much a lowered quota is exceeded.
            if lowered.is_none() || shown.quota_left > Some(0) {
                prop_assert_eq!(dry_run, real, "{:?}", shown);
            }
        }
    }
}
