//! `check` of rate limits, beside a bare echo and beside Redis with the algorithms that Lyft's ratelimit and redis-cell
//! use there.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::Subject;
use bytes::Bytes;
use nowserving_client::limits::{Check, CheckReply, Entry};
use nowserving_client::{Client, Operation};
use nowserving_line::LineName;
use nowserving_protocol::codec::{self, Format};
use nowserving_protocol::limits::limit_shard_of;
use nowserving_protocol::subject::Subjects;
use nowserving_rehearse::count;
use nowserving_tools::embedded::apply_limits;
use tokio::time::Instant;

use super::Bench;
use super::asked::Asked;
use super::echo::Echo;
use super::load::{Load, Requests, Source};
use super::ours::Ours;
use super::race::{Contestant, ECHO, Hook, OURS, Race};
use super::report::{Goal, Section};
use super::status::{echo, ours};
use crate::cpu;
use crate::peers::redis::{self, Commands, Kept, Server};
use crate::peers::resp::Redis;

const DOMAIN: &str = "bench";
/// More than any key is asked for: all requests are allowed.
pub const PER_HOUR: u32 = 1_000_000;
const IN_FLIGHT: [u32; 2] = [64, 256];
pub const COUNTERS: u64 = 1_000_000;
/// Requests under way while counters are made.
const AT_ONCE: u32 = 256;
/// After checks, until the leaders have written what changed.
const REST_DEADLINE: Duration = Duration::from_secs(60);
const REST_POLL: Duration = Duration::from_millis(100);
const GCRA: &str = "Redis, GCRA script";
const FIXED_WINDOW: &str = "Redis, INCRBY + EXPIRE";

/// The subject of a check, by the number of its user.
type SubjectOf = Arc<dyn Fn(u64) -> Subject + Send + Sync>;
/// From the number of a request to the number of its user.
pub type Keys = Arc<dyn Fn(u64) -> u64 + Send + Sync>;

pub async fn run(bench: &mut Bench) -> Result<Section> {
    let counters = bench.size(COUNTERS);
    let mut cluster = bench.cluster().await?;
    let checks = Checks::prepare(&cluster).await?;
    checks.fill(bench, &cluster, counters).await?;
    let any = spread(counters);
    let url = cluster.cluster.nats.url();
    let folder = cluster.cluster.folder().to_owned();
    let (subject, answer) = ((checks.subject)(0).len(), checks.answer_bytes);
    let bare = Echo::start(&cluster.nats, &url, &folder, subject, answer).await?;
    let to = bare.subject.clone();
    let echoed = source(Arc::new(move |_| to.clone()), any.clone());
    let client = cluster.client.clone();
    let rested: Hook = Box::new(move || {
        let client = client.clone();
        Box::pin(async move { rest(&client).await })
    });
    let mut contestants = vec![
        echo(&cluster, &bare, echoed)?,
        ours(&mut cluster, source(checks.subject.clone(), any.clone()))?.settled(rested),
    ];
    let started = on_redis(bench, &folder, counters, any).await;
    let redis = bench.optional("Redis", started);
    let _server = redis.map(|(both, server)| {
        contestants.extend(both);
        server
    });
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    let goals = IN_FLIGHT.map(|in_flight| {
        let ratio = race.rate_ratio(in_flight, OURS, ECHO);
        Goal::at_least(
            format!("of the echo's rate, {in_flight} in flight"),
            0.85,
            "",
            ratio,
        )
    });
    let mut section = Section {
        about: format!(
            "check of one of {} counters in any order, beside a bare echo of the same bytes ({} asked, {answer} \
             answered) and Redis in memory alone. nowserving's checkpoints are included",
            count(counters),
            check_request(0).len(),
        ),
        goals: goals.into(),
        ..race.section()
    };
    for in_flight in IN_FLIGHT {
        for name in [GCRA, FIXED_WINDOW] {
            let ratio = race.rate_ratio(in_flight, OURS, name);
            section.value(
                format!("of the rate of {name}, {in_flight} in flight"),
                "",
                ratio,
            );
        }
    }
    Ok(section)
}

/// The rules are applied, and where checks go is known.
pub struct Checks {
    subject: SubjectOf,
    answer_bytes: usize,
}

impl Checks {
    pub async fn prepare(cluster: &Ours) -> Result<Checks> {
        apply_limits(&cluster.client, DOMAIN, rules()).await?;
        let shards = cluster.client.admin().cluster_status().await?.shards.len();
        let subject = check_subject(LineName::try_from(DOMAIN)?, u32::try_from(shards)?);
        let answer = cluster.nats.request(subject(0), check_request(0)).await?;
        let reply: CheckReply = codec::decode(&answer.payload)?;
        ensure!(reply.allowed && reply.limit == Some(PER_HOUR), "{reply:?}");
        Ok(Checks {
            subject,
            answer_bytes: answer.payload.len(),
        })
    }

    /// Makes so many counters, and waits until they are written.
    pub async fn fill(&self, bench: &Bench, cluster: &Ours, counters: u64) -> Result<()> {
        fill(bench, self.of_each(cluster), counters).await?;
        rest(&cluster.client).await
    }

    /// Checks of [`COUNTERS`] in any order, once they are there and written.
    pub async fn filled(&self, cluster: &Ours) -> Result<Source> {
        let load = Load {
            asked: self.of_each(cluster),
            counter: Arc::default(),
        };
        load.each_up_to(AT_ONCE, COUNTERS).await?;
        rest(&cluster.client).await?;
        Ok(source(self.subject.clone(), spread(COUNTERS)))
    }

    /// Checks of one counter after the other.
    fn of_each(&self, cluster: &Ours) -> Asked {
        Asked::Nats(Requests {
            nats: cluster.nats.clone(),
            source: source(self.subject.clone(), Arc::new(|number| number)),
        })
    }
}

async fn fill(bench: &Bench, asked: Asked, counters: u64) -> Result<()> {
    let counter = Arc::new(AtomicU64::new(0));
    let load = Load {
        asked,
        counter: counter.clone(),
    };
    let filled = load.each_up_to(AT_ONCE, counters);
    bench
        .counting("counters made", &counter, counters, filled)
        .await
}

/// Both algorithms, on one server.
async fn on_redis(
    bench: &mut Bench,
    folder: &std::path::Path,
    counters: u64,
    any: Keys,
) -> Result<([Contestant; 2], Server)> {
    let (server, redis) = Server::start(folder, Kept::Nothing).await?;
    bench.version(format!("redis-server {}", server.version));
    let in_turn: Keys = Arc::new(|number| number);
    let asked = |redis: &Redis, commands: Commands| Asked::Redis {
        redis: redis.clone(),
        commands,
    };
    let window = redis::fixed_window(in_turn.clone());
    fill(bench, asked(&redis, window), counters).await?;
    let gcra = redis::gcra(&redis, in_turn).await?;
    fill(bench, asked(&redis, gcra), counters).await?;
    let window = asked(&redis, redis::fixed_window(any.clone()));
    let gcra = asked(&redis, redis::gcra(&redis, any).await?);
    let stat = vec![cpu::of(&server.process)?];
    let both = [
        Contestant::new(GCRA, gcra, stat.clone(), None),
        Contestant::new(FIXED_WINDOW, window, stat, None),
    ];
    Ok((both, server))
}

/// Waits until the last checkpoint is written: the next cell has the machine for itself.
async fn rest(client: &Client) -> Result<()> {
    let deadline = Instant::now() + REST_DEADLINE;
    loop {
        let stats = client.admin().limit_stats().await?;
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

fn source(subject: SubjectOf, keys: Keys) -> Source {
    Arc::new(move |number| {
        let user = keys(number);
        (subject(user), check_request(user))
    })
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
pub fn user(number: u64) -> String {
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
