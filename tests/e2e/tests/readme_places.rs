//! The programs in `examples/` in Python and JavaScript, beside a crowd that leaves from the midst of the line: every
//! place that they print equals a recount at that version, from the events of all tokens, and no place grows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::Subscriber;
use futures::{FutureExt, StreamExt};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Language, Process, eventually, number};
use serde_json::{Value, json};
use tokio::task::unconstrained;

use crate::readme::{self, LINE};

/// So many wait before the programs, and behind them.
const BEFORE: usize = 300;
const BEHIND: usize = 30;
/// So many leave between two looks at what the programs print.
const BURST: usize = 12;
/// About thirty a second leave: polls are answered amid them, and not all at one board.
const PACE: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(60);

pub async fn are_those_of_a_recount(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let tokens = format!("nowserving.event.{LINE}.token.*.*");
    let mut events = api.subscribe(tokens).await?;
    let settings = json!({
        "seats": 1, "queue_limit": 1_000, "lanes": [{"name": "normal"}, {"name": "vip"}], "event_key": true,
        "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS, "checkout_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let before = enter(&api, 0..BEFORE).await?;
    api.ok(LINE, "claim", json!({"ticket": before[0]})).await?;
    // Half of it is the longest pause between polls: many answers come amid departures.
    let often = json!({"claim_timeout_ms": 1_000});
    api.admin(LINE, "configure", often).await?;
    let mut shoppers = Vec::new();
    for language in [Language::Python, Language::JavaScript] {
        let key = format!("in-a-crowd-{}", language.fence());
        let process = readme::start(cluster, language, &key).await?;
        let shopper = Shopper { key, process };
        shopper.shows(0).await?;
        shoppers.push(shopper);
    }
    let behind = enter(&api, BEFORE..BEFORE + BEHIND).await?;
    // Each number once, from all over the line. Of every third one, between holes, the first ones leave and the last ones
    // are moved, one a burst: a move makes a hole, too.
    let shuffled = (0..BEFORE).map(|nth| nth * 7 % BEFORE);
    let leaving: Vec<usize> = shuffled.filter(|nth| nth % 3 > 0).collect();
    for (nth, burst) in leaving.chunks(BURST).enumerate() {
        leave(&api, &behind[nth]).await?;
        let last = BEFORE - 3 * (nth + 1);
        let moved = json!({"lane": "normal", "token": last + 1, "to": "vip"});
        api.admin(LINE, "move", moved).await?;
        let first = leave(&api, &before[3 * (nth + 1)]).await?;
        for nth in burst {
            leave(&api, &before[*nth]).await?;
            tokio::time::sleep(PACE).await;
        }
        for shopper in &shoppers {
            shopper.shows(first).await?;
        }
    }
    let in_time = json!({"claim_timeout_ms": HOUR_MS});
    api.admin(LINE, "configure", in_time).await?;
    for nth in (0..BEFORE).step_by(3) {
        leave(&api, &before[nth]).await?;
    }
    for shopper in &mut shoppers {
        let ended = shopper.process.ended(PATIENCE).await;
        let ended = ended.with_context(|| shopper.process.tail(20))?;
        ensure!(ended.success(), "{ended}: {}", shopper.process.tail(20));
    }
    api.settle().await?;
    let crowd = Crowd::read(&mut events)?;
    for shopper in &shoppers {
        let compared = crowd.compare(shopper);
        let compared = compared.with_context(|| shopper.process.tail(400))?;
        // One a burst at least.
        ensure!(compared >= leaving.len() / BURST, "only {compared} places");
    }
    Ok(())
}

async fn enter(api: &Api, range: std::ops::Range<usize>) -> Result<Vec<Value>> {
    let mut tickets = Vec::new();
    for nth in range {
        tickets.push(api.enter(LINE, &format!("crowd-{nth}")).await?["ticket"].clone());
    }
    Ok(tickets)
}

/// The version of the line then. A token that has left already leaves again.
async fn leave(api: &Api, ticket: &Value) -> Result<u64> {
    let left = api.ok(LINE, "leave", json!({"ticket": ticket})).await?;
    number(&left, "version")
}

/// A running program of `examples/`.
struct Shopper {
    key: String,
    process: Process,
}

impl Shopper {
    /// Waits until it has printed a place at this version or a newer one.
    async fn shows(&self, version: u64) -> Result<()> {
        let what = format!("a place at version {version}");
        eventually(&what, PATIENCE, async || {
            let newest = self.places()?.last().map(|it| it.1);
            ensure!(newest >= Some(version), "{}", self.process.tail(5));
            Ok(Some(()))
        })
        .await
    }

    /// The places that it has printed so far, each with its version.
    fn places(&self) -> Result<Vec<(u64, u64)>> {
        let printed = self.process.printed()?;
        // The last line may be half there.
        let whole = printed.rsplit_once('\n').map_or("", |it| it.0);
        let lines = whole.lines().filter(|line| line.starts_with("position"));
        let places = lines.map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["position", position, "at", "version", version, ..] => {
                    Ok((position.parse()?, version.parse()?))
                }
                _ => bail!("not a place at a version: {line}"),
            }
        });
        places.collect()
    }
}

/// All tokens of the default lane: from which version on they waited, and from which one on no longer.
#[derive(Default)]
struct Crowd {
    waits: BTreeMap<u64, (u64, u64)>,
    by_key: BTreeMap<String, u64>,
}

impl Crowd {
    fn read(events: &mut Subscriber) -> Result<Crowd> {
        let (mut crowd, mut last) = (Crowd::default(), None);
        // Otherwise tokio says after 128 of them that there are no more for now.
        while let Some(message) = unconstrained(events.next()).now_or_never().flatten() {
            let event: Value = serde_json::from_slice(&message.payload)?;
            let (token, version) = (number(&event, "token")?, number(&event, "version")?);
            let before = number(&event, "prev_version")?;
            ensure!(
                last.is_none_or(|last| last == before),
                "events are missing: {event}"
            );
            last = Some(version);
            if event["lane"] != "normal" {
                continue;
            }
            match event["event"].as_str() {
                Some("entered") => {
                    crowd.waits.insert(token, (version, u64::MAX));
                    let key = event["key"].as_str().context("a key")?;
                    crowd.by_key.insert(key.to_owned(), token);
                }
                Some("admitted" | "gone" | "moved") => {
                    let wait = crowd.waits.get_mut(&token).context("who?")?;
                    wait.1 = wait.1.min(version);
                }
                _ => {}
            }
        }
        Ok(crowd)
    }

    /// How many places were compared.
    fn compare(&self, shopper: &Shopper) -> Result<usize> {
        let own = self.by_key.get(&shopper.key).context("it has entered")?;
        let places = shopper.places()?;
        let mut shown = u64::MAX;
        for (position, version) in &places {
            let waits = |it: &(u64, u64)| it.0 <= *version && *version < it.1;
            let own_wait = self.waits.get(own).context("its token")?;
            ensure!(waits(own_wait), "at {version} it does not wait");
            let recount = self.waits.range(..=own).filter(|it| waits(it.1)).count() as u64;
            ensure!(
                *position == recount,
                "{}: {position} at version {version}, and it is {recount}",
                shopper.key
            );
            ensure!(
                *position <= shown,
                "from {shown} to {position} at version {version}"
            );
            shown = *position;
        }
        Ok(places.len())
    }
}
