//! S16: events of a line from one leader come in order, and doubles and gaps can be told.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{Event, LineName};
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::subject::shard_of;
use nowserving_shard::published::OutEvent;

use super::shadow::Shadow;
use crate::env::Env;
use crate::node::Node;
use crate::replay::Applied;

/// What was published, and what happened.
#[derive(Debug, Default)]
pub struct Events {
    /// The newest version by who published it (node, start, term), line, incarnation and kind.
    last: BTreeMap<(u64, u64, u64, LineName, u64, &'static str), u64>,
    happened: BTreeMap<(LineName, u64), Event>,
}

impl Events {
    /// An operation was applied.
    pub fn happened(&mut self, applied: &Applied<'_>) {
        for event in applied.events {
            let key = (event.line().clone(), event.version());
            self.happened.insert(key, event.clone());
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
        let (line, incarnation, kind, prev, version) = match event {
            OutEvent::Board(it) => {
                let board = &it.board;
                (
                    &board.line,
                    board.incarnation,
                    "board",
                    it.prev_version,
                    board.version,
                )
            }
            OutEvent::Token(it) => (
                &it.line,
                it.incarnation,
                "token",
                it.prev_version,
                it.version,
            ),
            OutEvent::Line(it) => (
                &it.line,
                it.incarnation,
                "line",
                it.prev_version,
                it.version,
            ),
        };
        let shards = running.engine.shards().count() as u32;
        let id = shard_of(line.as_str(), shards);
        let of_line = running.engine.shards().find(|shard| shard.shard == id);
        let term = of_line.map_or(0, |shard| shard.replica.term());
        let key = (
            node.id,
            running.start,
            term,
            line.clone(),
            incarnation,
            kind,
        );
        let last = self.last.insert(key, version);
        let in_order = match last {
            // A board that has not changed is repeated.
            Some(last) => prev == last && (version > last || (kind == "board" && version == last)),
            None => prev <= version,
        };
        let broken = if !in_order {
            Some(format!("it follows version {last:?}"))
        } else {
            match event {
                OutEvent::Board(board) => shadow(id).and_then(|it| board_differs(board, it)),
                OutEvent::Token(token) => self.token_differs(token),
                OutEvent::Line(line) => self.line_differs(line),
            }
        };
        if let Some(why) = broken {
            let what = format!(
                "node {} publishes a {kind} event of {line} with version {version} after {prev}: {why}",
                node.id
            );
            env.violated("S16", what);
        }
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
    let line = shadow.line(board.incarnation)?;
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
        if told != expected {
            return Some(format!("holes {told:?} in {}, not {expected:?}", lane.lane));
        }
    }
    None
}
