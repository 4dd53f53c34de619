#![allow(clippy::unwrap_used)]
use nowserving_line::{Gate, HeldBackBy, Phase};

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
        counts: LineCounts {
            entered,
            ..LineCounts::default()
        },
    }
}

fn details(text: &str) -> LineDetails {
    LineDetails {
        line: name(text),
        queue_limit: 100,
        newcomer_eta_ms: Some(1_500),
        phase: Phase::Open,
        held_back_by: HeldBackBy::Seats,
        gate: Gate::Shadow,
        lanes: vec![("normal".try_into().unwrap(), 7)],
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
        labels: BTreeMap::new(),
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
    facts.take(Gathered::Shard(4, Some(led)));
    let samples = written(&facts);
    for (sample, expected) in [
        ("nowserving_line_waiting{line=\"shop\"}", 7.0),
        ("nowserving_line_admitted{line=\"shop\"}", 1.0),
        ("nowserving_line_in_checkout{line=\"shop\"}", 2.0),
        ("nowserving_line_seats{line=\"shop\"}", 5.0),
        ("nowserving_line_queue_limit{line=\"shop\"}", 100.0),
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
    ] {
        assert_eq!(value(&samples, sample), Some(expected), "{sample}");
    }
    assert!(samples.iter().all(|it| !it.contains(OTHERS)), "{samples:?}");
    facts.take(Gathered::Shard(4, None));
    assert_eq!(written(&facts), [""; 0]);
}

#[test]
fn what_is_beyond_the_busiest_is_together() {
    let facts = Facts::default();
    let lines = (0..60).map(|nth| line(&format!("line-{nth:02}"), nth, 1));
    facts.take(Gathered::Shard(0, Some(shard(1, lines.collect()))));
    let idle = shard(1, vec![line("quiet", 0, 1)]);
    facts.take(Gathered::Shard(1, Some(idle)));
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

/// 51 lines: the one with the fewest tokens is the other.
fn round(quiet: LineFacts, term: u64) -> Gathered {
    let busy = (0..LINES_SHOWN).map(|nth| line(&format!("line-{nth:02}"), 100, 1_000));
    let lines = busy.chain([quiet]).collect();
    Gathered::Shard(0, Some(shard(term, lines)))
}

#[test]
fn counts_of_the_others_never_fall() {
    let facts = Facts::default();
    let entered = |facts: &Facts| {
        let others = "nowserving_line_entered_total{line=\"(others)\"}";
        value(&written(facts), others)
    };
    facts.take(round(line("quiet", 1, 500), 1));
    assert_eq!(entered(&facts), Some(0.0), "before this node led it");
    facts.take(round(line("quiet", 1, 503), 1));
    assert_eq!(entered(&facts), Some(3.0));
    assert_eq!(entered(&facts), Some(3.0), "nothing new");
    // It is among the busiest for a while, with all that it ever counted.
    facts.take(round(line("quiet", 200, 600), 1));
    let samples = written(&facts);
    let own = "nowserving_line_entered_total{line=\"quiet\"}";
    assert_eq!(value(&samples, own), Some(600.0));
    // line-49 is the other meanwhile.
    let others = "nowserving_line_entered_total{line=\"(others)\"}";
    assert_eq!(value(&samples, others), Some(3.0));
    facts.take(round(line("quiet", 1, 604), 1));
    assert_eq!(entered(&facts), Some(7.0));
    let again = LineFacts {
        incarnation: 2,
        ..line("quiet", 1, 2)
    };
    facts.take(round(again, 1));
    assert_eq!(entered(&facts), Some(9.0), "deleted and created again");
    facts.take(round(line("quiet", 1, 900), 2));
    assert_eq!(entered(&facts), Some(9.0), "another led it meanwhile");
}

fn of_label(waiting: u64) -> LabelFacts {
    LabelFacts {
        lines: 1,
        waiting,
        seats: 2,
        seats_held: 0,
        over_seats: 0,
    }
}

#[test]
fn labels_are_summed_over_shards_and_bounded() {
    let facts = Facts::default();
    for nth in 0..2 {
        let cities = (0..LABELS_SHOWN as u64 + 5).map(|city| {
            let name = format!("city-{city:02}");
            (name, of_label(100 + city))
        });
        let plan = BTreeMap::from([("a \"b\"".to_owned(), of_label(1))]);
        let led = ShardFacts {
            labels: BTreeMap::from([
                ("city".to_owned(), cities.collect()),
                ("plan".to_owned(), plan),
            ]),
            ..ShardFacts::default()
        };
        facts.take(Gathered::Shard(nth, Some(led)));
    }
    let samples = written(&facts);
    let waiting = |label: &str, of: &str| {
        let sample = format!("nowserving_label_waiting{{label=\"{label}\",value=\"{of}\"}}");
        value(&samples, &sample)
    };
    assert_eq!(waiting("city", "city-54"), Some(308.0));
    assert_eq!(waiting("city", "city-05"), Some(210.0));
    assert_eq!(waiting("city", "city-04"), None);
    assert_eq!(waiting("city", OTHERS), Some(1_020.0));
    assert_eq!(waiting(OTHERS, OTHERS), Some(2.0), "of another name");
    let lines = "nowserving_label_lines{label=\"city\",value=\"(others)\"}";
    assert_eq!(value(&samples, lines), Some(10.0));
}

#[test]
fn peers_have_their_lag() {
    let facts = Facts::default();
    facts.take(Gathered::PeerLag(BTreeMap::from([(2, 0), (3, 17)])));
    assert_eq!(
        written(&facts),
        [
            "nowserving_peer_lag_entries{peer=\"2\"} 0",
            "nowserving_peer_lag_entries{peer=\"3\"} 17",
        ]
    );
}
