//! Whole visits, and the largest burst.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::asked::{Asked, VisitSubjects};
use super::enter::entering;
use super::lines::{SEATS, names};
use super::race::{Contestant, Hook, OURS, Race};
use super::report::{Goal, Section};

const IN_FLIGHT: [u32; 3] = [1, 64, 256];
const BURST: u32 = 512;
const BURST_S: u64 = 36;

/// Enter, five polls, claim, complete.
pub async fn run(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let names = Rc::new(names(1));
    let to = |op| cluster.lines.subject(&names[0], op);
    let subjects = VisitSubjects {
        enter: to("enter"),
        status: to("status"),
        claim: to("claim"),
        complete: to("complete"),
    };
    let asked = Asked::Visit {
        nats: cluster.nats.clone(),
        subjects: Arc::new(subjects),
    };
    let (made, to_make) = (cluster.lines.clone(), names.clone());
    let make: Hook = Box::new(move || {
        let (lines, names) = (made.clone(), to_make.clone());
        Box::pin(async move { lines.create(&names, SEATS).await })
    });
    let gone = cluster.lines.clone();
    let delete: Hook = Box::new(move || {
        let (lines, names) = (gone.clone(), names.clone());
        Box::pin(async move { lines.delete(&names).await })
    });
    let nats = cluster.nats_server()?;
    let ours = Contestant::new(OURS, asked, cluster.nodes()?, Some(nats));
    let contestants = [ours.before(make).after(delete)];
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    Ok(Section {
        about: "whole visits: enter, five polls, claim, complete, one after the other".to_owned(),
        ..race.section()
    })
}

/// More than a connection has under way on most days, for longer than queues could hide.
pub async fn burst(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let contestants = [entering(&mut cluster, OURS, names(1))?];
    let long = Duration::from_secs(bench.size(BURST_S));
    let race = Race::run(bench, long, &contestants, &[BURST]).await?;
    let slowest = race.slowest_ms(BURST, OURS);
    Ok(Section {
        about: format!(
            "enter on one line, {BURST} in flight for {} s",
            long.as_secs()
        ),
        goals: vec![Goal::at_most("slowest answer", 100.0, "ms", slowest)],
        ..race.section()
    })
}
