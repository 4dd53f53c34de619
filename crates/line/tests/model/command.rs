//! The commands of a run, generated before it is known which tokens there will be.

use nowserving_line::{
    Change, ImportRow, KickItem, KickNote, KickSelector, LaneName, LineName, Op, Opening, Phase,
    RecycleItem, RefusedCounts, Settings, SettingsPatch, State, TakeBy, TokenBy, TokenRef,
};
use proptest::prelude::*;

use crate::naive::{Id, NaiveLine};
use crate::rules::{self, LANES, Rule};
use crate::shard::Naive;

/// Operations name tokens by a number that is folded into what has been issued by then.
#[derive(Debug, Clone)]
pub enum Command {
    Enter {
        key: Option<u8>,
        /// By its place in [`LANES`].
        lane: Option<usize>,
    },
    /// The next rows of an import, or some that are done already, or too late ones.
    Import {
        /// By its place in [`CALLS`].
        id: usize,
        back: u64,
        early: bool,
        rows: Vec<(u8, Option<usize>, Option<u32>)>,
    },
    Seal {
        seed: u8,
    },
    RenewQuota {
        next: u32,
    },
    CapacityTold {
        told: Option<(u32, u64)>,
    },
    Callback {
        key: u8,
        lane: Option<usize>,
    },
    Move {
        pick: u16,
        to: usize,
    },
    Jump {
        pick: u16,
        key: bool,
        astray: bool,
        to: usize,
    },
    Token {
        verb: Verb,
        pick: u16,
        epoch: Epoch,
        astray: bool,
        units: Option<u32>,
    },
    /// As the leader does it: all due tokens, or the picked ones, with correct or incorrect data.
    Recycle {
        picks: Option<Vec<u16>>,
        truly: bool,
    },
    CallNext {
        n: u32,
        lane: Option<usize>,
        /// By its place in [`CALLS`].
        call: usize,
    },
    Take {
        pick: u16,
        key: bool,
        call: Option<usize>,
    },
    /// The picked tokens, each perhaps only if it is as it was seen, correctly or not.
    Kick {
        picks: Vec<(u16, u8)>,
        noted: Option<u8>,
    },
    Touch {
        picks: Vec<(u16, u16)>,
    },
    CountRefused {
        counts: [u64; 4],
    },
    Configure {
        seats: Option<u8>,
        queue_limit: Option<u8>,
        /// Bit n: timeout n is short now, else long.
        short: Option<u8>,
        rules: Vec<Rule>,
        condition: Condition,
    },
    Create {
        seats: u8,
        queue_limit: u8,
    },
    Delete {
        force: bool,
    },
    Step,
    /// The clock moves, or somebody claims it did.
    Clock {
        forward: u16,
        back: bool,
        /// The wall clock is set to this.
        wall: Option<u32>,
    },
    /// Dump, restore, and go on with what was restored.
    Restart,
    /// Keep a copy of the line.
    Backup,
    /// Put that copy back.
    PutBack {
        overwrite: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum Verb {
    Claim,
    Renew,
    Complete,
    Leave,
}

#[derive(Debug, Clone, Copy)]
pub enum Epoch {
    None,
    Right,
    Older,
    Newer,
}

#[derive(Debug, Clone, Copy)]
pub enum Condition {
    None,
    Met,
    /// Of a version at which the settings were the same.
    Before,
    Old,
    Future,
}

pub const LINES: [&str; 2] = ["a", "b"];
pub const KEYS: u8 = 6;
/// Ids of calls, which come again and again.
pub const CALLS: [&str; 7] = ["c-0", "c-1", "c-2", "c-3", "c-4", "c-5", ""];
const IDLE_MS: u64 = 1_000;
const CLAIM_MS: u64 = 500;
const CHECKOUT_MS: u64 = 700;
const CHECKOUT_MAX_MS: u64 = 2_000;

pub fn settings(seats: u8, queue_limit: u8) -> Settings {
    Settings {
        waiting_idle_timeout_ms: IDLE_MS,
        claim_timeout_ms: CLAIM_MS,
        checkout_timeout_ms: CHECKOUT_MS,
        checkout_max_ms: CHECKOUT_MAX_MS,
        ..Settings::new(u32::from(seats).max(1), queue_limit.into())
    }
}

pub fn key(key: u8) -> Box<[u8]> {
    format!("key-{key}").into_bytes().into()
}

fn token_command() -> impl Strategy<Value = Command> {
    let verb = prop_oneof![
        3 => Just(Verb::Claim),
        1 => Just(Verb::Renew),
        3 => Just(Verb::Complete),
        3 => Just(Verb::Leave),
    ];
    let epoch = prop_oneof![
        2 => Just(Epoch::None),
        5 => Just(Epoch::Right),
        1 => Just(Epoch::Older),
        1 => Just(Epoch::Newer),
    ];
    let units = prop::option::weighted(0.7, 0..5u32);
    let astray = prop::bool::weighted(0.02);
    (verb, any::<u16>(), epoch, astray, units).prop_map(|(verb, pick, epoch, astray, units)| {
        Command::Token {
            verb,
            pick,
            epoch,
            astray,
            units,
        }
    })
}

fn recycle() -> impl Strategy<Value = Command> {
    let picks = prop::option::of(prop::collection::vec(any::<u16>(), 0..8));
    (picks, prop::bool::weighted(0.8)).prop_map(|(picks, truly)| Command::Recycle { picks, truly })
}

fn kick() -> impl Strategy<Value = Command> {
    let picks = prop::collection::vec((any::<u16>(), 0..6u8), 0..8);
    let noted = prop::option::weighted(0.8, 0..120u8);
    (picks, noted).prop_map(|(picks, noted)| Command::Kick { picks, noted })
}

fn configure() -> impl Strategy<Value = Command> {
    let condition = prop_oneof![
        5 => Just(Condition::None),
        1 => Just(Condition::Met),
        1 => Just(Condition::Before),
        1 => Just(Condition::Old),
        1 => Just(Condition::Future),
    ];
    let some = prop::option::of;
    (
        some(1..9u8),
        some(0..12u8),
        prop::option::weighted(0.2, 0..16u8),
        prop::collection::vec(rules::rule(), 0..4),
        condition,
    )
        .prop_map(
            |(seats, queue_limit, short, rules, condition)| Command::Configure {
                seats,
                queue_limit,
                short,
                rules,
                condition,
            },
        )
}

/// One command, for which of the lines, and whether it shares an entry with the one before.
pub fn command() -> impl Strategy<Value = (usize, Command, bool)> {
    let lane = prop::option::weighted(0.5, rules::lane());
    let callback = (0..KEYS, prop::option::weighted(0.3, rules::lane()));
    let callback = callback.prop_map(|(key, lane)| Command::Callback { key, lane });
    let enter = (prop::option::of(0..KEYS), lane);
    let enter = enter.prop_map(|(key, lane)| Command::Enter { key, lane });
    let row = (
        0..KEYS,
        prop::option::weighted(0.4, rules::lane()),
        any::<Option<u32>>(),
    );
    let rows = prop::collection::vec(row, 0..6);
    // Of few ids, so that most imports go on.
    let id = prop_oneof![8 => 0..2usize, 1 => Just(CALLS.len() - 1)];
    let import = (id, 0..3u64, prop::bool::weighted(0.05), rows);
    let import = import.prop_map(|(id, back, early, rows)| Command::Import {
        id,
        back,
        early,
        rows,
    });
    let moved = (any::<u16>(), rules::lane()).prop_map(|(pick, to)| Command::Move { pick, to });
    let jump = (
        any::<u16>(),
        any::<bool>(),
        prop::bool::weighted(0.02),
        rules::lane(),
    );
    let jump = jump.prop_map(|(pick, key, astray, to)| Command::Jump {
        pick,
        key,
        astray,
        to,
    });
    let lane = prop::option::weighted(0.3, rules::lane());
    let call = (0..8u32, lane, 0..CALLS.len());
    let call = call.prop_map(|(n, lane, call)| Command::CallNext { n, lane, call });
    let id = prop::option::weighted(0.5, 0..CALLS.len());
    let take = (any::<u16>(), any::<bool>(), id);
    let take = take.prop_map(|(pick, key, call)| Command::Take { pick, key, call });
    let touched = prop::collection::vec((any::<u16>(), 0..2_000u16), 0..5);
    let create = (1..5u8, 0..9u8);
    let wall = prop::option::weighted(0.3, any::<u32>());
    let clock = (0..900u16, prop::bool::weighted(0.1), wall);
    let command = prop_oneof![
        24 => enter,
        6 => callback,
        3 => import,
        2 => any::<u32>().prop_map(|next| Command::RenewQuota { next }),
        4 => any::<u8>().prop_map(|seed| Command::Seal { seed }),
        2 => prop::option::weighted(0.7, (0..6u32, 100..2_000u64))
            .prop_map(|told| Command::CapacityTold { told }),
        30 => token_command(),
        6 => recycle(),
        2 => touched.prop_map(|picks| Command::Touch { picks }),
        1 => [0..9u64, 0..9, 0..9, 0..9].prop_map(|counts| Command::CountRefused { counts }),
        3 => moved,
        5 => jump,
        3 => kick(),
        4 => call,
        4 => take,
        9 => configure(),
        2 => create.prop_map(|(seats, queue_limit)| Command::Create { seats, queue_limit }),
        1 => prop::bool::ANY.prop_map(|force| Command::Delete { force }),
        4 => Just(Command::Step),
        6 => clock.prop_map(|(forward, back, wall)| Command::Clock { forward, back, wall }),
        2 => Just(Command::Restart),
        2 => Just(Command::Backup),
        2 => prop::bool::weighted(0.8).prop_map(|overwrite| Command::PutBack { overwrite }),
    ];
    // Mostly one line, so that it gets somewhere; the other sees that they don't touch.
    let line = prop_oneof![6 => Just(0), 1 => Just(1usize)];
    (line, command, prop::bool::weighted(0.4))
}

impl Command {
    /// Who enters from now on waits for the opening, and is drawn.
    pub fn awaiting_a_draw() -> Self {
        Self::change(vec![
            Rule::Opening(Opening::Draw),
            Rule::Phase(Phase::PreOpen),
        ])
    }

    pub fn open() -> Self {
        Self::change(vec![Rule::Phase(Phase::Open)])
    }

    fn change(rules: Vec<Rule>) -> Self {
        Command::Configure {
            seats: None,
            queue_limit: None,
            short: None,
            rules,
            condition: Condition::None,
        }
    }

    /// The operation this is now; `None` for what is none.
    pub fn to_op(&self, line: LineName, naive: &Naive) -> Option<Op> {
        let now = naive.lines.get(&line);
        let incarnation = now.map_or(0, |now| now.incarnation);
        Some(match self {
            Command::Enter { key: k, lane } => Op::Enter {
                line,
                key: k.map(key),
                lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
            },
            Command::Import {
                id,
                back,
                early,
                rows,
            } => {
                let import_id = CALLS[*id];
                let imported = now.and_then(|now| now.imported.as_ref());
                let imported = imported.filter(|(id, ..)| id == import_id);
                let done = imported.map_or(0, |(_, rows, _)| *rows);
                let rows = rows.iter().map(|(k, lane, entered_at_ms)| ImportRow {
                    key: key(*k),
                    lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
                    entered_at_ms: entered_at_ms.map(u64::from),
                });
                Op::Import {
                    line,
                    import_id: import_id.into(),
                    first_row: done.saturating_sub(*back) + u64::from(*early),
                    rows: rows.collect(),
                }
            }
            Command::Seal { seed } => Op::SealDraw {
                line,
                incarnation,
                seed: nowserving_line::Secret([*seed; 32]),
            },
            Command::RenewQuota { next } => Op::RenewQuota {
                line,
                incarnation,
                next_ms: (*next).into(),
            },
            Command::CapacityTold { told } => Op::CapacityTold { line, told: *told },
            Command::Callback { key: k, lane } => Op::Callback {
                line,
                key: key(*k),
                lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
            },
            Command::Move { pick, to } => {
                let (lane, token) = now.map_or((0, 1), |now| moved_or_not(now, *pick));
                let name = now.and_then(|now| now.table.get(usize::from(lane)));
                Op::Move {
                    line,
                    lane: name.cloned().unwrap_or_else(LaneName::default),
                    token,
                    to: LANES[*to].try_into().unwrap(),
                }
            }
            Command::Jump {
                pick,
                key: by_key,
                astray,
                to,
            } => {
                let (lane, token) = now.map_or((0, 1), |now| moved_or_not(now, *pick));
                let at = TokenRef {
                    incarnation: incarnation + u64::from(*astray),
                    lane,
                    token,
                };
                let by = match by_key {
                    true => TokenBy::Key(key((*pick % u16::from(KEYS)) as u8)),
                    false => TokenBy::At(at),
                };
                let to = LANES[*to].try_into().unwrap();
                Op::Jump { line, by, to }
            }
            Command::Token {
                verb,
                pick,
                epoch,
                astray,
                units,
            } => {
                let (lane, token) = now.map_or((0, 1), |now| fold(now, *pick));
                let at = TokenRef {
                    incarnation: incarnation + u64::from(*astray),
                    lane,
                    token,
                };
                token_op(*verb, line, at, now, (*epoch, *units))
            }
            Command::Recycle { picks, truly } => Op::Recycle {
                line,
                incarnation,
                tokens: now.map_or(Vec::new(), |now| items(now, naive.now_ms, picks, *truly)),
            },
            Command::CallNext { n, lane, call } => Op::CallNext {
                line,
                n: *n,
                lane: lane.map(|lane| LANES[lane].try_into().unwrap()),
                call_id: CALLS[*call].into(),
            },
            Command::Take {
                pick,
                key: by_key,
                call,
            } => {
                let (lane, token) = now.map_or((0, 1), |now| moved_or_not(now, *pick));
                let name = now.and_then(|now| now.table.get(usize::from(lane)));
                let by = match by_key {
                    true => TakeBy::Key(key((*pick % u16::from(KEYS)) as u8)),
                    false => TakeBy::Number {
                        lane: name.cloned().unwrap_or_else(LaneName::default),
                        token,
                    },
                };
                let call_id = call.map(|call| CALLS[call].into());
                Op::Take { line, by, call_id }
            }
            Command::Kick { picks, noted } => Op::Kick {
                line,
                incarnation,
                tokens: now.map_or(Vec::new(), |now| kick_items(now, picks)),
                note: noted.map(|n| Box::new(kick_note(n))),
            },
            Command::CountRefused { counts } => Op::CountRefused {
                line,
                incarnation,
                refused: RefusedCounts::new(*counts),
            },
            Command::Touch { picks } => {
                let tokens = picks.iter().map(|(pick, ms)| {
                    let (lane, token) = now.map_or((0, 1), |now| fold(now, *pick));
                    (
                        lane,
                        token,
                        (naive.now_ms + 500).saturating_sub((*ms).into()),
                    )
                });
                let tokens = tokens.collect();
                Op::Touch {
                    line,
                    incarnation,
                    tokens,
                }
            }
            Command::Configure {
                seats,
                queue_limit,
                short,
                rules,
                condition,
            } => Op::Configure {
                line,
                patch: Box::new(rules::patch(
                    rules,
                    SettingsPatch {
                        seats: seats.map(|n| Change::Set(n.into())),
                        queue_limit: queue_limit.map(|n| Change::Set(n.into())),
                        waiting_idle_timeout_ms: timeout(*short, 0, IDLE_MS),
                        claim_timeout_ms: timeout(*short, 1, CLAIM_MS),
                        checkout_timeout_ms: timeout(*short, 2, CHECKOUT_MS),
                        checkout_max_ms: timeout(*short, 3, CHECKOUT_MAX_MS),
                        ..SettingsPatch::default()
                    },
                )),
                if_version: now.and_then(|now| match condition {
                    Condition::None => None,
                    Condition::Met => Some(now.version),
                    Condition::Before => Some(now.settings_version),
                    Condition::Old => now.settings_version.checked_sub(1),
                    Condition::Future => Some(now.version + 1),
                }),
                incarnation: None,
            },
            Command::Create { seats, queue_limit } => Op::Create {
                line,
                settings: settings(*seats, *queue_limit),
            },
            Command::Delete { force } => Op::Delete {
                line,
                force: *force,
                incarnation: None,
            },
            Command::Step => Op::RunBackground { line, incarnation },
            // No line has this incarnation: only the clock is moved.
            Command::Clock { .. } => Op::RunBackground {
                line,
                incarnation: 0,
            },
            Command::Restart | Command::Backup | Command::PutBack { .. } => return None,
        })
    }
}

fn timeout(short: Option<u8>, n: u8, ms: u64) -> Option<Change<u64>> {
    short.map(|short| Change::Set(if short & (1 << n) != 0 { ms / 4 } else { ms }))
}

/// Mostly one of the live tokens, sometimes any, sometimes one that was never issued.
fn fold(line: &NaiveLine, pick: u16) -> Id {
    let tokens = line.tokens.iter();
    let live = tokens.filter(|(_, t)| t.state != State::Gone);
    let live: Vec<Id> = live.map(|(id, _)| *id).collect();
    let (kind, pick) = (pick % 8, usize::from(pick / 8));
    if kind > 0 && !live.is_empty() {
        // The front, where the seats are, is where most happens.
        let reach = if kind > 3 {
            live.len()
        } else {
            live.len().min(4)
        };
        live[pick % reach]
    } else {
        let lane = pick % (line.table.len() + 1);
        let token = pick as u64 / 5 % (line.issued(lane as u8) + 3);
        (lane as u8, token)
    }
}

/// Often one that was moved before.
fn moved_or_not(line: &NaiveLine, pick: u16) -> Id {
    let tokens = line.tokens.iter();
    let moved = tokens.filter(|(_, t)| t.moved_to.is_some() || t.renumbered);
    let moved: Vec<Id> = moved.map(|(id, _)| *id).collect();
    match usize::from(pick).checked_rem(moved.len()) {
        Some(newest) if pick.is_multiple_of(3) => moved[moved.len() - 1 - newest],
        _ => fold(line, pick),
    }
}

fn token_op(
    verb: Verb,
    line: LineName,
    at: TokenRef,
    now: Option<&NaiveLine>,
    (epoch, units): (Epoch, Option<u32>),
) -> Op {
    let tok = now.and_then(|now| now.tokens.get(&(at.lane, at.token)));
    let right = tok.and_then(|tok| tok.epoch).unwrap_or(0);
    let given = match epoch {
        Epoch::None => None,
        Epoch::Right => Some(right),
        Epoch::Older => right.checked_sub(1),
        Epoch::Newer => Some(right + 1),
    };
    match verb {
        Verb::Claim => Op::Claim { line, at },
        Verb::Leave => Op::Leave { line, at },
        Verb::Complete => Op::Complete {
            line,
            at,
            epoch: given,
            units,
        },
        Verb::Renew => {
            let epoch = given.unwrap_or(right);
            Op::Renew { line, at, epoch }
        }
    }
}

fn kick_note(n: u8) -> KickNote {
    KickNote {
        selector: KickSelector::Tokens(n.into()),
        state: n.is_multiple_of(2).then_some(State::Waiting),
        reason: Some("x".repeat(n.into()).into()),
        by: None,
    }
}

fn kick_items(line: &NaiveLine, picks: &[(u16, u8)]) -> Vec<KickItem> {
    let items = picks.iter().map(|(pick, how)| {
        let (lane, token) = moved_or_not(line, *pick);
        let tok = line.tokens.get(&(lane, token));
        let seen_ms =
            tok.map(|tok| (tok.last_seen_ms + 1).saturating_sub(2 * u64::from(*how == 5)));
        KickItem {
            lane,
            token,
            state: (!how.is_multiple_of(2)).then_some(State::Waiting),
            clock_ms: seen_ms.filter(|_| *how > 3),
        }
    });
    items.collect()
}

fn items(line: &NaiveLine, now_ms: u64, picks: &Option<Vec<u16>>, truly: bool) -> Vec<RecycleItem> {
    let item = |id: Id| {
        let tok = line.tokens.get(&id)?;
        let clock_ms = match tok.state {
            State::Waiting => tok.last_seen_ms,
            State::Admitted | State::InCheckout | State::Gone => tok.deadline_ms,
        };
        Some(RecycleItem {
            lane: id.0,
            token: id.1,
            state: tok.state,
            clock_ms: clock_ms + u64::from(!truly),
        })
    };
    match picks {
        Some(picks) => picks.iter().filter_map(|p| item(fold(line, *p))).collect(),
        None => {
            let idle_ms = line.settings.waiting_idle_timeout_ms;
            let all = line.tokens.keys().copied().filter_map(item);
            let most_ms = line.settings.max_wait_ms.unwrap_or(u64::MAX);
            let entered_ms =
                |item: &RecycleItem| line.tokens[&(item.lane, item.token)].entered.service_ms;
            let due = all.filter(|item| match item.state {
                State::Waiting => {
                    item.clock_ms + idle_ms < now_ms || now_ms - entered_ms(item) > most_ms
                }
                State::Admitted | State::InCheckout => item.clock_ms <= now_ms,
                State::Gone => false,
            });
            due.collect()
        }
    }
}
