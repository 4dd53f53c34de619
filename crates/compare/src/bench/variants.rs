//! Clusters of ours beside each other, which differ in one setting.

use anyhow::Result;
use nowserving_e2e::Options;

use super::Bench;
use super::enter::{MANY, entering};
use super::lines::names;
use super::race::{Contestant, Race};
use super::report::{Goal, Section};
use super::status::{POLLED, ours};

const IN_FLIGHT: [u32; 2] = [64, 256];
const ONE_LOOP: &str = "enter, one loop";
const TWO_LOOPS: &str = "enter, two loops";
const STATUS_ONE_LOOP: &str = "status, one loop";
const STATUS_TWO_LOOPS: &str = "status, two loops";
const OVER_NATS: &str = "enter, over NATS";
const DIRECT: &str = "enter, direct links";
/// At most so much of the processor time an operation takes with one loop.
const OF_ONE_LOOP: f64 = 1.1;
/// Direct links would be the default if the median fell to that.
const OF_NATS: f64 = 0.67;

/// Two loops a node beside one.
pub async fn loops(bench: &mut Bench) -> Result<Section> {
    let (many, tokens) = (bench.size(MANY).max(2), bench.size(POLLED));
    let mut clusters = Vec::new();
    let mut contestants = Vec::new();
    let of = [
        (&[1, 1, 1], ONE_LOOP, STATUS_ONE_LOOP),
        (&[2, 2, 2], TWO_LOOPS, STATUS_TWO_LOOPS),
    ];
    for (loops, enter, status) in of {
        let options = Options {
            loops,
            ..Options::default()
        };
        let mut cluster = bench.cluster_with(options).await?;
        contestants.push(entering(&mut cluster, enter, names(many))?);
        let polled = names(many + 1).split_off(many as usize);
        let polled = cluster.lines.fill_polled(&polled[0], tokens).await?;
        let source = polled.source(polled.subject.clone());
        contestants.push(ours(&mut cluster, source)?.named(status));
        clusters.push(cluster);
    }
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    let pairs = [
        ("enter", TWO_LOOPS, ONE_LOOP),
        ("status", STATUS_TWO_LOOPS, STATUS_ONE_LOOP),
    ];
    let goals = IN_FLIGHT.into_iter().flat_map(|in_flight| {
        pairs.map(|(op, two, one)| {
            let ratio = race.servers_ratio(in_flight, two, one);
            let what = format!("{op}: of the CPU with one loop, {in_flight} in flight");
            Goal::at_most(what, OF_ONE_LOOP, "", ratio)
        })
    });
    Ok(Section {
        about: format!(
            "nodes with two loops beside nodes with one, on the same cores: enter spread over {many} lines, status of one \
             line"
        ),
        goals: goals.collect(),
        ..race.section()
    })
}

/// Direct links beside NATS.
pub async fn links(bench: &mut Bench) -> Result<Section> {
    const IN_FLIGHT: [u32; 4] = [1, 16, 64, 256];
    let mut clusters = Vec::new();
    let mut contestants: Vec<Contestant> = Vec::new();
    for (direct_links, name) in [(false, OVER_NATS), (true, DIRECT)] {
        let options = Options {
            direct_links,
            ..Options::default()
        };
        let mut cluster = bench.cluster_with(options).await?;
        contestants.push(entering(&mut cluster, name, names(1))?);
        clusters.push(cluster);
    }
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    let ratio = race.time_ratio(1, 0.5, DIRECT, OVER_NATS);
    let what = "of the median over NATS, 1 in flight";
    Ok(Section {
        about:
            "enter on one line: frames between the nodes by direct links, beside frames over NATS"
                .to_owned(),
        goals: vec![Goal::at_most(what, OF_NATS, "", ratio)],
        ..race.section()
    })
}
