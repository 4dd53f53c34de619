//! What operators and backends of lines do, as trouble has it.

use std::rc::Rc;

use nowserving_line::{Admission, Change, Gate, LineName, Op, SettingsPatch, TakeBy};
use nowserving_protocol::admin::{
    ClusterStatusRequest, ConfigureLines, ListLines, SettingsChanges,
};
use nowserving_protocol::kick::{Kick, LiveState};
use nowserving_protocol::user::Key;

use super::{Client, Clients, Role, Shop};
use crate::backend;
use crate::calls::{Manner, What};
use crate::env::Env;
use crate::faults::Fault;
use crate::random::Random;
use crate::settings::{common_label, patch, schedule, unique_patch};

impl Clients {
    /// An operator does what an operator does, if one can now.
    pub fn operate(&mut self, env: &mut Env, kind: Fault) {
        let shop = self.random.below(self.shops.len() as u64) as usize;
        let Some(Shop { name, settings, .. }) = self.shops.get(shop) else {
            return;
        };
        let idle = |client: &Client| {
            let exists =
                matches!(client.role, Role::Operator { shop: of, exists: true, .. } if of == shop);
            exists && !client.busy
        };
        let Some(number) = self.clients.iter().position(idle) else {
            return;
        };
        let line = name.clone();
        let random = &mut self.random;
        let mut named = None;
        if let Some(Client {
            role:
                Role::Operator {
                    incarnation,
                    deleted,
                    is_stale,
                    ..
                },
            ..
        }) = self.clients.get_mut(number)
            && matches!(kind, Fault::OperatorConfigures | Fault::OperatorDeletes)
        {
            *is_stale = deleted.is_some() && env.strikes(Fault::IncarnationStale);
            named = match *is_stale {
                true => *deleted,
                false => incarnation.filter(|_| random.below(2) == 0),
            };
        }
        let op = match kind {
            Fault::OperatorKicks => {
                let Some(kick) = kick(&self.clients, shop, random) else {
                    return;
                };
                env.counts.add(kind);
                let time_us = random.between(500_000, 4_000_000);
                return self.ask(env, number, shop, What::Kick(Rc::new(kick)), time_us);
            }
            Fault::OperatorConfiguresMany => {
                let what = What::ConfigureLines(Rc::new(many_lines(env.calls.all.len(), random)));
                env.counts.add(kind);
                let time_us = random.between(500_000, 4_000_000);
                return self.ask(env, number, shop, what, time_us);
            }
            Fault::OperatorSchedules => Op::Configure {
                line,
                patch: Box::new(SettingsPatch {
                    schedule: Some(Change::Set(schedule(env.timeline.now(), settings, random))),
                    ..unique_patch(env.calls.all.len())
                }),
                if_version: None,
                incarnation: None,
            },
            Fault::OperatorLooks => {
                let what = match random.below(4) {
                    0 => What::read(&ClusterStatusRequest {}),
                    1 => What::read(&ListLines::default()),
                    _ => What::Tokens(Rc::new(backend::page(random))),
                };
                env.counts.add(kind);
                return self.ask(env, number, shop, what, 2_000_000);
            }
            Fault::OperatorConfigures => Op::Configure {
                line,
                patch: Box::new(patch(settings, env.calls.all.len(), random)),
                if_version: None,
                incarnation: named,
            },
            Fault::OperatorCalls => match self.call(env, line, shop) {
                Some(op) => op,
                None => return,
            },
            Fault::OperatorImports => match self.import(env, line, shop) {
                Some(op) => op,
                None => return,
            },
            Fault::BackendTells => backend::capacity(line, settings, random),
            Fault::OperatorDeletes => Op::Delete {
                line,
                force: true,
                incarnation: named,
            },
            _ => {
                let lane = settings.lanes.first().map(|lane| lane.name.clone());
                let to = settings.lanes.last().map(|lane| lane.name.clone());
                let token = self.clients.iter().find_map(|client| client.waits_in(shop));
                let (Some(lane), Some(to), Some(token)) = (lane, to, token) else {
                    return;
                };
                if lane == to {
                    return;
                }
                let token = token.token;
                Op::Move {
                    line,
                    lane,
                    token,
                    to,
                }
            }
        };
        let time_us = self.random.between(500_000, 4_000_000);
        // Sometimes by the tool, sometimes by hand.
        let manner = match self.random.below(2) {
            0 => Manner::SDK,
            _ => Manner::raw(&mut self.random),
        };
        if let Some(client) = self.clients.get_mut(number) {
            client.manner = manner;
        }
        self.ask(env, number, shop, What::Write(op), time_us);
        env.counts.add(kind);
    }

    /// A change of how tokens are admitted or of the gate, or a call; sometimes with the id of an earlier one.
    fn call(&mut self, env: &Env, line: LineName, shop: usize) -> Option<Op> {
        let waiting = self.clients.iter().find_map(|client| client.waits_in(shop));
        let place = self.shops.get_mut(shop)?;
        let lane = place.settings.lanes.first()?.name.clone();
        let random = &mut self.random;
        let kind = random.below(8);
        if kind < 2 {
            let mut patch = unique_patch(env.calls.all.len());
            match random.below(5) {
                0 => patch.admission = Some(Change::Set(Admission::Auto)),
                1 | 2 => patch.admission = Some(Change::Set(Admission::Called)),
                _ => patch.gate = random.pick(&Gate::ALL).copied().map(Change::Set),
            }
            return Some(Op::Configure {
                line,
                patch: Box::new(patch),
                if_version: None,
                incarnation: None,
            });
        }
        place.call_ids += random.below(2);
        let call_id = format!("call-{}", place.call_ids);
        if kind < 6 {
            return Some(Op::CallNext {
                line,
                n: random.between(1, 4) as u32,
                lane: (random.below(4) == 0).then_some(lane),
                call_id: call_id.into(),
            });
        }
        let token = waiting?.token;
        Some(Op::Take {
            line,
            by: TakeBy::Number { lane, token },
            call_id: (random.below(3) > 0).then(|| call_id.into()),
        })
    }
}

/// All lines, or the first ones.
fn many_lines(call: usize, random: &mut Random) -> ConfigureLines {
    let set = SettingsPatch {
        seats: Some(Change::Set(random.between(1, 10) as u32)),
        ..unique_patch(call)
    };
    ConfigureLines {
        labels: common_label().into(),
        set: SettingsChanges(set),
        limit: (random.below(3) == 0).then(|| random.between(1, 3)),
        ..ConfigureLines::default()
    }
}

/// By key, or all.
fn kick(clients: &[Client], shop: usize, random: &mut Random) -> Option<Kick> {
    let key = |client: &Client| match &client.role {
        Role::Shopper { visit: Some(visit) } if visit.shop == shop => visit.key.clone(),
        _ => None,
    };
    let keys: Vec<Box<[u8]>> = clients.iter().filter_map(key).collect();
    let some = keys.iter().filter(|_| random.below(4) == 0);
    let some: Vec<Key> = some.filter_map(|key| Key::new(&**key).ok()).collect();
    let mut kick = Kick {
        state: match random.below(4) {
            0 => Some(LiveState::Waiting),
            _ => None,
        },
        ..Kick::default()
    };
    match random.below(4) {
        0 => kick.all = true,
        _ if some.is_empty() => return None,
        _ => kick.keys = Some(some),
    }
    Some(kick)
}
