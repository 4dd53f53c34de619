//! Whether two states are the same: field by field, or by a few numbers.

use std::collections::BTreeSet;

use nowserving_line::LineName;
use nowserving_shard::snapshot::{self, Header};

use crate::disk::CLUSTER;
use crate::replay::State;
use crate::trace::fnv1a64;

/// All that two equal states have in common: a snapshot, and what would be in the next one if snapshots
/// left nothing out.
pub fn contents(state: &State) -> (Vec<u8>, String) {
    let header = Header {
        cluster: CLUSTER.to_owned(),
        ..Header::default()
    };
    let (lines, now_ms) = (state.lines(), state.now_ms());
    let requests = state.requests();
    let requests = (requests.len(), requests.newest());
    // Whom `call_ahead_ms` calls depends on forecasts as of now, which are looked at with each operation, and when a
    // snapshot is read.
    let by_time = |name: &LineName| {
        let line = lines.get(name);
        line.is_some_and(|line| line.settings().call_ahead_ms > 0)
    };
    let work = |now_ms| {
        let work = lines.background_work(now_ms);
        work.filter(|(name, _)| !by_time(name)).collect()
    };
    let due: BTreeSet<_> = work(now_ms);
    let ever_due: BTreeSet<_> = work(u64::MAX);
    let totals = lines.totals();
    let mut text = format!("{now_ms} {requests:?} {totals:?} {due:?} {ever_due:?}");
    for line in lines.iter() {
        let line_text = format!("{line:?}");
        // Background work that became due after the line's last change is listed by its time. After a snapshot was
        // read it is listed as due: the leader does it all the same.
        let is_due = due.contains(&(line.name(), line.incarnation())) || by_time(line.name());
        let before = line_text.rsplit_once(", background: ");
        let before = before.filter(|_| is_due).map(|(before, _)| before);
        // The bitmaps of waiting tokens follow from the live tokens. One that was read from a snapshot is
        // without the empty words that tokens have left.
        let mut parts = before.unwrap_or(&line_text).split("WaitingSet {");
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            text.push_str(part.split_once(", len: ").map_or(part, |(_, rest)| rest));
        }
    }
    (snapshot::encode(&header, state), text)
}

/// What differs soonest if two states do, in a few numbers.
pub fn fingerprint(state: &State) -> u64 {
    let mut hash = fnv1a64(0, &state.now_ms().to_le_bytes());
    let requests = state.requests();
    hash = fnv1a64(hash, &requests.len().to_le_bytes());
    if let Some((key, answer)) = requests.newest() {
        hash = fnv1a64(hash, &key.to_le_bytes());
        hash = fnv1a64(hash, format!("{answer:?}").as_bytes());
    }
    hash = fnv1a64(hash, &state.kv().revision().to_le_bytes());
    hash = fnv1a64(hash, &state.kv().len().to_le_bytes());
    let limits = state.limits();
    hash = fnv1a64(hash, &limits.rules().version().to_le_bytes());
    hash = fnv1a64(hash, &limits.saved().len().to_le_bytes());
    for line in state.lines().iter() {
        let counts = line.counts();
        let numbers = [
            line.incarnation(),
            line.version(),
            line.settings_version(),
            counts.issued,
            counts.waiting,
            counts.admitted,
            counts.in_checkout,
        ];
        for number in numbers.iter().chain(&counts.gone) {
            hash = fnv1a64(hash, &number.to_le_bytes());
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{AdmissionRate, Op, Settings};
    use nowserving_shard::command::{Command, Entry};

    use super::*;
    use crate::bounds;

    /// A line whose next token waits for the admission rate only, until the clock reads 2,000.
    fn paced() -> State {
        let line = LineName::try_from("shop").unwrap();
        let mut settings = Settings::new(5, 10);
        settings.admission_rate = Some(AdmissionRate {
            per_second_micro: 1_000_000,
            burst: 1,
        });
        let create = Op::Create {
            line: line.clone(),
            settings,
        };
        let enter = Op::Enter {
            line,
            key: None,
            lane: None,
        };
        let mut state = bounds::first_state();
        let ops = [create, enter.clone(), enter];
        apply(&mut state, 2, 1_000, ops.map(Command::Line).to_vec());
        state
    }

    fn apply(state: &mut State, index: u64, now_ms: u64, commands: Vec<Command>) {
        let entry = Entry {
            now_ms,
            commands,
            ..Entry::default()
        };
        state.apply_entry(index, &entry, &mut ());
    }

    fn read_back(state: &State) -> State {
        let header = Header {
            cluster: CLUSTER.to_owned(),
            ..Header::default()
        };
        let bytes = snapshot::encode(&header, state).into();
        bounds::decode(bytes, 0).unwrap().1
    }

    #[test]
    fn a_line_that_became_due_after_its_last_change_is_the_same_read_from_a_snapshot() {
        let mut state = paced();
        assert_eq!(contents(&read_back(&state)), contents(&state));
        apply(&mut state, 3, 2_000, vec![Command::Stamp]);
        assert_eq!(state.lines().background_work(2_000).count(), 1);
        assert_eq!(contents(&read_back(&state)), contents(&state));
    }
}
