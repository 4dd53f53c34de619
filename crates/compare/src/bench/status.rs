//! `status`: the answer to "where am I?", beside a responder that computes nothing.

use anyhow::Result;

use super::Bench;
use super::asked::Asked;
use super::echo::Echo;
use super::lines::names;
use super::load::{Requests, Source};
use super::ours::Ours;
use super::race::{Contestant, ECHO, OURS, Race};
use super::report::{Goal, Section};

/// Tokens that wait and are asked for: as many as one line is designed to have.
pub const POLLED: u64 = 10_000;
const IN_FLIGHT: [u32; 3] = [1, 64, 256];

/// Our system, with these requests.
pub fn ours(cluster: &mut Ours, source: Source) -> Result<Contestant> {
    let asked = Asked::Nats(Requests {
        nats: cluster.nats.clone(),
        source,
    });
    let nats = cluster.nats_server()?;
    Ok(Contestant::new(OURS, asked, cluster.nodes()?, Some(nats)))
}

/// The echo, with these requests.
pub fn echo(cluster: &Ours, echo: &Echo, source: Source) -> Result<Contestant> {
    let asked = Asked::Nats(Requests {
        nats: cluster.nats.clone(),
        source,
    });
    let nats = cluster.nats_server()?;
    Ok(Contestant::new(ECHO, asked, vec![echo.cpu()?], Some(nats)))
}

pub async fn run(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let tokens = bench.size(POLLED);
    let polled = cluster.lines.fill_polled(&names(1)[0], tokens).await?;
    let url = cluster.cluster.nats.url();
    let folder = cluster.cluster.folder().to_owned();
    let (subject, answer) = (polled.subject.len(), polled.answer_bytes);
    let bare = Echo::start(&cluster.nats, &url, &folder, subject, answer).await?;
    let contestants = [
        echo(&cluster, &bare, polled.source(bare.subject.clone()))?,
        ours(&mut cluster, polled.source(polled.subject.clone()))?,
    ];
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    let mut section = Section {
        about: format!(
            "status of {} waiting tokens, beside a bare echo of the same bytes ({} asked, {answer} answered)",
            polled.len(),
            polled.request_bytes
        ),
        ..race.section()
    };
    for in_flight in IN_FLIGHT {
        let (rate, p99) = (
            race.rate_ratio(in_flight, OURS, ECHO),
            race.time_ratio(in_flight, 0.99, OURS, ECHO),
        );
        section.goals.extend([
            Goal::at_least(
                format!("of the echo's rate, {in_flight} in flight"),
                0.92,
                "",
                rate,
            ),
            Goal::at_most(
                format!("of the echo's 99 %, {in_flight} in flight"),
                1.2,
                "",
                p99,
            ),
        ]);
    }
    let cpu = race.servers_us(256, OURS);
    let goal = Goal::at_most("CPU of three nodes a status, 256 in flight", 5.0, "µs", cpu);
    section.goals.push(goal);
    Ok(section)
}
