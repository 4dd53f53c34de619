//! The dispatcher of a line with `admission` `called`: it knows the board, and decides when it calls the next ones.

use crate::config::Calls;

/// After a call that admitted nobody though a seat was free and somebody waited (a rate, a quota), it waits for so
/// long, and then tries with one call.
const PAUSE_MS: u64 = 1_000;

/// Calls that are to be made: so many, each for `n` tokens, which get to the server at `at_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) count: u64,
    pub(crate) n: u32,
    pub(crate) at_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Dispatcher {
    calls: Calls,
    net_delay_ms: u64,
    /// On their way, or to be made.
    planned: u64,
    /// Since the last call that admitted nobody: not before.
    pause_until_ms: Option<u64>,
    pub(crate) made: u64,
    pub(crate) admitted: u64,
}

impl Dispatcher {
    pub(crate) fn new(calls: Calls, net_delay_ms: u64) -> Self {
        Self {
            calls,
            net_delay_ms,
            planned: 0,
            pause_until_ms: None,
            made: 0,
            admitted: 0,
        }
    }

    /// It sees that so many seats are free for somebody who waits. Gives the calls that this leads to.
    pub(crate) fn look(&mut self, now_ms: u64, wanted: u64) -> Option<Planned> {
        let (after_ms, n, wanted) = match self.calls {
            Calls::PerSeat { after_ms } => (after_ms, 1, wanted),
            // The first round; `made` plans the others.
            Calls::Rounds { n, .. } => (0, n, u64::from(self.made == 0)),
        };
        let wanted = match self.pause_until_ms {
            Some(_) => wanted.min(1),
            None => wanted,
        };
        let count = wanted.saturating_sub(self.planned);
        self.planned += count;
        // What it sees has come to it, and its call has to get to the server.
        let at_ms = now_ms + after_ms + 2 * self.net_delay_ms;
        (count > 0).then(|| Planned {
            count,
            n,
            at_ms: at_ms.max(self.pause_until_ms.unwrap_or(0)),
        })
    }

    /// A call has admitted so many; so many seats were free for somebody before. Gives the next round.
    pub(crate) fn called(&mut self, now_ms: u64, admitted: u64, wanted: u64) -> Option<Planned> {
        self.made += 1;
        self.admitted += admitted;
        self.planned -= 1;
        let in_vain = admitted == 0 && wanted > 0;
        self.pause_until_ms = in_vain.then_some(now_ms + PAUSE_MS);
        let Calls::Rounds { every_ms, n } = self.calls else {
            return None;
        };
        self.planned += 1;
        let at_ms = now_ms + every_ms;
        let count = 1;
        Some(Planned { count, n, at_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(planned: Option<Planned>) -> Option<(u64, u64)> {
        planned.map(|planned| (planned.count, planned.at_ms))
    }

    #[test]
    fn each_seat_that_somebody_waits_for_is_called_for_once() {
        let mut dispatcher = Dispatcher::new(Calls::PerSeat { after_ms: 500 }, 20);
        assert_eq!(at(dispatcher.look(100, 0)), None);
        assert_eq!(at(dispatcher.look(100, 2)), Some((2, 640)));
        assert_eq!(at(dispatcher.look(200, 2)), None, "both are on their way");
        assert_eq!(at(dispatcher.look(300, 3)), Some((1, 840)));
        assert_eq!(dispatcher.called(640, 1, 3), None);
        assert_eq!(at(dispatcher.look(640, 2)), None);
        dispatcher.called(640, 1, 2);
        dispatcher.called(840, 1, 1);
        assert_eq!(at(dispatcher.look(900, 1)), Some((1, 1_440)));
        assert_eq!((dispatcher.made, dispatcher.admitted), (3, 3));
    }

    #[test]
    fn after_a_call_in_vain_it_waits_and_tries_one() {
        let mut dispatcher = Dispatcher::new(Calls::PerSeat { after_ms: 0 }, 0);
        assert_eq!(at(dispatcher.look(0, 3)), Some((3, 0)));
        for _ in 0..3 {
            dispatcher.called(0, 0, 3);
        }
        assert_eq!(at(dispatcher.look(0, 3)), Some((1, 1_000)));
        dispatcher.called(1_000, 1, 3);
        assert_eq!(at(dispatcher.look(1_000, 2)), Some((2, 1_000)));
    }

    #[test]
    fn rounds_go_on_whoever_waits() {
        let every_ms = 1_000;
        let mut dispatcher = Dispatcher::new(Calls::Rounds { every_ms, n: 5 }, 20);
        let first = dispatcher.look(0, 0);
        assert_eq!(first.map(|it| (it.count, it.n, it.at_ms)), Some((1, 5, 40)));
        assert_eq!(at(dispatcher.look(30, 9)), None);
        assert_eq!(at(dispatcher.called(40, 0, 0)), Some((1, 1_040)));
        assert_eq!(at(dispatcher.look(50, 9)), None);
        assert_eq!(at(dispatcher.called(1_040, 5, 9)), Some((1, 2_040)));
        assert_eq!((dispatcher.made, dispatcher.admitted), (2, 5));
    }
}
