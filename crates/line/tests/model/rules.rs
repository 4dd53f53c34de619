//! Random settings beyond the limits and timeouts.

use nowserving_line::{
    Admission, AdmissionRate, Change, Gate, LaneName, LaneSettings, Opening, Phase, Positions,
    Quota, Renew, Schedule, ScheduledChange, SettingsPatch,
};
use proptest::prelude::*;

/// One change to one setting.
#[derive(Debug, Clone)]
pub enum Rule {
    Lanes(Vec<LaneSettings>),
    DefaultLane(Option<LaneName>),
    Rate(Option<AdmissionRate>),
    CallAhead(u32),
    CallAheadMs(u64),
    CallbackLimit(u32),
    WhenSilent(Option<u32>),
    Positions(Positions),
    Quota(Option<Quota>),
    Phase(Phase),
    Cap(Option<u32>),
    MaxWait(Option<u64>),
    Expected(Option<u64>),
    Release(bool),
    EventKey(bool),
    Admission(Admission),
    Gate(Gate),
    Opening(Opening),
    Beacon(Option<String>),
    JumpsMax(u32),
    Schedule(Schedule),
}

pub const LANES: [&str; 4] = ["normal", "vip", "web", "late"];

/// A place in [`LANES`], mostly a low one.
pub fn lane() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..2usize, 1 => 0..LANES.len()]
}

fn lane_name() -> impl Strategy<Value = LaneName> {
    lane().prop_map(|lane| LANES[lane].try_into().unwrap())
}

fn lanes() -> impl Strategy<Value = Vec<LaneSettings>> {
    let names = prop_oneof![
        2 => Just(vec![0]),
        4 => Just(vec![0, 1]),
        2 => Just(vec![1, 0]),
        3 => Just(vec![0, 1, 2]),
        1 => Just(vec![3, 1]),
        1 => Just(vec![2, 0, 3]),
    ];
    let privileges = (
        prop_oneof![2 => Just(0), 1 => 0..1_500u64],
        prop::bool::weighted(0.2),
        prop::option::weighted(0.3, 0..4u32),
        prop::bool::weighted(0.7),
    );
    (names, prop::collection::vec(privileges, 3)).prop_map(|(names, privileges)| {
        let lanes = names.into_iter().zip(privileges);
        let lanes = lanes.map(
            |(name, (boost_ms, absolute, queue_limit, jump))| LaneSettings {
                name: LANES[name].try_into().unwrap(),
                boost_ms,
                absolute,
                queue_limit,
                jump,
            },
        );
        lanes.collect()
    })
}

/// Any change, also of the schedule.
pub fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![12 => simple_rule(), 3 => schedule()]
}

/// At times of which about half are past.
fn schedule() -> impl Strategy<Value = Rule> {
    let change = (any::<u32>(), prop::collection::vec(simple_rule(), 0..3));
    let changes = prop::collection::vec(change, 0..4);
    changes.prop_map(|changes| {
        let changes = changes.into_iter().map(|(at_ms, rules)| ScheduledChange {
            at_ms: at_ms.into(),
            set: patch(&rules, SettingsPatch::default()),
        });
        let mut schedule: Schedule = changes.collect();
        schedule.sort_by_key(|change| change.at_ms);
        Rule::Schedule(schedule)
    })
}

fn simple_rule() -> impl Strategy<Value = Rule> {
    let rate =
        (300_000..8_000_000u64, 1..4u32).prop_map(|(per_second_micro, burst)| AdmissionRate {
            per_second_micro,
            burst,
        });
    let renew = prop::option::weighted(0.3, Just(Renew::Every { ms: 60_000 }));
    let quota = (1..20u64, 0..300u32, renew, 1..5u32);
    let quota = quota.prop_map(|(total, standby_percent, renew, per_visit)| Quota {
        total,
        standby_percent,
        renew,
        per_visit,
    });
    let phase = prop_oneof![
        8 => Just(Phase::Open),
        2 => Just(Phase::PreOpen),
        2 => Just(Phase::Paused),
        2 => Just(Phase::Draining),
        1 => Just(Phase::Closed),
    ];
    prop_oneof![
        4 => lanes().prop_map(Rule::Lanes),
        2 => prop::option::weighted(0.6, lane_name()).prop_map(Rule::DefaultLane),
        2 => prop::option::weighted(0.6, rate).prop_map(Rule::Rate),
        2 => (0..6u32).prop_map(Rule::CallAhead),
        2 => (0..3_000u64).prop_map(Rule::CallAheadMs),
        3 => (0..5u32).prop_map(Rule::CallbackLimit),
        1 => prop::option::of(0..3u32).prop_map(Rule::WhenSilent),
        3 => prop::collection::btree_set(1..8u32, 0..4).prop_map(|positions| {
            Rule::Positions(positions.into_iter().rev().collect())
        }),
        2 => prop::option::weighted(0.6, quota).prop_map(Rule::Quota),
        3 => phase.prop_map(Rule::Phase),
        1 => prop::option::of(1..6u32).prop_map(Rule::Cap),
        3 => prop::bool::weighted(0.8).prop_map(|draw| {
            Rule::Opening(if draw { Opening::Draw } else { Opening::Order })
        }),
        1 => prop::option::of("[a-z0-9]{1,9}").prop_map(Rule::Beacon),
        1 => any::<bool>().prop_map(Rule::Release),
        1 => any::<bool>().prop_map(Rule::EventKey),
        2 => prop_oneof![Just(Admission::Auto), Just(Admission::Called)].prop_map(Rule::Admission),
        2 => prop::sample::select(&Gate::ALL[..]).prop_map(Rule::Gate),
        1 => (0..4u32).prop_map(Rule::JumpsMax),
        2 => prop::option::weighted(0.7, 1_000..3_000u64).prop_map(Rule::MaxWait),
        2 => prop::option::weighted(0.7, 100..5_000u64).prop_map(Rule::Expected),
    ]
}

fn change<T: Clone>(value: &Option<T>) -> Option<Change<T>> {
    Some(value.clone().map_or(Change::Unset, Change::Set))
}

/// The patch with these changes, too.
pub fn patch(rules: &[Rule], mut patch: SettingsPatch) -> SettingsPatch {
    for rule in rules {
        match rule {
            Rule::Lanes(lanes) => patch.lanes = Some(Change::Set(lanes.clone())),
            Rule::DefaultLane(name) => patch.default_lane = change(name),
            Rule::Rate(rate) => patch.admission_rate = change(rate),
            Rule::CallAhead(n) => patch.call_ahead = Some(Change::Set(*n)),
            Rule::WhenSilent(seats) => patch.seats_when_silent = change(seats),
            Rule::CallbackLimit(n) => patch.callback_limit = Some(Change::Set(*n)),
            Rule::CallAheadMs(ms) => patch.call_ahead_ms = Some(Change::Set(*ms)),
            Rule::Positions(positions) => {
                patch.position_events = Some(Change::Set(positions.clone()));
            }
            Rule::Quota(quota) => patch.quota = change(quota),
            Rule::Phase(phase) => patch.phase = Some(Change::Set(*phase)),
            Rule::MaxWait(ms) => patch.max_wait_ms = change(ms),
            Rule::Expected(ms) => patch.checkout_expected_ms = change(ms),
            Rule::Cap(cap) => patch.position_cap = change(cap),
            Rule::Admission(it) => patch.admission = Some(Change::Set(*it)),
            Rule::Opening(opening) => patch.opening = Some(Change::Set(*opening)),
            Rule::Beacon(beacon) => patch.draw_beacon = change(beacon),
            Rule::Gate(gate) => patch.gate = Some(Change::Set(*gate)),
            Rule::JumpsMax(n) => patch.jumps_max = Some(Change::Set(*n)),
            Rule::Schedule(schedule) => {
                patch.schedule = Some(Change::Set(schedule.clone()));
            }
            Rule::Release(release) => patch.release_on_claim = Some(Change::Set(*release)),
            Rule::EventKey(shown) => patch.event_key = Some(Change::Set(*shown)),
        }
    }
    patch
}
