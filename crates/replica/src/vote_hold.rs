//! The time in which this node must not vote, as a leader's lease may depend on its earlier answers.

use crate::Micros;

/// A lease begins when the leader starts the round. A node that answered must refuse every other candidate,
/// itself included, for an election timeout after its answer. Raft has such a rule but counts ticks, and
/// after a stall ticks come too early. So this keeps the rule by the clock.
pub(crate) struct VoteHold {
    timeout_us: Micros,
    /// Until then this node may have answered a leader before it restarted.
    started_until: Micros,
    /// This node answered a leader, and the clock was read again since: the answer was not later than this.
    answered_at: Option<Micros>,
    /// This node answered a leader after this reading of the clock, perhaps long after (the process may
    /// have been stopped in between). The next different reading goes into `answered_at`.
    answered_after: Option<Micros>,
}

impl VoteHold {
    /// `fresh`: this node never took part, so it never answered.
    pub fn new(timeout_us: Micros, now: Micros, fresh: bool) -> VoteHold {
        let started_until = if fresh {
            now
        } else {
            now.saturating_add(timeout_us)
        };
        VoteHold {
            timeout_us,
            started_until,
            answered_at: None,
            answered_after: None,
        }
    }

    /// Takes every reading of the clock.
    pub fn clock(&mut self, now: Micros) {
        if self.answered_after.is_some_and(|before| now > before) {
            self.answered_after = None;
            self.answered_at = Some(now);
        }
    }

    /// This node answers a leader.
    pub fn answers(&mut self, now: Micros) {
        self.answered_after = Some(now);
    }

    pub fn just_started(&self, now: Micros) -> bool {
        now < self.started_until
    }

    pub fn leader_alive(&self, now: Micros) -> bool {
        self.answered_after.is_some()
            || self
                .answered_at
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
        hold.answers(100);
        assert!(hold.leader_alive(100));
        hold.clock(5000);
        assert!(hold.leader_alive(5999));
        assert!(!hold.leader_alive(6000));
    }

    #[test]
    fn a_restarted_node_does_not_vote_for_one_timeout() {
        let hold = VoteHold::new(1000, 50, false);
        assert!(hold.just_started(1049));
        assert!(!hold.just_started(1050));
    }
}
