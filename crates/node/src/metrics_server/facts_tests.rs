#![allow(clippy::unwrap_used)]
use nowserving_engine::facts::{LINES_SHOWN, LaneFacts, LineDetails, LineFacts, LineLabels};
use nowserving_line::{Gate, HeldBackBy, LineName, Phase};
use nowserving_shard::tallies::Tally;

use super::*;

fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

/// A line with so many waiting tokens, which so many have entered.
fn line(text: &str, waiting: u64, entered: u64) -> LineFacts {
    LineFacts {
        line: name(text),
        incarnation: 1,
        waiting,
        admitted: 1,
        in_checkout: 2,
        seats: 5,
        over_seats: 0,
        tally: tally(entered).into(),
    }
}

fn tally(entered: u64) -> Tally {
    Tally {
        entered,
        ..Tally::default()
    }
}

fn details(text: &str) -> LineDetails {
    LineDetails {
        line: name(text),
        queue_limit: 100,
        room: Some(95),
        is_full: false,
        newcomer_eta_ms: Some(1_500),
        phase: Phase::Open,
        held_back_by: HeldBackBy::Seats,
        gate: Gate::Shadow,
        lanes: vec![lane("normal", None)],
    }
}

fn lane(text: &str, entered: Option<u64>) -> LaneFacts {
    LaneFacts {
        lane: text.try_into().unwrap(),
        waiting: 7,
        admitted: 1,
        in_checkout: 2,
        queue_limit: (text == "vip").then_some((9, Some(4))),
        tally: entered.map(tally),
    }
}

/// In the order of their names, as the engine gives them.
fn shard(term: u64, mut lines: Vec<LineFacts>) -> ShardFacts {
    lines.sort_by(|a, b| a.line.cmp(&b.line));
    let mut busiest: Vec<_> = lines.iter().collect();
    busiest.sort_by(|a, b| a.busier(b));
    busiest.truncate(LINES_SHOWN);
    ShardFacts {
        term,
        busiest: busiest.iter().map(|it| details(it.line.as_str())).collect(),
        lines,
        labels: LineLabels::default(),
        full: 1,
        held_back: BTreeMap::from([("seats", 2)]),
    }
}

fn written(facts: &Facts) -> Vec<String> {
    let mut text = Text::default();
    facts.write(&mut text);
    let samples = text.0.lines().filter(|line| !line.starts_with('#'));
    samples.map(str::to_owned).collect()
}

/// The value of the sample that begins so.
fn value(samples: &[String], sample: &str) -> Option<f64> {
    let mut values = samples.iter().filter_map(|it| it.strip_prefix(sample));
    values.find_map(|value| value.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_line_has_its_metrics_until_another_node_leads_it() {
    let facts = Facts::default();
    let led = shard(3, vec![line("shop", 7, 10)]);
    facts.take(0, Gathered::Shard(4, Some(led)));
    let samples = written(&facts);
    for (sample, expected) in [
        ("nowserving_line_waiting{line=\"shop\"}", 7.0),
        ("nowserving_line_admitted{line=\"shop\"}", 1.0),
        ("nowserving_line_in_checkout{line=\"shop\"}", 2.0),
        ("nowserving_line_seats{line=\"shop\"}", 5.0),
        ("nowserving_line_queue_limit{line=\"shop\"}", 100.0),
        ("nowserving_line_room{line=\"shop\"}", 95.0),
        ("nowserving_line_newcomer_eta_seconds{line=\"shop\"}", 1.5),
        ("nowserving_line_phase{line=\"shop\",phase=\"open\"}", 1.0),
        ("nowserving_line_held_back{line=\"shop\",by=\"seats\"}", 1.0),
        ("nowserving_line_gate{line=\"shop\",gate=\"shadow\"}", 1.0),
        ("nowserving_line_entered_total{line=\"shop\"}", 10.0),
        (
            "nowserving_line_gone_total{line=\"shop\",reason=\"left\"}",
            0.0,
        ),
        ("nowserving_wait_seconds_count{line=\"shop\"}", 0.0),
        (
            "nowserving_lane_waiting{line=\"shop\",lane=\"normal\"}",
            7.0,
        ),
        (
            "nowserving_lane_in_checkout{line=\"shop\",lane=\"normal\"}",
            2.0,
        ),
        ("nowserving_lines_full", 1.0),
        ("nowserving_lines_held_back{by=\"seats\"}", 2.0),
        ("nowserving_lines_held_back{by=\"quota\"}", 0.0),
    ] {
        assert_eq!(value(&samples, sample), Some(expected), "{sample}");
    }
    assert!(samples.iter().all(|it| !it.contains(OTHERS)), "{samples:?}");
    let of_one_lane = |it: &String| it.starts_with("nowserving_lane_entered_total");
    assert!(!samples.iter().any(of_one_lane), "as the line's own");
    facts.take(0, Gathered::Shard(4, None));
    let samples = written(&facts);
    let of_all = |it: &&String| !it.starts_with("nowserving_lines_");
    assert_eq!(samples.iter().find(of_all), None);
    assert_eq!(value(&samples, "nowserving_lines_full"), Some(0.0));
}

#[test]
fn what_is_beyond_the_busiest_is_together() {
    let facts = Facts::default();
    let lines = (0..60).map(|nth| line(&format!("line-{nth:02}"), nth, 1));
    facts.take(0, Gathered::Shard(0, Some(shard(1, lines.collect()))));
    let idle = shard(1, vec![line("quiet", 0, 1)]);
    facts.take(0, Gathered::Shard(1, Some(idle)));
    let samples = written(&facts);
    let of = |metric: &str| {
        let begins = format!("{metric}{{");
        samples.iter().filter(|it| it.starts_with(&begins)).count()
    };
    assert_eq!(of("nowserving_line_waiting"), 51);
    assert_eq!(of("nowserving_line_phase"), 50);
    assert_eq!(of("nowserving_lane_waiting"), 51);
    let waiting = "nowserving_line_waiting{line=\"(others)\"}";
    assert_eq!(value(&samples, waiting), Some(45.0), "0 to 9, and none");
    let seats = "nowserving_line_seats{line=\"(others)\"}";
    assert_eq!(value(&samples, seats), Some(55.0));
    for (line, shown) in [("line-10", true), ("line-09", false), ("quiet", false)] {
        let sample = format!("nowserving_line_waiting{{line=\"{line}\"}}");
        assert_eq!(value(&samples, &sample).is_some(), shown, "{line}");
    }
}

const ENTERED: &str = "nowserving_line_entered_total";

/// What the newest text says of all lines, of the others, and of one.
fn entered(facts: &Facts, line: &str) -> (f64, Option<f64>, Option<f64>) {
    let samples = written(facts);
    let of = |line: &str| value(&samples, &format!("{ENTERED}{{line=\"{line}\"}}"));
    (sum(&samples, ENTERED), of(OTHERS), of(line))
}

fn sum(samples: &[String], metric: &str) -> f64 {
    let begin = format!("{metric}{{");
    let of = samples.iter().filter(|it| it.starts_with(&begin));
    let values = of.filter_map(|it| it.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

/// 50 busy lines with nothing to count, and one.
fn round(quiet: LineFacts, term: u64) -> Gathered {
    let busy = (0..LINES_SHOWN).map(|nth| line(&format!("line-{nth:02}"), 100, 0));
    let lines = busy.chain([quiet]).collect();
    Gathered::Shard(0, Some(shard(term, lines)))
}

#[test]
fn each_count_is_in_one_series_and_none_falls() {
    let facts = Facts::default();
    facts.take(0, round(line("quiet", 1, 3), 1));
    assert_eq!(entered(&facts, "quiet"), (3.0, Some(3.0), None));
    assert_eq!(entered(&facts, "quiet").0, 3.0, "nothing new");
    // It is among the busiest for a while; line-49 is the other meanwhile.
    facts.take(0, round(line("quiet", 200, 10), 1));
    assert_eq!(entered(&facts, "quiet"), (10.0, Some(3.0), Some(7.0)));
    facts.take(0, round(line("quiet", 1, 14), 1));
    assert_eq!(entered(&facts, "quiet"), (7.0, Some(7.0), None));
    facts.take(0, round(line("quiet", 200, 15), 1));
    assert_eq!(entered(&facts, "quiet"), (15.0, Some(7.0), Some(8.0)));
    let again = LineFacts {
        incarnation: 2,
        ..line("quiet", 200, 2)
    };
    facts.take(0, round(again, 1));
    let (_, _, own) = entered(&facts, "quiet");
    assert_eq!(own, Some(10.0), "deleted and created again");
    // Another node leads it for a while, and counts itself.
    facts.take(0, Gathered::Shard(0, None));
    assert_eq!(entered(&facts, "quiet"), (0.0, None, None));
    facts.take(0, round(line("quiet", 200, 1), 3));
    assert_eq!(entered(&facts, "quiet"), (18.0, Some(7.0), Some(11.0)));
}

#[test]
fn the_series_that_are_remembered_are_bounded() {
    let facts = Facts::default();
    for nth in 0..1_000 {
        let busy = line(&format!("shop-{nth}"), 1_000, 1);
        facts.take(0, round(busy, nth + 1));
        assert_eq!(entered(&facts, &format!("shop-{nth}")).2, Some(1.0));
    }
    let lines = lock(&facts.counted).line_series();
    assert!((250..=251 + LINES_SHOWN).contains(&lines), "{lines}");
}

/// A line with two lanes, of which so many have entered in this term.
fn with_lanes(normal: u64, vip: u64, waiting: u64) -> (LineFacts, LineDetails) {
    let lanes = vec![lane("normal", Some(normal)), lane("vip", Some(vip))];
    let details = LineDetails {
        lanes,
        ..details("shop")
    };
    (line("shop", waiting, normal + vip), details)
}

fn round_with_lanes((of_line, of_lanes): (LineFacts, LineDetails)) -> Gathered {
    let busy = (0..LINES_SHOWN).map(|nth| line(&format!("line-{nth:02}"), 100, 5));
    let mut led = shard(1, busy.chain([of_line]).collect());
    let mut busiest = led.busiest.iter_mut();
    if let Some(details) = busiest.find(|it| it.line == of_lanes.line) {
        *details = of_lanes;
    }
    Gathered::Shard(0, Some(led))
}

#[test]
fn lanes_add_up_to_the_lines() {
    let facts = Facts::default();
    let lanes = |facts: &Facts| {
        let samples = written(facts);
        let metric = "nowserving_lane_entered_total";
        let of = |line: &str, lane: &str| {
            let sample = format!("{metric}{{line=\"{line}\",lane=\"{lane}\"}}");
            value(&samples, &sample)
        };
        let own = [of("shop", "normal"), of("shop", "vip")];
        (sum(&samples, metric), own, of(OTHERS, OTHERS))
    };
    facts.take(0, round_with_lanes(with_lanes(3, 4, 200)));
    let all = 250.0;
    assert_eq!(
        lanes(&facts),
        (all + 7.0, [Some(3.0), Some(4.0)], Some(all))
    );
    let samples = written(&facts);
    let room = "nowserving_lane_room{line=\"shop\",lane=\"vip\"}";
    assert_eq!(value(&samples, room), Some(4.0));
    let limit = "nowserving_lane_queue_limit{line=\"shop\",lane=\"vip\"}";
    assert_eq!(value(&samples, limit), Some(9.0));
    facts.take(0, round_with_lanes(with_lanes(5, 4, 200)));
    assert_eq!(
        lanes(&facts),
        (all + 9.0, [Some(5.0), Some(4.0)], Some(all))
    );
    // What it counts without details of it is the others'.
    facts.take(0, round_with_lanes(with_lanes(6, 6, 1)));
    assert_eq!(lanes(&facts), (all + 3.0, [None, None], Some(all + 3.0)));
    facts.take(0, round_with_lanes(with_lanes(7, 6, 200)));
    let others = Some(all + 4.0);
    assert_eq!(lanes(&facts), (all + 13.0, [Some(5.0), Some(4.0)], others));
    facts.take(0, round_with_lanes(with_lanes(8, 6, 200)));
    assert_eq!(lanes(&facts), (all + 14.0, [Some(6.0), Some(4.0)], others));
}

#[test]
fn the_lanes_with_counters_are_bounded() {
    let facts = Facts::default();
    let lines = (0..LINES_SHOWN).map(|nth| line(&format!("line-{nth:02}"), 100, 1));
    let mut led = shard(1, lines.collect());
    for details in &mut led.busiest {
        details.lanes = (0..8)
            .map(|nth| lane(&format!("lane-{nth}"), Some(0)))
            .collect();
    }
    facts.take(0, Gathered::Shard(0, Some(led)));
    let samples = written(&facts);
    let count = |metric: &str| {
        let begin = format!("{metric}{{");
        samples.iter().filter(|it| it.starts_with(&begin)).count()
    };
    assert_eq!(count("nowserving_lane_entered_total"), 12 * 8 + 1);
    assert_eq!(count("nowserving_lane_admitted"), LINES_SHOWN * 8);
}

#[test]
fn labels_are_summed_over_shards_and_bounded() {
    let facts = Facts::default();
    for nth in 0..2 {
        let cities = LINES_SHOWN as u64 + 5;
        let lines = (0..cities).map(|city| line(&format!("line-{city:02}"), 100 + city, 1));
        let lines = lines.chain([line("plan", 1, 1)]);
        let mut led = shard(1, lines.collect());
        for city in 0..cities as usize {
            led.labels.add(city, "city", &format!("city-{city:02}"));
        }
        led.labels.add(cities as usize, "plan", "a \"b\"");
        facts.take(0, Gathered::Shard(nth, Some(led)));
    }
    let samples = written(&facts);
    let of = |metric: &str, label: &str, of: &str| {
        let sample = format!("nowserving_label_{metric}{{label=\"{label}\",value=\"{of}\"}}");
        value(&samples, &sample)
    };
    assert_eq!(of("waiting", "city", "city-54"), Some(308.0));
    assert_eq!(of("waiting", "city", "city-05"), Some(210.0));
    assert_eq!(of("waiting", "city", "city-04"), None);
    assert_eq!(of("waiting", "city", OTHERS), Some(1_020.0));
    assert_eq!(of("waiting", OTHERS, OTHERS), Some(2.0), "of another name");
    assert_eq!(of("lines", "city", OTHERS), Some(10.0));
    assert_eq!(of("admitted", "city", "city-54"), Some(2.0));
    assert_eq!(of("in_checkout", "city", "city-54"), Some(4.0));
    assert_eq!(of("entered_total", "city", "city-54"), Some(2.0));
    assert_eq!(of("entered_total", "city", OTHERS), Some(10.0));
    assert_eq!(of("entered_total", OTHERS, OTHERS), Some(2.0));
}

#[test]
fn counters_of_a_label_never_fall_when_a_line_gets_another() {
    let facts = Facts::default();
    let labelled = |entered, city: &str| {
        let mut led = shard(1, vec![line("here", 1, 4), line("shop", 1, entered)]);
        led.labels.add(0, "city", "Shanghai");
        led.labels.add(1, "city", city);
        facts.take(0, Gathered::Shard(0, Some(led)));
        let samples = written(&facts);
        ["Shanghai", "Beijing"].map(|city| {
            let sample = "nowserving_label_entered_total{label=\"city\",value=";
            value(&samples, &format!("{sample}\"{city}\"}}"))
        })
    };
    assert_eq!(labelled(10, "Shanghai"), [Some(14.0), None]);
    assert_eq!(labelled(12, "Beijing"), [Some(14.0), Some(2.0)]);
    assert_eq!(labelled(13, "Shanghai"), [Some(15.0), None]);
    assert_eq!(labelled(14, "Beijing"), [Some(15.0), Some(3.0)]);
}

#[test]
fn peers_have_their_lag() {
    let facts = Facts::default();
    facts.take(0, Gathered::PeerLag(BTreeMap::from([(2, 0), (3, 17)])));
    let mut samples = written(&facts);
    samples.retain(|it| it.starts_with("nowserving_peer"));
    assert_eq!(
        samples,
        [
            "nowserving_peer_lag_entries{peer=\"2\"} 0",
            "nowserving_peer_lag_entries{peer=\"3\"} 17",
        ]
    );
}
