//! The verdict of runs whose numbers are given.

use nowserving_line::Phase;

use crate::config::Config;
use crate::report::{LaneSummary, Report, Run, Summary};
use crate::verdict::Tone;

/// A run without a fault: 80 seats, 4,000 people.
fn healthy() -> Report {
    let mut config = Config::steady();
    config.settings.seats = 80;
    config.crowd.shoppers = 4_000;
    config.until_ms = 4 * 3_600_000;
    let summary = Summary {
        seat_held_percent: Some(100.0),
        seat_busy_percent: Some(96.6),
        seats_held_max: 80,
        wait_p50_ms: Some(401_900),
        wait_p99_ms: Some(703_000),
        eta_told_percent: Some(97.0),
        eta_within_15_percent: Some(62.4),
        eta_p90_coverage_percent: Some(91.0),
        completed: 4_000,
        entered: 4_000,
        contended_ms: 3_000_000,
        virtual_ms: 4_711_000,
        ..Summary::default()
    };
    Report {
        config,
        real: Run {
            summary,
            rows: Vec::new(),
            visits: Vec::new(),
            took: Vec::new(),
        },
        naive: None,
        fixed: None,
    }
}

/// The findings of a tone in a run that differs from the healthy one.
fn found(tone: Tone, change: fn(&mut Report)) -> Vec<String> {
    let mut report = healthy();
    change(&mut report);
    let findings = report.findings().into_iter();
    let findings = findings.filter(|finding| finding.tone == tone);
    findings.map(|finding| finding.text).collect()
}

#[test]
fn a_healthy_run_gets_one_sentence_and_no_caution() {
    let report = healthy();
    assert_eq!(
        report.headline(),
        "80 seats: median wait 6 min 41 s, 99 % under 12 min, seats busy 97 %"
    );
    let findings = report.findings();
    assert!(
        findings.iter().all(|f| f.tone == Tone::Good),
        "{findings:?}"
    );
    let texts = found(Tone::Good, |_| {});
    assert_eq!(texts.len(), 3);
    assert!(texts[0].contains("no more than 80 seats"), "{texts:?}");
    assert_eq!(
        texts[1],
        "4,000 of 4,000 shoppers were served within 1 h 18 min."
    );
    assert!(texts[2].contains("right: 62 % within 15 %"), "{texts:?}");
}

#[test]
fn forecasts_that_are_off_are_compared_with_what_is_possible() {
    let cautions = found(Tone::Caution, |report| {
        let summary = &mut report.real.summary;
        summary.eta_within_15_percent = Some(0.0);
        summary.eta_within_15_bound_percent = Some(99.6);
        summary.later_eta_within_15_percent = Some(76.3);
    });
    assert_eq!(
        cautions,
        [
            "Forecasts told on entering were off: 0 % were within 15 % of the true wait (100 % had \
          they known the mean pace); after the first turn of seats, 76 % of those told."
        ]
    );
}

#[test]
fn the_headline_knows_runs_without_a_wait() {
    let headline = |p50_ms, p99_ms, contended_ms, busy| {
        let mut report = healthy();
        let summary = &mut report.real.summary;
        (summary.wait_p50_ms, summary.wait_p99_ms) = (p50_ms, p99_ms);
        (summary.contended_ms, summary.seat_busy_percent) = (contended_ms, busy);
        report.headline()
    };
    for (headline, words) in [
        (
            headline(None, None, 1, Some(0.0)),
            "nobody got a seat, seats busy 0 %",
        ),
        (headline(Some(0), Some(0), 0, None), "nobody had to wait"),
        (
            headline(Some(0), Some(0), 1, Some(4.0)),
            "99 % got a seat at once, seats busy 4 %",
        ),
        (
            headline(Some(0), Some(9_000), 1, Some(50.0)),
            "half got a seat at once, 99 % waited under 10 s, seats busy 50 %",
        ),
    ] {
        assert_eq!(headline, format!("80 seats: {words}"));
    }
}

#[test]
fn a_broken_rule_comes_first() {
    let mut report = healthy();
    let summary = &mut report.real.summary;
    (
        summary.overtakes,
        summary.over_limit_max,
        summary.turned_away,
    ) = (3, 1, 5);
    let first = &report.findings()[0];
    assert_eq!(first.tone, Tone::Bad);
    let words = "3 admitted out of turn, 1 seat held beyond";
    assert!(first.text.contains(words), "{first:?}");
}

#[test]
fn each_reason_for_caution_is_reported_and_no_other() {
    type Change = fn(&mut Report);
    let cases: [(Change, &str); 13] = [
        (
            |r| r.real.summary.still_live = 7,
            "ended after 4 h with 7 still in the line and 0 yet to come",
        ),
        (
            |r| r.real.summary.entered = 3_990,
            "0 still in the line and 10 yet to come",
        ),
        (
            |r| r.config.settings.phase = Phase::PreOpen,
            "never open: its phase is pre_open",
        ),
        (
            |r| r.real.summary.seats_held_max = 62,
            "at most 62 of 80 were held at once",
        ),
        (
            |r| r.real.summary.seat_held_percent = Some(97.0),
            "3 % of the seats were free: the line let nobody in sooner",
        ),
        (
            |r| r.real.summary.seat_busy_percent = Some(20.12),
            "80 % of the seats were held and not in checkout",
        ),
        (
            |r| {
                r.real.summary.entered = 2_800;
                r.real.summary.turned_away = 1_200;
            },
            "1,200 of 4,000 shoppers were turned away",
        ),
        (
            |r| {
                let gone = [("idle".to_owned(), 2), ("left".to_owned(), 1_061)];
                r.real.summary.gone = gone.into();
            },
            "1,063 had a number and were not served: 1,061 gave up, 2 vanished",
        ),
        (
            |r| r.real.summary.completed = 0,
            "0 of 4,000 shoppers were served",
        ),
        (
            |r| r.real.summary.eta_told_percent = Some(12.0),
            "rare: 12 % of those who had to wait",
        ),
        (
            |r| r.real.summary.eta_within_15_percent = Some(0.0),
            "off: 0 % were within 15 %",
        ),
        (
            |r| r.real.summary.eta_p90_coverage_percent = Some(60.0),
            "too short: 60 % kept to it",
        ),
        (
            |r| r.real.summary.lanes = vec![LaneSummary::default(); 2],
            "nobody was admitted",
        ),
    ];
    for (change, words) in cases {
        let texts = found(Tone::Caution, change);
        assert!(!texts.is_empty(), "{words}");
        assert!(texts.iter().all(|text| text.contains(words)), "{texts:?}");
    }
}

#[test]
fn the_compared_algorithms_excess_is_named_apart() {
    let texts = found(Tone::Compared, |report| {
        let mut naive = report.real.clone();
        naive.summary.over_limit_max = 30;
        report.naive = Some(naive);
    });
    let words = "the article's algorithm on the same crowd: up to 30 seats too many";
    assert!(texts.len() == 1 && texts[0].contains(words), "{texts:?}");
}
