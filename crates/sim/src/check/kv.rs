//! S19: a key-value is a register. What its log makes of each operation is what a naive one makes of it; an answer is of
//! a state that is no older than any that a client had been told of before it asked; revisions grow; a call has one
//! effect.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::{Outcome, Output, ReplyBody};
use nowserving_kv::{Change, Event, Op, Refused, Reply};
use nowserving_protocol::error::Code;
use nowserving_protocol::kv::{
    KV_LIST_DEFAULT, KvEvent, KvGet, KvKey, KvList, KvListReply, KvPrefix,
};
use nowserving_shard::published::OutEvent;

use super::Place;
use crate::calls::{Call, Ended, What};
use crate::env::Env;
use crate::node::Node;
use crate::timeline::Time;

/// All keys, of which there is one bucket.
#[derive(Debug, Default)]
pub struct Keys {
    keys: BTreeMap<Box<str>, Key>,
    /// By shard: the newest revision of an answer, and of an event.
    newest: BTreeMap<u32, (u64, u64)>,
    /// By shard and entry.
    happened: BTreeMap<(u32, u64), Vec<KvEvent>>,
    /// Values of calls that named themselves: each was put once.
    named: BTreeSet<Box<[u8]>>,
    /// Values of such calls that were told that nothing happened.
    undone: BTreeSet<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Key {
    held: Option<Held>,
    /// Since this entry the key has this revision; `None`: there is no such key.
    history: Vec<(u64, Option<u64>)>,
    /// By revision: the entry, and what is published.
    entries: BTreeMap<u64, (u64, KvEvent)>,
    values: BTreeMap<u64, Box<[u8]>>,
    /// From this time on, some client knew of the state after this entry.
    told: Vec<(Time, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    revision: u64,
    expires_at_ms: Option<u64>,
}

impl Key {
    fn expected(&self, op: &Op, now_ms: u64) -> Result<(), Refused> {
        let is_alive = |held: &Held| held.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms);
        let revision = self.held.filter(is_alive).map_or(0, |held| held.revision);
        let wanted = match op {
            Op::Put { if_revision, .. } => *if_revision,
            Op::Delete { .. } if revision == 0 => return Err(Refused::KeyNotFound),
            Op::Delete { if_revision, .. } => *if_revision,
        };
        match wanted.is_some_and(|wanted| wanted != revision) {
            true => Err(Refused::VersionConflict { revision }),
            false => Ok(()),
        }
    }

    /// The newest entry that a client knew of before this time.
    fn floor_at(&self, at: Time) -> u64 {
        let before = self.told.partition_point(|(told_at, _)| *told_at < at);
        let newest = before.checked_sub(1).and_then(|last| self.told.get(last));
        newest.map_or(0, |(_, index)| *index)
    }

    fn tell(&mut self, now: Time, index: u64) {
        let before = self.told.last().map_or(0, |(_, index)| *index);
        self.told.push((now, index.max(before)));
    }

    /// The first entry after which it was so, of those whose state was still there after entry `floor`.
    fn was_so_after(&self, floor: u64, revision: Option<u64>) -> Option<u64> {
        let states = [(0, None)].into_iter().chain(self.history.iter().copied());
        let ends = self.history.iter().map(|(index, _)| *index);
        let mut states = states.zip(ends.chain([u64::MAX]));
        let found = states
            .find(|((from, state), until)| *state == revision && until > from && *until > floor);
        found.map(|((from, _), _)| from)
    }
}

impl Keys {
    /// A committed operation was applied at this time of the service clock.
    pub fn applied(
        &mut self,
        env: &mut Env,
        place: Place,
        op: &Op,
        result: Result<Reply, Refused>,
        now_ms: u64,
    ) {
        let key = self.keys.entry(op.key().into()).or_default();
        let expected = key.expected(op, now_ms);
        if expected != result.map(|_| ()) {
            let what = format!("{op:?} at {now_ms}: {result:?}, expected {expected:?}");
            return env.violated("S19", what);
        }
        let Ok(Reply { revision }) = result else {
            return;
        };
        let newest = self.newest.entry(place.shard).or_default();
        if revision <= newest.0 {
            let what = format!("{op:?}: revision {revision} after {}", newest.0);
            env.violated("S19", what);
        }
        newest.0 = revision;
        if let Op::Put { above, .. } = op
            && revision <= *above
        {
            env.violated("S19", format!("{op:?}: revision {revision}"));
        }
        key.held = match op {
            Op::Put { value, ttl_ms, .. } => {
                key.values.insert(revision, value.clone());
                Some(Held {
                    revision,
                    expires_at_ms: ttl_ms.map(|ttl_ms| now_ms + ttl_ms),
                })
            }
            Op::Delete { .. } => None,
        };
    }

    /// A committed entry has changed keys.
    pub fn happened(&mut self, env: &mut Env, place: Place, events: &[Event], wall_ms: u64) {
        for event in events {
            let newest = self.newest.entry(place.shard).or_default();
            if event.revision <= newest.1 {
                env.violated("S19", format!("{event:?} after revision {}", newest.1));
            }
            newest.1 = event.revision;
            let key = self.keys.entry(event.key.clone()).or_default();
            let state = (event.what == Change::Put).then_some(event.revision);
            key.history.push((place.index, state));
            let event = KvEvent::new(event, wall_ms);
            key.entries
                .insert(event.revision, (place.index, event.clone()));
            let of_entry = self.happened.entry((place.shard, place.index));
            of_entry.or_default().push(event);
        }
    }

    /// S16: a leader has applied entries of its own term, in a turn that came to `outputs`: it publishes all that
    /// happened to keys, and nothing else.
    pub fn published(
        &self,
        env: &mut Env,
        node: &Node,
        shard: u32,
        applied: impl Iterator<Item = u64>,
        outputs: &[Output],
    ) {
        let published = |event: &KvEvent| {
            let mut outputs = outputs.iter();
            outputs.any(|it| matches!(it, Output::Event(OutEvent::Kv(it)) if it == event))
        };
        for index in applied {
            let mut due = self.happened.get(&(shard, index)).into_iter().flatten();
            if let Some(missing) = due.find(|event| !published(event)) {
                let what = format!("node {} does not publish {missing:?}", node.id);
                return env.violated("S16", what);
            }
        }
    }

    /// S16: a node publishes what has happened.
    pub fn is_true(&self, env: &mut Env, node: &Node, event: &KvEvent) {
        let key = self.keys.get(event.key.as_str());
        let happened = key.and_then(|key| key.entries.get(&event.revision));
        if happened.map(|(_, it)| it) != Some(event) {
            let what = format!("node {} publishes {event:?}, which did not happen", node.id);
            env.violated("S16", what);
        }
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: &Call, now: Time, ended: &Ended) {
        let named = call.is_named();
        match &call.query.what {
            What::Kv(op) => {
                if let (Op::Put { value, .. }, true) = (op, named) {
                    self.named.insert(value.clone());
                    if matches!(ended, Ended::Unavailable) {
                        self.undone.insert(value.clone());
                    }
                }
                if let Ended::Ok(answer) = ended
                    && let Ok(Outcome::Reply(ReplyBody::KvDone(done))) = answer.as_ref()
                {
                    self.written(env, call, op, done.revision, now);
                }
            }
            What::KvGet(ask) => {
                let found = match ended {
                    Ended::Ok(answer) => match answer.as_ref() {
                        Ok(Outcome::Reply(ReplyBody::KvGot(got))) => {
                            Some((got.revision, got.value.as_bytes()))
                        }
                        _ => return,
                    },
                    Ended::Refused(Code::KeyNotFound) => None,
                    _ => return,
                };
                self.read(env, call, ask, found, now);
            }
            What::KvList { ask } => {
                if let Ended::Ok(answer) = ended
                    && let Ok(Outcome::Reply(ReplyBody::KvListed(page))) = answer.as_ref()
                    && let Err(why) = self.was_listed(ask, page)
                {
                    env.violated("S19", format!("{ask:?}: {page:?}: {why}"));
                }
            }
            _ => {}
        }
    }

    /// A client has read a key: its revision and value, if there was one.
    fn read(
        &mut self,
        env: &mut Env,
        call: &Call,
        ask: &KvGet,
        found: Option<(u64, &[u8])>,
        now: Time,
    ) {
        let key = self.keys.entry(ask.key.as_str().into()).or_default();
        let revision = found.map(|(revision, _)| revision);
        if let Some((revision, value)) = found
            && key.values.get(&revision).map(|it| &it[..]) != Some(value)
        {
            let what = format!("{call:?}: revision {revision} never had {value:?}");
            return env.violated("S19", what);
        }
        let is_local = call.query.what.is_local();
        let floor = match is_local {
            true => 0,
            false => key.floor_at(call.began_at),
        };
        match key.was_so_after(floor, revision) {
            Some(_) if is_local => {}
            Some(index) => key.tell(now, index.max(floor)),
            None => {
                let what = format!(
                    "{ask:?} since {}: revision {revision:?}, but entry {floor} was known; {:?}",
                    call.began_at, key.history
                );
                env.violated("S19", what);
            }
        }
    }

    /// Any node's page: keys in order, each as it was after some entry.
    fn was_listed(&self, ask: &KvList, page: &KvListReply) -> Result<(), String> {
        if page.entries.len() as u64 > ask.limit.unwrap_or(KV_LIST_DEFAULT) {
            return Err("more than was asked for".to_owned());
        }
        let mut last = ask.after.as_ref().map(KvPrefix::as_str);
        for entry in &page.entries {
            let (name, revision) = (entry.key.as_str(), entry.revision);
            let fits = ask
                .prefix
                .as_ref()
                .is_none_or(|it| name.starts_with(it.as_str()));
            if !fits || last.is_some_and(|last| last >= name) {
                return Err(format!("{name} after {last:?}"));
            }
            last = Some(name);
            let key = self.keys.get(name);
            let value = key.and_then(|key| key.values.get(&revision));
            if value.map(|it| it.len() as u64) != Some(entry.bytes) {
                return Err(format!("revision {revision} of {name} has {value:?}"));
            }
            if key.is_none_or(|key| key.was_so_after(0, Some(revision)).is_none()) {
                return Err(format!("{name} never had revision {revision}"));
            }
        }
        let next = page.next.as_ref().map(KvKey::as_str);
        match next.is_none_or(|next| Some(next) == last) {
            true => Ok(()),
            false => Err("the next page does not follow".to_owned()),
        }
    }

    fn written(&mut self, env: &mut Env, call: &Call, op: &Op, revision: u64, now: Time) {
        let key = self.keys.entry(op.key().into()).or_default();
        let floor = key.floor_at(call.began_at);
        let entry = key.entries.get(&revision).map(|(index, _)| *index);
        let index = entry.filter(|index| *index > floor);
        let is_it = match op {
            Op::Put { value, .. } => key.values.get(&revision) == Some(value),
            Op::Delete { .. } => !key.values.contains_key(&revision),
        };
        match index.filter(|_| is_it) {
            Some(index) => key.tell(now, index),
            None => {
                let what =
                    format!("{op:?} is answered with revision {revision} after entry {floor}");
                env.violated("S19", what);
            }
        }
    }

    /// The run is over.
    pub fn at_end(&self, env: &mut Env) {
        let mut seen = BTreeSet::new();
        for value in self.keys.values().flat_map(|key| key.values.values()) {
            let twice = !seen.insert(value) && self.named.contains(value);
            if twice || self.undone.contains(value) {
                let text = String::from_utf8_lossy(value);
                let what = format!("the put of call {text} has an effect too many");
                env.violated("S19", what);
            }
        }
    }
}
