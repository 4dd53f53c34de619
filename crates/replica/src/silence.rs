//! When this node may not vote: its earlier answers may hold up a leader's lease.

use crate::Micros;

/// A lease counts from when the leader asked. A node that answered must then refuse every other
/// candidate, itself included, for an election timeout from its answer on. Raft has a rule like that,
/// but counts ticks, and ticks come early after a stall; so it is kept here by the clock.
pub(crate) struct Silence {
    timeout_us: Micros,
    /// Until then nothing is known of what was answered before the restart.
    started_until: Micros,
    /// A leader was heard, and the clock was read again since: it was not answered later than this.
    heard_at: Option<Micros>,
    /// A leader was heard at this reading of the clock, which may have been old by then (the process
    /// may have been stopped in between). The next different reading takes its place.
    heard_before: Option<Micros>,
}

impl Silence {
    /// `fresh`: this node never took part, so there is no earlier answer.
    pub fn new(timeout_us: Micros, now: Micros, fresh: bool) -> Silence {
        let started_until = if fresh {
            now
        } else {
            now.saturating_add(timeout_us)
        };
        Silence {
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
        let mut silence = Silence::new(1000, 0, true);
        assert!(!silence.just_started(0) && !silence.leader_alive(0));
        silence.clock(100);
        // The process sleeps here for long, and the heartbeat arrives meanwhile.
        silence.heard(100);
        assert!(silence.leader_alive(100));
        silence.clock(5000);
        assert!(silence.leader_alive(5999));
        assert!(!silence.leader_alive(6000));
    }

    #[test]
    fn a_restart_is_silent_for_one_timeout() {
        let silence = Silence::new(1000, 50, false);
        assert!(silence.just_started(1049));
        assert!(!silence.just_started(1050));
    }
}
