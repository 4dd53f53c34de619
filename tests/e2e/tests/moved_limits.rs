//! Hits on rate limits count once while leadership moves: those of the SDK, and those of clients without it that ask on the
//! leaders' own subjects.
//!
//! Each check has a counter of its own, which is read afterwards. So a check that counted twice is seen, whoever doubled it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt;
use futures::future::try_join_all;
use nowserving_client::{Client, Kind, LimitFallback, Limiter, LimiterOptions};
use nowserving_e2e::{Api, Cluster, NoAnswer, eventually, number};
use nowserving_line::LineName;
use nowserving_protocol::limits::{CheckReply, Entry, limit_shard_of};
use serde_json::{Value, json};

const DOMAIN: &str = "limits-moved";
/// By the year, so that no window ends in the test but by rare chance.
const LIMIT: u32 = 100;
const KEY: &str = "id";
const LONG: Duration = Duration::from_secs(30);
/// The first half of them asks by the SDK.
const WORKERS: usize = 8;
/// Between two checks of a worker.
const PACE: Duration = Duration::from_millis(20);
/// So many checks more than there were when leadership had moved.
const AFTER: usize = 200;
/// The SDK gives an attempt all the time that is left, up to 2.2 s, so within this there is at most one without an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// And that one takes longer than this.
const ANSWERED_AT_ONCE: Duration = Duration::from_millis(1_600);

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// It was answered.
    Answered,
    /// It was refused with an error that says that nothing was counted.
    Undone,
    /// It was sent once, and its answer did not come, or said `outcome_unknown`.
    Unknown,
    /// The SDK may have repeated it after an attempt whose answer was lost.
    Repeated,
}

struct Sent {
    value: String,
    came: Came,
}

/// Those who check.
struct Callers {
    api: Api,
    limiter: Limiter,
    domain: LineName,
    shards: u32,
}

impl Callers {
    async fn new(cluster: &Cluster) -> Result<Callers> {
        let client = Client::connect(&cluster.nats.url()).await?;
        // Nothing passes without the cluster.
        let mut options = LimiterOptions::default();
        options.on_unavailable = LimitFallback::Fail;
        options.patience = PATIENCE;
        Ok(Callers {
            api: cluster.api().clone(),
            limiter: client.limiter_with(DOMAIN, options)?,
            domain: LineName::try_from(DOMAIN)?,
            shards: cluster.options().shards,
        })
    }

    async fn check(&self, worker: usize, value: &str) -> Result<Came> {
        match worker < WORKERS / 2 {
            true => self.by_sdk(value).await,
            false => self.by_hand(value).await,
        }
    }

    async fn by_sdk(&self, value: &str) -> Result<Came> {
        let begun = Instant::now();
        let checked = self.limiter.check(vec![vec![Entry::new(KEY, value)]]);
        let reply = checked.await;
        let is_sure = begun.elapsed() < ANSWERED_AT_ONCE;
        match reply {
            Ok(_) if !is_sure => Ok(Came::Repeated),
            Ok(reply) => first_hit(&reply),
            Err(error) if error.kind() == Kind::Unavailable => Ok(Came::Undone),
            Err(error) if error.kind() == Kind::OutcomeUnknown => Ok(Came::Repeated),
            Err(error) => Err(error.into()),
        }
    }

    /// Sent once on the leader's subject, and on the plain one only if nobody listens there.
    async fn by_hand(&self, value: &str) -> Result<Came> {
        let shard = limit_shard_of(&self.domain, &[Entry::new(KEY, value)], self.shards);
        let payload = serde_json::to_vec(&hits(value, 1))?;
        let leader = format!("nowserving.leader.{shard}.limit.{DOMAIN}.check");
        let plain = format!("nowserving.limit.{DOMAIN}.check");
        for subject in [leader, plain] {
            let reply = match self.api.ask_subject(&subject, payload.clone()).await {
                Ok(reply) => reply,
                Err(error) if error.is::<NoAnswer>() => return Ok(Came::Unknown),
                Err(error) => return Err(error),
            };
            if reply.is_unheard() {
                continue;
            }
            if reply.is_unknown() {
                return Ok(Came::Unknown);
            }
            if reply.passes() {
                return Ok(Came::Undone);
            }
            return first_hit(&serde_json::from_value(reply.accepted(self.api.format())?)?);
        }
        Ok(Came::Undone)
    }

    /// How many hits its counter has.
    async fn counted(&self, value: &str) -> Result<u64> {
        let reply = self.api.check(DOMAIN, &hits(value, 0)).await?;
        let reply = reply.accepted(self.api.format())?;
        Ok(u64::from(LIMIT) - number(&reply, "remaining")?)
    }
}

fn hits(value: &str, hits: u32) -> Value {
    json!({"descriptors": [[{"key": KEY, "value": value}]], "hits": hits})
}

/// The answer tells, too, whether the check was counted twice by then.
fn first_hit(reply: &CheckReply) -> Result<Came> {
    ensure!(
        reply.allowed && reply.remaining == Some(LIMIT - 1),
        "the answer to a first hit: {reply:?}"
    );
    Ok(Came::Answered)
}

/// A stop of a node, whose shards are handed over and come back when it is there again; then an operator's transfers.
pub async fn count_once(cluster: &mut Cluster) -> Result<()> {
    let text = format!(
        "domain: {DOMAIN}\ndescriptors:\n  - {{key: {KEY}, rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}}}\n"
    );
    cluster.api().apply_rules(DOMAIN, &text).await?;
    let callers = Callers::new(cluster).await?;
    let api = cluster.api().clone();

    // Away, on to where the balance wants it without that node, and back.
    let hand_overs = HandOvers::begin(&api, 3, |leader| leader == Some(2)).await?;
    let sent = meanwhile(&callers, "stop", restart(cluster, 2)).await?;
    verify(&callers, &sent, hand_overs.were_planned(&api).await?).await?;

    let hand_overs = HandOvers::begin(&api, 2, |leader| leader != Some(3)).await?;
    let sent = meanwhile(&callers, "transfer", transfer(cluster, 3)).await?;
    verify(&callers, &sent, hand_overs.were_planned(&api).await?).await
}

async fn restart(cluster: &mut Cluster, id: u64) -> Result<()> {
    let ended = cluster.process(id)?.stop(LONG).await?;
    ensure!(ended.success(), "node {id}: {ended}");
    cluster.start_node(id).await?;
    cluster.wait_ready().await
}

/// All shards to one node, and back.
async fn transfer(cluster: &mut Cluster, to: u64) -> Result<()> {
    let shards: Vec<u32> = (0..cluster.options().shards).collect();
    cluster.transfer(&shards, to).await?;
    let back = json!({"shards": shards});
    cluster.api().cluster("transfer", back).await?;
    cluster.wait_ready().await
}

/// Checks all the time while `moves` is under way, and for a while after that.
async fn meanwhile(
    callers: &Callers,
    part: &str,
    moves: impl Future<Output = Result<()>>,
) -> Result<Vec<Sent>> {
    let (sent, is_done) = (RefCell::new(Vec::new()), Cell::new(false));
    let work = (0..WORKERS).map(|worker| {
        let (sent, is_done) = (&sent, &is_done);
        async move {
            for nth in 0.. {
                if is_done.get() {
                    break;
                }
                let value = format!("{part}-{worker}-{nth}");
                let came = callers.check(worker, &value).await?;
                sent.borrow_mut().push(Sent { value, came });
                tokio::time::sleep(PACE).await;
            }
            anyhow::Ok(())
        }
    });
    let moves = async {
        moves.await?;
        let enough = sent.borrow().len() + AFTER;
        eventually("checks are answered", LONG, async || {
            Ok((sent.borrow().len() >= enough).then_some(()))
        })
        .await?;
        is_done.set(true);
        anyhow::Ok(())
    };
    tokio::try_join!(try_join_all(work), moves)?;
    Ok(sent.into_inner())
}

/// The sum of all terms, and how much of its growth to come is planned.
struct HandOvers {
    terms: u64,
    planned: u64,
}

impl HandOvers {
    /// Each of the shards with `such` a leader moves so often.
    async fn begin(api: &Api, moves: u64, such: impl Fn(Option<u64>) -> bool) -> Result<HandOvers> {
        let status = api.cluster("status", json!({})).await?;
        let shards = status["shards"].as_array().into_iter().flatten();
        let handed_over = shards
            .filter(|shard| such(shard["leader"].as_u64()))
            .count();
        Ok(HandOvers {
            terms: terms(&status),
            planned: moves * handed_over as u64,
        })
    }

    /// Whether there was no other change of leader, as when a leader on a busy machine is silent for too long. The
    /// next leader has then forgotten what came after the last checkpoint.
    async fn were_planned(&self, api: &Api) -> Result<bool> {
        let status = api.cluster("status", json!({})).await?;
        let changes = terms(&status).saturating_sub(self.terms);
        eprintln!(
            "{changes} changes of leader, at most {} planned",
            self.planned
        );
        Ok(changes <= self.planned)
    }
}

fn terms(status: &Value) -> u64 {
    let shards = status["shards"].as_array().into_iter().flatten();
    shards.filter_map(|shard| shard["term"].as_u64()).sum()
}

/// How many checks ended in each way.
#[derive(Debug, Default)]
struct Tally {
    answered: u64,
    undone: u64,
    unknown: u64,
    repeated: u64,
    /// Of those that were answered.
    forgotten: u64,
}

struct Wrong<'a>(&'a Sent, u64);

impl fmt::Debug for Wrong<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong(Sent { value, came }, counted) = self;
        write!(f, "{value}: {came:?}, counted {counted} times")
    }
}

/// What docs/protocol/limits.md promises: a check that was answered counts once, one that was refused with an error other than
/// `outcome_unknown` not at all, and one that was sent once never twice. A planned hand-over of so few counters forgets none.
async fn verify(callers: &Callers, sent: &[Sent], were_planned: bool) -> Result<()> {
    let counted = sent
        .iter()
        .map(async |it| anyhow::Ok((it, callers.counted(&it.value).await?)));
    let mut counted = futures::stream::iter(counted).buffer_unordered(16);
    let (mut tally, mut wrong) = (Tally::default(), Vec::new());
    while let Some(it) = counted.next().await {
        let (it, counted) = it?;
        let is_right = match it.came {
            Came::Answered => {
                tally.answered += 1;
                tally.forgotten += u64::from(counted == 0);
                counted == 1 || (counted == 0 && !were_planned)
            }
            Came::Undone => {
                tally.undone += 1;
                counted == 0
            }
            Came::Unknown => {
                tally.unknown += 1;
                counted <= 1
            }
            Came::Repeated => {
                tally.repeated += 1;
                true
            }
        };
        if !is_right {
            wrong.push(Wrong(it, counted));
        }
    }
    eprintln!("{tally:?}");
    ensure!(
        wrong.is_empty(),
        "{} of {} are wrong: {:?}",
        wrong.len(),
        sent.len(),
        wrong.iter().take(10).collect::<Vec<_>>()
    );
    ensure!(
        tally.answered > sent.len() as u64 / 2,
        "too few were answered to tell"
    );
    Ok(())
}
