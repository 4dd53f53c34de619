//! `check` of rate limits, beside a bare NATS echo and beside Redis with the algorithms that Lyft's ratelimit and
//! redis-cell use there.
//!
//! As in `nowserving bench` everything runs in turns, so that all meet the same noise; what counts is the ratio of
//! two cells of one round.

mod redis;
mod report;
mod resp;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::Subject;
use bytes::Bytes;
use nowserving_client::limits::{Check, CheckReply, Entry};
use nowserving_client::{Client, Operation};
use nowserving_line::LineName;
use nowserving_protocol::codec::{self, Format};
use nowserving_protocol::limits::limit_shard_of;
use nowserving_protocol::subject::Subjects;
use nowserving_rehearse::count;
use serde::Serialize;
use tokio::time::Instant;

use nowserving_e2e::{Cluster, Options, Process};
use nowserving_terminal::number;
use nowserving_terminal::output::Output;
use nowserving_terminal::progress::Progress;
use nowserving_tools::bench::echo::Echo;
use nowserving_tools::bench::load::{Ask, Load, Requests, Sample, Source};
use nowserving_tools::bench::machine::Machine;
use nowserving_tools::bench::{Pace, WARM_UP, report::told, settle};
use nowserving_tools::embedded::apply_limits;

use crate::cpu;
use redis::{Commands, Server};
use report::Report;
use resp::Redis;

const DOMAIN: &str = "bench";
/// More than any key is asked for: all requests are allowed.
const PER_HOUR: u32 = 1_000_000;
/// Requests under way while counters are made.
const AT_ONCE: u32 = 256;
/// After checks, until the leaders have written what changed.
const REST_DEADLINE: Duration = Duration::from_secs(60);
const REST_POLL: Duration = Duration::from_millis(100);

/// The subject of a check, by the number of its user.
type SubjectOf = Arc<dyn Fn(u64) -> Subject + Send + Sync>;
/// From the number of a request to the number of its user.
type Keys = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

/// The kind of request of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A bare NATS responder that answers with as many bytes as `check` does.
    Echo,
    /// `check` of one descriptor with a fixed window.
    Check,
    /// INCRBY and EXPIRE, as Lyft's ratelimit.
    RedisFixedWindow,
    /// The algorithm of redis-cell as a script.
    RedisGcra,
}

impl What {
    /// In the order of a round.
    const ALL: [What; 4] = [
        What::Echo,
        What::Check,
        What::RedisFixedWindow,
        What::RedisGcra,
    ];
}

/// One measurement of a cell.
#[derive(Debug)]
pub struct Measured {
    pub sample: Sample,
    /// Processor time of all server processes for one request, in µs.
    pub cpu_us: Option<f64>,
}

type Rounds = BTreeMap<(u32, What), Vec<Measured>>;

/// Measures `check` of rate limits beside a bare NATS echo and beside Redis
///
/// In rounds, so that all of them meet the same noise. Exit code 1 if any request failed.
#[derive(Debug, clap::Args)]
pub struct LimitsArgs {
    #[command(flatten)]
    pace: Pace,
    /// So many counters there are, and any of them may be asked for.
    #[arg(
        long, value_name = "N", default_value_t = 1_000_000,
        value_parser = number::between::<u64>(1..=5_000_000)
    )]
    keys: u64,
    /// One line of JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// Measures, and tells.
///
/// # Errors
/// The cluster or Redis cannot be started or prepared.
pub async fn run(args: LimitsArgs) -> anyhow::Result<ExitCode> {
    let in_flight = args.pace.in_flight();
    let cells = in_flight.len() * What::ALL.len() * args.pace.rounds as usize;
    let progress = Progress::new(
        Some(cells as u64),
        "{wide_bar} {pos}/{len}  {msg}  {eta} left",
    );
    progress.say("starting nats-server, three nodes and redis-server");
    let mut cluster = Cluster::start(Options::default()).await?;
    let bench = Bench::prepare(&mut cluster, args.keys, &progress).await?;
    let machine = Machine::look(cluster.folder(), &bench.nats)?;
    let mut rounds = Rounds::new();
    for round in 1..=args.pace.rounds {
        for &in_flight in &in_flight {
            for what in What::ALL {
                let cell = format!(
                    "round {round} of {}: {what}, {in_flight} in flight",
                    args.pace.rounds
                );
                progress.bar.set_message(cell.clone());
                progress.bar.tick();
                let result = bench.cell(what, in_flight, args.pace.measured()).await?;
                progress.bar.inc(1);
                let per_second = count(result.sample.per_second.round_ties_even() as u64);
                progress.say(&format!("{cell}: {per_second}/s"));
                rounds.entry((in_flight, what)).or_default().push(result);
            }
        }
    }
    drop(progress);
    let report = Report::new(machine, &args, &bench, &rounds);
    Output::new(args.json).answer(&report, Report::text)?;
    Ok(told(&report.failures))
}

/// Which server is asked, and what.
#[derive(Clone)]
enum Asked {
    Nats(Requests),
    Redis { redis: Redis, commands: Commands },
}

impl Ask for Asked {
    async fn ask(&self, number: u64) -> Option<String> {
        match self {
            Asked::Nats(requests) => requests.ask(number).await,
            Asked::Redis { redis, commands } => {
                let answer = redis.ask(commands(number)).await;
                answer.err().map(|error| error.to_string())
            }
        }
    }
}

/// Everything that a cell needs.
struct Bench {
    client: Client,
    nats: async_nats::Client,
    redis: Redis,
    echo: Echo,
    server: Server,
    /// Where the SDK sends a check, by its number.
    check_subject: SubjectOf,
    gcra: Commands,
    keys: Keys,
    cpu: Cpu,
    request_bytes: usize,
    answer_bytes: usize,
    counter: Arc<AtomicU64>,
}

/// Where the processor time of all servers of a kind of request stands.
struct Cpu {
    echo: Vec<PathBuf>,
    check: Vec<PathBuf>,
    redis: Vec<PathBuf>,
}

impl Cpu {
    fn new(cluster: &mut Cluster, echo: &Echo, redis: &Server) -> anyhow::Result<Cpu> {
        let nats = stat(&cluster.nats.process)?;
        let mut check = vec![nats.clone()];
        for id in cluster.ids() {
            check.push(stat(cluster.process(id)?)?);
        }
        Ok(Cpu {
            echo: echo.cpu.iter().cloned().chain([nats]).collect(),
            check,
            redis: vec![stat(&redis.process)?],
        })
    }

    fn of(&self, what: What) -> &[PathBuf] {
        match what {
            What::Echo => &self.echo,
            What::Check => &self.check,
            What::RedisFixedWindow | What::RedisGcra => &self.redis,
        }
    }
}

/// Where the processor time of a process stands.
fn stat(process: &Process) -> anyhow::Result<PathBuf> {
    Ok(cpu::of_process(process.pid().context("it has ended")?))
}

impl Bench {
    async fn prepare(
        cluster: &mut Cluster,
        keys: u64,
        progress: &Progress,
    ) -> anyhow::Result<Bench> {
        let (server, redis) = Server::start(cluster.folder()).await?;
        let url = cluster.nats.url();
        let client = Client::connect(&url).await?;
        progress.say("waiting until the shards' leaders stay where they are");
        settle(&client).await?;
        apply_limits(&client, DOMAIN, rules()).await?;
        let nats = async_nats::connect(&url).await?;
        let domain = LineName::try_from(DOMAIN)?;
        let shards = client.admin().cluster_status().await?.shards.len();
        let check_subject = check_subject(domain, u32::try_from(shards)?);
        let request = check_request(0);
        let answer = nats.request(check_subject(0), request.clone()).await?;
        let reply: CheckReply = codec::decode(&answer.payload)?;
        ensure!(reply.allowed && reply.limit == Some(PER_HOUR), "{reply:?}");
        let answer_bytes = answer.payload.len();
        let any = spread(keys);
        let echo = Echo::start(&url, check_subject(0).len(), answer_bytes)?;
        let bench = Bench {
            cpu: Cpu::new(cluster, &echo, &server)?,
            echo,
            gcra: redis::gcra(&redis, any.clone()).await?,
            client,
            redis,
            server,
            check_subject,
            keys: any,
            request_bytes: request.len(),
            answer_bytes,
            counter: Arc::default(),
            nats,
        };
        bench.fill(keys, progress).await?;
        Ok(bench)
    }

    /// Makes all counters.
    async fn fill(&self, keys: u64, progress: &Progress) -> anyhow::Result<()> {
        let in_turn: Keys = Arc::new(|number| number);
        let gcra = redis::gcra(&self.redis, in_turn.clone()).await?;
        for (name, asked) in [
            ("nowserving", self.check(in_turn.clone())),
            (
                "Redis, fixed window",
                self.redis(redis::fixed_window(in_turn)),
            ),
            ("Redis, GCRA", self.redis(gcra)),
        ] {
            progress.say(&format!("making {} counters: {name}", count(keys)));
            let load = Load {
                asked,
                counter: Arc::default(),
            };
            let filled = load.each_up_to(AT_ONCE, keys).await;
            filled.with_context(|| format!("making counters: {name}"))?;
        }
        self.rest().await
    }

    fn check(&self, keys: Keys) -> Asked {
        self.nats(self.check_subject.clone(), keys)
    }

    /// The very same requests for the echo.
    fn echo(&self, keys: Keys) -> Asked {
        let subject = self.echo.subject.clone();
        self.nats(Arc::new(move |_| subject.clone()), keys)
    }

    fn nats(&self, subject: SubjectOf, keys: Keys) -> Asked {
        let source: Source = Arc::new(move |number| {
            let user = keys(number);
            (subject(user), check_request(user))
        });
        Asked::Nats(Requests {
            nats: self.nats.clone(),
            source,
        })
    }

    fn redis(&self, commands: Commands) -> Asked {
        Asked::Redis {
            redis: self.redis.clone(),
            commands,
        }
    }

    async fn cell(
        &self,
        what: What,
        in_flight: u32,
        measured: Duration,
    ) -> anyhow::Result<Measured> {
        let keys = self.keys.clone();
        let asked = match what {
            What::Echo => self.echo(keys),
            What::Check => self.check(keys),
            What::RedisFixedWindow => self.redis(redis::fixed_window(keys)),
            What::RedisGcra => self.redis(self.gcra.clone()),
        };
        let load = Load {
            asked,
            counter: self.counter.clone(),
        };
        let servers = self.cpu.of(what);
        let before = cpu::spent(servers);
        let sample = load.run(in_flight, WARM_UP, measured).await?;
        if what == What::Check {
            // What is written later belongs to these checks, too.
            self.rest().await?;
        }
        let after = cpu::spent(servers);
        let spent = before
            .zip(after)
            .map(|(before, after)| after.saturating_sub(before));
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / sample.tally.answers.max(1) as f64;
        Ok(Measured {
            cpu_us: spent.map(each),
            sample,
        })
    }

    /// Waits until the last checkpoint is written: the next cell has the machine for itself.
    async fn rest(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + REST_DEADLINE;
        loop {
            let stats = self.client.admin().limit_stats().await?;
            if stats.unanswered.is_empty() && stats.shards.iter().all(|shard| shard.changed == 0) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "checkpoints do not come to an end"
            );
            tokio::time::sleep(REST_POLL).await;
        }
    }
}

fn rules() -> String {
    format!(
        "domain: {DOMAIN}\ndescriptors:\n  - key: user\n    \
         rate_limit: {{unit: hour, requests_per_unit: {PER_HOUR}}}\n"
    )
}

/// Any of so many users, in no order that a cache could know.
fn spread(keys: u64) -> Keys {
    // The last step of splitmix64.
    Arc::new(move |number| {
        let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % keys
    })
}

/// The same length for all.
fn user(number: u64) -> String {
    format!("user-{number:08}")
}

/// The subject of the leader that counts for a user.
fn check_subject(domain: LineName, shards: u32) -> SubjectOf {
    let subjects = Subjects::default();
    Arc::new(move |number| {
        let descriptor = [Entry::new("user", user(number))];
        let shard = limit_shard_of(&domain, &descriptor, shards);
        subjects
            .leader(Operation::LimitCheck, shard, &domain)
            .into()
    })
}

fn check_request(number: u64) -> Bytes {
    let descriptor = vec![Entry::new("user", user(number))];
    codec::encode(&Check::new(vec![descriptor]), Format::MsgPack).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_are_spread_over_all_keys() {
        let keys = spread(1_000);
        let mut hits = vec![0; 1_000];
        (0..100_000).for_each(|number| hits[keys(number) as usize] += 1);
        assert!(hits.iter().all(|hits| (40..=180).contains(hits)));
    }

    #[test]
    fn a_request_names_its_user() {
        let read: Check = codec::decode(&check_request(7)).unwrap();
        assert_eq!(
            read.descriptors,
            [vec![Entry::new("user", "user-00000007")]]
        );
        assert_eq!(check_request(7).len(), check_request(99_999_999).len());
        nowserving_limit::Rules::parse(&rules()).unwrap();
    }
}
