//! Crowds in an open loop: they ask, and boards move, at their own pace, however slow the answers are.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use nowserving_protocol::subject::Subjects;
use nowserving_rehearse::count;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Bench;
use super::lines::{key, names};
use super::load::{Ask as _, Requests, Tally};
use super::ours::Ours;
use super::report::{Goal, Section};
use super::spread::Spread;
use crate::cpu;

const SHOPPERS: u64 = 10_000;
const WATCHERS: u64 = 10_000;
/// Connections of the watchers.
const CONNECTIONS: usize = 10;
/// In each round.
const POLLS: u64 = 20;
const MOVES: u64 = 20;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MOVE_INTERVAL: Duration = Duration::from_millis(500);
/// Boards that come later than this after the last move were not seen.
const LATE: Duration = Duration::from_secs(3);

/// The times of each round.
#[derive(Default)]
struct Rounds {
    median_ms: Vec<f64>,
    p99_ms: Vec<f64>,
    slowest_ms: Vec<f64>,
    /// What the nodes and the requester took of the machine, in cores.
    nodes: Vec<f64>,
    requester: Vec<f64>,
    failures: BTreeMap<String, u64>,
}

impl Rounds {
    fn add(&mut self, tally: Tally) {
        let at = |share| tally.latency_us.value_at_quantile(share) as f64 / 1e3;
        self.median_ms.push(at(0.5));
        self.p99_ms.push(at(0.99));
        self.slowest_ms.push(at(1.0));
        for (failure, times) in tally.failures {
            *self.failures.entry(failure).or_default() += times;
        }
    }

    /// Adds what a round took.
    async fn timed(
        &mut self,
        cluster: &mut Ours,
        round: impl Future<Output = Result<Tally>>,
    ) -> Result<()> {
        let (nodes, own) = (cluster.nodes()?, [cpu::of_pid(std::process::id())]);
        let before = (cpu::spent(&nodes), cpu::spent(&own), Instant::now());
        self.add(round.await?);
        let took = before.2.elapsed().as_secs_f64();
        let cores = |from: Option<Duration>, to: Option<Duration>| {
            let spent = from.zip(to).map(|(from, to)| to.saturating_sub(from));
            spent.map(|spent| spent.as_secs_f64() / took)
        };
        self.nodes.extend(cores(before.0, cpu::spent(&nodes)));
        self.requester.extend(cores(before.1, cpu::spent(&own)));
        Ok(())
    }

    fn section(self, about: String, goal: Goal) -> Section {
        let of = |values: &[f64]| Spread::of(values.iter().copied(), 2);
        let mut section = Section {
            about,
            goals: vec![goal],
            failures: self.failures,
            ..Section::default()
        };
        section.value("median", "ms", of(&self.median_ms));
        section.value("99 %", "ms", of(&self.p99_ms));
        section.value("slowest", "ms", of(&self.slowest_ms));
        section.value("CPU of three nodes", "cores", of(&self.nodes));
        section.value("CPU of the requester", "cores", of(&self.requester));
        section
    }
}

/// Everybody polls once a second.
pub async fn shoppers(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let shoppers = bench.size(SHOPPERS);
    let polled = cluster.lines.fill_polled(&names(1)[0], shoppers).await?;
    let requests = Requests {
        nats: cluster.nats.clone(),
        source: polled.source(polled.subject.clone()),
    };
    let mut rounds = Rounds::default();
    for round in 1..=bench.rounds {
        bench.begin(&format!("round {round} of {}", bench.rounds));
        let polls = poll(requests.clone(), shoppers);
        rounds.timed(&mut cluster, polls).await?;
    }
    let slowest = Spread::of(rounds.slowest_ms.iter().copied(), 1);
    let goal = Goal::at_most("slowest answer", 1_000.0, "ms", slowest);
    let about = format!(
        "{} shoppers on one line, each of whom polls once a second; times from when a poll is due",
        count(shoppers)
    );
    Ok(rounds.section(about, goal))
}

async fn poll(requests: Requests, shoppers: u64) -> Result<Tally> {
    let start = Instant::now() + POLL_INTERVAL;
    let all = (0..shoppers).map(|number| {
        let requests = requests.clone();
        let first = start + POLL_INTERVAL.mul_f64(number as f64 / shoppers as f64);
        async move {
            let mut tally = Tally::new()?;
            for poll in 0..POLLS {
                let due = first + POLL_INTERVAL * poll as u32;
                sleep_until(due).await;
                match requests.ask(number).await {
                    Some(failure) => tally.fail(failure),
                    None => tally.count(due.elapsed())?,
                }
            }
            anyhow::Ok(tally)
        }
    });
    merged(all.collect()).await
}

async fn merged(mut tasks: JoinSet<Result<Tally>>) -> Result<Tally> {
    let mut tally = Tally::new()?;
    while let Some(task) = tasks.join_next().await {
        tally.add(task??)?;
    }
    Ok(tally)
}

/// Everybody watches the board.
pub async fn watchers(bench: &mut Bench) -> Result<Section> {
    let mut cluster = bench.cluster().await?;
    let watchers = bench.size(WATCHERS) as usize;
    let mut rounds = Rounds::default();
    for round in 1..=bench.rounds {
        bench.begin(&format!("round {round} of {}", bench.rounds));
        let (client, lines) = (cluster.client.clone(), cluster.lines.clone());
        let url = cluster.cluster.nats.url();
        let moved = async {
            let name = names(u64::from(round)).pop().context("a name")?;
            lines.create(std::slice::from_ref(&name), 1).await?;
            let line = client.line(name.as_str())?;
            let mut tickets = Vec::new();
            // One by one: they are admitted in this order.
            for number in 0..=MOVES {
                let entered = line.enter(key(number).as_str()).await?;
                tickets.push(entered.ticket.context("no ticket")?);
            }
            let subject = Subjects::default().board(&name);
            let seen = watch(&url, &subject, watchers).await?;
            let mut moves = Vec::new();
            for (nth, ticket) in (1..).zip(&tickets[..MOVES as usize]) {
                tokio::time::sleep(MOVE_INTERVAL).await;
                // Who holds the seat leaves: the next one is admitted.
                moves.push((nth + 1, Instant::now()));
                line.leave(ticket).await?;
            }
            tokio::time::sleep(LATE).await;
            seen.tally(&moves).await
        };
        rounds.timed(&mut cluster, moved).await?;
    }
    let p99 = Spread::of(rounds.p99_ms.iter().copied(), 1);
    let goal = Goal::at_most("99 % have seen a move", 100.0, "ms", p99);
    let about = format!(
        "{} watchers of one board over {CONNECTIONS} connections, a move every {} ms; times from the request that moves \
         it until a watcher has the board",
        count(watchers as u64),
        MOVE_INTERVAL.as_millis()
    );
    Ok(rounds.section(about, goal))
}

/// The boards of each watcher, and when they came.
struct Seen {
    stop: tokio::sync::watch::Sender<bool>,
    watchers: JoinSet<Vec<(Instant, Bytes)>>,
    /// They end with these.
    _connections: Vec<async_nats::Client>,
}

async fn watch(url: &str, subject: &str, watchers: usize) -> Result<Seen> {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (mut tasks, mut connections) = (JoinSet::new(), Vec::new());
    for connection in 0..CONNECTIONS {
        let nats = async_nats::connect(url).await?;
        for _ in (connection..watchers).step_by(CONNECTIONS) {
            let mut boards = nats.subscribe(subject.to_owned()).await?;
            let mut stopped = stopped.clone();
            tasks.spawn(async move {
                let mut seen = Vec::new();
                loop {
                    tokio::select! {
                        board = boards.next() => match board {
                            Some(board) => seen.push((Instant::now(), board.payload)),
                            None => return seen,
                        },
                        _ = stopped.changed() => return seen,
                    }
                }
            });
        }
        nats.flush().await?;
        connections.push(nats);
    }
    Ok(Seen {
        stop,
        watchers: tasks,
        _connections: connections,
    })
}

impl Seen {
    /// How long after each move, by the number that it admits, each watcher had a board with it.
    async fn tally(mut self, moves: &[(u64, Instant)]) -> Result<Tally> {
        self.stop.send(true)?;
        // All watchers get the same boards.
        let mut known = HashMap::<Bytes, u64>::new();
        let mut tally = Tally::new()?;
        while let Some(boards) = self.watchers.join_next().await {
            let mut through = Vec::new();
            for (at, board) in boards? {
                let admitted = match known.get(&board) {
                    Some(admitted) => *admitted,
                    None => {
                        let admitted = admitted_through(&board)?;
                        known.insert(board, admitted);
                        admitted
                    }
                };
                through.push((at, admitted));
            }
            for (number, moved) in moves {
                let seen = through.iter().find(|(_, admitted)| admitted >= number);
                match seen {
                    Some((at, _)) => tally.count(at.saturating_duration_since(*moved))?,
                    None => tally.fail("a move was not seen".to_owned()),
                }
            }
        }
        Ok(tally)
    }
}

fn admitted_through(board: &Bytes) -> Result<u64> {
    let board: Value = serde_json::from_slice(board)?;
    let admitted = &board["lanes"][0]["admitted_through"];
    ensure!(admitted.is_u64(), "a board without a lane: {board}");
    admitted.as_u64().context("a number")
}
