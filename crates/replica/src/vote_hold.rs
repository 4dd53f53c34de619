//! When this node may not vote: its earlier answers may hold up a leader's lease.

use crate::Micros;

/// A lease counts from when the leader asked. A node that answered must then refuse every other
/// candidate, itself included, for an election timeout from its answer on. Raft has a rule like that,
/// but counts ticks, and ticks come early after a stall; so it is kept here by the clock.
pub(crate) struct VoteHold {
    timeout_us: Micros,
    /// Until then nothing is known of what was answered before the restart.
    started_until: Micros,
    /// A leader was heard, and the clock was read again since: it was not answered later than this.
    heard_at: Option<Micros>,
    /// A leader was heard at this reading of the clock, which may have been old by then (the process
    /// may have been stopped in between). The next different reading takes its place.
    heard_before: Option<Micros>,
}

impl VoteHold {
    /// `fresh`: this node never took part, so there is no earlier answer.
    pub fn new(timeout_us: Micros, now: Micros, fresh: bool) -> VoteHold {
        let started_until = if fresh {
            now
        } else {
            now.saturating_add(timeout_us)
        };
        VoteHold {
            timeout_us,
            started_until,
            heard_at: None,
            heard_before: None,
        }
    }

    /// To be called with every reading of the clock.
    pub fn clock(&mut self, now: Micros) {
        if self.heard_before.is_some_and(|before| now > before) {
            self.heard_before = None;
            self.heard_at = Some(now);
        }
    }

    /// A leader is being answered.
    pub fn heard(&mut self, now: Micros) {
        self.heard_before = Some(now);
    }

    pub fn just_started(&self, now: Micros) -> bool {
        now < self.started_until
    }

    pub fn leader_alive(&self, now: Micros) -> bool {
        self.heard_before.is_some()
            || self
                .heard_at
                .is_some_and(|at| now < at.saturating_add(self.timeout_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_first_reading_after_the_answer() {
        let mut hold = VoteHold::new(1000, 0, true);
        assert!(!hold.just_started(0) && !hold.leader_alive(0));
        hold.clock(100);
        // The process sleeps here for long, and the heartbeat arrives meanwhile.
        hold.heard(100);
        assert!(hold.leader_alive(100));
        hold.clock(5000);
        assert!(hold.leader_alive(5999));
        assert!(!hold.leader_alive(6000));
    }

    #[test]
    fn a_restart_is_silent_for_one_timeout() {
        let hold = VoteHold::new(1000, 50, false);
        assert!(hold.just_started(1049));
        assert!(!hold.just_started(1050));
    }
}
