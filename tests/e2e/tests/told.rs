//! Being told of room after a refusal, and of a backend's capacity; by the command and by JSON.

use anyhow::{Result, ensure};
use async_nats::Subscriber;
use nowserving_e2e::{Cli, Cluster, under_one_leader};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::events;

/// The command refuses these words, and says why.
async fn misused(cli: &Cli, words: &[&str], why: &str) -> Result<()> {
    let wrong = cli.run(words).await?.failed(2, "bad_request")?;
    let message = wrong["message"].as_str().unwrap_or_default();
    ensure!(message.contains(why), "{why}: {wrong}");
    Ok(())
}

/// Keys that a full line refuses are named as room comes.
pub async fn room(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-room", room_of).await
}

async fn room_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 0, "callback_limit": 2});
    api.admin(line, "create", settings).await?;
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let ann = |op| api.ok(line, op, json!({"key": "ann"}));
    let free = ann("callback").await?;
    ensure!(free["room"] == true && free["position"].is_null(), "{free}");
    let first = api.enter(line, "first").await?;
    api.refused(line, "enter", json!({"key": "ann"}), Code::LineFull)
        .await?;
    for _ in 0..2 {
        let listed = ann("callback").await?;
        ensure!(
            listed["room"] == false && listed["position"] == 1,
            "{listed}"
        );
        ensure!(
            listed["line"] == line && listed["at_ms"].is_u64(),
            "{listed}"
        );
    }
    let words = ["callback", line, "--key", "bob"];
    let listed = cli.run(&words).await?.done()?;
    ensure!(listed["position"] == 2, "{listed}");
    let text = cli.run_as_text(&words).await?;
    ensure!(format!("{text:?}").contains("position"), "{text:?}");
    api.refused(line, "callback", json!({"key": "eve"}), Code::LineFull)
        .await?;

    api.ok(line, "leave", json!({"ticket": first["ticket"]}))
        .await?;
    let event = named(&mut incoming).await?;
    ensure!(
        event["keys"] == json!(["ann"]) && event["lane"] == "normal",
        "{event}"
    );
    ensure!(
        event["version"].as_u64() > listed["version"].as_u64(),
        "{event} after {listed}"
    );
    let entered = api.enter(line, "ann").await?;
    misused(&cli, &["callback", line], "--key").await?;
    let full = api.admin(line, "configure", json!({"callback_limit": 0}));
    full.await?;
    api.refused(line, "callback", json!({"key": "eve"}), Code::Forbidden)
        .await?;
    api.refused(line, "callback", json!({"key": ""}), Code::BadRequest)
        .await?;
    api.refused(line, "callback", json!({}), Code::BadRequest)
        .await?;
    api.ok(line, "leave", json!({"ticket": entered["ticket"]}))
        .await?;
    let event = named(&mut incoming).await?;
    ensure!(
        event["keys"] == json!(["bob"]),
        "still on the list: {event}"
    );
    Ok(())
}

async fn named(incoming: &mut Subscriber) -> Result<Value> {
    loop {
        let event = events::next(incoming).await?;
        if event["event"] == "room" {
            return Ok(event);
        }
    }
}

/// The seats follow a backend, and fall when it is silent.
pub async fn capacity(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-capacity", capacity_of).await
}

async fn capacity_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 9, "seats_when_silent": 0});
    api.admin(line, "create", settings).await?;
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let words = ["line", "capacity", line, "--seats", "3", "--for", "1h"];
    let told = cli.run(&words).await?.done()?;
    ensure!(
        told["settings"]["seats"] == 1 && told["board"]["seats"] == 3,
        "{told}"
    );
    ensure!(told["capacity_told"]["seats"] == 3, "{told}");
    let event = events::next(&mut incoming).await?;
    ensure!(
        event["event"] == "seats" && event["seats"] == 3 && event["silent"] == false,
        "{event}"
    );
    let soon = json!({"seats": 2, "for_ms": 100});
    api.admin(line, "capacity_told", soon).await?;
    let event = events::next(&mut incoming).await?;
    ensure!(event["seats"] == 2 && event["silent"] == false, "{event}");
    let event = events::next(&mut incoming).await?;
    ensure!(event["seats"] == 0 && event["silent"] == true, "{event}");
    let entered = api.enter(line, "a").await?;
    ensure!(entered["state"] == "waiting", "{entered}");
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["capacity_told"]["silent"] == true, "{shown}");
    misused(&cli, &["line", "capacity", line, "--seats", "3"], "--for").await?;
    let words = ["line", "capacity", line, "--forget"];
    let told = cli.run(&words).await?.done()?;
    ensure!(
        told["board"]["seats"] == 1 && told["capacity_told"].is_null(),
        "{told}"
    );
    let status = api.status(line, &entered["ticket"]).await?;
    ensure!(status["state"] == "admitted", "{status}");
    Ok(())
}
