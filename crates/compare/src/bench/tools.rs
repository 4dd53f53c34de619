//! Redis and etcd by their own tools, beside our requester on the same servers: it does not hold them back.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::process::Command;

use super::Bench;
use super::enter::{ETCD, REDIS, start_etcd, start_redis};
use super::race::Race;
use super::report::Section;
use super::spread::Spread;
use crate::peers::named;

/// As many commands of redis-benchmark in one pipeline as our requester has under way.
const IN_FLIGHT: u32 = 64;
/// etcdctl writes 15,000 a second over 1,000 connections, or as many as it can.
const ETCD_IN_FLIGHT: u32 = 256;
const COMMANDS: u64 = 200_000;
const PATIENCE: Duration = Duration::from_secs(180);

pub async fn run(bench: &mut Bench) -> Result<Section> {
    // It is in no package of Debian, PyPI, npm or crates.io.
    bench.without(
        "JetStream's own tool: nats bench (natscli) is in none of the package registries used here",
    );
    let about = "redis-benchmark with the script of enter, and etcdctl check perf with its largest load, beside our \
                 requester on the same servers";
    let mut section = Section {
        about: about.to_owned(),
        ..Section::default()
    };
    bench.begin("redis-benchmark");
    let measured = redis(bench, &mut section).await;
    bench.optional("redis-benchmark", measured);
    bench.begin("etcdctl check perf, for a minute");
    let measured = etcd(bench, &mut section).await;
    bench.optional("etcdctl check perf", measured);
    Ok(section)
}

async fn redis(bench: &mut Bench, section: &mut Section) -> Result<()> {
    let redis = start_redis().await?;
    bench.version(format!("redis-server {}", redis.version));
    let tool = named("REDIS_BENCHMARK", "redis-benchmark");
    let (port, commands) = (redis.port.to_string(), bench.size(COMMANDS).to_string());
    let mut rates = Vec::new();
    for _ in 0..bench.rounds {
        let flags = [
            "-p",
            &port,
            "-c",
            "1",
            "-P",
            "64",
            "-n",
            &commands,
            "-r",
            "1000000000",
            "--csv",
        ];
        let script = [
            "EVALSHA",
            &redis.script,
            "3",
            "next",
            "waiting",
            "tokens",
            "__rand_int__",
        ];
        let printed = printed(&tool, &[&flags[..], &script[..]].concat()).await?;
        rates.push(redis_rate(&printed).with_context(|| printed.clone())?);
        redis.redis.command(&["FLUSHALL"]).await?;
    }
    let race = Race::run(bench, bench.measured, &[redis.contestant], &[IN_FLIGHT]).await?;
    add(
        section,
        &race,
        REDIS,
        IN_FLIGHT,
        "redis-benchmark",
        Spread::of(rates.into_iter(), 0),
    );
    Ok(())
}

async fn etcd(bench: &mut Bench, section: &mut Section) -> Result<()> {
    let etcd = start_etcd().await?;
    bench.version(format!("etcd {}", etcd.version));
    let tool = named("ETCDCTL", "etcdctl");
    let flags = ["check", "perf", "--load=xl", "--endpoints", &etcd.url];
    let printed = printed(&tool, &flags).await?;
    let rate = etcd_rate(&printed).with_context(|| printed.clone())?;
    let race = Race::run(bench, bench.measured, &[etcd.contestant], &[ETCD_IN_FLIGHT]).await?;
    let rate = Spread::of([rate].into_iter(), 0);
    add(
        section,
        &race,
        ETCD,
        ETCD_IN_FLIGHT,
        "etcdctl check perf",
        rate,
    );
    Ok(())
}

fn add(
    section: &mut Section,
    race: &Race,
    system: &str,
    in_flight: u32,
    tool: &str,
    rate: Option<Spread>,
) {
    let Section {
        cells, failures, ..
    } = race.section();
    section.cells.extend(cells);
    section.failures.extend(failures);
    section.value(format!("{system}, by {tool}"), "a second", rate);
    let ours = race.rate(in_flight, system);
    let ratio = ours.zip(rate).map(|(ours, rate)| ours.median / rate.median);
    let ratio = Spread::of(ratio.into_iter(), 2);
    section.value(format!("our requester's rate of that by {tool}"), "", ratio);
}

/// A tool that finds its servers too slow ends with an error, and has printed what it found.
async fn printed(tool: &OsStr, args: &[&str]) -> Result<String> {
    let mut command = Command::new(tool);
    let ran = command.args(args).kill_on_drop(true).output();
    let ran = tokio::time::timeout(PATIENCE, ran).await?;
    let ran = ran.with_context(|| format!("cannot start {}", tool.display()))?;
    let (stdout, stderr) = (ran.stdout, ran.stderr);
    Ok(String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

/// The second column of the last line of CSV.
fn redis_rate(printed: &str) -> Option<f64> {
    let line = printed.lines().rfind(|line| line.starts_with('"'))?;
    let mut columns = line.split("\",\"");
    columns.nth(1)?.trim_matches('"').parse().ok()
}

fn etcd_rate(printed: &str) -> Option<f64> {
    let mut words = printed.split_whitespace();
    words.find(|word| *word == "Throughput")?;
    words.find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_found_in_what_tools_print() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA 3 a\",\"12345.60\",\"0.1\"\n";
        assert_eq!(redis_rate(csv), Some(12_345.6));
        assert_eq!(redis_rate("Could not connect"), None);
        for (text, rate) in [
            ("FAIL: Throughput too low: 7999 writes/s", Some(7_999.0)),
            (
                "PASS: Throughput is 14999 writes/s\nPASS: Slowest request took 0.1s",
                Some(14_999.0),
            ),
            ("nothing", None),
        ] {
            assert_eq!(etcd_rate(text), rate);
        }
    }
}
