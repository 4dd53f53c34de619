//! Whole rehearsals: what must always hold, what the real line reaches, and that it all repeats.
#![allow(clippy::unwrap_used)]

use nowserving_line::{AdmissionRate, LaneName, LaneSettings, Quota};
use nowserving_rehearse::{Arrival, Config, Polls, Report, Service};

fn run(config: &Config) -> Report {
    nowserving_rehearse::run(config, |_| {}).unwrap()
}

/// The article's test at a tenth of its size.
fn small_poc(seed: u64) -> Config {
    let mut config = Config::poc();
    config.seed = seed;
    config.settings.seats = 50;
    config.crowd.shoppers = 1_000;
    config
}

fn with_lanes(mut config: Config) -> Config {
    let lane = |name: &str, boost_ms, absolute| LaneSettings {
        boost_ms,
        absolute,
        ..LaneSettings::new(LaneName::try_from(name).unwrap())
    };
    config.settings.lanes = vec![
        lane("normal", 0, false),
        lane("member", 20_000, false),
        lane("staff", 0, true),
    ];
    config.crowd.lane_mix = vec![8.0, 1.5, 0.5];
    config
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let mut config = with_lanes(small_poc(5));
    config.compare_naive = true;
    config.crowd.watch_percent = 30.0;
    let texts = |report: &Report| {
        let json = serde_json::to_string(&report.summary()).unwrap();
        [
            json,
            report.csv(),
            report.html("nowserving rehearse").unwrap(),
        ]
    };
    let (one, two) = (run(&config), run(&config));
    assert!(texts(&one) == texts(&two), "not the same twice");
    config.seed = 6;
    assert_ne!(texts(&one)[0], texts(&run(&config))[0], "the seed matters");
}

#[test]
fn the_real_line_keeps_to_its_rules_and_the_articles_does_not() {
    for seed in 1..=5 {
        let mut config = small_poc(seed);
        config.crowd.give_up_percent = 1.0;
        config.compare_naive = true;
        let report = run(&config);
        let (real, naive) = (report.real.summary, report.naive.unwrap().summary);
        assert_eq!((real.overtakes, real.over_limit_max), (0, 0));
        assert_eq!((real.contradictions, naive.contradictions), (0, 0));
        assert_eq!(real.seat_held_percent, Some(100.0));
        assert!(naive.over_limit_max > 0, "the check can fail");
        for summary in [real, naive] {
            let gone: u64 = summary.gone.values().sum();
            assert_eq!(summary.completed + gone, summary.entered);
            assert_eq!(summary.entered + summary.turned_away, 1_000);
        }
    }
}

#[test]
fn seats_are_kept_busy_by_those_who_watch_or_do_as_told() {
    for seed in 1..=3 {
        let mut config = Config::poc();
        config.seed = seed;
        config.crowd.watch_percent = 100.0;
        assert!(run(&config).real.summary.seat_busy_percent >= Some(97.0));
        config.crowd.watch_percent = 0.0;
        config.crowd.polls = Polls::Told;
        assert!(run(&config).real.summary.seat_busy_percent >= Some(90.0));
    }
}

#[test]
fn forecasts_are_told_good_and_honest() {
    for seed in 1..=3 {
        let mut config = Config::steady();
        config.seed = seed;
        let summary = run(&config).real.summary;
        assert!(summary.eta_told_percent >= Some(80.0));
        assert!(summary.eta_within_15_percent >= Some(50.0));
        let coverage = summary.eta_p90_coverage_percent.unwrap();
        assert!((85.0..=95.0).contains(&coverage), "{coverage}");
    }
}

#[test]
fn lanes_and_a_quota_hold_with_a_crowd_and_a_pace() {
    let mut config = with_lanes(small_poc(2));
    config.crowd.polls = Polls::Told;
    config.crowd.arrival = Arrival::Ramp { within_ms: 60_000 };
    config.settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 8_000_000,
        burst: 5,
    });
    config.settings.quota = Some(Quota {
        total: 300,
        standby_percent: 100,
    });
    let summary = run(&config).real.summary;
    assert_eq!((summary.overtakes, summary.over_limit_max), (0, 0));
    assert_eq!(summary.contradictions, 0);
    assert_eq!(summary.completed, 300);
    assert!(summary.gone["sold_out"] > 0, "{:?}", summary.gone);
    assert!(summary.turned_away > 0);
    assert_eq!(summary.still_live, 0);
}

#[test]
fn those_who_vanish_are_found_and_long_checkouts_are_renewed() {
    let mut config = small_poc(3);
    config.crowd.give_up_percent = 2.0;
    config.crowd.vanish_percent = 100.0;
    config.crowd.no_show_percent = 2.0;
    config.crowd.abandon_percent = 2.0;
    config.crowd.service = Service::Uniform { max_ms: 3_000 };
    config.settings.checkout_timeout_ms = 1_000;
    let summary = run(&config).real.summary;
    for reason in ["idle", "no_show", "checkout_expired"] {
        assert!(summary.gone.contains_key(reason), "{:?}", summary.gone);
    }
    assert!(!summary.gone.contains_key("left"));
    assert!(
        summary.gone["checkout_expired"] < 50,
        "only those who vanished"
    );
    assert_eq!(summary.still_live, 0);
}

#[test]
fn the_table_begins_as_the_articles_and_has_a_row_for_every_300_ms() {
    let csv = run(&small_poc(1)).csv();
    let mut lines = csv.lines();
    let header = lines.next().unwrap();
    assert!(header.starts_with(
        "SN,SEED,SINCE,UNTIL,LIMIT,ITEMS,CHECKIN,ORDER,ABORTCHECKIN,ABORTQUEUE,NOENTRY,THREAD,"
    ));
    let columns = header.split(',').count();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    for (no, row) in rows.iter().enumerate() {
        assert_eq!(row.len(), columns);
        let last = no + 1 == rows.len();
        assert!(last || row[0] == (no * 300).to_string(), "{row:?}");
    }
    assert_eq!(rows[0][1..5], ["1", "0", "50", "20050"]);
    let last = rows.last().unwrap();
    assert_eq!((last[1], last[2], last[11]), ("1001", "1000", "0"));
}

#[test]
fn the_page_needs_nothing_else() {
    let report = run(&with_lanes(small_poc(1)));
    let page = report
        .html("nowserving rehearse '<script>' --seed 1")
        .unwrap();
    assert_eq!(page.matches("<svg").count(), 5);
    assert!(!page.contains("<script") && !page.contains("<link") && !page.contains("src="));
    for words in [
        "People waiting",
        "Seats held",
        "four pointers of lane normal",
        "rehearse '&lt;script&gt;' --seed 1",
        "1000 shoppers",
        "staff, absolute (part 0.5 of the crowd)",
        "by lane",
        "Forecast against truth",
        "staff",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn it_ends_when_told() {
    let mut config = Config::steady();
    config.until_ms = 600_000;
    let summary = run(&config).real.summary;
    assert!(summary.virtual_ms <= 600_000 && summary.still_live > 100);
}
