//! The gate: nobody is held back, and the line counts whom it would have held back.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Admission, AdmissionRate, Change, EtaFrom, Gate, HeldBackBy, Limits, Lines, Phase, Quota,
    Refused, Settings, SettingsPatch, Shadow, State,
};

fn gate(gate: Gate) -> SettingsPatch {
    SettingsPatch {
        gate: Some(Change::Set(gate)),
        ..SettingsPatch::default()
    }
}

fn phase(phase: Phase) -> SettingsPatch {
    SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    }
}

/// With every kind of limit.
fn limited(gate: Gate) -> Shard {
    let mut settings = Settings::new(1, 1);
    settings.gate = gate;
    settings.admission = Admission::Called;
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 1_000,
        burst: 1,
    });
    settings.quota = Some(Quota {
        total: 1,
        standby_percent: 0,
        renew: None,
        per_visit: 1,
    });
    settings.lanes[0].queue_limit = Some(0);
    Shard::with_shop(Limits::default(), settings)
}

#[test]
fn nothing_but_the_phase_holds_anybody_back() {
    for it in [Gate::Off, Gate::Shadow] {
        let mut shard = limited(it);
        for number in 1..=9 {
            let status = shard.enter().unwrap();
            assert_eq!((status.state, status.at.token), (State::Admitted, number));
        }
        let lane = shard.lane();
        assert_eq!((lane.admitted_through, lane.next_token), (9, 10));
        let eta = shard.line().newcomer_eta(shard.now_ms);
        assert_eq!(eta, Some((0, EtaFrom::Measured)));
        assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Nothing);
        // Claims, epochs and the end of a visit are as ever; nobody is sold out.
        shard.serve(1);
        shard.serve(2);
        assert_eq!(shard.status(2).state, State::Gone);
        shard.enter().unwrap();
        assert_eq!(shard.line().quota_left(), 0);
        // An operator who pauses the line means it. Then `queue_limit` counts those who wait.
        shard.set(SettingsPatch {
            lanes: Some(Change::Unset),
            ..phase(Phase::Paused)
        });
        assert_eq!(shard.enter().unwrap().state, State::Waiting);
        assert_eq!(shard.enter().unwrap().state, State::Waiting);
        assert_eq!(shard.enter(), Err(Refused::LineFull));
        let held_back = shard.line().held_back_by(shard.now_ms);
        assert_eq!(held_back, HeldBackBy::Phase(Phase::Paused));
        shard.set(phase(Phase::Draining));
        assert_eq!(shard.status(11).state, State::Admitted);
        assert_eq!(shard.enter(), Err(Refused::LineDraining));
    }
}

#[test]
fn a_shadow_counts_whom_the_line_would_have_held_back() {
    let settings = Settings {
        gate: Gate::Shadow,
        ..Settings::new(2, 3)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..7 {
        shard.enter().unwrap();
    }
    let counted = Shadow {
        admitted: 7,
        held_back: 5,
        refused: 2,
        over_seats_max: 5,
    };
    assert_eq!(shard.line().shadow(), counted);
    assert_eq!(shard.line().over_seats(), 5);
    shard.serve(1);
    assert_eq!(shard.line().over_seats(), 4);
    // It is stored, kept while the gate is on, and begins anew.
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.set(gate(Gate::On));
    assert_eq!(shard.line().shadow(), counted);
    shard.set(gate(Gate::Shadow));
    assert_eq!(shard.line().shadow(), Shadow::default());
}

#[test]
fn who_has_a_seat_keeps_it_when_the_gate_is_put_on() {
    let settings = Settings {
        gate: Gate::Off,
        ..Settings::new(2, 9)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..4 {
        shard.enter().unwrap();
    }
    shard.set(gate(Gate::On));
    assert_eq!(shard.line().counts().admitted, 4);
    assert_eq!(shard.enter().unwrap().state, State::Waiting);
    assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Seats);
    shard.serve(1);
    shard.serve(2);
    assert_eq!(shard.status(5).state, State::Waiting);
    shard.serve(3);
    assert_eq!(shard.status(5).state, State::Admitted);
}

#[test]
fn a_crowd_that_waits_is_admitted_in_bounded_steps() {
    let limits = Limits {
        work_max: 10,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 100));
    for _ in 0..31 {
        shard.enter().unwrap();
    }
    shard.set(gate(Gate::Off));
    assert_eq!(shard.line().counts().waiting, 20);
    let held_back = shard.line().held_back_by(shard.now_ms);
    assert_eq!(held_back, HeldBackBy::Admitting);
    assert_eq!(shard.status(31).eta_ms, Some(0));
    // Nobody overtakes them.
    assert_eq!(shard.enter().unwrap().state, State::Waiting);
    shard.finish_jobs();
    assert_eq!(shard.line().counts().waiting, 0);
    assert_eq!(shard.line().name(), &shop());
}
