//! `enter`: a number, acknowledged once a majority has it on disk, beside other systems that keep what they are told.

use std::any::Any;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use nowserving_e2e::{Process, Streams, nats_server};
use nowserving_line::LineName;
use tempfile::TempDir;

use super::Bench;
use super::asked::Asked;
use super::echo::Echo;
use super::lines::{Lines, enter_request, names};
use super::load::Source;
use super::ours::Ours;
use super::race::{Contestant, Hook, OURS, Race};
use super::report::{Goal, Section};
use super::status::{echo, ours};
use crate::cpu;
use crate::peers::redis::{self, Kept};
use crate::peers::resp::Redis;
use crate::peers::{Etcd, JetStream, Peer as _, Puts};

const IN_FLIGHT: [u32; 4] = [1, 16, 64, 256];
const LINES_IN_FLIGHT: [u32; 2] = [64, 256];
/// So many lines, where they are many.
pub const MANY: u64 = 1_000;
/// With the nats-server that our nodes use, as it comes.
const JETSTREAM: &str = "JetStream R3";
pub const REDIS: &str = "Redis, one copy";
pub const ETCD: &str = "etcd put";
/// At 16, 64 and 256 in flight: of JetStream's rate, of Redis's.
const RATES: [(u32, f64, f64); 3] = [(16, 0.8, 0.7), (64, 0.9, 0.8), (256, 1.1, 0.8)];

/// Names the current nats-server.
const CURRENT: &str = "NATS_SERVER_CURRENT";

pub async fn run(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let lines = names(1);
    let source = cluster.lines.enter_source(&lines);
    let (subject, answer) = try_enter(&cluster, &lines, &source).await?;
    let url = cluster.cluster.nats.url();
    let folder = cluster.cluster.folder().to_owned();
    let bare = Echo::start(&cluster.nats, &url, &folder, subject, answer).await?;
    let to = bare.subject.clone();
    let echoed: Source = std::sync::Arc::new(move |n| (to.clone(), enter_request(n).into()));
    let mut contestants = vec![
        echo(&cluster, &bare, echoed)?,
        entering(&mut cluster, OURS, lines)?,
    ];
    // What must live as long as the race.
    let mut servers: Vec<Box<dyn Any>> = Vec::new();
    for (name, streams) in streams() {
        bench.begin(&format!("starting {name}"));
        let started = match streams {
            Ok(streams) => jetstream(name, &streams).await,
            Err(error) => Err(error),
        };
        if let Some((contestant, version, running)) = bench.optional(name, started) {
            bench.version(format!("{name}: nats-server {version}"));
            contestants.push(contestant);
            servers.push(Box::new(running));
        }
    }
    bench.begin("starting redis-server and etcd");
    let started = start_redis().await;
    if let Some(redis) = bench.optional(REDIS, started) {
        bench.version(format!("redis-server {}", redis.version));
        contestants.push(redis.contestant);
        servers.push(Box::new(redis.server));
    }
    let started = start_etcd().await;
    if let Some(etcd) = bench.optional(ETCD, started) {
        bench.version(format!("etcd {}", etcd.version));
        contestants.push(etcd.contestant);
        servers.push(Box::new(etcd.servers));
    }
    let race = Race::run(bench, bench.measured, &contestants, &IN_FLIGHT).await?;
    Ok(Section {
        about: format!(
            "enter on one line (ten bytes of key; {answer} bytes answered). JetStream: three servers, a stream with \
             three replicas in files, publish and acknowledgement, asked at its leader. Redis: one server, appendfsync \
             always, a script of INCR, ZADD and HSET over one pipelined connection. etcd: three members, put over one \
             connection to the leader. The echo, of enter's bytes, is what the requester can do"
        ),
        goals: goals(&race),
        ..race.section()
    })
}

fn goals(race: &Race) -> Vec<Goal> {
    let p50 = race.time_ratio(1, 0.5, OURS, JETSTREAM);
    let mut goals = vec![Goal::at_most(
        "of JetStream's median, 1 in flight",
        2.0,
        "",
        p50,
    )];
    for (in_flight, jetstream, redis) in RATES {
        let rates = [(JETSTREAM, jetstream), (REDIS, redis)];
        goals.extend(rates.map(|(name, limit)| {
            let measured = race.rate_ratio(in_flight, OURS, name);
            let what = format!("of the rate of {name}, {in_flight} in flight");
            Goal::at_least(what, limit, "", measured)
        }));
    }
    let what = "CPU of three nodes an enter, 256 in flight";
    goals.push(Goal::at_most(what, 15.0, "µs", race.servers_us(256, OURS)));
    goals
}

/// Many lines beside one.
pub async fn many_lines(bench: &mut Bench) -> Result<Section> {
    const MANY_NAME: &str = "enter, 1,000 lines";
    const ONE_NAME: &str = "enter, one line";
    let mut cluster = bench.cluster().await?;
    let many = bench.size(MANY).max(2);
    let contestants = [
        entering(&mut cluster, ONE_NAME, names(1))?,
        entering(&mut cluster, MANY_NAME, names(many))?,
    ];
    let race = Race::run(bench, bench.measured, &contestants, &LINES_IN_FLIGHT).await?;
    let goals = LINES_IN_FLIGHT.map(|in_flight| {
        let ratio = race.rate_ratio(in_flight, MANY_NAME, ONE_NAME);
        Goal::at_least(
            format!("of the rate on one line, {in_flight} in flight"),
            0.95,
            "",
            ratio,
        )
    });
    Ok(Section {
        about: format!("enter spread over {many} lines, beside one line"),
        goals: goals.into(),
        ..race.section()
    })
}

/// Enters these lines. They are new for each cell: all of them measure the same, and memory stays bounded.
pub fn entering(cluster: &mut Ours, name: &str, names: Vec<LineName>) -> Result<Contestant> {
    let contestant = ours(cluster, cluster.lines.enter_source(&names))?.named(name);
    let (made, gone) = (cluster.lines.clone(), cluster.lines.clone());
    let names = Rc::new(names);
    let (to_make, to_delete) = (names.clone(), names);
    let make: Hook = Box::new(move || {
        let (lines, names): (Lines, _) = (made.clone(), to_make.clone());
        Box::pin(async move { lines.create(&names, 1).await })
    });
    let delete: Hook = Box::new(move || {
        let (lines, names): (Lines, _) = (gone.clone(), to_delete.clone());
        Box::pin(async move { lines.delete(&names).await })
    });
    Ok(contestant.before(make).after(delete))
}

/// The sizes of a subject and of an answer of a token that waits.
async fn try_enter(cluster: &Ours, names: &[LineName], source: &Source) -> Result<(usize, usize)> {
    cluster.lines.create(names, 1).await?;
    let mut sizes = (0, 0);
    for number in 0..2 {
        let (subject, request) = source(number);
        sizes.0 = subject.len();
        sizes.1 = cluster.nats.request(subject, request).await?.payload.len();
    }
    cluster.lines.delete(names).await?;
    Ok(sizes)
}

/// The clusters that JetStream is measured with.
fn streams() -> Vec<(&'static str, Result<Streams>)> {
    let current = || {
        let program = std::env::var_os(CURRENT).filter(|given| !given.is_empty());
        let program = program.context("no current nats-server (NATS_SERVER_CURRENT)");
        program.map(PathBuf::from)
    };
    let kind = |program: Result<PathBuf>, sync_always| {
        program.map(|program| Streams {
            program,
            sync_always,
        })
    };
    vec![
        (JETSTREAM, kind(nats_server(), false)),
        ("JetStream R3, current", kind(current(), false)),
        ("JetStream R3, current, sync always", kind(current(), true)),
    ]
}

fn stats<'a>(processes: impl Iterator<Item = &'a Process>) -> Result<Vec<PathBuf>> {
    processes.map(cpu::of).collect()
}

type Streaming = (Rc<JetStream>, TempDir);

async fn jetstream(name: &str, streams: &Streams) -> Result<(Contestant, String, Streaming)> {
    let folder = tempfile::tempdir()?;
    let stream = JetStream::start_with(folder.path(), streams, -1).await?;
    let leader = stream.leader().await?;
    let client = stream.client(leader).clone();
    let version = client.server_info().version;
    let servers = stats(stream.processes())?;
    let stream = Rc::new(stream);
    let purged = stream.clone();
    let purge: Hook = Box::new(move || {
        let stream = purged.clone();
        Box::pin(async move { stream.purge().await })
    });
    let contestant = Contestant::new(name, Asked::JetStream(client), servers, None).after(purge);
    Ok((contestant, version, (stream, folder)))
}

/// A running Redis that is entered.
pub struct EnteredRedis {
    pub contestant: Contestant,
    pub redis: Redis,
    pub port: u16,
    /// The script's name.
    pub script: String,
    pub version: String,
    /// It ends with these.
    server: (redis::Server, TempDir),
}

pub async fn start_redis() -> Result<EnteredRedis> {
    let folder = tempfile::tempdir()?;
    let (server, redis) = redis::Server::start(folder.path(), Kept::Synced).await?;
    let script = redis::enter_script(&redis).await?;
    let flushed = redis.clone();
    let flush: Hook = Box::new(move || {
        let redis = flushed.clone();
        Box::pin(async move { redis.command(&["FLUSHALL"]).await.map(drop) })
    });
    let asked = Asked::Redis {
        redis: redis.clone(),
        commands: redis::enter(script.clone()),
    };
    let servers = vec![cpu::of(&server.process)?];
    Ok(EnteredRedis {
        contestant: Contestant::new(REDIS, asked, servers, None).after(flush),
        redis,
        port: server.port,
        script,
        version: server.version.clone(),
        server: (server, folder),
    })
}

/// A running etcd that is put into.
pub struct EnteredEtcd {
    pub contestant: Contestant,
    /// Of its leader.
    pub url: String,
    pub version: String,
    /// It ends with these.
    servers: (Etcd, TempDir),
}

pub async fn start_etcd() -> Result<EnteredEtcd> {
    let folder = tempfile::tempdir()?;
    let etcd = Etcd::start(folder.path()).await?;
    let leader = etcd.leader().await?;
    let puts = Puts::connect(&etcd, leader).await?;
    let servers = stats(etcd.processes())?;
    Ok(EnteredEtcd {
        contestant: Contestant::new(ETCD, Asked::Etcd(puts), servers, None),
        url: etcd.url(leader),
        version: etcd.version().await?,
        servers: (etcd, folder),
    })
}
