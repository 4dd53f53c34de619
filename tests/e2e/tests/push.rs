//! A push service with the rights of docs/security.md, which may only subscribe, knows each shopper's exact place from events alone;
//! after the leader was killed, too. It computes them as docs/protocol/events.md has it, on purpose without the SDK's code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{SelectAll, select_all};
use futures::{FutureExt, StreamExt};
use nowserving_e2e::{Api, Cluster, HOUR_MS, PASSWORD, eventually, number};
use serde_json::{Value, json};

const LINE: &str = "pushed";
const PATIENCE: Duration = Duration::from_secs(30);

/// A token's lane and number.
type Id = (String, u64);

pub async fn knows_every_place(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 2, "queue_limit": 1_000, "lanes": [{"name": "normal"}, {"name": "vip"}],
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let mut push = Push::start(cluster).await?;
    let mut tickets = Vec::new();
    for nth in 0..40 {
        let lane = ["normal", "vip"][nth % 3 / 2];
        let body = json!({"key": format!("k{nth}"), "lane": lane});
        tickets.push(api.ok(LINE, "enter", body).await?["ticket"].clone());
        if nth % 4 == 3 {
            leave(&api, &tickets[nth - 2]).await?;
        }
    }
    push.agrees(&api, &tickets).await?;
    for nth in [0, 12, 13] {
        leave(&api, &tickets[nth]).await?;
    }
    push.agrees(&api, &tickets).await?;

    // A dispatcher takes some out of order, and calls the first of a lane.
    let called = json!({"admission": "called", "seats": 7});
    api.admin(LINE, "configure", called).await?;
    for key in ["k16", "k23", "k18"] {
        api.admin(LINE, "take", json!({"key": key})).await?;
    }
    let call = json!({"n": 2, "lane": "vip", "call_id": "push"});
    let called = api.admin(LINE, "call_next", call).await?;
    ensure!(
        called["admitted"]
            .as_array()
            .is_some_and(|it| it.len() == 2)
    );
    push.agrees(&api, &tickets).await?;

    // One that comes late has not seen those who left.
    let mut late = Push::start(cluster).await?;
    let leader = cluster.leader_of(LINE).await?;
    cluster.process(leader)?.kill().await?;
    for nth in [14, 20, 21, 30] {
        leave(&api, &tickets[nth]).await?;
    }
    tickets.push(api.enter(LINE, "last").await?["ticket"].clone());
    push.agrees(&api, &tickets).await?;
    late.agrees(&api, &tickets).await
}

async fn leave(api: &Api, ticket: &Value) -> Result<()> {
    let reply = api.call(LINE, "leave", &json!({"ticket": ticket})).await?;
    let fine = reply.code.is_none() || reply.code.as_deref() == Some("token_gone");
    ensure!(fine, "{}", reply.body);
    Ok(())
}

/// What the service keeps of the line.
struct Push {
    incoming: SelectAll<async_nats::Subscriber>,
    version: u64,
    lanes: BTreeMap<String, Lane>,
}

#[derive(Default)]
struct Lane {
    admitted_through: u64,
    next_token: u64,
    holes: BTreeSet<u64>,
    /// Those that no board has yet, with the positions at which they entered.
    newcomers: BTreeMap<u64, u64>,
    /// No hole is missing.
    known: bool,
}

impl Push {
    /// It has subscribed, with the rights of its row in docs/security.md.
    async fn start(cluster: &Cluster) -> Result<Push> {
        let user = "push-services".to_owned();
        let options = async_nats::ConnectOptions::with_user_and_password(user, PASSWORD.into());
        let client = options.connect(cluster.nats.url()).await?;
        let mut subscribers = Vec::new();
        for kind in ["board", "line", "token.*.*"] {
            let subject = format!("nowserving.event.*.{kind}");
            subscribers.push(client.subscribe(subject).await?);
        }
        let mut incoming = select_all(subscribers);
        client.flush().await?;
        let api = cluster.api();
        eventually("the push service listens", PATIENCE, async || {
            let subject = "nowserving.event.marker.line";
            api.client().publish(subject, "{}".into()).await?;
            api.settle().await?;
            Ok(incoming.next().now_or_never().flatten())
        })
        .await?;
        Ok(Push {
            incoming,
            version: 0,
            lanes: BTreeMap::new(),
        })
    }

    /// Every waiting shopper's place is that of its status, as soon as there is a board of that version.
    async fn agrees(&mut self, api: &Api, tickets: &[Value]) -> Result<()> {
        let mut expected: BTreeMap<Id, Option<u64>> = BTreeMap::new();
        let mut version = 0;
        for ticket in tickets {
            let status = api.status(LINE, ticket).await?;
            version = version.max(number(&status, "version")?);
            let lane = status["lane"].as_str().context("lane")?.to_owned();
            expected.insert(
                (lane, number(&status, "token")?),
                status["position"].as_u64(),
            );
        }
        let known = |push: &Push| push.lanes.values().all(|lane| lane.known);
        while self.version < version || !known(self) {
            let event = tokio::time::timeout(PATIENCE, self.incoming.next()).await;
            let message = event.context("no board")?.context("an event")?;
            let event: Value = serde_json::from_slice(&message.payload)?;
            if event["line"] == LINE {
                self.take(&event)?;
            }
        }
        ensure!(
            expected.values().flatten().count() > 10,
            "somebody waits: {expected:?}"
        );
        for ((lane, token), position) in expected {
            let pushed = self.position(&lane, token);
            ensure!(
                pushed == position,
                "{lane} {token}: {pushed:?}, and the status has {position:?}"
            );
        }
        Ok(())
    }

    fn take(&mut self, event: &Value) -> Result<()> {
        let version = number(event, "version")?;
        let Some(lanes) = event["lanes"].as_array() else {
            if event["event"] == "entered" && version > self.version {
                let lane = event["lane"].as_str().context("lane")?.to_owned();
                let (token, position) = (number(event, "token")?, number(event, "position")?);
                let newcomers = &mut self.lanes.entry(lane).or_default().newcomers;
                newcomers.insert(token, position);
            }
            return Ok(());
        };
        let whole = event["whole"] == true;
        if version < self.version || (version == self.version && !whole) {
            return Ok(());
        }
        let gap = number(event, "prev_version")? > self.version;
        self.version = version;
        for board in lanes {
            let name = board["lane"].as_str().context("lane")?.to_owned();
            self.lanes
                .entry(name)
                .or_default()
                .take(board, whole || gap)?;
        }
        Ok(())
    }

    fn position(&self, lane: &str, token: u64) -> Option<u64> {
        let lane = self.lanes.get(lane)?;
        if token >= lane.next_token {
            return lane.newcomers.get(&token).copied();
        }
        let waits = token > lane.admitted_through && !lane.holes.contains(&token);
        let holes = lane.holes.range(..token).count() as u64;
        waits.then(|| token - lane.admitted_through - holes)
    }
}

impl Lane {
    fn take(&mut self, board: &Value, anew: bool) -> Result<()> {
        self.admitted_through = number(board, "admitted_through")?;
        self.next_token = number(board, "next_token")?;
        self.newcomers = self.newcomers.split_off(&self.next_token);
        if anew {
            self.holes.clear();
        }
        for range in board["holes"].as_array().into_iter().flatten() {
            let (first, last) = (range[0].as_u64(), range[1].as_u64());
            let range = first.context("first")?..=last.context("last")?;
            self.holes.extend(range);
        }
        let between = self.admitted_through + 1..self.next_token;
        self.holes.retain(|hole| between.contains(hole));
        let waiting = number(board, "waiting")?;
        self.known = self.holes.len() as u64 + waiting == between.count() as u64;
        Ok(())
    }
}
