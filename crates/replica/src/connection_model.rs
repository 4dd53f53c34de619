//! Visits every state of a small model of lease, vote hold and closed connections, with the code that nodes run.
//!
//! Node 0 leads and is cut off, slow or paused in every way; nodes 1 and 2 elect one of them as soon as their
//! vote holds allow it, and the new leader acknowledges a write. Then no request that was sent after the
//! acknowledgement may be answered from node 0's state, which lacks the write.
//!
//! Frames are lost, doubled, late and in any order. The server closes node 0's connection at any time, also
//! without node 0 noticing it; what the server had sent before is read at any time after. A connection that
//! node 0 has given up stays open at the server for any time. Proof of a closed connection comes at any time,
//! late, or never. Each rule is left out once, and then a wrong answer must be found.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use crate::lease::Lease;
use crate::vote_hold::VoteHold;
use crate::{Connection, Micros, ReadId};

/// The vote hold and the lease, in steps of the clock.
const TIMEOUT: Micros = 2;
const STEPS: Micros = 2;
const CONNECTIONS: u64 = 2;
const ROUNDS: usize = 2;
const TERM: u64 = 1;

/// A rule to leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Without {
    Nothing,
    /// A lost connection ends the lease.
    EndOfLease,
    /// The loss is noticed before a request of the next connection is taken.
    NoticeFirst,
    /// Frames name the connection of now.
    NumberInFrames,
    /// The end of a connection voids only what was promised for it or an earlier one.
    ThatConnection,
    /// Only the server of the connection says that it is closed; another one may have lost its route there.
    OwnServer,
    /// A connection that never answered is not taken for one that is closed.
    AnswerFirst,
}

/// Connections, a bit each.
type Connections = u8;

fn bit(number: u64) -> Connections {
    1 << number
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    now: Micros,
    /// At the server: connections that are open, that ever were, and by which it sent a request that was made
    /// after the new leader's acknowledgement.
    open: Connections,
    was_open: Connections,
    sent: Connections,
    /// Node 0: the number of its connection, whether its client is connected, whether it has read such a request.
    number: u64,
    connected: bool,
    read: bool,
    /// The number that its engine knows.
    noticed: u64,
    lease: Lease,
    /// Its rounds, each with the number in its frames.
    rounds: Vec<(ReadId, u64)>,
    /// Which of them a follower has answered.
    confirmed: [bool; ROUNDS],
    /// Nodes 1 and 2.
    holds: [VoteHold; 2],
    voted: [bool; 2],
    acknowledged: bool,
}

/// The states that can come after one.
struct Next<'a> {
    from: &'a State,
    states: Vec<State>,
}

impl Next<'_> {
    fn add(&mut self, change: impl FnOnce(&mut State)) {
        let mut state = self.from.clone();
        change(&mut state);
        self.states.push(state);
    }
}

impl State {
    fn first() -> State {
        let hold = VoteHold::new(TIMEOUT, 0, true);
        State {
            now: 0,
            open: bit(1),
            was_open: bit(1),
            sent: 0,
            number: 1,
            connected: true,
            read: false,
            noticed: 1,
            lease: Lease::new(TIMEOUT),
            rounds: Vec::new(),
            confirmed: [false; ROUNDS],
            holds: [hold.clone(), hold],
            voted: [false; 2],
            acknowledged: false,
        }
    }

    /// What node 0's engine does before each input.
    fn notice(&mut self, without: Without) {
        if self.noticed != self.number && without != Without::NoticeFirst {
            self.notice_now(without);
        }
    }

    fn notice_now(&mut self, without: Without) {
        self.noticed = self.number;
        if without != Without::EndOfLease {
            self.lease.connection_lost();
        }
    }

    /// All states that can come next.
    fn next(&self, without: Without) -> Vec<State> {
        let mut next = Next {
            from: self,
            states: Vec::new(),
        };
        if self.now < STEPS {
            next.add(|s| s.now += 1);
        }
        self.at_the_server(&mut next);
        self.at_node_0(without, &mut next);
        for follower in 0..2 {
            self.at_follower(follower, without, &mut next);
        }
        if self.voted == [true; 2] && !self.acknowledged {
            next.add(|s| s.acknowledged = true);
        }
        next.states
    }

    fn at_the_server(&self, next: &mut Next<'_>) {
        for number in (1..=CONNECTIONS).filter(|it| self.open & bit(*it) != 0) {
            if self.acknowledged {
                next.add(|s| s.sent |= bit(number));
            }
            next.add(|s| s.open &= !bit(number));
        }
    }

    fn at_node_0(&self, without: Without, next: &mut Next<'_>) {
        if self.number < CONNECTIONS {
            // The client gives its connection up, or an attempt to connect.
            next.add(|s| (s.number, s.connected) = (s.number + 1, false));
        }
        if !self.connected {
            next.add(|s| {
                s.connected = true;
                s.open |= bit(s.number);
                s.was_open |= bit(s.number);
            });
        }
        if self.noticed != self.number {
            next.add(|s| s.notice_now(without));
        }
        if self.connected && self.sent & bit(self.number) != 0 {
            next.add(|s| s.read = true);
        }
        if self.rounds.len() < ROUNDS {
            next.add(|s| {
                s.notice(without);
                let id = s.lease.ask(TERM, s.now);
                s.lease.end_turn();
                let number = match without {
                    Without::NumberInFrames => 1,
                    _ => s.noticed,
                };
                s.rounds.push((id, number));
            });
        }
        for (id, _) in confirmed(self) {
            next.add(|s| {
                s.notice(without);
                s.lease.grant(&id.0.to_be_bytes(), 0, 0);
            });
        }
    }

    fn at_follower(&self, i: usize, without: Without, next: &mut Next<'_>) {
        // A node that has voted refuses the earlier term.
        if !self.voted[i] {
            for (round, &(_, number)) in self.rounds.iter().enumerate() {
                next.add(|s| {
                    s.holds[i].clock(s.now);
                    s.holds[i].peer_connection(0, Connection { start: 1, number });
                    s.holds[i].answers(s.now, 0);
                    s.confirmed[round] = true;
                });
            }
            next.add(|s| {
                s.holds[i].clock(s.now);
                s.voted[i] = !s.holds[i].leader_alive(s.now);
            });
        }
        for number in (1..=self.number).filter(|_| !self.voted[i]) {
            let is_open = self.open & bit(number) != 0 && without != Without::OwnServer;
            let was_open = self.was_open & bit(number) != 0 || without == Without::AnswerFirst;
            if was_open && !is_open {
                let number = match without {
                    Without::ThatConnection => u64::MAX,
                    _ => number,
                };
                next.add(|s| s.holds[i].connection_closed(0, Connection { start: 1, number }));
            }
        }
    }

    /// Node 0 would answer a request from its state without asking anybody.
    fn is_in_lease(&self, without: Without) -> bool {
        let mut state = self.clone();
        state.notice(without);
        let until = state.lease.lease_until(TERM);
        until.is_some_and(|until| state.now < until)
    }
}

/// The rounds that a quorum has confirmed.
fn confirmed(state: &State) -> impl Iterator<Item = (ReadId, u64)> {
    let rounds = state.rounds.iter().zip(state.confirmed);
    rounds.filter_map(|(round, confirmed)| confirmed.then_some(*round))
}

/// What all runs together came to.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    wrong_answer: bool,
    /// A write of the new leader is acknowledged while node 0 is in its lease: requests from before are
    /// answered by both.
    overlap: bool,
}

fn search(without: Without) -> Found {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    // Fingerprints, as stateright has them.
    let mut seen = HashSet::new();
    let mut stack = vec![State::first()];
    let mut found = Found::default();
    while let Some(state) = stack.pop() {
        let in_lease = state.acknowledged && state.is_in_lease(without);
        found.overlap |= in_lease;
        if in_lease && state.read {
            found.wrong_answer = true;
            break;
        }
        let next = state.next(without).into_iter();
        stack.extend(next.filter(|next| seen.insert(hasher.hash_one(next))));
    }
    found.states = seen.len();
    found
}

#[test]
fn no_answer_misses_what_a_new_leader_acknowledged() {
    let found = search(Without::Nothing);
    eprintln!("{found:?}");
    assert!(!found.wrong_answer);
    assert!(found.overlap, "{found:?}");
}

#[test]
fn every_rule_is_needed() {
    for without in [
        Without::EndOfLease,
        Without::NoticeFirst,
        Without::NumberInFrames,
        Without::ThatConnection,
        Without::OwnServer,
        Without::AnswerFirst,
    ] {
        assert!(search(without).wrong_answer, "{without:?}");
    }
}
