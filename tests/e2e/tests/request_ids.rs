//! What a request id names: one call, with its operation, line and body.

use anyhow::{Result, ensure};
use nowserving_e2e::{Cluster, Format, HOUR_MS, Route};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

const LINE: &str = "request-ids";
const OTHER: &str = "request-ids-other";
/// Of the backend's `enter`.
const ID: &str = "rid-1";

/// Who uses the id of somebody else's `enter` gets no ticket, and is served.
pub async fn of_another_request(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    for line in [LINE, OTHER] {
        let settings = json!({
            "seats": 1, "queue_limit": 10, "admission": "called", "waiting_idle_timeout_ms": HOUR_MS,
        });
        api.admin(line, "create", settings).await?;
    }
    let named = api.with_request_id(ID);
    let entered = named.enter(LINE, "victim").await?;
    ensure!(entered["ticket"].is_string(), "{}", entered["state"]);
    let route = Route::Shard(cluster.options().shards);
    for copy in [named.clone(), named.by(Format::Json, route)] {
        let again = copy.enter(LINE, "victim").await?;
        ensure!(again["ticket"] == entered["ticket"], "no copy");
    }
    let told = named
        .admin(LINE, "capacity_told", json!({"seats": null}))
        .await?;
    is_of_an_operator(&told)?;
    let elsewhere = named.enter(OTHER, "victim").await?;
    ensure!(elsewhere["line"] == OTHER, "{}", elsewhere["line"]);
    // Another body: nobody else's answer.
    let forged = json!({"ticket": "forged"});
    named
        .refused(LINE, "claim", forged, Code::TicketInvalid)
        .await?;
    let taken = json!({"lane": "normal", "token": entered["token"]});
    let taken = named.admin(LINE, "take", taken).await?;
    is_of_an_operator(&taken)?;
    let call = json!({"n": 1, "call_id": "first"});
    is_of_an_operator(&named.admin(LINE, "call_next", call).await?)?;
    let status = api.status(LINE, &entered["ticket"]).await?;
    ensure!(
        status["state"] == "admitted",
        "not taken: {}",
        status["state"]
    );
    Ok(())
}

fn is_of_an_operator(answer: &Value) -> Result<()> {
    ensure!(answer.get("ticket").is_none(), "it has the ticket");
    Ok(())
}
