//! Seats that follow a service, against seats that are fixed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nowserving_adapt::{AutoSeats, Target};

use crate::config::{Arrival, Config, Crowd, Service, Slowdown};
use crate::report::Report;
use crate::verdict::Tone;

const KNEE: u32 = 8;

/// A crowd of 5,000 within ten minutes, of checkouts of 2 s: twice as many as the service can serve.
fn crowded(power: u32, target: Target) -> Config {
    let mut config = Config::steady();
    config.settings.seats = 60;
    config.settings.queue_limit = 5_000;
    config.crowd = Crowd {
        arrival: Arrival::Steady { within_ms: 600_000 },
        service: Service::LogNormal {
            median_ms: 1_700,
            sigma: 0.6,
        },
        watch_percent: 100.0,
        ..Crowd::patient(5_000)
    };
    config.slowdown = Some(Slowdown { knee: KNEE, power });
    config.auto_seats = Some(AutoSeats::new(2, 100, target).unwrap());
    config.compare_fixed = true;
    config
}

/// Twice what a checkout takes alone.
fn twice() -> Target {
    Target::Latency(Duration::from_millis(4_070))
}

fn rehearsed(config: &Config) -> Report {
    let report = crate::run(config, |_| {}).unwrap();
    for run in [&report.real, report.fixed.as_ref().unwrap()] {
        let summary = &run.summary;
        assert!(summary.is_sound(), "{summary:?}");
        assert_eq!(summary.completed, 5_000, "{summary:?}");
        assert_eq!(run.took.len(), 5_000);
    }
    report
}

/// The mean of the seats there were while anybody waited, without the first five minutes.
fn settled(report: &Report) -> f64 {
    let rows = report.real.rows.iter();
    let rows = rows.filter(|row| row.at_ms > 300_000 && row.waiting > 0);
    let seats: Vec<f64> = rows.map(|row| row.seats as f64).collect();
    seats.iter().sum::<f64>() / seats.len() as f64
}

#[test]
fn seats_keep_checkouts_at_their_target() {
    let report = rehearsed(&crowded(1, twice()));
    let (real, fixed) = (
        &report.real.summary,
        &report.fixed.as_ref().unwrap().summary,
    );
    let seats = settled(&report);
    assert!((13.0..19.0).contains(&seats), "{seats}");
    assert!(real.seats_least >= 2 && real.seats_most <= 100 && real.seats_told > 10);
    // What they share is the same, so nobody is served sooner by more seats; each takes longer.
    assert!(real.service_p50_ms.unwrap() * 2 < fixed.service_p50_ms.unwrap());
    assert!(real.virtual_ms < fixed.virtual_ms + 60_000, "{real:?}");
    assert_eq!((fixed.seats_least, fixed.seats_most), (60, 60));
    assert_eq!((fixed.seats_told, fixed.seats_mean), (0, Some(60.0)));
}

#[test]
fn a_service_that_is_slower_the_more_it_has_serves_more_with_fewer_seats() {
    let report = rehearsed(&crowded(2, twice()));
    let (real, fixed) = (
        &report.real.summary,
        &report.fixed.as_ref().unwrap().summary,
    );
    let seats = settled(&report);
    assert!((9.0..14.0).contains(&seats), "{seats}");
    assert!(real.virtual_ms * 2 < fixed.virtual_ms, "{real:?} {fixed:?}");
    let compared = report.findings();
    let compared: Vec<_> = compared
        .iter()
        .filter(|it| it.tone == Tone::Compared)
        .collect();
    assert!(compared[0].text.contains("60 seats"), "{compared:?}");
}

#[test]
fn seats_keep_the_load_at_its_target() {
    let report = rehearsed(&crowded(1, Target::Load(0.7)));
    let seats = settled(&report);
    assert!((5.0..7.0).contains(&seats), "{seats}");
}

#[test]
fn the_page_and_the_table_show_both_runs() {
    let report = rehearsed(&crowded(1, twice()));
    assert_eq!(report.columns(), ["nowserving", "fixed seats"]);
    assert!(report.rows().iter().all(|row| row.len() == 3));
    let page = report.html("nowserving rehearse").unwrap();
    for words in [
        "Mean time of checkouts",
        "fixed seats",
        "followed the service",
        "8 checkouts at full speed",
        "2 to 100, so that checkouts take",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let csv = report.csv();
    let mut lines = csv.lines();
    let header = lines.next().unwrap();
    assert!(
        header.ends_with(",FIXED_ITEMS,FIXED_CHECKIN,FIXED_ADMITTED,FIXED_OVERLIMIT,FIXED_ORDER")
    );
    let columns = header.split(',').count();
    assert!(lines.all(|line| line.split(',').count() == columns));
    let json = serde_json::to_value(report.summary()).unwrap();
    assert_eq!(json["fixed"]["seats_mean"], 60.0);
    assert!(json["seats_mean"].as_f64().unwrap() < 30.0, "{json}");
    assert_eq!(json["naive"], serde_json::Value::Null);
}

#[test]
fn a_target_out_of_reach_is_said() {
    let mut config = crowded(1, Target::Latency(Duration::from_millis(100)));
    config.settings.seats = 10;
    let report = rehearsed(&config);
    assert!(settled(&report) < 3.0);
    let cautions = report.findings();
    let mut cautions = cautions.iter().filter(|it| it.tone == Tone::Caution);
    let found = cautions.any(|it| it.text.contains("out of reach"));
    assert!(found, "{:?}", report.findings());
}
