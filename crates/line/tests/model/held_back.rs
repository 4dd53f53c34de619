//! The reported reason holds the line back: the test removes it and sees a token admitted.

use crate::common::Restart;
use nowserving_line::{
    Admission, Change, DrawState, Event, HeldBackBy, Lines, Op, Opening, Phase, Refused,
    SettingsPatch, Stamp, State, TokenChange,
};

use crate::LIMITS;
use crate::shard::Naive;

pub fn by_taking_it_away(lines: &Lines, naive: &Naive) {
    for (name, model) in &naive.lines {
        let line = lines.get(name).unwrap();
        let held_back = line.held_back_by(naive.now_ms);
        let waiting = model.count(State::Waiting) > 0;
        let nothing = held_back == HeldBackBy::Nothing;
        assert_eq!(nothing, !waiting, "nothing: nobody waits");
        let admitting = held_back == HeldBackBy::Admitting;
        let has_seat = !model.holds_back() || model.free_at(naive.now_ms) > 0;
        let would_admit = waiting && has_seat && model.may_admit() && !model.is_called();
        assert_eq!(admitting, would_admit, "admitting");
        let mut patch = SettingsPatch::default();
        match held_back {
            HeldBackBy::Nothing | HeldBackBy::Admitting => continue,
            HeldBackBy::Phase(phase) => {
                assert_eq!(phase, model.phase());
                patch.phase = Some(Change::Set(Phase::Open));
            }
            HeldBackBy::Draw => {
                assert!(model.is_undrawn(), "a draw");
                if line.draw().unwrap().state != DrawState::Awaited {
                    continue;
                }
                patch.opening = Some(Change::Set(Opening::Order));
            }
            // A backend has told them, and only that can take it back.
            HeldBackBy::Seats if model.told.is_some() => continue,
            HeldBackBy::Quota => patch.quota = Some(Change::Unset),
            HeldBackBy::Called => patch.admission = Some(Change::Set(Admission::Auto)),
            HeldBackBy::Seats => patch.seats = Some(Change::Set(1_000)),
            HeldBackBy::AdmissionRate { next_at_ms } => {
                assert_eq!(Some(next_at_ms), line.next_by_rate_ms(), "the next one");
                assert!(next_at_ms > naive.now_ms, "the next one is to come");
                patch.admission_rate = Some(Change::Unset);
            }
        }
        let mut lines = Lines::restore_with(LIMITS, lines.dump()).unwrap();
        let taken_away = Op::Configure {
            line: name.clone(),
            patch: patch.into(),
            if_version: None,
            incarnation: None,
        };
        let stamp = Stamp {
            index: 1,
            op_no: 0,
            now_ms: naive.now_ms,
            wall_ms: 0,
        };
        let mut events = Vec::new();
        let reply = lines.apply(stamp, &taken_away, Some(&mut events));
        if model.phase() == Phase::Closed {
            assert_eq!(reply, Err(Refused::LineClosed), "they are being ended");
            continue;
        }
        let admits = events.iter().any(|event| {
            let Event::Token { what, .. } = event else {
                return false;
            };
            matches!(what, TokenChange::Admitted { .. })
        });
        let left = lines.get(name).unwrap().held_back_by(naive.now_ms);
        // Those for whom nothing is left are sent away, in steps, too.
        let sent_away = left == HeldBackBy::Nothing && model.sold_out();
        assert!(
            admits || left > held_back || sent_away,
            "{held_back:?} taken away, and then {left:?}"
        );
    }
}
