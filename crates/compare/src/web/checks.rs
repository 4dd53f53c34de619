//! Admitted visitors ask for pages of the shop: how many checks a gateway answers, and how fast.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use nowserving_client::{Change, SettingsPatch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stage;
use super::wire::{Wire, Wish};
use crate::cpu;

const HOUR_MS: u64 = 3_600_000;

#[derive(clap::Args)]
pub struct ChecksArgs {
    /// Visitors who hold seats
    #[arg(long, default_value_t = 1_000)]
    visitors: u32,
    /// Connections, as a proxy keeps them open; one request at a time on each
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Seconds
    #[arg(long = "for", default_value_t = 10)]
    lasts_s: u64,
    /// Processes of the gateways, whose use of processors is told
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
}

pub async fn run(stage: &Stage, args: ChecksArgs) -> Result<ExitCode> {
    let settings = SettingsPatch {
        seats: Some(Change::Set(args.visitors)),
        queue_limit: Some(Change::Set(args.visitors)),
        claim_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_timeout_ms: Some(Change::Set(HOUR_MS)),
        checkout_max_ms: Some(Change::Set(2 * HOUR_MS)),
        ..SettingsPatch::default()
    };
    let line = stage.line(settings).await?;
    let mut tickets = Vec::new();
    for nth in 0..args.visitors {
        let entered = line.enter(format!("visitor-{nth}")).await?;
        tickets.push(entered.ticket.context("no ticket")?);
    }
    let tickets: Arc<[String]> = tickets.into();
    // Each is claimed, and known to each gateway.
    round(
        stage,
        &tickets,
        &args,
        args.visitors as usize * stage.addresses.len() / args.connections + 1,
        None,
    )
    .await?;
    let processes: Vec<_> = args.pids.iter().map(|pid| cpu::of_pid(*pid)).collect();
    let (before, began) = (cpu::spent(&processes), Instant::now());
    let end = began + Duration::from_secs(args.lasts_s);
    let (latency_us, refused) = round(stage, &tickets, &args, usize::MAX, Some(end)).await?;
    let took = began.elapsed().as_secs_f64();
    let rate = latency_us.len() as f64 / took;
    let at = |share| latency_us.value_at_quantile(share) as f64 / 1e3;
    println!(
        "{rate:.0} checks/s; median {:.2} ms, 99 % {:.2} ms; {refused} were not let in",
        at(0.5),
        at(0.99)
    );
    if let Some((before, after)) = before.zip(cpu::spent(&processes)) {
        let cores = after.saturating_sub(before).as_secs_f64() / took;
        println!(
            "gateways used {cores:.2} cores: {:.0} checks/s a core",
            rate / cores
        );
    }
    stage.delete().await;
    Ok(ExitCode::SUCCESS)
}

/// Until so many checks a connection, or the end.
async fn round(
    stage: &Stage,
    tickets: &Arc<[String]>,
    args: &ChecksArgs,
    times: usize,
    end: Option<Instant>,
) -> Result<(Histogram<u64>, u64)> {
    let mut connections = JoinSet::new();
    for nth in 0..args.connections {
        let address = stage.addresses[nth % stage.addresses.len()];
        let (tickets, name) = (Arc::clone(tickets), stage.name.clone());
        let step = args.connections / stage.addresses.len().max(1);
        connections.spawn(async move {
            let (mut latency_us, mut refused) = (Histogram::<u64>::new(3)?, 0);
            let mut wire = Wire::open(address).await?;
            for (n, at) in (nth..).step_by(step.max(1)).take(times).enumerate() {
                if n % 64 == 0 && end.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
                let ticket = &tickets[at % tickets.len()];
                let cookie =
                    format!("nowserving-{name}={ticket}; __Host-nowserving-{name}={ticket}");
                let mut wish = Wish::get("/gate/nginx")
                    .with("Host", "shop.example")
                    .with("X-Original-Method", "GET")
                    .with("X-Original-URI", "/checkout")
                    .with("X-Forwarded-Proto", "https")
                    .with("X-Forwarded-For", "192.0.2.1")
                    .with("Accept", "text/html")
                    .with("Cookie", cookie);
                wish.keeps = true;
                let asked = Instant::now();
                let head = wire.ask(&wish).await?;
                wire.body(&head).await?;
                latency_us.record(asked.elapsed().as_micros() as u64)?;
                refused += u64::from(head.status != 204);
            }
            anyhow::Ok((latency_us, refused))
        });
    }
    let (mut latency_us, mut refused) = (Histogram::<u64>::new(3)?, 0);
    while let Some(connection) = connections.join_next().await {
        let (its_latency_us, its_refused) = connection??;
        latency_us.add(its_latency_us)?;
        refused += its_refused;
    }
    Ok((latency_us, refused))
}
