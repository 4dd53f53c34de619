//! Systems side by side: each gets the same number of requests in flight, one after the other, round by round, so
//! that all meet the same noise.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::LocalBoxFuture;

use super::Bench;
use super::asked::Asked;
use super::load::{Load, Sample};
use super::machine::sync_time;
use super::report::{Cell, Section};
use super::spread::{Spread, Timed, shown};
use crate::cpu;

/// Before each cell, not measured: connections, caches and the scheduler come to rest.
const WARM_UP: Duration = Duration::from_millis(500);

/// A block, for which the file system must find room, and what mostly fits into one that it has.
const SYNCED_BYTES: [usize; 2] = [4_096, 100];

/// The name of our own system.
pub const OURS: &str = "nowserving";
/// The name of the bare responder.
pub const ECHO: &str = "bare NATS echo";

/// Done around each cell.
pub type Hook = Box<dyn Fn() -> LocalBoxFuture<'static, Result<()>>>;

/// A system that takes part.
pub struct Contestant {
    name: String,
    asked: Asked,
    /// Where the processor time of its servers stands.
    servers: Vec<PathBuf>,
    /// And of the nats-server between them and the requester.
    nats: Option<PathBuf>,
    before: Hook,
    settled: Hook,
    after: Hook,
}

fn nothing() -> Hook {
    Box::new(|| Box::pin(async { Ok(()) }))
}

impl Contestant {
    pub fn new(
        name: impl Into<String>,
        asked: Asked,
        servers: Vec<PathBuf>,
        nats: Option<PathBuf>,
    ) -> Contestant {
        Contestant {
            name: name.into(),
            asked,
            servers,
            nats,
            before: nothing(),
            settled: nothing(),
            after: nothing(),
        }
    }

    /// Under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Contestant {
        self.name = name.to_owned();
        self
    }

    /// Done before each cell, not measured.
    #[must_use]
    pub fn before(mut self, hook: Hook) -> Contestant {
        self.before = hook;
        self
    }

    /// Waits until what the requests left behind is done: its processor time counts.
    #[must_use]
    pub fn settled(mut self, hook: Hook) -> Contestant {
        self.settled = hook;
        self
    }

    /// Done after each cell, not measured.
    #[must_use]
    pub fn after(mut self, hook: Hook) -> Contestant {
        self.after = hook;
        self
    }
}

/// One measurement of a cell.
#[derive(Debug)]
struct Measured {
    sample: Sample,
    /// Processor time for one answer, in µs.
    servers_us: Option<f64>,
    nats_us: Option<f64>,
    requester_us: Option<f64>,
    /// What the requester took of the machine, in cores.
    requester_cores: Option<f64>,
}

/// All measurements.
pub struct Race {
    names: Vec<String>,
    measured: BTreeMap<(u32, usize), Vec<Measured>>,
    /// What the disk took at the beginning of each round, in ms, by [`SYNCED_BYTES`].
    syncs: Vec<[f64; 2]>,
}

impl Race {
    /// Runs all rounds; each cell is measured so long.
    ///
    /// # Errors
    /// A hook fails.
    pub async fn run(
        bench: &Bench,
        long: Duration,
        contestants: &[Contestant],
        in_flight: &[u32],
    ) -> Result<Race> {
        let counter = Arc::new(AtomicU64::new(0));
        let mut measured = BTreeMap::<_, Vec<_>>::new();
        let mut syncs = Vec::new();
        for round in 1..=bench.rounds {
            syncs.push(syncs_ms()?);
            for &in_flight in in_flight {
                for (nth, contestant) in contestants.iter().enumerate() {
                    let name = &contestant.name;
                    let of = bench.rounds;
                    let cell = format!("round {round} of {of}: {name}, {in_flight} in flight");
                    bench.step(&cell);
                    let one = one(contestant, in_flight, long, &counter).await;
                    let one = one.with_context(|| cell.clone())?;
                    bench.say(&format!("{cell}: {}/s", shown(one.sample.per_second)));
                    measured.entry((in_flight, nth)).or_default().push(one);
                }
            }
        }
        Ok(Race {
            names: contestants.iter().map(|it| it.name.clone()).collect(),
            measured,
            syncs,
        })
    }

    /// The section of it, without its goals.
    pub fn section(&self) -> Section {
        let mut section = Section {
            cells: self.cells(),
            failures: self.failures(),
            ..Section::default()
        };
        for (nth, bytes) in SYNCED_BYTES.into_iter().enumerate() {
            let syncs = Spread::of(self.syncs.iter().map(|it| it[nth]), 2);
            let what = format!("{bytes} bytes appended and synced, as a round begins");
            section.value(what, "ms", syncs);
        }
        section
    }

    /// All cells, by the number of requests in flight.
    fn cells(&self) -> Vec<Cell> {
        let cells = self.measured.iter().filter_map(|((in_flight, nth), all)| {
            let of = |get: fn(&Measured) -> Option<f64>, digits| {
                Spread::of(all.iter().filter_map(get), digits)
            };
            Some(Cell {
                system: self.names[*nth].clone(),
                in_flight: *in_flight,
                timed: Timed::of(all.iter().map(|it| &it.sample))?,
                servers_cpu_us: of(|it| it.servers_us, 2),
                nats_cpu_us: of(|it| it.nats_us, 2),
                requester_cpu_us: of(|it| it.requester_us, 2),
                requester_cores: of(|it| it.requester_cores, 2),
            })
        });
        cells.collect()
    }

    /// How often each failure occurred, by its message.
    fn failures(&self) -> BTreeMap<String, u64> {
        let mut failures = BTreeMap::new();
        for ((_, nth), measured) in &self.measured {
            for (failure, count) in measured.iter().flat_map(|it| &it.sample.tally.failures) {
                let failure = format!("{}: {failure}", self.names[*nth]);
                *failures.entry(failure).or_default() += count;
            }
        }
        failures
    }

    /// The requests a second of a system.
    pub fn rate(&self, in_flight: u32, name: &str) -> Option<Spread> {
        let all = self.of(in_flight, name)?;
        Spread::of(all.iter().map(|it| it.sample.per_second), 0)
    }

    /// The requests a second of one system by those of another, round by round.
    pub fn rate_ratio(&self, in_flight: u32, of: &str, to: &str) -> Option<Spread> {
        self.ratio(in_flight, of, to, |sample| sample.per_second)
    }

    /// The time within which this share of the answers came, by that of another system, round by round.
    pub fn time_ratio(&self, in_flight: u32, share: f64, of: &str, to: &str) -> Option<Spread> {
        self.ratio(in_flight, of, to, |sample| sample.quantile_us(share))
    }

    /// Processor time of a system's servers for one answer, in µs, without a nats-server between them.
    pub fn servers_us(&self, in_flight: u32, name: &str) -> Option<Spread> {
        let all = self.of(in_flight, name)?;
        Spread::of(all.iter().filter_map(|it| it.servers_us), 2)
    }

    /// The processor time of one system's nodes an operation, of that of another in the same round.
    pub fn servers_ratio(&self, in_flight: u32, of: &str, to: &str) -> Option<Spread> {
        let us = |name: &str| Some(self.of(in_flight, name)?.iter().map(|it| it.servers_us));
        let known = |it: (Option<f64>, Option<f64>)| it.0.zip(it.1);
        let (of, to): (Vec<f64>, Vec<f64>) = us(of)?.zip(us(to)?).filter_map(known).unzip();
        Spread::of_ratios(of.into_iter(), to.into_iter())
    }

    /// The slowest answer of each round, in ms.
    pub fn slowest_ms(&self, in_flight: u32, name: &str) -> Option<Spread> {
        let all = self.of(in_flight, name)?;
        Spread::of(all.iter().map(|it| it.sample.quantile_us(1.0) / 1e3), 1)
    }

    fn ratio(
        &self,
        in_flight: u32,
        of: &str,
        to: &str,
        get: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let (of, to) = (self.of(in_flight, of)?, self.of(in_flight, to)?);
        let of = of.iter().map(|it| get(&it.sample));
        Spread::of_ratios(of, to.iter().map(|it| get(&it.sample)))
    }

    fn of(&self, in_flight: u32, name: &str) -> Option<&Vec<Measured>> {
        let nth = self.names.iter().position(|it| it == name)?;
        self.measured.get(&(in_flight, nth))
    }
}

fn syncs_ms() -> Result<[f64; 2]> {
    let folder = std::env::temp_dir();
    let mut times = [0.0; 2];
    for (time, bytes) in times.iter_mut().zip(SYNCED_BYTES) {
        *time = sync_time(&folder, bytes)?.as_secs_f64() * 1e3;
    }
    Ok(times)
}

async fn one(
    contestant: &Contestant,
    in_flight: u32,
    measured: Duration,
    counter: &Arc<AtomicU64>,
) -> Result<Measured> {
    (contestant.before)().await?;
    let own = [cpu::of_pid(std::process::id())];
    let spent = || {
        let nats = contestant.nats.as_ref().map(std::slice::from_ref);
        (cpu::spent(&contestant.servers), nats.and_then(cpu::spent))
    };
    let ((servers, nats), requester) = (spent(), cpu::spent(&own));
    let began = Instant::now();
    let load = Load {
        asked: contestant.asked.clone(),
        counter: counter.clone(),
    };
    let sample = load.run(in_flight, WARM_UP, measured).await?;
    let (took, requester_after) = (began.elapsed(), cpu::spent(&own));
    (contestant.settled)().await?;
    let (servers_after, nats_after) = spent();
    (contestant.after)().await?;
    let between = |from: Option<Duration>, to: Option<Duration>| {
        from.zip(to)
            .map(|(from, to)| to.saturating_sub(from).as_secs_f64())
    };
    let answers = sample.tally.answers.max(1) as f64;
    let each = |spent: f64| spent * 1e6 / answers;
    let requester = between(requester, requester_after);
    Ok(Measured {
        servers_us: between(servers, servers_after).map(each),
        nats_us: between(nats, nats_after).map(each),
        requester_us: requester.map(each),
        requester_cores: requester.map(|spent| spent / took.as_secs_f64()),
        sample,
    })
}
