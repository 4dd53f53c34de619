//! Nobody in the cluster hears users, while its nodes hear each other as ever.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt;
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, Link, eventually};
use serde_json::{Value, json};

const LINE: &str = "all-deaf";
const TIMEOUT_MS: u64 = 2_000;
/// Twice what throws anybody out who is not heard from.
const CUT: Duration = Duration::from_millis(2 * TIMEOUT_MS);

/// All service connections are cut, silently and then openly, for twice the timeouts of everybody
/// in the line. The leader could recycle them all: it has its quorum. It may not.
pub async fn nobody_is_recycled(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 2, "queue_limit": 100, "waiting_idle_timeout_ms": TIMEOUT_MS,
        "checkout_timeout_ms": TIMEOUT_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let mut events = api
        .subscribe(format!("nowserving.event.{LINE}.token.>"))
        .await?;
    let mut asks = Vec::new();
    for nth in 0..8 {
        let ticket = api.enter(LINE, &format!("k{nth}")).await?["ticket"].clone();
        asks.push(if nth < 2 {
            let claimed = api.ok(LINE, "claim", json!({"ticket": ticket})).await?;
            let body = json!({"ticket": ticket, "epoch": claimed["epoch"]});
            ("renew", body)
        } else {
            ("status", json!({"ticket": ticket}))
        });
    }
    for link in [Link::Silent, Link::Closed] {
        all_heard(&api, &asks).await?;
        for id in cluster.ids() {
            cluster.set_link(id, link)?;
        }
        // How long the cut lasts is what is tried here; nothing is waited for.
        tokio::time::sleep(CUT).await;
        for id in cluster.ids() {
            cluster.set_link(id, Link::Up)?;
        }
        all_heard(&api, &asks).await?;
    }
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_millis(100), events.next()).await
    {
        let event: Value = serde_json::from_slice(&message.payload)?;
        ensure!(event["event"] != "gone", "recycled: {event}");
    }
    cluster.wait_ready().await?;
    the_silent_go(&api, &asks).await
}

/// Each asks until it is answered, and is still in the line.
async fn all_heard(api: &Api, asks: &[(&str, Value)]) -> Result<()> {
    // Short, and at once: the clock goes on as soon as a leader hears itself.
    let api = &api.within(300);
    let all = asks.iter().map(|(op, body)| async move {
        let patience = Duration::from_secs(15);
        let body = eventually("somebody answers", patience, async || {
            let reply = api.ask(LINE, op, body).await?;
            let passes = reply.passes() || reply.code.as_deref() == Some("outcome_unknown");
            Ok((!passes).then_some(reply.body))
        })
        .await?;
        let is_live = body.get("error").is_none() && body["state"] != "gone";
        ensure!(is_live, "recycled while nobody could be heard: {body}");
        Ok(())
    });
    try_join_all(all).await.map(drop)
}

/// And now that they could be heard and are not, they go: it was not that nobody looked.
async fn the_silent_go(api: &Api, asks: &[(&str, Value)]) -> Result<()> {
    for (op, body) in asks {
        let reason = if *op == "renew" {
            "checkout_expired"
        } else {
            "idle"
        };
        let look = json!({"ticket": body["ticket"], "consistency": "local"});
        eventually("the silent go", Duration::from_secs(20), async || {
            let status = api.ok(LINE, "status", look.clone()).await?;
            Ok((status["reason"] == reason).then_some(()))
        })
        .await?;
    }
    Ok(())
}
