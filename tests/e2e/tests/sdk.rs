//! Our own SDK while the leader is killed (-9). The command line tool is a thin shell around it: `watch`
//! is one client that lives through the crash, and each other command is a client that starts while
//! there is no leader.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Cli, Cluster, Running, eventually, number};
use serde_json::{Value, json};

const LINE: &str = "sdk";

/// A client that enters, watches, claims and completes over the crash notices no more than a pause.
pub async fn over_a_crash_of_the_leader(cluster: &mut Cluster, cli: &Cli) -> Result<()> {
    let api = cluster.api().clone();
    api.admin(LINE, "create", json!({"seats": 1, "queue_limit": 1_000}))
        .await?;
    let first = done(cli, &["enter", LINE, "--key", "k1"]).await?;
    let second = done(cli, &["enter", LINE, "--key", "k2"]).await?;
    let mut board = cli.start(&["watch", LINE]).await?;
    ensure!(answer(&mut board).await?.get("lanes").is_some());
    let ticket = text(&second, "ticket")?;
    let mut place = cli.start(&["watch", LINE, "--ticket", ticket]).await?;
    ensure!(answer(&mut place).await?["position"] == 1);

    let leader = cluster.leader_of(LINE).await?;
    cluster.process(leader)?.kill().await?;
    // Side by side, from the first moment on: there is no leader.
    let keys: Vec<String> = (3..=10).map(|nth| format!("k{nth}")).collect();
    let enters = keys
        .iter()
        .map(async |key| done(cli, &["enter", LINE, "--key", key]).await);
    let first_ticket = text(&first, "ticket")?;
    let claim_words = ["claim", LINE, first_ticket];
    let claim = async { done(cli, &claim_words).await };
    let (entered, claimed) = tokio::try_join!(try_join_all(enters), claim)?;
    ensure!(claimed["state"] == "in_checkout", "{claimed}");
    let mut numbers: Vec<u64> = entered
        .iter()
        .map(|status| number(status, "token"))
        .collect::<Result<_>>()?;
    numbers.sort_unstable();
    ensure!(numbers == (3..=10).collect::<Vec<_>>(), "{numbers:?}");
    for (key, status) in keys.iter().zip(&entered) {
        let again = api.enter(LINE, key).await?;
        ensure!(again["ticket"] == status["ticket"], "{again} not {status}");
    }

    // The next leader publishes to the watcher that its turn has come.
    let epoch = number(&claimed, "epoch")?.to_string();
    let words = ["complete", LINE, first_ticket, "--epoch", &epoch];
    ensure!(done(cli, &words).await?["reason"] == "completed");
    let called = until(&mut place, |status| status["state"] == "admitted").await?;
    ensure!(called["token"] == second["token"], "{called}");
    let claimed = done(cli, &["claim", LINE, ticket]).await?;
    ensure!(number(&claimed, "epoch")?.to_string() != epoch, "{claimed}");
    done(cli, &["complete", LINE, ticket]).await?;
    let last = until(&mut place, |status| status["state"] == "gone").await?;
    ensure!(last["reason"] == "completed", "{last}");
    ensure!(place.child.wait().await?.success());
    let is_current = |board: &Value| board["lanes"][0]["done_through"] == 2;
    until(&mut board, is_current).await?;
    board.child.kill().await?;

    cluster.start_node(leader).await?;
    cluster.wait_ready().await
}

async fn done(cli: &Cli, words: &[&str]) -> Result<Value> {
    // More than it takes to elect a leader on a slow machine.
    let said = cli.run(&[words, &["--timeout", "60s"]].concat()).await?;
    said.done().with_context(|| words.join(" "))
}

/// The next line that a watcher prints, without its temporary errors.
async fn answer(watcher: &mut Running) -> Result<Value> {
    eventually("a watcher says more", Duration::from_secs(30), async || {
        let said = watcher.next().await?.context("the watcher has ended")?;
        Ok(said.get("error").is_none().then_some(said))
    })
    .await
}

/// Reads a watcher's output until the expected line. Versions ascend, over the crash too.
async fn until(watcher: &mut Running, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut version = 0;
    loop {
        let said = answer(watcher).await?;
        ensure!(
            number(&said, "version")? >= version,
            "{said} after {version}"
        );
        version = number(&said, "version")?;
        if is_it(&said) {
            return Ok(said);
        }
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| field.to_owned())
}
