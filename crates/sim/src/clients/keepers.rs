//! Backends that keep key-values.

use std::collections::BTreeMap;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_kv::Op;
use nowserving_line::LineName;
use nowserving_protocol::kv::{KvGet, KvKey, KvList, KvPrefix, kv_shard_of};
use nowserving_protocol::user::Consistency;

use super::{Clients, Role};
use crate::calls::{Ended, Query, What};
use crate::env::Env;

/// So many at a time.
pub(super) const KEEPERS: usize = 8;
/// They meet at few keys.
const KEYS: u64 = 5;
const BUCKET: &str = "visits";
/// Revisions of a run come to some thousands: a backup's is larger now and then.
const RESTORED_ABOVE_MAX: u64 = 5_000;

/// One of them: by key the newest revision that it was told of.
#[derive(Debug, Default)]
pub(super) struct Keeper(BTreeMap<Box<str>, u64>);

impl Keeper {
    pub(super) fn call_ended(&mut self, query: &Query, ended: &Ended) {
        let key = match &query.what {
            What::Kv(op) => op.key(),
            What::KvGet(ask) => ask.key.as_str(),
            _ => return,
        };
        let revision = match ended {
            Ended::Ok(answer) => match (&query.what, answer.as_ref()) {
                (What::Kv(Op::Put { .. }), Ok(Outcome::Reply(ReplyBody::KvDone(done)))) => {
                    Some(done.revision)
                }
                (_, Ok(Outcome::Reply(ReplyBody::KvGot(got)))) => Some(got.revision),
                _ => None,
            },
            Ended::Refused(_) => None,
            // It asks with what it knew.
            Ended::Unknown | Ended::Unavailable => return,
        };
        match revision {
            Some(revision) => self.0.insert(key.into(), revision),
            None => self.0.remove(key),
        };
    }
}

impl Clients {
    /// A keeper changes a key, reads it, lists some, or restores one.
    pub(super) fn keep(&mut self, env: &mut Env, number: usize) {
        let random = &mut self.random;
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let name = format!("key-{}", random.below(KEYS));
        let (Role::Keeper(Keeper(known)), Ok(bucket), Ok(key)) = (
            &client.role,
            LineName::try_from(BUCKET),
            KvKey::new(name.as_str()),
        ) else {
            return;
        };
        let revision = known.get(name.as_str()).copied();
        let conditional = random.below(2) == 0;
        let what = match random.below(10) {
            0..3 => What::KvGet(KvGet {
                key,
                consistency: match random.below(4) {
                    0 => Some(Consistency::Linearizable),
                    1 => Some(Consistency::Local),
                    _ => None,
                },
            }),
            3 => What::Kv(Op::Delete {
                bucket: BUCKET.into(),
                key: name.as_str().into(),
                if_revision: revision.filter(|_| conditional),
            }),
            4 => What::KvList {
                ask: KvList {
                    prefix: KvPrefix::new("key-").ok().filter(|_| conditional),
                    after: (random.below(2) == 0).then(|| key.into()),
                    limit: Some(random.between(1, KEYS)),
                },
            },
            kind => What::Kv(Op::Put {
                bucket: BUCKET.into(),
                key: name.as_str().into(),
                value: env.calls.all.len().to_string().into_bytes().into(),
                if_revision: match kind {
                    5 => conditional.then_some(0),
                    _ => conditional.then_some(revision.unwrap_or(0)),
                },
                ttl_ms: (random.below(4) == 0).then(|| random.between(50, 3_000)),
                above: match kind {
                    5 => random.between(1, RESTORED_ABOVE_MAX),
                    _ => 0,
                },
            }),
        };
        let shard = kv_shard_of(&bucket, &name, self.shards);
        let time_us = match client.manner.repeats {
            true => random.between(2_000_000, 6_000_000),
            false => random.between(300_000, 2_500_000),
        };
        client.busy = true;
        env.call(number, (bucket, shard), what, client.manner, time_us);
    }
}
