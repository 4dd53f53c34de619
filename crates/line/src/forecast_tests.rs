use super::*;

/// A line of 100 seats, each held for `hold_ms`, gives back this many.
fn releases(forecast: &mut Forecast, count: u64, hold_ms: u64) {
    for _ in 0..count {
        let now_ms = forecast.measured_ms + hold_ms / 100;
        forecast.advance(now_ms, 100, 0);
        forecast.released(Reason::Completed, 100);
    }
}

fn measured(forecast: &Forecast) -> Option<Window> {
    Some(forecast.with_current(forecast.full_windows()?, 100, forecast.measured_ms))
}

fn hold_ms(forecast: &Forecast) -> Option<u64> {
    let measured = measured(forecast)?;
    Some(measured.seat_ms / measured.releases)
}

#[test]
fn the_hold_time_is_measured_and_followed() {
    let mut forecast = Forecast::new(7);
    releases(&mut forecast, 74, 2_000);
    assert_eq!(hold_ms(&forecast), None, "cold");
    releases(&mut forecast, 1, 2_000);
    assert_eq!(hold_ms(&forecast), Some(2_000));
    releases(&mut forecast, 1_000, 5_000);
    assert_eq!(
        hold_ms(&forecast),
        Some(5_000),
        "the old ones are forgotten"
    );
}

#[test]
fn should_departures_stop_nothing_is_known() {
    let mut forecast = Forecast::new(0);
    releases(&mut forecast, 400, 10_000);
    let last_ms = forecast.measured_ms;
    let stalled = |forecast: &Forecast, now_ms| {
        let measured = measured(forecast).unwrap_or_default();
        forecast.is_stalled(measured, 100, now_ms)
    };
    assert!(!stalled(&forecast, last_ms + 20_700), "all came at once");
    assert!(stalled(&forecast, last_ms + 20_900));
    // The same, whether or not anything happened in the line meanwhile.
    forecast.advance(last_ms + 20_750, 100, 5);
    assert!(!stalled(&forecast, last_ms + 20_750));
    assert!(stalled(&forecast, last_ms + 30_000));
    forecast.advance(last_ms + 3_600_000, 100, 5);
    releases(&mut forecast, 25, 10_000);
    assert!(!stalled(&forecast, forecast.measured_ms));
    assert_eq!(
        hold_ms(&forecast),
        Some(10_000),
        "an odd window is left out"
    );
    let one = Window {
        releases: 100,
        seat_ms: 200_000,
    };
    forecast.quiet_seat_ms = 20_000;
    let now_ms = forecast.measured_ms;
    assert!(
        !forecast.is_stalled(one, 1, now_ms),
        "one seat, one slow customer"
    );
    assert!(forecast.is_stalled(one, 1, now_ms + 1));
}

#[test]
fn tokens_ended_by_an_operator_do_not_count() {
    let mut forecast = Forecast::new(0);
    releases(&mut forecast, 1_000, 2_000);
    for _ in 0..1_000 {
        forecast.advance(forecast.measured_ms + 7, 100, 0);
        forecast.released(Reason::Closed, 100);
    }
    assert_eq!(hold_ms(&forecast), Some(2_000));
}

#[test]
fn the_spread_comes_to_cover_nine_in_ten() {
    let mut forecast = Forecast::new(0);
    let mut covered = 0;
    // A deterministic ramp of waits in a scrambled order: 0 to 999.
    for i in 0..20_000u64 {
        let wait_ms = i * 617 % 1_000;
        let eta_p90_ms = (forecast.spread_micro / 8_000) as u32;
        let given = EtaGiven {
            eta_ms: 500,
            eta_p90_ms,
        };
        forecast.record_given(Some(EtaFrom::Measured));
        forecast.judge(given, wait_ms, 300);
        covered += u64::from(i >= 10_000 && wait_ms <= u64::from(eta_p90_ms));
    }
    assert!((8_700..9_300).contains(&covered), "{covered}");
    assert_eq!(forecast.record.off_by.iter().sum::<u64>(), 20_000);
    assert!(forecast.is_plausible());
}

#[test]
fn attrition_and_arrivals_are_forgotten_by_halves() {
    let mut forecast = Forecast::new(0);
    for _ in 0..10_000 {
        forecast.advance(forecast.measured_ms + 10, 0, 50);
        forecast.left(Reason::Left);
        forecast.left(Reason::Kicked);
    }
    assert!(forecast.leaves < LEAVES_KEPT);
    let each_ms = forecast.waiter_ms as f64 / forecast.leaves as f64;
    assert!(
        (each_ms - 500.0).abs() < 5.0,
        "kicked tokens do not count: {each_ms}"
    );
    let mut arrivals = Arrivals::default();
    for second in 0..3_600 {
        arrivals.add(second * 1_000);
    }
    assert!(arrivals.count < 300);
    assert!((arrivals.per_ms(3_600_000) - 0.001).abs() < 1e-4);
    assert!(arrivals.per_ms(36_000_000) < 1e-5, "nobody came since");
}
