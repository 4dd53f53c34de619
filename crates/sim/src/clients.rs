//! The crowd: shoppers, each with one visit after the other, and operators.
//!
//! Half of the shoppers ask through the SDK, which names each call and repeats it; the others send what they
//! have to say once, some with an id, and when no answer comes, some say it again, and some go away.

mod imports;
mod keepers;
mod limited;
mod operators;

use std::collections::BTreeSet;

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{
    Admission, Change, LaneName, LineName, Op, Phase, Settings, SettingsPatch, State, TokenBy,
    TokenRef,
};
use nowserving_protocol::error::Code;
use nowserving_protocol::subject::shard_of;
use nowserving_protocol::ticket::{Ticket, TicketKeys};
use nowserving_protocol::user::{Consistency, Seen};

use crate::calls::{Ended, Manner, Query, What};
use crate::env::Env;
use crate::faults::Fault;
use crate::node::Setup;
use crate::random::Random;
use crate::settings::{settings, unique_patch};
use crate::timeline::Time;
use crate::world::Event;

use self::imports::Import;
use self::keepers::{KEEPERS, Keeper};
use self::limited::{LIMITED, Limits};

/// Shoppers at a time.
const SHOPPERS: usize = 48;

/// A line, as its operator made it.
#[derive(Debug)]
struct Shop {
    name: LineName,
    shard: u32,
    settings: Settings,
    /// An operator may have set that its tokens are called.
    may_be_called: bool,
    /// The newest id of a call.
    call_ids: u64,
    /// A queue that runs elsewhere, part of which may be imported.
    import: Option<Import>,
}

impl Shop {
    /// Takes note of a call that ended so.
    fn may_be_called(&mut self, query: &Query, ended: &Ended) -> bool {
        if let What::Write(Op::Configure { patch, .. }) = &query.what
            && patch.admission == Some(Change::Set(Admission::Called))
        {
            self.may_be_called |= !matches!(ended, Ended::Unavailable);
        }
        self.may_be_called
    }
}

/// A shopper's visit.
#[derive(Clone, Debug, Default)]
struct Visit {
    shop: usize,
    key: Option<Box<[u8]>>,
    lane: Option<LaneName>,
    at: Option<TokenRef>,
    epoch: Option<u64>,
    /// Asked with an earlier epoch than that.
    epoch_is_stale: bool,
    state: Option<State>,
    renewals: u64,
    /// It was refused, and asks to be told of room.
    calls_back: bool,
    /// Only a gateway's `seen` keeps its token in line.
    by_gateway: bool,
}

#[derive(Debug)]
enum Role {
    Shopper {
        visit: Option<Visit>,
    },
    /// Of one line.
    Operator {
        shop: usize,
        /// As far as it knows.
        exists: bool,
        /// Of the line, if it was told.
        incarnation: Option<u64>,
        /// Of a line that it has deleted.
        deleted: Option<u64>,
        /// Asked with that.
        is_stale: bool,
        /// Wants the line open, whatever it was made before.
        opens: bool,
    },
    /// Of key-values.
    Keeper(Keeper),
    /// Asks whether requests may pass.
    Limited,
}

#[derive(Debug)]
struct Client {
    role: Role,
    manner: Manner,
    busy: bool,
}

/// All clients.
pub struct Clients {
    shops: Vec<Shop>,
    clients: Vec<Client>,
    random: Random,
    visits: u64,
    limits: Limits,
    /// The incarnations of lines of which a restore was sent. When it is carried out is not known until it is answered: one
    /// that was deleted meanwhile is there again then.
    restored: BTreeSet<(LineName, u64)>,
    /// Of the cluster.
    shards: u32,
}

impl Clients {
    /// Makes up lines and clients, and lets them begin.
    pub fn new(env: &mut Env, random: &mut Random, setup: &Setup) -> Clients {
        let mut random = random.fork();
        let count = random.between(3, 6);
        let mut shops = Vec::new();
        for number in 0..count {
            let Ok(name) = LineName::try_from(format!("shop-{number}").as_str()) else {
                continue;
            };
            shops.push(Shop {
                shard: shard_of(name.as_str(), setup.shards),
                settings: settings(&mut random),
                name,
                may_be_called: false,
                call_ids: 0,
                import: None,
            });
        }
        let operators = (0..shops.len()).map(|shop| Role::Operator {
            shop,
            exists: false,
            incarnation: None,
            deleted: None,
            is_stale: false,
            opens: false,
        });
        let shoppers = (0..SHOPPERS).map(|_| Role::Shopper { visit: None });
        let keepers = (0..KEEPERS).map(|_| Role::Keeper(Keeper::default()));
        let limited = (0..LIMITED).map(|_| Role::Limited);
        let others = shoppers.chain(keepers).chain(limited);
        let clients = operators.chain(others).enumerate();
        let clients: Vec<Client> = clients
            .map(|(number, role)| Client {
                role,
                manner: match number % 2 {
                    0 => Manner::SDK,
                    _ => Manner::raw(&mut random),
                },
                busy: false,
            })
            .collect();
        env.client_clocks = clients.iter().map(|_| clock_off_ms(&mut random)).collect();
        for (client, it) in clients.iter().enumerate() {
            let at = match it.role {
                Role::Operator { .. } => 1_200_000,
                Role::Shopper { .. } | Role::Keeper(_) | Role::Limited => {
                    2_000_000 + random.below(2_000_000)
                }
            };
            env.timeline.at(at, Event::Client { client });
        }
        Clients {
            shops,
            clients,
            random,
            visits: 0,
            limits: Limits::new(setup.shards),
            restored: BTreeSet::new(),
            shards: setup.shards,
        }
    }

    /// A client does its next thing.
    pub fn next(&mut self, env: &mut Env, number: usize) {
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        if client.busy {
            return;
        }
        match &mut client.role {
            Role::Operator {
                shop,
                exists,
                opens,
                ..
            } => {
                let (shop, exists, opens) = (*shop, *exists, *opens);
                if !exists {
                    self.create(env, number, shop);
                } else if opens {
                    self.open(env, number, shop);
                }
            }
            Role::Shopper { visit } => {
                let visit = visit.take();
                self.shop(env, number, visit);
            }
            Role::Keeper(_) => self.keep(env, number),
            Role::Limited => self.check_limit(env, number),
        }
    }

    fn create(&mut self, env: &mut Env, number: usize, shop: usize) {
        let Some(Shop { name, settings, .. }) = self.shops.get(shop) else {
            return;
        };
        let op = Op::Create {
            line: name.clone(),
            settings: settings.clone(),
        };
        self.ask(env, number, shop, What::Write(op), 4_000_000);
    }

    /// Every line is opened: a closed one is no sign that nothing moves.
    pub fn open_all(&mut self, env: &mut Env) {
        for (client, it) in self.clients.iter_mut().enumerate() {
            if let Role::Operator { opens, .. } = &mut it.role {
                *opens = true;
                env.timeline.after(0, Event::Client { client });
            }
        }
    }

    fn open(&mut self, env: &mut Env, number: usize, shop: usize) {
        let Some(Shop {
            name,
            may_be_called,
            ..
        }) = self.shops.get(shop)
        else {
            return;
        };
        let patch = SettingsPatch {
            phase: Some(Change::Set(Phase::Open)),
            // Not without need: until all members have told that they read the newest format, it is refused.
            admission: may_be_called.then_some(Change::Set(Admission::Auto)),
            ..unique_patch(env.calls.all.len())
        };
        let op = Op::Configure {
            line: name.clone(),
            patch: Box::new(patch),
            if_version: None,
            incarnation: None,
        };
        self.ask(env, number, shop, What::Write(op), 2_000_000);
    }

    fn ask(&mut self, env: &mut Env, number: usize, shop: usize, what: What, time_us: Time) {
        let (Some(place), Some(client)) = (self.shops.get(shop), self.clients.get_mut(number))
        else {
            return;
        };
        let place = (place.name.clone(), place.shard);
        client.busy = true;
        env.call(number, place, what, client.manner, time_us);
    }

    /// A shopper leaves its line and does not wait for the answer.
    fn leave_unanswered(&mut self, env: &mut Env, number: usize, shop: usize, at: TokenRef) {
        let (Some(place), Some(client)) = (self.shops.get(shop), self.clients.get(number)) else {
            return;
        };
        let line = place.name.clone();
        let manner = Manner {
            repeats: false,
            waits: false,
            ..client.manner
        };
        let what = What::Write(Op::Leave {
            line: line.clone(),
            at,
        });
        env.call(number, (line, place.shard), what, manner, 2_000_000);
        let delay = self.random.around(150_000);
        env.timeline.after(delay, Event::Client { client: number });
    }

    /// A shopper goes on with its visit, or begins one.
    fn shop(&mut self, env: &mut Env, number: usize, visit: Option<Visit>) {
        let mut visit = match visit {
            Some(visit) if visit.at.is_some() && env.strikes(Fault::ClientVanishes) => {
                env.note(format_args!("client {number}: goes away without a word"));
                self.new_visit()
            }
            Some(visit) => visit,
            None => self.new_visit(),
        };
        let Some(shop) = self.shops.get(visit.shop) else {
            return;
        };
        let line = shop.name.clone();
        let others = self.clients.iter();
        let others = others.filter_map(|it| it.waits_by_gateway(visit.shop));
        let others: Vec<TokenRef> = others.collect();
        let random = &mut self.random;
        visit.epoch_is_stale = false;
        let what = match (visit.at, visit.state) {
            (None, _)
                if visit.calls_back
                    && let Some(key) = visit.key.clone() =>
            {
                let lane = visit.lane.clone();
                What::Write(Op::Callback { line, key, lane })
            }
            (None, _) => What::Write(Op::Enter {
                line,
                key: visit.key.clone(),
                lane: visit.lane.clone(),
            }),
            (Some(at), Some(State::Admitted)) => What::Write(Op::Claim { line, at }),
            (Some(at), Some(State::InCheckout)) => {
                let mut epoch = visit.epoch.unwrap_or(0);
                if epoch > 1 && env.strikes(Fault::EpochStale) {
                    epoch -= random.between(1, (epoch - 1).min(3));
                    visit.epoch_is_stale = true;
                }
                if visit.renewals > 0 {
                    visit.renewals -= 1;
                    What::Write(Op::Renew { line, at, epoch })
                } else if !visit.epoch_is_stale && random.below(8) == 0 {
                    What::Write(Op::Leave { line, at })
                } else {
                    let named = visit.epoch_is_stale || random.below(2) == 0;
                    let epoch = named.then_some(epoch);
                    let units = (random.below(2) == 0).then(|| random.below(6) as u32);
                    What::Write(Op::Complete {
                        line,
                        at,
                        epoch,
                        units,
                    })
                }
            }
            (Some(at), _) if env.strikes(Fault::ShopperJumps) => {
                let by = match (&visit.key, random.below(2)) {
                    (Some(key), 0) => TokenBy::Key(key.clone()),
                    _ => TokenBy::At(at),
                };
                let lane = random.pick(&shop.settings.lanes);
                let to = lane.map(|lane| lane.name.clone()).unwrap_or_default();
                What::Write(Op::Jump { line, by, to })
            }
            (Some(at), _) if random.below(25) == 0 => {
                if env.strikes(Fault::LeaveUnanswered) {
                    let shop = visit.shop;
                    return self.leave_unanswered(env, number, shop, at);
                }
                What::Write(Op::Leave { line, at })
            }
            (Some(at), _) if visit.by_gateway => match random.below(4) {
                0 => status(at, Consistency::Local),
                _ => seen(
                    &env.link.keys.tickets,
                    &line,
                    [at].into_iter().chain(others),
                ),
            },
            (Some(at), _) => match (&visit.key, random.below(20)) {
                (Some(key), 0) => What::Find(key.clone()),
                (Some(key), 5..9) => What::Status {
                    token: TokenBy::Key(key.clone()),
                    consistency: Consistency::Leader,
                },
                (_, 0..3) => status(at, Consistency::Linearizable),
                (_, 3..5) => status(at, Consistency::Local),
                _ => status(at, Consistency::Leader),
            },
        };
        let shop = visit.shop;
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let time_us = match client.manner.repeats {
            true => random.between(2_000_000, 6_000_000),
            false => random.between(300_000, 2_500_000),
        };
        client.role = Role::Shopper { visit: Some(visit) };
        self.ask(env, number, shop, what, time_us);
    }

    fn new_visit(&mut self) -> Visit {
        self.visits += 1;
        let shop = self.random.below(self.shops.len() as u64) as usize;
        let anonymous = self.random.below(12) == 0;
        let key = format!("visit-{}", self.visits).into_bytes();
        let lanes = self.shops.get(shop).map(|shop| &shop.settings.lanes);
        let lane = match lanes {
            Some(lanes) if self.random.below(3) == 0 => {
                self.random.pick(lanes).map(|lane| lane.name.clone())
            }
            _ => None,
        };
        Visit {
            shop,
            key: (!anonymous).then(|| key.into()),
            lane,
            renewals: self.random.below(3),
            by_gateway: self.random.below(4) == 0,
            ..Visit::default()
        }
    }

    /// A client's call is over.
    pub fn call_ended(&mut self, env: &mut Env, call: usize) {
        let Some(call) = env.calls.all.get(call) else {
            return;
        };
        let (number, query) = (call.client, call.query.clone());
        let Some((_, ended)) = call.ended.clone() else {
            return;
        };
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        client.busy = false;
        let random = &mut self.random;
        let delay = match &mut client.role {
            Role::Operator {
                shop,
                exists,
                incarnation,
                deleted,
                is_stale,
                opens,
            } => {
                let is_stale = std::mem::take(is_stale);
                let name = self.shops.get(*shop).map(|shop| shop.name.clone());
                let came_back = name
                    .zip(*deleted)
                    .is_some_and(|it| self.restored.contains(&it));
                if is_stale && !came_back && matches!(ended, Ended::Ok(_)) {
                    let what =
                        format!("incarnation {deleted:?} is deleted, and was changed: {query:?}");
                    env.violated("S14", what);
                }
                if let Ended::Ok(answer) = &ended
                    && let Ok(Outcome::Reply(ReplyBody::Line(line))) = answer.as_ref()
                {
                    *incarnation = Some(line.incarnation);
                }
                let place = self.shops.get_mut(*shop);
                let may_be_called = place.is_some_and(|place| {
                    place.import_ended(&query, &ended);
                    place.may_be_called(&query, &ended)
                });
                match (&query.what, &ended) {
                    (What::Write(Op::Configure { patch, .. }), Ended::Ok(_)) => {
                        let opened = patch.phase == Some(Change::Set(Phase::Open));
                        *opens &= !opened || (may_be_called && patch.admission.is_none());
                    }
                    (
                        What::Write(Op::Configure { .. }),
                        Ended::Refused(Code::LineNotFound | Code::LineClosed),
                    ) if *opens => *exists = false,
                    (What::Write(Op::Create { .. }), Ended::Ok(_) | Ended::Refused(_)) => {
                        *exists = true;
                    }
                    // Another incarnation is there, or none.
                    (What::Write(Op::Delete { .. }), Ended::Refused(_)) if is_stale => {}
                    (What::Write(Op::Delete { .. }), Ended::Ok(_) | Ended::Refused(_)) => {
                        *exists = false;
                        *deleted = incarnation.take().or(*deleted);
                    }
                    // It repeats a change of which it does not know what came of it.
                    (What::Write(Op::Delete { .. }), _) if !is_stale => {
                        let (shop, what) = (*shop, query.what.clone());
                        return self.ask(env, number, shop, what, 2_000_000);
                    }
                    _ => {}
                }
                random.between(5_000, 300_000)
            }
            Role::Keeper(keeper) => {
                keeper.call_ended(&query, &ended);
                random.around(300_000)
            }
            Role::Limited => {
                if let Ended::Ok(_) = ended {
                    self.limits.ended(&query.what);
                }
                random.around(150_000)
            }
            Role::Shopper { visit } => {
                if visit.as_ref().is_some_and(|it| it.epoch_is_stale)
                    && matches!(ended, Ended::Ok(_))
                {
                    env.violated("S9", format!("an earlier epoch was taken: {query:?}"));
                }
                let full = matches!(ended, Ended::Refused(Code::LineFull));
                let calls_back = full && env.strikes(Fault::ShopperCallsBack);
                let over = visit
                    .as_mut()
                    .is_none_or(|it| !it.goes_on(calls_back) && it.is_over_after(&ended, random));
                if over {
                    *visit = None;
                    random.around(150_000)
                } else {
                    match visit.as_ref().and_then(|it| it.state) {
                        None => random.around(50_000),
                        Some(State::Waiting) => random.around(450_000),
                        Some(State::InCheckout) => random.around(400_000),
                        Some(_) => random.around(100_000),
                    }
                }
            }
        };
        env.timeline.after(delay, Event::Client { client: number });
    }

    /// A line is put back: the incarnation that its operator deleted may be there again.
    pub fn restored(&mut self, line: &LineName, restored: u64) {
        self.restored.insert((line.clone(), restored));
        for client in &mut self.clients {
            if let Role::Operator {
                shop,
                deleted,
                is_stale,
                ..
            } = &mut client.role
                && self.shops.get(*shop).is_some_and(|it| it.name == *line)
                && *deleted == Some(restored)
            {
                *deleted = None;
                *is_stale = false;
            }
        }
    }
}

impl Client {
    fn waits_by_gateway(&self, shop: usize) -> Option<TokenRef> {
        match &self.role {
            Role::Shopper {
                visit: Some(visit), ..
            } if visit.shop == shop && visit.by_gateway => {
                visit.at.filter(|_| visit.state == Some(State::Waiting))
            }
            _ => None,
        }
    }

    fn waits_in(&self, shop: usize) -> Option<TokenRef> {
        match &self.role {
            Role::Shopper {
                visit: Some(visit), ..
            } if visit.shop == shop && visit.state == Some(State::Waiting) => {
                visit.at.filter(|at| at.lane == 0)
            }
            _ => None,
        }
    }
}

impl Visit {
    /// A shopper who was refused asks to be told of room, once; then it tries again.
    fn goes_on(&mut self, calls_back: bool) -> bool {
        let asked = std::mem::take(&mut self.calls_back);
        self.calls_back = calls_back && !asked && self.at.is_none() && self.key.is_some();
        asked || self.calls_back
    }

    /// Takes in how a call ended; true if the visit is over.
    fn is_over_after(&mut self, ended: &Ended, random: &mut Random) -> bool {
        match ended {
            Ended::Ok(answer) => {
                let Ok(Outcome::Status { status, .. }) = answer.as_ref() else {
                    return !matches!(answer.as_ref(), Ok(Outcome::Reply(ReplyBody::Seen(_))));
                };
                self.at = Some(status.at);
                self.state = Some(status.state);
                self.epoch = status.epoch.or(self.epoch);
                status.state == State::Gone
            }
            Ended::Refused(code) => {
                use nowserving_protocol::error::Code;
                let later = matches!(
                    code,
                    Code::NotAdmitted | Code::NotClaimed | Code::EpochStale
                );
                self.state = self.state.filter(|_| later).map(|_| State::Waiting);
                !later
            }
            // Said again with the same key or ticket, or given up.
            Ended::Unknown | Ended::Unavailable => random.below(4) == 0,
        }
    }
}

/// What a client's clock is ahead of the truth: of a few by more than nodes tolerate.
fn clock_off_ms(random: &mut Random) -> i64 {
    match random.below(24) {
        0 => random.off_by(20_000),
        1..6 => random.off_by(4_000),
        _ => random.off_by(300),
    }
}

fn seen(keys: &TicketKeys, line: &LineName, tokens: impl Iterator<Item = TokenRef>) -> What {
    let ticket = |at| {
        let line = line.clone();
        keys.sign(&Ticket { line, at })
    };
    let tickets = tokens.map(ticket).collect();
    What::read(&Seen { tickets })
}

fn status(at: TokenRef, consistency: Consistency) -> What {
    let token = TokenBy::At(at);
    What::Status { token, consistency }
}
