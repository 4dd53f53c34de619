//! Nobody in the cluster hears users, while its nodes hear each other as ever.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use nowserving_e2e::{Api, Cluster, Link, eventually};
use serde_json::{Value, json};

/// Many requests fit into it, also of those that nobody hears.
pub const TIMEOUT_MS: u64 = 6_000;
/// What throws anybody out who is not heard from, also if the leader has just changed: it gives up
/// to half a timeout more.
pub const CUT: Duration = Duration::from_millis(TIMEOUT_MS / 2 * 3 + 1_000);
const LINE: &str = "all-deaf";
/// What nobody has answered by then is asked again: silence must cost little of `TIMEOUT_MS`.
const ASK_MS: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(15);

/// What somebody goes on asking: the operation, and its request.
pub type Asking = (&'static str, Value);

/// All service connections are cut, silently and then openly, for longer than the timeouts of
/// everybody in the line. The leader could recycle them all: it has its quorum. It may not.
pub async fn nobody_is_recycled(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let mut events = api
        .subscribe(format!("nowserving.event.{LINE}.token.>"))
        .await?;
    let asks = crowd(&api, LINE).await?;
    for link in [Link::Silent, Link::Closed] {
        all_heard(&api, LINE, &asks).await?;
        for id in cluster.ids() {
            cluster.set_link(id, link)?;
        }
        // How long the cut lasts is what is tried here; nothing is waited for.
        tokio::time::sleep(CUT).await;
        for id in cluster.ids() {
            cluster.set_link(id, Link::Up)?;
        }
        all_heard(&api, LINE, &asks).await?;
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

/// Two who hold seats and renew, and six who wait and poll. They come all at once: one after the
/// other the first could be too late on a slow machine.
pub async fn crowd(api: &Api, line: &str) -> Result<Vec<Asking>> {
    let settings = json!({
        "seats": 2, "queue_limit": 100, "waiting_idle_timeout_ms": TIMEOUT_MS,
        "claim_timeout_ms": TIMEOUT_MS, "checkout_timeout_ms": TIMEOUT_MS,
    });
    api.admin(line, "create", settings).await?;
    let come = (0..8).map(async |nth| {
        let status = api.enter(line, &format!("k{nth}")).await?;
        let ticket = json!({"ticket": status["ticket"]});
        if status["state"] == "waiting" {
            return Ok(("status", ticket));
        }
        let claimed = api.ok(line, "claim", ticket).await?;
        let renew = json!({"ticket": status["ticket"], "epoch": claimed["epoch"]});
        Ok(("renew", renew))
    });
    try_join_all(come).await
}

/// All ask until each has been answered, and all are still in the line.
pub async fn all_heard(api: &Api, line: &str, asks: &[Asking]) -> Result<()> {
    let mut heard = vec![false; asks.len()];
    eventually("each is answered", PATIENCE, async || {
        // Those who have been answered go on too: their clocks run while the others wait.
        let round = join_all(asks.iter().map(|one| ask(api, line, one, ASK_MS))).await;
        for (answer, heard) in round.into_iter().zip(&mut heard) {
            match answer {
                Ok(answered) => *heard |= answered,
                // Nothing that passes.
                Err(error) => return Ok(Some(Err(error))),
            }
        }
        Ok(heard.iter().all(|heard| *heard).then_some(Ok(())))
    })
    .await?
}

/// Asks once; false if there is no answer in time, or one that says nothing of who asks. Who asks
/// must be in the line.
pub async fn ask(api: &Api, line: &str, (op, body): &Asking, timeout_ms: u64) -> Result<bool> {
    let api = api.within(timeout_ms);
    let asked = tokio::time::timeout(Duration::from_millis(timeout_ms), api.ask(line, op, body));
    let Ok(Ok(reply)) = asked.await else {
        return Ok(false);
    };
    if reply.passes() || reply.is_unknown() {
        return Ok(false);
    }
    let is_live = reply.code.is_none() && reply.body["state"] != "gone";
    ensure!(is_live, "not in the line: {op} {body}: {}", reply.body);
    Ok(true)
}

/// And now that they could be heard and are not, they go: it was not that nobody looked.
async fn the_silent_go(api: &Api, asks: &[Asking]) -> Result<()> {
    for (op, body) in asks {
        let reason = if *op == "renew" {
            "checkout_expired"
        } else {
            "idle"
        };
        let look = json!({"ticket": body["ticket"], "consistency": "local"});
        eventually("the silent go", PATIENCE, async || {
            let status = api.ok(LINE, "status", look.clone()).await?;
            Ok((status["reason"] == reason).then_some(()))
        })
        .await
        .with_context(|| body.to_string())?;
    }
    Ok(())
}
