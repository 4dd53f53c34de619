//! A watcher keeps its exact position from the boards' `holes` alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::Subscriber;
use nowserving_e2e::{Api, BoardEffect, Cluster, Place, number};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::events;

const LINE: &str = "places";
const PEOPLE: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(60);
/// The key of the last token, which stays to the end.
const LAST: &str = "last";

/// The positions in `status` replies while boards came in: (version, token) → position.
type Positions = RefCell<BTreeMap<(u64, u64), u64>>;

/// All enter and watch; then many leave, are served or give up, while others are polled.
pub async fn every_waiter_knows_its_place(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    api.admin(LINE, "create", json!({"seats": 5, "queue_limit": 1_000}))
        .await?;
    let mut boards = api.subscribe("nowserving.event.places.board").await?;
    let mut tickets = Vec::new();
    for nth in 1..=PEOPLE {
        tickets.push(api.enter(LINE, &format!("k{nth}")).await?["ticket"].clone());
        // Holes from before a watcher comes must reach it by its first status.
        if nth % 10 == 0 {
            let ticket = &tickets[tickets.len() - 4];
            api.ok(LINE, "leave", json!({"ticket": ticket})).await?;
        }
    }
    let last = api.enter(LINE, LAST).await?["ticket"].clone();
    tickets.push(last.clone());

    let mut places = Vec::new();
    for ticket in &tickets {
        let status = api
            .ok(LINE, "status", json!({"ticket": ticket, "holes": true}))
            .await?;
        if let Some(place) = Place::start(&status)? {
            ensure!(
                status["position"] == place.position(),
                "from its own holes: {status}"
            );
            places.push(place);
        }
    }
    ensure!(
        places.len() as u64 > PEOPLE / 2,
        "only {} wait",
        places.len()
    );

    let positions = Positions::default();
    let (newest, seen) = watch::channel(0);
    let (_, compared) = tokio::try_join!(
        people_come_and_go(api, &tickets, &positions, seen),
        watch(&mut boards, places, &positions, newest)
    )?;
    ensure!(compared > 20, "only {compared} positions could be compared");
    Ok(())
}

/// `seen`: the version of the newest board that the watcher has taken in.
async fn people_come_and_go(
    api: &Api,
    tickets: &[Value],
    positions: &Positions,
    mut seen: watch::Receiver<u64>,
) -> Result<()> {
    let last = tickets.last().context("nobody entered")?;
    for (nth, ticket) in tickets[..tickets.len() - 1].iter().enumerate() {
        if nth % 3 == 1 {
            // A token from the back leaves: a hole.
            let behind = &tickets[tickets.len() - 2 - nth / 2];
            leave(api, behind).await?;
        }
        let status = api.status(LINE, ticket).await?;
        match status["state"].as_str() {
            Some("admitted") if nth % 4 != 0 => {
                api.ok(LINE, "claim", json!({"ticket": ticket})).await?;
                api.ok(LINE, "complete", json!({"ticket": ticket})).await?;
            }
            Some("gone") => {}
            _ => leave(api, ticket).await?,
        }
        let mut version = 0;
        for ticket in [last, &tickets[(nth + 7).min(tickets.len() - 1)]] {
            let status = api.status(LINE, ticket).await?;
            version = number(&status, "version")?;
            if status["state"] == "waiting" {
                let at = (version, number(&status, "token")?);
                positions
                    .borrow_mut()
                    .insert(at, number(&status, "position")?);
            }
        }
        // Nothing changes until there is a board of the same version to compare with.
        let board = seen.wait_for(|seen| *seen >= version);
        let board = tokio::time::timeout(PATIENCE, board).await;
        // An error in it: the watcher is through, as the last one has got a seat.
        let _ = board.with_context(|| format!("no board of version {version}"))?;
    }
    // The end of it, for the watcher.
    leave(api, last).await
}

async fn leave(api: &Api, ticket: &Value) -> Result<()> {
    let reply = api.call(LINE, "leave", &json!({"ticket": ticket})).await?;
    let fine = reply.code.is_none() || reply.code.as_deref() == Some("token_gone");
    ensure!(fine, "{}", reply.body);
    Ok(())
}

/// Until the last one is gone. Returns the number of positions that were compared with `status` replies.
/// `newest`: which board was the newest.
async fn watch(
    boards: &mut Subscriber,
    mut places: Vec<Place>,
    positions: &Positions,
    newest: watch::Sender<u64>,
) -> Result<usize> {
    let last = places
        .iter()
        .map(Place::token)
        .max()
        .context("nobody waits")?;
    let mut known = BTreeMap::new();
    let mut before: BTreeMap<u64, u64> = BTreeMap::new();
    while places.iter().any(|place| place.token() == last) {
        let board = events::next(boards).await?;
        let mut waiting = Vec::new();
        for mut place in places {
            match place.take(&board)? {
                BoardEffect::Gap => anyhow::bail!("token {}: a gap at {board}", place.token()),
                BoardEffect::NotWaiting => continue,
                BoardEffect::Nothing => {}
                BoardEffect::Position(position) => {
                    let older = before.insert(place.token(), position).unwrap_or(u64::MAX);
                    ensure!(
                        position <= older,
                        "token {} fell back: {board}",
                        place.token()
                    );
                    known.insert((place.version(), place.token()), position);
                }
            }
            waiting.push(place);
        }
        places = waiting;
        newest.send_replace(number(&board, "version")?);
    }
    // Ends the wait for more boards.
    drop(newest);
    let positions = positions.borrow();
    let both = positions
        .iter()
        .filter_map(|(at, position)| Some((at, position, known.get(at)?)));
    let mut compared = 0;
    for (at, position, from_holes) in both {
        ensure!(
            position == from_holes,
            "(version, token) {at:?}: {position}, {from_holes}"
        );
        compared += 1;
    }
    Ok(compared)
}
