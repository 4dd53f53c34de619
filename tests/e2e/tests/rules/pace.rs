//! `admission_rate`: never more than it allows, over changes of leader; and admission goes on without
//! requests.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, CLOCKS_APART_MS, Cli, Cluster, HOUR_MS, number};
use serde_json::{Value, json};

use super::{has, next_of, show};
use crate::command_line::done;
use crate::crash::insist;

const BURST: u64 = 3;
const PER_SECOND: u64 = 20;

/// Forty at once: three get in, the rest one by one, as the leader's clock goes on.
pub async fn goes_on_by_itself(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let people = 40;
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = cluster.api().subscribe(events).await?;
    create(&api, line).await?;
    let enter = async |nth| api.enter(line, &format!("k{nth}")).await;
    let entered: Vec<Value> = try_join_all((0..people).map(enter)).await?;
    let at_once = entered
        .iter()
        .filter(|status| status["state"] == "admitted");
    ensure!(at_once.count() >= 1, "it starts full");
    // From here on there are no requests.
    let mut admitted = Vec::new();
    for nth in 1..=people {
        let event = next_of(&mut incoming, "admitted").await?;
        ensure!(event["token"] == nth, "want {nth}: {event}");
        admitted.push(number(&event, "at_ms")?);
    }
    within_the_rate(&admitted)?;
    ensure!(admissions(&api, line).await? == admitted);
    Ok(())
}

/// kill -9 of the leader in the middle: the next one does not give the saved burst twice, and admits
/// without requests.
pub async fn over_a_crash(cluster: &mut Cluster) -> Result<()> {
    let (line, people) = ("crash-pace", 60);
    let api = cluster.api().clone();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    create(&api, line).await?;
    let enter = async |nth| insist(&api, line, "enter", &json!({"key": format!("k{nth}")})).await;
    try_join_all((0..people).map(enter)).await?;
    for _ in 0..people / 4 {
        next_of(&mut incoming, "admitted").await?;
    }
    let leader = cluster.leader_of(line).await?;
    cluster.process(leader)?.kill().await?;
    // The dead leader's last events may be lost, but not that of the last admission.
    let mut last = 0;
    while last < people {
        let event = next_of(&mut incoming, "admitted").await?;
        last = last.max(number(&event, "token")?);
    }
    cluster.wait_served().await?;
    ensure!(cluster.leader_of(line).await? != leader);
    let admitted = admissions(&api, line).await?;
    ensure!(admitted.len() as u64 == people, "{admitted:?}");
    within_the_rate(&admitted)?;
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    ensure!(admissions(&api, line).await? == admitted);
    Ok(())
}

/// Set, changed and unset while tokens wait.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-pace --seats 50 --queue-limit 50 --admission-rate 0.001/2",
    )
    .await?;
    let rate = json!({"per_second": 0.001, "burst": 2});
    ensure!(made["settings"]["admission_rate"] == rate, "{made}");
    for (key, state) in [("a", "admitted"), ("b", "admitted"), ("c", "waiting")] {
        let status = done(cli, &format!("enter cli-pace --key {key}")).await?;
        ensure!(status["state"] == state, "{status}");
    }
    // A larger burst is not saved up yet.
    let more = done(cli, "line set cli-pace --admission-rate 0.5/9").await?;
    let rate = json!({"per_second": 0.5, "burst": 9});
    ensure!(more["settings"]["admission_rate"] == rate, "{more}");
    has(&more["counts"], &json!({"waiting": 1, "admitted": 2}))?;
    let none = done(cli, "line set cli-pace --unset admission_rate").await?;
    ensure!(none["settings"]["admission_rate"].is_null(), "{none}");
    has(&none["counts"], &json!({"waiting": 0, "admitted": 3}))
}

async fn create(api: &Api, line: &str) -> Result<()> {
    let rate = json!({"per_second": PER_SECOND, "burst": BURST});
    let settings = json!({
        "seats": 1_000, "queue_limit": 100, "admission_rate": rate, "claim_timeout_ms": HOUR_MS,
    });
    api.admin(line, "create", settings).await?;
    Ok(())
}

/// In every interval at most the burst plus the rate times its length.
fn within_the_rate(at_ms: &[u64]) -> Result<()> {
    for (first, from) in at_ms.iter().enumerate() {
        for (last, to) in at_ms.iter().enumerate().skip(first) {
            let many = (last - first + 1) as u64;
            let passed_ms = to.checked_sub(*from).context("the clock went back")? + CLOCKS_APART_MS;
            ensure!(
                many * 1_000 <= BURST * 1_000 + PER_SECOND * passed_ms,
                "{many} within {passed_ms} ms: {at_ms:?}"
            );
        }
    }
    Ok(())
}

/// When tokens were admitted, in their order, as the journal has it.
async fn admissions(api: &Api, line: &str) -> Result<Vec<u64>> {
    let page = api.admin(line, "journal", json!({"limit": 1_000})).await?;
    ensure!(page["next"].is_null(), "more than a page");
    let entries = page["entries"].as_array().context("entries")?;
    let admitted = entries.iter().filter(|entry| entry["what"] == "admitted");
    let admitted: Vec<&Value> = admitted.collect();
    let tokens = admitted.iter().map(|entry| entry["token"].as_u64());
    ensure!(
        tokens.eq((1..=admitted.len() as u64).map(Some)),
        "each once, in order: {page}"
    );
    let counts = show(api, line).await?["counts"].clone();
    ensure!(counts["admitted"] == admitted.len(), "{counts}");
    admitted
        .iter()
        .map(|entry| number(entry, "at_ms"))
        .collect()
}
