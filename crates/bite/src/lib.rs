//! Which rule of the code is broken on purpose just now, on this thread.
//!
//! The checkers of the simulation and the model of a line are shown to bite by that: a few lines of the crates that take
//! part ask here. A release breaks nothing, whatever is asked of it: [`is`] is `false` there as the compiler sees it, so
//! it leaves those lines out. This crate's debug assertions decide: the workspace's profile for development has them
//! for this crate, and for few others, where [`require`] takes the place of `debug_assert!`.

use std::cell::Cell;

macro_rules! breaks {
    ($($(#[$doc:meta])* $name:ident: $($invariant:literal)|+,)*) => {
        /// A rule to break.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Break {
            $($(#[$doc])* $name,)*
        }

        impl Break {
            /// Every one.
            pub const ALL: &[Break] = &[$(Break::$name),*];

            /// The invariants whose checkers must notice it: one of them is enough. It counts for the first.
            #[must_use]
            pub fn invariants(self) -> &'static [&'static str] {
                match self {
                    $(Break::$name => &[$($invariant),+],)*
                }
            }
        }
    };
}

breaks! {
    /// A voter forgets in each term whom it voted for.
    S1: "S1",
    /// A follower takes entries that do not follow on its own.
    S2: "S2",
    /// A voter votes for whoever asks, whatever its log lacks.
    S3: "S3",
    /// A follower does not take note of when tokens were last seen.
    S4: "S4",
    /// A follower does not remember how requests were answered.
    S4Requests: "S4",
    /// A leader writes entries of a format that a member does not read yet.
    S4Builds: "S4",
    /// An entry that took the place of a leader's own is taken for it.
    S5: "S5",
    /// A line that does not answer, or refuses, is told as changed with the others.
    S5Lines: "S5",
    /// A disk that was wiped is taken for the one that voted.
    S5Wiped: "S5",
    /// An older copy of a disk is taken for the disk.
    S5RolledBack: "S5",
    /// A loop of a node acts on an outdated decision of the first one.
    S5Decision: "S5",
    /// A member tells a node that was here before that it may found its cluster.
    S5Founded: "S5",
    /// What promises that something is on disk is sent before it is.
    S6: "S6",
    /// A write that finds no room on the disk is reported as written.
    S6Room: "S6",
    /// Now and then a number is left out.
    S7: "S7",
    /// A line that is put back forgets the numbers that were issued since its backup.
    S7Restored: "S7",
    /// A draw leaves somebody out.
    S7Drawn: "S7",
    /// A draw gives new numbers in the order of the old ones.
    S7Lots: "S7",
    /// The second in a lane is admitted before the first.
    S8: "S8",
    /// A line admits by itself although its tokens are called.
    S8Called: "S8",
    /// A line admits before its draw is done.
    S8Draw: "S8",
    /// A claim gets the fencing number of the one before it.
    S9: "S9",
    /// One more than there are seats is admitted.
    S10: "S10",
    /// A token that leaves while waiting admits another, as if it had made a seat free.
    S10Holes: "S10",
    /// A visit may use more units of the quota than its seat reserves.
    S10Units: "S10",
    /// A position is told that is one too high.
    S11: "S11",
    /// Half of its time is enough to be thrown out.
    S12: "S12",
    /// Of the tokens of one `seen` only the first is marked.
    S12Seen: "S12",
    /// A key that is in the line already gets a second number.
    S13: "S13",
    /// Nobody remembers how requests were answered.
    S13Requests: "S13" | "S14",
    /// A leader does not remember what it refused without the log.
    S13Refusals: "S13" | "S14",
    /// Nobody remembers whom a call admitted.
    S13Calls: "S13",
    /// The rows of an import that are done are done again.
    S13Import: "S13",
    /// An operation whose outcome is open is answered as not done.
    S14: "S14",
    /// No request is too old to be done.
    S14Late: "S14" | "S13",
    /// A node takes what lay unread for fresh.
    S14Unread: "S14" | "S13",
    /// A leader does not look at when a request was forwarded to it.
    S14Forwarded: "S14" | "S13",
    /// A leader executes what an earlier one may have refused, whichever way it comes.
    S14Refused: "S14" | "S13",
    /// A leader answers from its state also after its lease.
    S15: "S15",
    /// A node takes a peer's service connection for closed that is open.
    S15Proof: "S15",
    /// A lease outlasts the service connection that it was got with.
    S15Connection: "S15",
    /// The answers to leaders of all loops of a node are tied to the first loop's connection.
    S15Loop: "S15",
    /// A leader refuses a newcomer as if the line were full, as soon as somebody waits.
    S15Refused: "S15",
    /// Boards leave holes out.
    S16: "S16",
    /// Now and then an event is not published.
    S16Events: "S16",
    /// Now and then the event of a key-value is not published.
    S16Kv: "S16",
    /// What a snapshot says of answered requests is not read.
    S17: "S17",
    /// The state in a peer's snapshot does not become the shard's.
    S17Install: "S17",
    /// A change of the members is not recorded.
    S18: "S18",
    /// A key-value is put whatever revision it has.
    S19: "S19",
    /// A leader takes a key-value for expired by its own reading of the clock.
    S19Clock: "S19",
    /// What a leader counted is taken for written, and is not.
    S20: "S20",
    /// A leader writes no checkpoints.
    S20Late: "S20",
    /// A leader counts the hits of a check twice.
    S20Twice: "S20",
    /// Hits on an exact limit are answered, and not counted.
    S20Exact: "S20",
    /// Hits that are given back are given back twice.
    S20Back: "S20",
    /// A node asks once more for hits that may have counted.
    S20Again: "S20",
    /// A check that is refused gives nothing back.
    S20Kept: "S20",
    /// Nobody stands for election again, once there was a leader.
    L1: "L1",
    /// What a leader answers is not relayed to the client.
    L2: "L2",
    /// A node whose role changes unsubscribes at once.
    L2Drain: "L2",
    /// Log entries are not sent to the third node.
    L3: "L3",
    /// A node takes no snapshot of a peer.
    L3Snapshot: "L3",
    /// What is larger than the transport takes is refused instead of sent in parts.
    L3Parts: "L3" | "L1" | "L5",
    /// A seat is not taken from a token that never claims it.
    L4: "L4",
    /// A new leader gives those who wait two timeouts more.
    L4Waiting: "L4",
    /// A leader answers only for what every node has in its log.
    L5: "L5",
    /// A new node gets its vote before it has caught up.
    L5Promoted: "L5",
    /// A node whose disk was full does not take writes again.
    L5Room: "L5" | "L4",
    /// A leader hands its shard on as soon as another node could lead it.
    L6: "L6",
}

/// Whether this build can break rules.
pub const POSSIBLE: bool = cfg!(debug_assertions);

thread_local! {
    static BROKEN: Cell<Option<Break>> = const { Cell::new(None) };
}

/// From now on this rule is broken on this thread, and no other, where that is [`POSSIBLE`].
pub fn set(broken: Option<Break>) {
    BROKEN.set(broken);
}

/// Whether this rule is broken.
#[inline]
#[must_use]
pub fn is(rule: Break) -> bool {
    POSSIBLE && BROKEN.get() == Some(rule)
}

/// Panics if this does not hold. A release, which cannot break rules either, looks at nothing.
///
/// # Panics
/// See above; the message is `what`.
#[inline]
pub fn require(holds: bool, what: &str) {
    assert!(!POSSIBLE || holds, "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in `docs/reliability.md`: by invariant the rules in its last column.
    fn documented() -> Vec<(&'static str, String)> {
        let text = include_str!("../../../docs/reliability.md");
        let rows = text.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (invariant, rules) = (cells.next()?, cells.nth(2)?);
            let is_invariant = invariant.starts_with(['S', 'L']) && invariant.len() <= 3;
            is_invariant.then_some((invariant, rules))
        });
        let names = |rules: &str| -> Vec<String> {
            let names = rules.split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect()
        };
        rows.flat_map(|(invariant, rules)| names(rules).into_iter().map(move |it| (invariant, it)))
            .collect()
    }

    #[test]
    fn each_invariant_is_documented_with_its_rules() {
        let counts_for = |rule: &Break| rule.invariants().first().copied().unwrap_or_default();
        let rules = Break::ALL.iter();
        let broken: Vec<_> = rules
            .map(|rule| (counts_for(rule), format!("{rule:?}")))
            .collect();
        assert_eq!(documented(), broken);
        let mut invariants: Vec<_> = broken.iter().map(|(invariant, _)| *invariant).collect();
        invariants.dedup();
        let all = (1..=20).map(|it| format!("S{it}"));
        let all: Vec<_> = all.chain((1..=6).map(|it| format!("L{it}"))).collect();
        assert_eq!(invariants, all);
    }
}
