//! Forecasts as a holder sees them: none while nothing is known, right on a line that runs evenly,
//! steady against a single outlier, and the same on a replica restored from a dump.

use crate::common::{Dump, Restart};
use nowserving_line::{
    AdmissionRate, Arrivals, Change, EtaFrom, FORECAST_WINDOWS, LaneName, LaneSettings, LineName,
    Lines, Op, Phase, Quota, Reply, Settings, SettingsPatch, Stamp, State, Status, TIMEOUT_MS_MAX,
    TokenRef, Window,
};
use proptest::prelude::*;

/// How long everybody has their seat, but for the odd one.
const HOLD_MS: u64 = 10_000;

struct Stage {
    lines: Lines,
    index: u64,
    now_ms: u64,
    waiting: Vec<TokenRef>,
    /// Release times of seats, with their holders.
    seated: Vec<(u64, TokenRef)>,
}

fn name() -> LineName {
    LineName::try_from("shop").unwrap()
}

fn lane(name: &str, boost_ms: u64, absolute: bool) -> LaneSettings {
    LaneSettings {
        boost_ms,
        absolute,
        ..LaneSettings::new(LaneName::try_from(name).unwrap())
    }
}

impl Stage {
    fn new(settings: Settings) -> Self {
        let mut stage = Self {
            lines: Lines::new(),
            index: 0,
            now_ms: 0,
            waiting: Vec::new(),
            seated: Vec::new(),
        };
        let line = name();
        stage.apply(&Op::Create { line, settings });
        stage
    }

    fn apply(&mut self, op: &Op) -> Option<Status> {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.now_ms,
            wall_ms: self.now_ms,
        };
        match self.lines.apply(stamp, op, None).unwrap() {
            Reply::Token(at) => Some(self.status(at)),
            _ => None,
        }
    }

    fn enter(&mut self, lane: Option<&str>) -> Status {
        let lane = lane.map(|lane| LaneName::try_from(lane).unwrap());
        let (line, key) = (name(), None);
        let status = self.apply(&Op::Enter { line, key, lane }).unwrap();
        self.waiting.push(status.at);
        self.seat(HOLD_MS);
        status
    }

    /// The token admitted last claims, and holds its seat for so long.
    fn seat(&mut self, hold_ms: u64) {
        let now_ms = self.now_ms;
        let line = self.lines.get(&name()).unwrap();
        let admitted = |at: &TokenRef| line.status(*at, now_ms).unwrap().state == State::Admitted;
        let (new, rest) = self
            .waiting
            .iter()
            .partition::<Vec<_>, _>(|at| admitted(at));
        self.waiting = rest;
        for at in new {
            // Spread over the time, so that the line runs evenly from the start.
            let early = self.seated.len() as u64 * if self.now_ms == 0 { 500 } else { 0 };
            self.apply(&Op::Claim { line: name(), at }).unwrap();
            self.seated
                .push((now_ms + hold_ms - early.min(hold_ms), at));
        }
    }

    /// The next one completes; who gets the seat holds it for so long.
    fn complete_next(&mut self, hold_ms: u64) {
        let (i, _) = (self.seated.iter().enumerate())
            .min_by_key(|(_, (due_ms, _))| *due_ms)
            .unwrap();
        let (due_ms, at) = self.seated.remove(i);
        self.now_ms = self.now_ms.max(due_ms);
        let (line, epoch) = (name(), None);
        self.apply(&Op::Complete {
            line,
            at,
            epoch,
            units: None,
        })
        .unwrap();
        self.seat(hold_ms);
    }

    fn run(&mut self, completions: usize) {
        for _ in 0..completions {
            self.complete_next(HOLD_MS);
            self.enter(None);
        }
    }

    fn status(&self, at: TokenRef) -> Status {
        self.lines
            .get(&name())
            .unwrap()
            .status(at, self.now_ms)
            .unwrap()
    }

    fn last_eta_ms(&self) -> Option<u64> {
        self.status(*self.waiting.last().unwrap()).eta_ms
    }

    fn configure(&mut self, change: impl FnOnce(&mut SettingsPatch)) {
        let mut patch = SettingsPatch::default();
        change(&mut patch);
        let (line, if_version) = (name(), None);
        self.apply(&Op::Configure {
            line,
            patch: patch.into(),
            if_version,
            incarnation: None,
        });
    }
}

/// 20 seats, 120 in the line, and so many have completed.
fn busy(completions: usize) -> Stage {
    guessed(completions, None)
}

/// The same with an operator's guess.
fn guessed(completions: usize, expected_ms: Option<u64>) -> Stage {
    let mut settings = Settings::new(20, 1_000);
    settings.checkout_expected_ms = expected_ms;
    let mut stage = Stage::new(settings);
    for _ in 0..120 {
        stage.enter(None);
    }
    stage.run(completions);
    stage
}

fn close(eta_ms: Option<u64>, to_ms: u64) -> bool {
    eta_ms.is_some_and(|eta_ms| eta_ms.abs_diff(to_ms) * 10 <= to_ms)
}

#[test]
fn the_eta_is_unknown_without_data() {
    let mut stage = busy(0);
    assert_eq!(stage.last_eta_ms(), None);
    stage.run(10);
    let status = stage.status(*stage.waiting.last().unwrap());
    assert_eq!((status.eta_ms, status.eta_p90_ms), (None, None), "cold");
    let eta_unknown = stage
        .lines
        .get(&name())
        .unwrap()
        .forecast_record()
        .eta_unknown;
    assert_eq!(eta_unknown, 110);
}

#[test]
fn a_guess_is_used_until_measurements_outweigh_it() {
    use EtaFrom::{Expected, Measured};
    let mut stage = guessed(0, Some(HOLD_MS));
    let last = |stage: &Stage| stage.status(*stage.waiting.last().unwrap());
    let status = last(&stage);
    assert!(close(status.eta_ms, 51_000), "{:?}", status.eta_ms);
    assert!(status.eta_p90_ms > status.eta_ms.map(|ms| ms * 14 / 10));
    assert_eq!(status.eta_from, Some(Expected));
    let newcomer = stage.lines.get(&name()).unwrap().newcomer_eta(0);
    assert_eq!(newcomer.map(|(_, from)| from), Some(Expected));
    let seated = stage.seated[0].1;
    assert_eq!(stage.status(seated).eta_from, None, "it does not wait");
    stage.run(7);
    assert_eq!(last(&stage).eta_from, Some(Expected));
    stage.run(1);
    assert_eq!(last(&stage).eta_from, Some(Measured));
    let record = |stage: &Stage| stage.lines.get(&name()).unwrap().forecast_record();
    assert_eq!(record(&stage).eta_expected, 100 + 7);
    assert_eq!(
        (record(&stage).eta_given, record(&stage).eta_unknown),
        (1, 0)
    );
    // Only those are judged in whose forecasts there was no guess: they came after six windows of eight, behind 100.
    let mut served = 8;
    while record(&stage).judged == 0 && served < 200 {
        stage.run(1);
        served += 1;
    }
    assert_eq!(served, 6 * 8 + 100);
}

#[test]
fn a_wrong_guess_is_outweighed_and_forgotten() {
    let plain = busy(60).last_eta_ms();
    let eta_ms = |completions, factor: f64| {
        let expected_ms = Some((HOLD_MS as f64 * factor) as u64);
        guessed(completions, expected_ms).last_eta_ms()
    };
    for factor in [0.2, 0.67, 1.5, 5.0] {
        let off = |completions| {
            let eta_ms = eta_ms(completions, factor).unwrap() as f64;
            (eta_ms / 50_000.0).ln().abs()
        };
        assert!(off(16) < off(0) && off(40) < off(16), "{factor}");
        assert!(off(40) < 0.7, "{factor}: {}", off(40));
        assert_eq!(eta_ms(60, factor), plain, "{factor}");
    }
}

#[test]
fn a_guess_can_change_at_any_time() {
    let mut stage = busy(0);
    let mut guess = |change: Change<u64>| {
        stage.configure(|patch| patch.checkout_expected_ms = Some(change));
        stage.last_eta_ms()
    };
    assert!(close(guess(Change::Set(HOLD_MS)), 51_000));
    assert!(close(guess(Change::Set(HOLD_MS / 2)), 25_500));
    assert_eq!(guess(Change::Unset), None);
}

/// A guess says nothing about when departures begin again.
#[test]
fn with_a_guess_too_the_eta_is_unknown_if_nobody_departs() {
    let mut stage = guessed(0, Some(HOLD_MS));
    let first = stage.waiting[0];
    stage.now_ms = 2 * HOLD_MS;
    assert!(stage.status(first).eta_ms.is_some());
    stage.now_ms = 10 * HOLD_MS;
    let status = stage.status(first);
    assert_eq!((status.eta_ms, status.eta_from), (None, None));
}

/// A wrong guess leaves no seat empty: who asks when it is told asks as if there were none.
#[test]
fn pauses_do_not_go_by_a_guess() {
    let guesses = [HOLD_MS / 100, 100 * HOLD_MS, TIMEOUT_MS_MAX];
    for (completions, guess_ms) in [0, 10, 30]
        .into_iter()
        .flat_map(|n| guesses.map(|ms| (n, ms)))
    {
        let (mut plain, mut wrong) = (busy(completions), guessed(completions, Some(guess_ms)));
        for quiet_ms in [0, 2 * HOLD_MS, 2 * HOLD_MS] {
            plain.now_ms += quiet_ms;
            wrong.now_ms += quiet_ms;
            for at in &plain.waiting {
                let pause = |stage: &Stage| stage.status(*at).poll_after_ms;
                assert_eq!(pause(&plain), pause(&wrong), "{completions} {guess_ms}");
            }
        }
    }
}

#[test]
fn an_even_line_is_foreseen_and_its_record_says_so() {
    let mut stage = busy(500);
    // 100 wait, the last needs 100 seats to become free, of 20 that are held 10 s each.
    assert!(
        close(stage.last_eta_ms(), 50_000),
        "{:?}",
        stage.last_eta_ms()
    );
    let first = stage.status(stage.waiting[0]);
    assert!(first.eta_ms < Some(1_000) && first.eta_p90_ms >= first.eta_ms);
    stage.run(300);
    let record = stage.lines.get(&name()).unwrap().forecast_record();
    assert!(
        record.judged > 300 && record.eta_given >= record.judged,
        "{record:?}"
    );
    assert!(
        record.off_by[0] + record.off_by[1] > record.judged / 2,
        "{record:?}"
    );
    let seated = stage.seated[0].1;
    assert_eq!(stage.status(seated).eta_ms, None, "it does not wait");
}

#[test]
fn settings_are_in_the_forecast_at_once() {
    let mut stage = busy(500);
    stage.configure(|patch| patch.seats = Some(Change::Set(10)));
    let first = stage.waiting[0];
    assert!(
        close(stage.status(first).eta_ms, 6_000),
        "ten seats are to be got rid of first, at two a second"
    );
    assert!(close(stage.last_eta_ms(), 105_000));
    stage.configure(|patch| patch.seats = Some(Change::Set(20)));
    let rate = AdmissionRate {
        per_second_micro: 1_000_000,
        burst: 10,
    };
    stage.configure(|patch| patch.admission_rate = Some(Change::Set(rate)));
    assert!(
        close(stage.last_eta_ms(), 90_000),
        "one a second, ten saved up"
    );
    stage.configure(|patch| patch.admission_rate = Some(Change::Unset));
    assert!(close(stage.last_eta_ms(), 50_000));
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Paused)));
    assert_eq!(stage.last_eta_ms(), None, "nobody is admitted");
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Open)));
    let quota = Quota {
        total: 500 + 20 + 50,
        standby_percent: 100,
        renew: None,
        per_visit: 1,
    };
    stage.configure(|patch| patch.quota = Some(Change::Set(quota)));
    assert_eq!(
        stage.last_eta_ms(),
        None,
        "there may be nothing left for it"
    );
    assert!(stage.status(stage.waiting[49]).eta_ms.is_some());
    assert_eq!(stage.status(stage.waiting[50]).eta_ms, None);
}

#[test]
fn closing_a_line_says_nothing_of_how_long_seats_are_held() {
    let mut stage = busy(500);
    for _ in 0..5 {
        stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Closed)));
        stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Open)));
        stage.waiting.clear();
        stage.seated.clear();
        for _ in 0..120 {
            stage.enter(None);
        }
        assert!(
            close(stage.last_eta_ms(), 50_000),
            "{:?}",
            stage.last_eta_ms()
        );
    }
}

#[test]
fn the_eta_is_unknown_once_departures_have_stopped() {
    let mut stage = busy(500);
    let first = stage.waiting[0];
    stage.now_ms += HOLD_MS;
    assert!(stage.status(first).eta_ms.is_some());
    let last = *stage.waiting.last().unwrap();
    let poll_after_ms = stage.status(last).poll_after_ms;
    stage.now_ms += 10 * HOLD_MS;
    assert_eq!(stage.status(first).eta_ms, None);
    assert_eq!(stage.last_eta_ms(), None);
    // Nobody asks more often for it.
    assert!(stage.status(last).poll_after_ms >= poll_after_ms);
    assert!(stage.status(first).poll_after_ms >= 5_000);
    // A token that held its seat for long does not keep later tokens from getting a forecast.
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Closed)));
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Open)));
    stage.waiting.clear();
    stage.seated.clear();
    for _ in 0..120 {
        stage.enter(None);
    }
    assert!(close(stage.last_eta_ms(), 50_000));
}

#[test]
fn a_seat_held_overnight_does_not_distort_the_morning_forecast() {
    let mut stage = busy(500);
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Closed)));
    stage.configure(|patch| patch.phase = Some(Change::Set(Phase::Open)));
    stage.waiting.clear();
    stage.seated.clear();
    stage.enter(None);
    stage.now_ms += 3_600_000;
    for _ in 0..119 {
        stage.enter(None);
    }
    // The hour counts like a slow quarter of a turn.
    let eta_ms = stage.last_eta_ms().unwrap();
    assert!((50_000..=62_000).contains(&eta_ms), "{eta_ms}");
}

#[test]
fn a_rush_is_not_taken_to_go_on() {
    let mut settings = Settings::new(20, 5_000);
    settings.lanes = vec![lane("normal", 0, false), lane("a", 0, true)];
    let mut stage = Stage::new(settings);
    for _ in 0..120 {
        stage.enter(None);
    }
    stage.run(500);
    // Somebody tried the lane out, long ago.
    stage.enter(Some("a"));
    stage.run(1_000);
    let last = *stage.waiting.last().unwrap();
    let rush = 200;
    for _ in 0..rush {
        stage.now_ms += 10;
        stage.enter(Some("a"));
    }
    let eta_ms = stage.status(last).eta_ms.unwrap();
    // Two a second leave: those who are there, and some more in the two seconds to come.
    assert!((150_000..=175_000).contains(&eta_ms), "{eta_ms}");
}

#[test]
fn tokens_are_called_by_their_forecast_and_stay_called() {
    let mut stage = busy(400);
    let called = |stage: &Stage| {
        let called = stage
            .waiting
            .iter()
            .filter(|at| stage.status(**at).call_ahead);
        called.count()
    };
    assert_eq!(called(&stage), 0);
    let within_ms = HOLD_MS * 2;
    stage.configure(|patch| patch.call_ahead_ms = Some(Change::Set(within_ms)));
    let soon = |stage: &Stage| {
        let mut etas = stage.waiting.iter().map(|at| stage.status(*at).eta_ms);
        etas.position(|eta_ms| eta_ms > Some(within_ms)).unwrap()
    };
    let near = soon(&stage);
    assert!(near > 0);
    assert_eq!(called(&stage), near, "those within it, and nobody else");
    // Half of the seats: everybody waits twice as long, and nobody is sent back.
    let seats = stage.lines.get(&name()).unwrap().settings().seats;
    stage.configure(|patch| patch.seats = Some(Change::Set(seats / 2)));
    assert!(soon(&stage) < near);
    assert_eq!(called(&stage), near);
    // Not by place.
    stage.configure(|patch| patch.call_ahead_ms = Some(Change::Set(0)));
    assert_eq!(called(&stage), 0);
}

#[test]
fn the_forecast_counts_the_tokens_that_go_first() {
    let mut settings = Settings::new(20, 1_000);
    settings.lanes = vec![
        lane("normal", 0, false),
        lane("vip", 5_000, false),
        lane("a", 0, true),
    ];
    let mut stage = Stage::new(settings);
    for _ in 0..120 {
        stage.enter(None);
    }
    stage.run(500);
    let alone = stage.last_eta_ms().unwrap();
    let last = *stage.waiting.last().unwrap();
    for _ in 0..20 {
        stage.enter(Some("a"));
    }
    let behind = stage.status(last).eta_ms.unwrap();
    // Ten seconds for the twenty, and more like them are to be feared.
    assert!(behind > alone + 8_000, "{alone} {behind}");
    let vip = stage.enter(Some("vip")).eta_ms.unwrap();
    assert!(
        vip < stage.status(last).eta_ms.unwrap(),
        "it overtakes the newest"
    );
    assert!(
        vip > stage.status(stage.waiting[30]).eta_ms.unwrap(),
        "and no others"
    );
    let first = stage.enter(Some("a")).eta_ms.unwrap();
    assert!(first < 13_000, "only its own kind is before it: {first}");
}

#[test]
fn one_outlier_moves_little() {
    let (mut plain, mut odd) = (busy(400), busy(400));
    plain.complete_next(HOLD_MS);
    odd.complete_next(100 * HOLD_MS);
    for _ in 0..300 {
        plain.run(1);
        odd.run(1);
        let (plain, odd) = (plain.last_eta_ms().unwrap(), odd.last_eta_ms().unwrap());
        assert!(odd.abs_diff(plain) * 100 <= plain * 12, "{plain} {odd}");
    }
}

#[test]
fn a_replica_restored_from_a_dump_tells_the_same() {
    for stage in [busy(333), guessed(5, Some(7_000)), guessed(40, Some(7_000))] {
        tells_the_same_from_its_dump(stage);
    }
}

fn tells_the_same_from_its_dump(mut stage: Stage) {
    let lines = Lines::restore(stage.lines.dump()).unwrap();
    let line = lines.get(&name()).unwrap();
    for at in &stage.waiting {
        assert_eq!(line.status(*at, stage.now_ms).unwrap(), stage.status(*at));
    }
    let mut other = Stage {
        lines,
        index: stage.index,
        now_ms: stage.now_ms,
        waiting: stage.waiting.clone(),
        seated: stage.seated.clone(),
    };
    stage.run(100);
    other.run(100);
    assert_eq!(stage.lines.dump(), other.lines.dump());
}

fn window() -> impl Strategy<Value = Window> {
    let number = prop_oneof![Just(0), 1..100u64, any::<u64>()];
    (number.clone(), number).prop_map(|(releases, seat_ms)| Window { releases, seat_ms })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a dump says was measured: it is refused, or every answer is sound.
    #[test]
    fn absurd_measures_are_refused_or_harmless(
        windows in proptest::collection::vec(window(), 17),
        numbers in [any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()],
        small in any::<bool>(),
    ) {
        let [measured_ms, leaves, waiter_ms, since_ms] =
            numbers.map(|number| if small { number >> 12 } else { number });
        let mut dump: Dump = busy(60).lines.dump();
        let line = &mut dump.lines[0];
        let windows: [Window; FORECAST_WINDOWS] = std::array::from_fn(|nth| {
            let from = windows[nth];
            if small { Window { releases: from.releases >> 12, seat_ms: from.seat_ms >> 12 } }
                else { from }
        });
        line.forecast.windows = windows.into();
        line.forecast.measured_ms = measured_ms;
        line.forecast.leaves = leaves;
        line.forecast.waiter_ms = waiter_ms;
        line.lanes[0].arrivals = Arrivals { count: leaves, since_ms, began_ms: since_ms, last_ms: since_ms };
        let Ok(lines) = Lines::restore(dump) else {
            return Ok(());
        };
        let mut stage = busy(60);
        stage.lines = lines;
        stage.run(30);
        for at in stage.waiting.clone() {
            let status = stage.status(at);
            prop_assert!(status.eta_p90_ms >= status.eta_ms);
            prop_assert!(status.poll_after_ms > 0);
        }
    }
}
