//! S16: events of a line from one leader come in order, and doubles and gaps can be told.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::Output;
use nowserving_line::{Event, LineChange, LineName};
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::subject::shard_of;
use nowserving_shard::published::OutEvent;

use super::Place;
use super::shadow::Shadow;
use crate::env::Env;
use crate::node::Node;
use crate::replay::State;

/// What was published, and what happened.
#[derive(Debug, Default)]
pub struct Events {
    /// The newest version by who published it (node, start, term), line, incarnation and kind.
    last: BTreeMap<(u64, u64, u64, LineName, u64, &'static str), u64>,
    happened: BTreeMap<(LineName, u64), Event>,
    /// What the leader that applies an entry publishes: by shard and index, lines and versions.
    to_publish: BTreeMap<(u32, u64), Vec<(LineName, u64)>>,
    /// The versions with which lines were put back or drawn: the next board comes after a gap.
    put_back: BTreeMap<LineName, Vec<u64>>,
}

/// Where an event stands in the order of its kind.
struct Link<'a> {
    line: &'a LineName,
    incarnation: u64,
    kind: &'static str,
    prev: u64,
    version: u64,
}

impl<'a> Link<'a> {
    /// Events of key-values have none: their revisions only grow.
    fn of(event: &'a OutEvent) -> Option<Link<'a>> {
        let (line, incarnation, kind, prev, version) = match event {
            OutEvent::Board(it) => {
                let board = &it.board;
                let of = (&board.line, board.incarnation);
                (of.0, of.1, "board", it.prev_version, board.version)
            }
            OutEvent::Token(it) => {
                let of = (&it.line, it.incarnation);
                (of.0, of.1, "token", it.prev_version, it.version)
            }
            OutEvent::Line(it) => {
                let of = (&it.line, it.incarnation);
                (of.0, of.1, "line", it.prev_version, it.version)
            }
            OutEvent::Kv(_) => return None,
        };
        Some(Link {
            line,
            incarnation,
            kind,
            prev,
            version,
        })
    }
}

impl Events {
    /// A line has changed, after which this is the state.
    pub fn happened(&mut self, place: Place, events: &[Event], state: &State) {
        for event in events {
            let key = (event.line().clone(), event.version());
            if let Event::Line {
                what: LineChange::Restored | LineChange::Drawn { .. },
                ..
            } = event
            {
                let versions = self.put_back.entry(event.line().clone()).or_default();
                versions.push(event.version());
            }
            let line = state.lines().get(event.line());
            let is_published = matches!(event, Event::Line { .. })
                || line.is_none_or(|line| line.settings().token_events);
            if is_published {
                let of_entry = self.to_publish.entry((place.shard, place.index));
                of_entry.or_default().push(key.clone());
            }
            self.happened.insert(key, event.clone());
        }
    }

    /// A leader has applied entries of its own term, in a turn that came to `outputs`: it publishes
    /// all that happened.
    pub fn none_left_out(
        &self,
        env: &mut Env,
        node: &Node,
        shard: u32,
        applied: impl Iterator<Item = u64>,
        outputs: &[Output],
    ) {
        let mut due = applied.filter_map(|index| self.to_publish.get(&(shard, index)));
        let Some(first) = due.next() else {
            return;
        };
        let events = outputs.iter().filter_map(|output| match output {
            Output::Event(event) => Link::of(event).filter(|it| it.kind != "board"),
            _ => None,
        });
        let published: BTreeSet<(&LineName, u64)> =
            events.map(|it| (it.line, it.version)).collect();
        for (line, version) in due.chain([first]).flatten() {
            if !published.contains(&(line, *version)) {
                let what = format!(
                    "node {} does not publish the event of {line} with version {version}",
                    node.id
                );
                return env.violated("S16", what);
            }
        }
    }

    /// A node publishes an event.
    pub fn published<'a>(
        &mut self,
        env: &mut Env,
        node: &Node,
        event: &OutEvent,
        shadow: &dyn Fn(u32) -> Option<&'a Shadow>,
    ) {
        let Some(running) = &node.running else {
            return;
        };
        let Some(link) = Link::of(event) else {
            return;
        };
        let shards = running.shards().count() as u32;
        let id = shard_of(link.line.as_str(), shards);
        let of_line = running.shards().find(|shard| shard.shard == id);
        let term = of_line.map_or(0, |shard| shard.replica.term());
        let publisher = (node.id, running.start, term);
        let broken = match self.follows(publisher, &link) {
            Err(why) => Some(why),
            Ok(()) => match event {
                OutEvent::Board(board) => shadow(id).and_then(|it| board_differs(board, it)),
                OutEvent::Token(token) => self.token_differs(token),
                OutEvent::Line(line) => self.line_differs(line),
                OutEvent::Kv(_) => None,
            },
        };
        if let Some(why) = broken {
            let Link {
                line,
                kind,
                prev,
                version,
                ..
            } = link;
            let what = format!(
                "node {} publishes a {kind} event of {line} with version {version} after {prev}: {why}",
                node.id
            );
            env.violated("S16", what);
        }
    }

    /// Whether an event comes in order.
    fn follows(
        &mut self,
        (node, start, term): (u64, u64, u64),
        link: &Link<'_>,
    ) -> Result<(), String> {
        let (line, prev, version) = (link.line.clone(), link.prev, link.version);
        let key = (node, start, term, line, link.incarnation, link.kind);
        let last = self.last.insert(key, version);
        let gap = |last: u64| {
            let mut put_back = self.put_back.get(link.line).into_iter().flatten();
            put_back.any(|new| last < *new && *new <= version)
        };
        let in_order = match last {
            // Watchers of the line before ask anew.
            Some(last) if link.kind == "board" && gap(last) => prev == version,
            // Between, the line was deleted: the leader knows of nothing before it was put back.
            Some(last) if gap(last) => last <= prev && prev < version,
            // A board that has not changed is repeated.
            Some(last) => {
                prev == last && (version > last || (link.kind == "board" && version == last))
            }
            None => prev <= version,
        };
        in_order
            .then_some(())
            .ok_or_else(|| format!("it follows version {last:?}"))
    }

    fn token_differs(&self, published: &TokenEvent) -> Option<String> {
        let event = self
            .happened
            .get(&(published.line.clone(), published.version));
        let expected = event.and_then(|event| TokenEvent::new(event, published.prev_version));
        (expected.as_ref() != Some(published)).then(|| format!("expected {expected:?}"))
    }

    fn line_differs(&self, published: &LineEvent) -> Option<String> {
        let event = self
            .happened
            .get(&(published.line.clone(), published.version));
        let expected = event.and_then(|event| LineEvent::new(event, published.prev_version));
        (expected.as_ref() != Some(published)).then(|| format!("expected {expected:?}"))
    }
}

/// S11 and S16: with the holes of all boards a watcher keeps its exact place.
fn board_differs(event: &BoardEvent, shadow: &Shadow) -> Option<String> {
    let board = &event.board;
    let line = shadow.line_at(board.incarnation, board.version)?;
    for (lane_id, lane) in (0..).zip(&board.lanes) {
        let waiting = line.waiting_at(lane_id, board.version);
        if waiting != lane.waiting {
            return Some(format!(
                "{} wait in {}, not {waiting}",
                lane.waiting, lane.lane
            ));
        }
        let Some(holes) = &lane.holes else { continue };
        let told = holes.iter().flat_map(|[first, last]| *first..=*last);
        let told: BTreeSet<u64> = told.collect();
        let expected = line.holes(lane_id, event.prev_version, board.version);
        let differs = match event.whole {
            false => told != expected,
            // Everybody between the pointers who does not wait, of whatever time.
            true => {
                let between = lane.admitted_through + 1..lane.next_token;
                let count = between.clone().count() as u64;
                let beyond = told.iter().any(|token| !between.contains(token));
                let mut left = expected.iter().filter(|token| between.contains(token));
                beyond || told.len() as u64 + waiting != count || left.any(|it| !told.contains(it))
            }
        };
        if differs {
            let whole = event.whole;
            return Some(format!(
                "holes {told:?} in {}, not {expected:?} (whole: {whole})",
                lane.lane
            ));
        }
    }
    None
}
