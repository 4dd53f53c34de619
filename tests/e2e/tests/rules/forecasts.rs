//! `eta_ms` and `eta_p90_ms`: null until the line knows something, then numbers; and how good they
//! were.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cluster, HOUR_MS, number};
use serde_json::{Value, json};

use super::{act, has, serve, show, shows};

/// Enough departures for a line to know how long a seat is held.
const VISITS: usize = 40;

/// In a new line nothing is known.
pub async fn begin(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    visits(&api, line).await?;
    Ok(())
}

/// Visits until forecasts are given; returns the status of a token that still waits.
async fn visits(api: &Api, line: &str) -> Result<Value> {
    let settings = json!({"seats": 2, "queue_limit": 100, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    let mut people = Vec::new();
    for nth in 0..VISITS + 5 {
        people.push(api.enter(line, &format!("k{nth}")).await?);
    }
    let last = people.last().context("nobody")?.clone();
    shows(api, line, &last, json!({"state": "waiting"})).await?;
    ensure!(
        last["eta_ms"].is_null() && last["eta_p90_ms"].is_null(),
        "{last}"
    );
    for field in ["eta_ms", "eta_p90_ms"] {
        ensure!(last.get(field).is_some(), "null, not missing: {last}");
        ensure!(
            people[0].get(field).is_none(),
            "only who waits: {}",
            people[0]
        );
    }
    let unknown = json!({"told": 0, "untold": people.len() - 2, "judged": 0, "p90_covered": 0});
    has(&show(api, line).await?["forecast"], &unknown)?;

    for person in &people[..VISITS] {
        serve(api, line, person).await?;
    }
    knows(&act(api, line, "status", &last).await?)?;
    // A new entrant gets a forecast, which is judged once it is admitted.
    let newcomer = api.enter(line, "told").await?;
    let (eta_ms, _) = knows(&newcomer)?;
    let (before_ms, _) = knows(&act(api, line, "status", &last).await?)?;
    ensure!(eta_ms >= before_ms, "{newcomer} is behind {last}");
    for person in &people[VISITS..] {
        serve(api, line, person).await?;
    }
    shows(api, line, &newcomer, json!({"state": "admitted"})).await?;
    let record = show(api, line).await?["forecast"].clone();
    has(&record, &json!({"told": 1, "judged": 1}))?;
    let classes = record["off_by_percent"]
        .as_array()
        .context("off_by_percent")?;
    ensure!(classes.len() == 6, "{record}");
    let judged: Option<u64> = classes.iter().map(Value::as_u64).sum();
    ensure!(judged == Some(1), "{record}");

    // No admission: there is no forecast.
    for key in ["a", "b", "c"] {
        api.enter(line, key).await?;
    }
    let waiting = api.ok(line, "find", json!({"key": "c"})).await?;
    knows(&waiting)?;
    api.admin(line, "configure", json!({"phase": "paused"}))
        .await?;
    shows(
        api,
        line,
        &waiting,
        json!({"eta_ms": null, "eta_p90_ms": null}),
    )
    .await?;
    api.admin(line, "configure", json!({"phase": "open"}))
        .await?;
    Ok(waiting)
}

/// Both are numbers, and nine in ten wait no longer than the second.
fn knows(status: &Value) -> Result<(u64, u64)> {
    let (eta_ms, p90_ms) = (number(status, "eta_ms")?, number(status, "eta_p90_ms")?);
    ensure!(p90_ms >= eta_ms, "{status}");
    Ok((eta_ms, p90_ms))
}

/// The measurements are replicated: the next leader gives the same forecast, without a departure of its
/// own.
pub async fn over_a_crash(cluster: &mut Cluster) -> Result<()> {
    let line = "crash-forecast";
    let api = cluster.api().clone();
    let waiting = visits(&api, line).await?;
    let record = show(&api, line).await?["forecast"].clone();
    let leader = cluster.leader_of(line).await?;
    cluster.process(leader)?.kill().await?;
    cluster.wait_served().await?;
    knows(&act(&api, line, "status", &waiting).await?)?;
    ensure!(show(&api, line).await?["forecast"] == record);
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    ensure!(show(&api, line).await?["forecast"] == record);
    Ok(())
}
