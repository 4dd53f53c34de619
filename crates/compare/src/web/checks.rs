//! Admitted visitors ask for pages of the shop: how many checks the gateways answer, and how fast, at several loads.
//!
//! With as many requests as are answered, latency is that of a queue before full cores, which the requester shares. So
//! there are loads with a pace, too.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use nowserving_client::{Change, SettingsPatch};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::stage::{LINE, SHOP, Stage};
use super::wire::{Wire, Wish};
use super::{CrowdHttpArgs, Found, Steps};
use crate::cpu;

const HOUR_MS: u64 = 3_600_000;
/// Connections, as a proxy keeps them open, each with one request at a time; and requests a second over all of them, if
/// not the next one as soon as one is answered.
const LOADS: [(usize, Option<u32>); 6] = [
    (16, Some(1_000)),
    (16, Some(4_000)),
    (8, None),
    (16, None),
    (64, None),
    (256, None),
];

#[derive(Debug, Serialize)]
pub struct Section {
    /// Visitors who hold seats.
    holders: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    connections: usize,
    /// Requests a second that were wanted; null: as many as are answered.
    pace: Option<u32>,
    checks_per_s: f64,
    median_us: u64,
    p99_us: u64,
    max_us: u64,
    /// Processor time of both gateways.
    gateways_cores: Option<f64>,
    checks_per_s_a_core: Option<f64>,
    /// Admitted visitors who were not let in.
    refused: u64,
}

impl Found for Section {
    fn is_well(&self) -> bool {
        self.rows.iter().all(|row| row.refused == 0)
    }

    fn text(&self) -> String {
        let mut text = "\n## checks\n\n| connections | load | checks/s | median | 99 % | slowest | gateways' cores | checks/s \
                        a core | not let in |\n|---|---|---|---|---|---|---|---|---|"
            .to_owned();
        for row in &self.rows {
            let load = said(row.pace);
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            let ms = |us: u64| us as f64 / 1e3;
            text += &format!(
                "\n| {} | {load} | {:.0} | {:.2} ms | {:.2} ms | {:.1} ms | {} | {} | {} |",
                row.connections,
                row.checks_per_s,
                ms(row.median_us),
                ms(row.p99_us),
                ms(row.max_us),
                or_none(row.gateways_cores.map(|cores| format!("{cores:.2}"))),
                or_none(row.checks_per_s_a_core.map(|rate| format!("{rate:.0}"))),
                row.refused
            );
        }
        text
    }
}

fn said(pace: Option<u32>) -> String {
    match pace {
        Some(pace) => format!("{pace}/s"),
        None => "each asks on as it is answered".to_owned(),
    }
}

pub async fn run(steps: &Steps, args: &CrowdHttpArgs) -> Result<Section> {
    steps.begin("checks: starting nats-server, three nodes and two gateways");
    let stage = Stage::start().await?;
    let settings = SettingsPatch {
        seats: Some(Change::Set(args.holders)),
        queue_limit: Some(Change::Set(args.holders)),
        claim_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_max_ms: Some(Change::Set(2 * HOUR_MS)),
        ..SettingsPatch::default()
    };
    let line = stage.line(settings).await?;
    steps.begin(&format!("checks: {} visitors are let in", args.holders));
    let mut tickets = Vec::new();
    for nth in 0..args.holders {
        let entered = line.enter(format!("visitor-{nth}")).await?;
        tickets.push(entered.ticket.context("no ticket")?);
    }
    let tickets: Arc<[String]> = tickets.into();
    let mut rows = Vec::new();
    for (connections, pace) in LOADS {
        let load = Load { connections, pace };
        steps.begin(&format!(
            "checks: {connections} connections, {}",
            said(pace)
        ));
        // Each visitor is claimed, and known to each gateway.
        let once = Until::Times(tickets.len() * stage.gateways.len() / connections + 1);
        load.round(&stage, &tickets, once).await?;
        let processes = stage.cpu()?;
        let (before, began) = (cpu::spent(&processes), Instant::now());
        let end = began + Duration::from_millis(args.measure_ms);
        let (latency_us, refused) = load.round(&stage, &tickets, Until::End(end)).await?;
        let took = began.elapsed().as_secs_f64();
        let spent = before.zip(cpu::spent(&processes));
        let cores = spent.map(|(before, after)| after.saturating_sub(before).as_secs_f64() / took);
        let checks_per_s = latency_us.len() as f64 / took;
        rows.push(Row {
            connections,
            pace,
            checks_per_s,
            median_us: latency_us.value_at_quantile(0.5),
            p99_us: latency_us.value_at_quantile(0.99),
            max_us: latency_us.max(),
            gateways_cores: cores,
            checks_per_s_a_core: cores
                .filter(|cores| *cores > 0.0)
                .map(|it| checks_per_s / it),
            refused,
        });
    }
    Ok(Section {
        holders: args.holders,
        rows,
    })
}

#[derive(Debug, Clone, Copy)]
enum Until {
    /// So many checks a connection.
    Times(usize),
    End(Instant),
}

struct Load {
    connections: usize,
    pace: Option<u32>,
}

impl Load {
    /// How long each check took, and how many were refused.
    async fn round(
        &self,
        stage: &Stage,
        tickets: &Arc<[String]>,
        until: Until,
    ) -> Result<(Histogram<u64>, u64)> {
        let mut connections = JoinSet::new();
        let gateways = stage.gateways.len();
        for nth in 0..self.connections {
            let address = stage.gateways[nth % gateways].addr();
            let step = (self.connections / gateways).max(1);
            // The connections have their turns evenly.
            let every = match until {
                Until::End(_) => self.pace.map(|pace| {
                    let every = Duration::from_secs(1) * self.connections as u32 / pace;
                    (
                        Instant::now() + every * nth as u32 / self.connections as u32,
                        every,
                    )
                }),
                Until::Times(_) => None,
            };
            let connection = Connection {
                tickets: Arc::clone(tickets),
                nth,
                step,
                every,
                until,
            };
            connections.spawn(async move { connection.run(Wire::open(address).await?).await });
        }
        let (mut latency_us, mut refused) = (Histogram::<u64>::new(3)?, 0);
        while let Some(connection) = connections.join_next().await {
            let (its_latency_us, its_refused) = connection??;
            latency_us.add(its_latency_us)?;
            refused += its_refused;
        }
        Ok((latency_us, refused))
    }
}

struct Connection {
    tickets: Arc<[String]>,
    /// Its first visitor, and how far the next one is.
    nth: usize,
    step: usize,
    /// When it asks first, and how often.
    every: Option<(Instant, Duration)>,
    until: Until,
}

impl Connection {
    async fn run(self, mut wire: Wire) -> Result<(Histogram<u64>, u64)> {
        let (mut latency_us, mut refused) = (Histogram::<u64>::new(3)?, 0);
        let mut due = self.every;
        for (n, at) in (self.nth..).step_by(self.step).enumerate() {
            match self.until {
                Until::Times(times) if n >= times => break,
                Until::End(end) if Instant::now() >= end => break,
                _ => {}
            }
            let mut asked = Instant::now();
            if let Some((next, every)) = &mut due {
                match asked < *next {
                    true => {
                        sleep_until(*next).await;
                        // The timer's own lateness is not the gateway's.
                        asked = Instant::now();
                    }
                    // It was to be asked while the last one was not answered: that counts.
                    false => asked = *next,
                }
                *next += *every;
            }
            let ticket = &self.tickets[at % self.tickets.len()];
            let mut wish = Wish::get("/gate/nginx")
                .with("Host", "shop.example")
                .with("X-Original-Method", "GET")
                .with("X-Original-URI", SHOP)
                .with("X-Forwarded-Proto", "https")
                .with("X-Forwarded-For", "192.0.2.1")
                .with("Accept", "text/html")
                .with("Cookie", format!("__Host-nowserving-{LINE}={ticket}"));
            wish.keeps = true;
            let head = wire.ask(&wish).await?;
            wire.body(&head).await?;
            latency_us.record(asked.elapsed().as_micros() as u64)?;
            refused += u64::from(head.status != 204);
        }
        Ok((latency_us, refused))
    }
}
