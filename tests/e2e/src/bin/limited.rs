//! One process that checks rate limits for a while. Prints when its hits passed, and how the others ended, as one line of
//! JSON. The other side is `nowserving_e2e::limited`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Parser;
use nowserving_client::limits::{Check, Entry};
use nowserving_client::{Client, LimitFallback, Limiter, LimiterOptions};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

/// A refused caller comes again after this long.
const AGAIN: Duration = Duration::from_millis(100);
/// An attempt is given up after about 2 s without an answer, and the check is sent again.
const ATTEMPT_MIN: Duration = Duration::from_millis(1_500);

#[derive(Parser)]
struct Args {
    #[arg(long)]
    nats: String,
    #[arg(long)]
    domain: String,
    /// All processes begin then, in ms since 1970
    #[arg(long)]
    begin_ms: u64,
    #[arg(long)]
    for_ms: u64,
    /// Checks a second of the limits that are not refilled: ordinary and exact
    #[arg(long)]
    quota_per_s: u32,
    #[arg(long)]
    exact_per_s: u32,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let args = Args::parse();
    let client = Client::connect(&args.nats).await?;
    // Nothing passes without the cluster, and a check is repeated until the next leader answers.
    let mut options = LimiterOptions::default();
    options.on_unavailable = LimitFallback::Fail;
    options.patience = Duration::from_secs(10);
    let limiter = client.limiter_with(&args.domain, options)?;
    let begin = Duration::from_millis(args.begin_ms.saturating_sub(wall_ms()));
    let begin = Instant::now() + begin;
    let until = begin + Duration::from_millis(args.for_ms);
    sleep_until(begin).await;
    let (rate, quota, exact) = tokio::join!(
        at_the_rate(&limiter, until),
        paced(&limiter, "quota", args.quota_per_s, begin, until),
        paced(&limiter, "exact", args.exact_per_s, begin, until),
    );
    let counts = limiter.counts();
    println!(
        "{}",
        json!({
            "rate": rate, "quota": quota.passed_ms, "exact": exact.passed_ms,
            "quota_repeated": quota.repeated, "exact_unknown": exact.unknown,
            "refused": counts.refused, "failed": counts.failed,
        })
    );
    Ok(())
}

/// As much as the limit lets through, one after the other. When each hit passed, in ms since 1970.
async fn at_the_rate(limiter: &Limiter, until: Instant) -> Vec<u64> {
    let mut passed_ms = Vec::new();
    while Instant::now() < until {
        let reply = limiter.check(vec![vec![Entry::new("rate", "all")]]).await;
        match reply {
            Ok(reply) if reply.allowed => passed_ms.push(wall_ms()),
            Ok(_) | Err(_) => sleep(AGAIN).await,
        }
    }
    passed_ms
}

#[derive(Default)]
struct Paced {
    passed_ms: Vec<u64>,
    /// Calls that may have counted.
    unknown: u64,
    /// Attempts without an answer, at most: each may have counted.
    repeated: u64,
}

/// So many checks a second, however long each takes.
async fn paced(limiter: &Limiter, key: &str, per_s: u32, begin: Instant, until: Instant) -> Paced {
    let mut calls = Vec::new();
    for nth in 0.. {
        let at = begin + Duration::from_secs(1) * nth / per_s.max(1);
        if at >= until || per_s == 0 {
            break;
        }
        sleep_until(at).await;
        let (limiter, check) = (
            limiter.clone(),
            Check::new(vec![vec![Entry::new(key, "all")]]),
        );
        calls.push(tokio::spawn(async move {
            let sent = Instant::now();
            let reply = limiter.check_with(&check).await;
            (wall_ms(), sent.elapsed(), reply)
        }));
    }
    let mut paced = Paced::default();
    for call in calls {
        let Ok((at_ms, took, reply)) = call.await else {
            continue;
        };
        paced.repeated += (took.as_millis() / ATTEMPT_MIN.as_millis()) as u64;
        match reply {
            Ok(reply) if reply.allowed => paced.passed_ms.push(at_ms),
            Err(error) if error.may_have_happened() => paced.unknown += 1,
            _ => {}
        }
    }
    paced
}

fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
