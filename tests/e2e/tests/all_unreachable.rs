//! No client reaches any node, while the nodes reach each other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use nowserving_e2e::{Api, Cluster, Link, eventually};
use serde_json::{Value, json};

/// Many requests fit into it, also unanswered ones, and some seconds in which a slow machine stands still.
pub const TIMEOUT_MS: u64 = 8_000;
/// Longer than any token survives without a request, also under a new leader, which adds up to half a
/// timeout.
pub const CUT: Duration = Duration::from_millis(TIMEOUT_MS / 2 * 3 + 1_000);
const LINE: &str = "all-unreachable";
/// After this a request is repeated: an unanswered one must cost little of `TIMEOUT_MS`.
const ASK_MS: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(15);

/// The request that a client repeats: operation and payload.
pub type Asking = (&'static str, Value);

/// All service connections are cut for longer than the timeouts of all tokens in the line. The leader has its quorum and
/// could recycle them all. It must not.
pub async fn no_token_is_recycled(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let mut events = api
        .subscribe(format!("nowserving.event.{LINE}.token.>"))
        .await?;
    let asks = crowd(&api, LINE).await?;
    each_is_answered(&api, LINE, &asks).await?;
    for id in cluster.ids() {
        cluster.set_link(id, Link::Closed)?;
    }
    // The length of the cut is under test; this waits for no condition.
    tokio::time::sleep(CUT).await;
    for id in cluster.ids() {
        cluster.set_link(id, Link::Up)?;
    }
    each_is_answered(&api, LINE, &asks).await?;
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_millis(100), events.next()).await
    {
        let event: Value = serde_json::from_slice(&message.payload)?;
        ensure!(event["event"] != "gone", "recycled: {event}");
    }
    cluster.wait_ready().await?;
    the_silent_are_recycled(&api, &asks).await
}

/// Two tokens hold seats and renew, six wait and poll. All enter at once: one after the other, the
/// first could be too late on a slow machine.
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

/// All clients ask until each has been answered, and all tokens are still live.
pub async fn each_is_answered(api: &Api, line: &str, asks: &[Asking]) -> Result<()> {
    let mut answered_all = vec![false; asks.len()];
    eventually("each is answered", PATIENCE, async || {
        // Answered clients go on too: their clocks run while the others wait.
        let round = join_all(asks.iter().map(|one| ask(api, line, one, ASK_MS))).await;
        for (answer, done) in round.into_iter().zip(&mut answered_all) {
            match answer {
                Ok(answered) => *done |= answered,
                // Permanent.
                Err(error) => return Ok(Some(Err(error))),
            }
        }
        Ok(answered_all.iter().all(|done| *done).then_some(Ok(())))
    })
    .await?
}

/// Asks once; false if there is no answer in time, or one that says nothing about the token. The token
/// must be live.
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

/// Reachable again, the leader recycles tokens whose clients are silent: the recycler does run.
async fn the_silent_are_recycled(api: &Api, asks: &[Asking]) -> Result<()> {
    for (op, body) in asks {
        // One that waits gets a seat if those that hold them go first, and does not claim it.
        let reasons: &[&str] = match *op {
            "renew" => &["checkout_expired"],
            _ => &["idle", "no_show"],
        };
        let look = json!({"ticket": body["ticket"], "consistency": "local"});
        eventually("the silent go", PATIENCE, async || {
            let status = api.ok(LINE, "status", look.clone()).await?;
            Ok(reasons
                .iter()
                .any(|it| status["reason"] == *it)
                .then_some(()))
        })
        .await
        .with_context(|| body.to_string())?;
    }
    Ok(())
}
