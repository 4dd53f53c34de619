//! Writes that a node or a connection has held back: they take effect in time or never, and not once
//! their sender has been answered.
//!
//! The requests are published without any header of the SDK, unless a test says otherwise: the
//! protocol promises this to every client.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use async_nats::{HeaderMap, Subscriber};
use futures::StreamExt;
use nowserving_e2e::{Api, Cluster, Format, HOUR_MS, Link, Route, eventually, number, pointers};
use nowserving_protocol::error::Code;
use nowserving_protocol::subject::shard_of;
use rustix::process::Signal;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(15);
/// No answer comes after such a pause: it exceeds the deadline of a request and its extra second.
const QUIET: Duration = Duration::from_millis(3_500);
/// nats-server gives each plain request to one of three nodes: of so many one node gets some.
const REQUESTS: usize = 24;
/// Lines of a test whose defect is found in each of them.
const LINES: usize = 10;

/// Requests that are sent once, and all answers to them.
struct Requests {
    api: Api,
    inbox: String,
    incoming: Subscriber,
    sent: usize,
    answers: BTreeMap<usize, Vec<Value>>,
}

impl Requests {
    async fn new(api: &Api) -> Result<Requests> {
        let inbox = api.client().new_inbox();
        Ok(Requests {
            api: api.clone(),
            incoming: api.subscribe(format!("{inbox}.*")).await?,
            inbox,
            sent: 0,
            answers: BTreeMap::new(),
        })
    }

    /// Returns the request's number.
    async fn send(&mut self, subject: &str, headers: HeaderMap, body: &Value) -> Result<usize> {
        let number = self.sent;
        self.sent += 1;
        let reply = format!("{}.{number}", self.inbox);
        let body = serde_json::to_vec(body)?.into();
        let client = self.api.client();
        client
            .publish_with_reply_and_headers(subject.to_owned(), reply, headers, body)
            .await?;
        client.flush().await?;
        Ok(number)
    }

    /// Takes answers in until none comes for so long.
    async fn read_until_quiet(&mut self, quiet: Duration) -> Result<()> {
        while let Ok(answer) = tokio::time::timeout(quiet, self.incoming.next()).await {
            self.take(answer.context("the subscription has ended")?)?;
        }
        Ok(())
    }

    /// The first answer to a request.
    async fn first_answer(&mut self, number: usize) -> Result<Value> {
        while !self.answers.contains_key(&number) {
            let answer = tokio::time::timeout(PATIENCE, self.incoming.next()).await;
            let answer = answer.with_context(|| format!("no answer to request {number}"))?;
            self.take(answer.context("the subscription has ended")?)?;
        }
        Ok(self.answers[&number][0].clone())
    }

    fn take(&mut self, answer: async_nats::Message) -> Result<()> {
        let (_, number) = answer.subject.rsplit_once('.').context("no number")?;
        // The server's own answer, that no node listens, has no payload.
        let body = match answer.payload.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&answer.payload)?,
        };
        self.answers.entry(number.parse()?).or_default().push(body);
        Ok(())
    }

    fn is_answered(&self, number: usize) -> bool {
        self.answers.contains_key(&number)
    }

    /// Whether its first answer says that it was done.
    fn is_done(&self, number: usize) -> bool {
        let first = self.answers.get(&number).and_then(|all| all.first());
        first.is_some_and(|answer| answer.is_object() && answer.get("error").is_none())
    }
}

/// Whether a request was refused because the machine is slow, so that it says nothing about late writes.
fn is_too_slow(answer: &Value) -> bool {
    let code = answer["error"]["code"].as_str();
    matches!(code, Some("unavailable" | "outcome_unknown"))
}

/// A follower is stopped while it holds requests. Their sender repeats them at the leader and builds
/// on the answers; then the follower goes on.
pub async fn a_stopped_follower(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let at_leader = api.by(Format::Json, Route::Shard(1));
    let [enters, settings, deletes] = ["held-enters", "held-settings", "held-deletes"];
    let lines = |kind: &str| {
        (0..REQUESTS)
            .map(|nth| format!("{kind}-{nth}"))
            .collect::<Vec<_>>()
    };
    let (configured, deleted) = (lines(settings), lines(deletes));
    let seats = json!({"seats": 1_000, "queue_limit": 10, "claim_timeout_ms": HOUR_MS});
    for line in std::iter::once(enters).chain(configured.iter().chain(&deleted).map(String::as_str))
    {
        api.admin(line, "create", seats.clone()).await?;
    }
    let leader = cluster.leader_of(enters).await?;
    let follower = cluster.ids().find(|id| *id != leader).context("one node")?;
    cluster.process(follower)?.signal(Signal::STOP)?;

    let mut requests = Requests::new(&api).await?;
    for nth in 0..REQUESTS {
        // The numbers of these three requests are 3 × nth and the two after it.
        let none = HeaderMap::new;
        let enter = format!("nowserving.line.{enters}.enter");
        requests
            .send(&enter, none(), &json!({"key": format!("k{nth}")}))
            .await?;
        let configure = format!("nowserving.admin.line.{}.configure", configured[nth]);
        requests
            .send(&configure, none(), &json!({"seats": 77}))
            .await?;
        let delete = format!("nowserving.admin.line.{}.delete", deleted[nth]);
        requests
            .send(&delete, none(), &json!({"force": true}))
            .await?;
    }
    // The other nodes answer theirs by then.
    requests.read_until_quiet(QUIET).await?;
    for kind in 0..3 {
        ensure!(
            (0..REQUESTS).any(|nth| !requests.is_answered(3 * nth + kind)),
            "the stopped follower was given no request"
        );
    }
    // Those that the others could not do in time are repeated, too.
    let held = |kind: usize| -> Vec<usize> {
        let held = |nth: &usize| !requests.is_done(3 * nth + kind);
        (0..REQUESTS).filter(held).collect()
    };
    let (held_enters, held_settings, held_deletes) = (held(0), held(1), held(2));

    for nth in &held_enters {
        let status = at_leader.enter(enters, &format!("k{nth}")).await?;
        let ticket = json!({"ticket": status["ticket"]});
        at_leader.ok(enters, "leave", ticket).await?;
    }
    for nth in &held_settings {
        admin_at_leader(&api, &configured[*nth], "configure", &json!({"seats": 5})).await?;
    }
    let mut tickets = Vec::new();
    for nth in &held_deletes {
        let line = &deleted[*nth];
        admin_at_leader(&api, line, "delete", &json!({"force": true})).await?;
        admin_at_leader(&api, line, "create", &seats).await?;
        for key in ["a", "b", "c"] {
            let status = at_leader.enter(line, key).await?;
            tickets.push((line, status["ticket"].clone()));
        }
    }
    cluster.process(follower)?.signal(Signal::CONT)?;
    cluster.wait_ready().await?;
    requests.read_until_quiet(QUIET).await?;

    // Each of the three is looked at, whatever came of the others.
    let entered = async {
        for nth in &held_enters {
            is_not_in_line(&at_leader, enters, &format!("k{nth}")).await?;
        }
        let info = at_leader.ok(enters, "info", json!({})).await?;
        let given = pointers(&info)?[3] - 1;
        ensure!(
            given == REQUESTS as u64,
            "{given} numbers for {REQUESTS} enters"
        );
        Ok(())
    };
    let configured = async {
        for nth in &held_settings {
            let shown = api.admin(&configured[*nth], "show", json!({})).await?;
            ensure!(
                shown["settings"]["seats"] == 5,
                "{}: {}",
                configured[*nth],
                shown["settings"]
            );
        }
        Ok(())
    };
    let deleted = async {
        for (line, ticket) in &tickets {
            let status = at_leader.status(line, ticket).await;
            let status = status.with_context(|| format!("an acknowledged token of {line}"))?;
            ensure!(status["state"] == "admitted", "{line}: {status}");
        }
        Ok(())
    };
    let outcomes = [
        ("enter", entered.await),
        ("configure", configured.await),
        ("delete", deleted.await),
    ];
    all_hold(outcomes)
}

/// A follower is stopped while it holds hits on exact limits. It would ask the leader about them when it goes on.
pub async fn hits_in_a_stopped_follower(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let rules = "domain: held\ndescriptors:\n  - key: account\n    \
                 rate_limit: {unit: year, requests_per_unit: 9, exact: true, algorithm: token_bucket}\n";
    api.apply_rules("held", rules).await?;
    let hits = |nth: usize, hits: u32| json!({"descriptors": [[{"key": "account", "value": nth.to_string()}]], "hits": hits});
    let leader = cluster.leader_of("held").await?;
    let follower = cluster.ids().find(|id| *id != leader).context("one node")?;
    cluster.process(follower)?.signal(Signal::STOP)?;
    let mut requests = Requests::new(&api).await?;
    for nth in 0..REQUESTS {
        let subject = "nowserving.limit.held.check";
        requests
            .send(subject, HeaderMap::new(), &hits(nth, 1))
            .await?;
    }
    requests.read_until_quiet(QUIET).await?;
    let held: Vec<_> = (0..REQUESTS)
        .filter(|nth| !requests.is_answered(*nth))
        .collect();
    ensure!(
        !held.is_empty(),
        "the stopped follower was given no request"
    );
    cluster.process(follower)?.signal(Signal::CONT)?;
    cluster.wait_ready().await?;
    requests.read_until_quiet(QUIET).await?;
    for nth in 0..REQUESTS {
        let late = held.contains(&nth);
        if !late && !requests.is_done(nth) {
            continue;
        }
        let left = api.check("held", &hits(nth, 0)).await?;
        let left = left.accepted(api.format())?;
        let expected = if late { 9 } else { 8 };
        ensure!(left["remaining"] == expected, "{nth}, late: {late}: {left}");
    }
    Ok(())
}

/// An operator's request, repeated until it is done, straight to the leader: the follower that has
/// been stopped cannot get it. Once for each line: the repetitions are copies, which have one effect.
async fn admin_at_leader(api: &Api, line: &str, op: &str, body: &Value) -> Result<()> {
    let subject = format!("nowserving.admin.shard.0.{line}.{op}");
    let once = api.with_request_id(format!("{op}-{line}"));
    let reply = once
        .call_subject(&subject, serde_json::to_vec(body)?)
        .await?;
    // One that was answered `outcome_unknown` before may have deleted it.
    let is_gone = op == "delete" && reply.code.as_deref() == Some(Code::LineNotFound.as_str());
    ensure!(
        reply.code.is_none() || is_gone,
        "{op} {line}: {}",
        reply.body
    );
    Ok(())
}

/// The connection over which the leader gets requests delivers nothing, and then the one to its peers
/// neither. Another node takes over and refuses a request, since the line is full. Then the line gets
/// more seats, and the old leader's connections go on.
pub async fn a_stalled_leader(cluster: &mut Cluster) -> Result<()> {
    stalled(cluster, "stalled", false).await?;
    stalled(cluster, "stalled-from-peers", true).await
}

async fn stalled(cluster: &mut Cluster, line: &str, peers_too: bool) -> Result<()> {
    let shards = cluster.options().shards;
    let api = cluster.api().by(Format::Json, Route::Shard(shards));
    let settings = json!({"seats": 1, "queue_limit": 0, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    api.enter(line, "holder").await?;
    let leader = cluster.leader_of(line).await?;
    cluster.set_link(leader, Link::Silent)?;
    if peers_too {
        cluster.set_peer_link(leader, Link::Silent)?;
    }

    // Each request goes to the old leader too. It unsubscribes soon after the next leader takes over:
    // its connections must be back before that.
    let mut requests = Requests::new(&api).await?;
    let subject = subject(shards, line, "enter");
    let refused = |answers: &BTreeMap<usize, Vec<Value>>| -> Vec<usize> {
        let is_refusal = |answer: &Value| answer["error"]["code"] == "line_full";
        let refused = answers.iter().filter(|(_, all)| is_refusal(&all[0]));
        refused.map(|(number, _)| *number).collect()
    };
    eventually("the next leader refuses a request", PATIENCE, async || {
        let body = json!({"key": format!("k{}", requests.sent)});
        requests.send(&subject, HeaderMap::new(), &body).await?;
        requests.read_until_quiet(Duration::from_millis(10)).await?;
        Ok((!refused(&requests.answers).is_empty()).then_some(()))
    })
    .await?;
    // Enough for every request that the old leader may hold.
    admin_at_leader(&api, line, "configure", &json!({"seats": 1_000})).await?;
    cluster.set_peer_link(leader, Link::Up)?;
    cluster.set_link(leader, Link::Up)?;
    cluster.wait_ready().await?;
    requests.read_until_quiet(QUIET).await?;

    for number in refused(&requests.answers) {
        let answers = &requests.answers[&number];
        is_not_in_line(&api, line, &format!("k{number}"))
            .await
            .with_context(|| format!("its sender was answered: {answers:?}"))?;
    }
    Ok(())
}

/// A follower without a connection to its peers knows of no leader, and subscribes to the shard's
/// subject beside it. Both get every request.
pub async fn a_follower_beside_the_leader(cluster: &mut Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    let api = cluster.api().by(Format::Json, Route::Shard(shards));
    let lines = |kind: &str| {
        (0..LINES)
            .map(|nth| format!("{kind}-{nth}"))
            .collect::<Vec<_>>()
    };
    let (full, left) = (lines("beside-full"), lines("beside-left"));
    let settings = json!({"seats": 1, "queue_limit": 0, "claim_timeout_ms": HOUR_MS});
    let mut holders = Vec::new();
    for line in &full {
        api.admin(line, "create", settings.clone()).await?;
        holders.push(json!({"ticket": api.enter(line, "holder").await?["ticket"]}));
    }
    for line in &left {
        api.admin(line, "create", settings.clone()).await?;
    }
    let leader = cluster.leader_of(&full[0]).await?;
    let follower = cluster.ids().find(|id| *id != leader).context("one node")?;
    cluster.set_peer_link(follower, Link::Closed)?;
    eventually("the follower knows of no leader", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let its_own = status["answered_by"] == follower && status["shards"][0]["leader"].is_null();
        Ok(its_own.then_some(()))
    })
    .await?;
    let info = subject(shards, &full[0], "info");
    eventually("it listens beside the leader", PATIENCE, async || {
        let mut requests = Requests::new(&api).await?;
        requests.send(&info, HeaderMap::new(), &json!({})).await?;
        requests
            .read_until_quiet(Duration::from_millis(300))
            .await?;
        Ok((requests.answers.values().flatten().count() == 2).then_some(()))
    })
    .await?;
    // Its copies come after the leader's answers.
    cluster.set_link(follower, Link::Slow(Duration::from_millis(100)))?;

    let mut requests = Requests::new(&api).await?;
    let (mut refused, mut entered) = (Vec::new(), Vec::new());
    for (nth, (line, holder)) in full.iter().zip(&holders).enumerate() {
        let body = by_key_or_not(nth);
        let request = requests
            .send(&subject(shards, line, "enter"), HeaderMap::new(), &body)
            .await?;
        let refusal = requests.first_answer(request).await?;
        if is_too_slow(&refusal) {
            continue;
        }
        ensure!(refusal["error"]["code"] == "line_full", "{refusal}");
        api.ok(line, "leave", holder.clone()).await?;
        refused.push(line.clone());
    }
    for (nth, line) in left.iter().enumerate() {
        let body = by_key_or_not(nth);
        let request = requests
            .send(&subject(shards, line, "enter"), HeaderMap::new(), &body)
            .await?;
        let status = requests.first_answer(request).await?;
        if is_too_slow(&status) {
            continue;
        }
        ensure!(status["state"] == "admitted", "{status}");
        let ticket = json!({"ticket": status["ticket"]});
        api.ok(line, "leave", ticket).await?;
        entered.push(line.clone());
    }
    ensure!(!refused.is_empty() && !entered.is_empty(), "all too slow");
    requests.read_until_quiet(QUIET).await?;
    cluster.set_link(follower, Link::Up)?;
    cluster.set_peer_link(follower, Link::Up)?;
    cluster.wait_ready().await?;

    // One number each: the holder's, or that of the token that has left.
    let of_refused = given_twice(&api, &refused).await;
    let of_left = given_twice(&api, &entered).await;
    all_hold([
        ("refused with line_full", of_refused),
        ("entered and left", of_left),
    ])
}

async fn given_twice(api: &Api, lines: &[String]) -> Result<()> {
    let mut twice = Vec::new();
    for line in lines {
        let info = api.ok(line, "info", json!({})).await?;
        if pointers(&info)?[3] != 2 || number(&info, "admitted")? != 0 {
            twice.push(line);
        }
    }
    ensure!(twice.is_empty(), "in line again: {twice:?}");
    Ok(())
}

/// The defect does not hang on a key.
fn by_key_or_not(nth: usize) -> Value {
    match nth % 2 {
        0 => json!({"key": "once"}),
        _ => json!({"anonymous": true}),
    }
}

fn subject(shards: u32, line: &str, op: &str) -> String {
    format!("nowserving.shard.{}.{line}.{op}", shard_of(line, shards))
}

async fn is_not_in_line(api: &Api, line: &str, key: &str) -> Result<()> {
    let reply = api.call(line, "find", &json!({"key": key})).await?;
    if reply.code.as_deref() == Some(Code::TokenNotFound.as_str()) {
        return Ok(());
    }
    bail!("{key} is in line {line} again: {}", reply.body)
}

/// Reports every outcome that is an error, not the first alone.
fn all_hold<const N: usize>(outcomes: [(&str, Result<()>); N]) -> Result<()> {
    let failed = outcomes
        .into_iter()
        .filter_map(|(name, outcome)| Some(format!("{name}: {:#}", outcome.err()?)));
    let failed: Vec<String> = failed.collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(anyhow!(failed.join("\n"))),
    }
}
