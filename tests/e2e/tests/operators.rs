//! Every operation of operators that this release has.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, eventually, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(15);

/// A line is made, changed, emptied and made again.
pub async fn every_operation(api: Api, line: &str) -> Result<()> {
    let labels = json!({"city": "Taipei"});
    let settings = json!({"seats": 2, "queue_limit": 3, "labels": labels});
    let created = api.admin(line, "create", settings).await?;
    ensure!(created["line"] == line, "{created}");
    ensure!(created["settings"]["seats"] == 2, "{created}");
    ensure!(created["settings"]["queue_limit"] == 3, "{created}");
    ensure!(
        created["settings"]["claim_timeout_ms"] == 120_000,
        "a default: {created}"
    );
    ensure!(created["settings"]["labels"] == labels, "{created}");
    let incarnation = number(&created, "incarnation")?;
    number(&created, "created_at_ms")?;

    let mut epoch = 0;
    for key in ["a", "b", "c"] {
        let status = api.enter(line, key).await?;
        if status["state"] == "admitted" {
            let claimed = api
                .ok(line, "claim", json!({"ticket": status["ticket"]}))
                .await?;
            epoch = number(&claimed, "epoch")?;
        }
    }
    let version = configure(&api, line).await?;
    let old = api.enter(line, "d").await?;

    api.admin_refused(line, "delete", json!({}), Code::LineNotEmpty)
        .await?;
    delete(&api, line).await?;
    api.admin_refused(line, "show", json!({}), Code::LineNotFound)
        .await?;
    api.refused(
        line,
        "status",
        json!({"ticket": old["ticket"]}),
        Code::LineNotFound,
    )
    .await?;

    // The next incarnation is another line, whose numbers stand above the old one's.
    let again = api
        .admin(line, "create", json!({"seats": 1, "queue_limit": 0}))
        .await?;
    ensure!(
        number(&again, "incarnation")? > incarnation,
        "{again} after {created}"
    );
    ensure!(number(&again, "version")? > version, "{again}");
    // An operation that names the old one does not reach it.
    for (op, mut change) in [
        ("configure", json!({"seats": 9})),
        ("delete", json!({"force": true})),
    ] {
        change["incarnation"] = json!(incarnation);
        api.admin_refused(line, op, change.clone(), Code::VersionConflict)
            .await?;
    }
    let change = json!({"seats": 1, "incarnation": again["incarnation"]});
    api.admin(line, "configure", change).await?;
    api.refused(
        line,
        "status",
        json!({"ticket": old["ticket"]}),
        Code::TicketInvalid,
    )
    .await?;
    let first = api.enter(line, "a").await?;
    ensure!(first["token"] == 1, "{first}");
    let claimed = api
        .ok(line, "claim", json!({"ticket": first["ticket"]}))
        .await?;
    ensure!(
        number(&claimed, "epoch")? > epoch,
        "{claimed} after epoch {epoch}"
    );
    Ok(())
}

/// Returns the line's version at the end.
async fn configure(api: &Api, line: &str) -> Result<u64> {
    let before = api.admin(line, "show", json!({})).await?;
    let version = number(&before, "version")?;
    ensure!(
        before["counts"]["waiting"] == 1 && before["counts"]["in_checkout"] == 2,
        "{before}"
    );
    ensure!(before["board"]["lanes"][0]["next_token"] == 4, "{before}");

    let change = json!({"seats": 3, "if_version": version});
    let after = api.admin(line, "configure", change.clone()).await?;
    ensure!(
        after["settings"]["seats"] == 3 && after["settings"]["queue_limit"] == 3,
        "{after}"
    );
    ensure!(number(&after, "version")? > version, "{after}");
    // Raising the seats has admitted the waiting token.
    ensure!(api.ok(line, "find", json!({"key": "c"})).await?["state"] == "admitted");
    api.admin_refused(line, "configure", change, Code::VersionConflict)
        .await?;

    // Lowered limits end no token, and admit none.
    api.admin(line, "configure", json!({"seats": 1})).await?;
    let board = api.ok(line, "info", json!({})).await?;
    ensure!(
        board["in_checkout"] == 2 && board["admitted"] == 1,
        "{board}"
    );
    let status = api.enter(line, "late").await?;
    ensure!(status["state"] == "waiting", "{status}");
    api.ok(line, "leave", json!({"ticket": status["ticket"]}))
        .await?;

    // Null unsets a setting that has a default.
    let change = json!({"claim_timeout_ms": 5_000, "labels": null});
    let set = api.admin(line, "configure", change).await?;
    ensure!(set["settings"]["claim_timeout_ms"] == 5_000, "{set}");
    ensure!(set["settings"]["labels"] == json!({}), "{set}");
    let unset = api
        .admin(line, "configure", json!({"claim_timeout_ms": null}))
        .await?;
    ensure!(unset["settings"]["claim_timeout_ms"] == 120_000, "{unset}");
    number(&api.admin(line, "show", json!({})).await?, "version")
}

/// A deletion may take several steps; `show` and `delete` then say how far it is.
async fn delete(api: &Api, line: &str) -> Result<()> {
    let mut reply = api.admin(line, "delete", json!({"force": true})).await?;
    ensure!(reply["line"] == line, "{reply}");
    for _ in 0..100 {
        if reply["deleted"] == true {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        match api.admin(line, "show", json!({})).await {
            Ok(shown) => reply = shown,
            Err(_) => return Ok(()),
        }
    }
    anyhow::bail!("not deleted: {reply}")
}

/// Lines are listed in order of name, page by page, and by label.
pub async fn pages(api: Api) -> Result<()> {
    let names: Vec<String> = (0..7).map(|number| format!("page-{number}")).collect();
    for name in &names {
        let settings = json!({"seats": 1, "queue_limit": 0, "labels": {"test": "pages"}});
        api.admin(name, "create", settings).await?;
    }
    // The node that answers may apply the newest change a moment later.
    let pages = eventually("all are listed", PATIENCE, async || {
        let pages = all_pages(&api).await?;
        let count: usize = pages.iter().map(Vec::len).sum();
        Ok((count >= names.len()).then_some(pages))
    })
    .await?;
    ensure!(pages.iter().all(|page| page.len() <= 3), "{pages:?}");
    // Other scenarios make lines meanwhile, but none with this label.
    ensure!(pages.concat() == names, "{pages:?}");
    cluster(&api, names.len() as u64).await
}

/// The lines with the label, three a page.
async fn all_pages(api: &Api) -> Result<Vec<Vec<String>>> {
    let mut pages = Vec::new();
    let mut after = Value::Null;
    loop {
        let mut body = json!({"limit": 3, "labels": {"test": "pages"}});
        if !after.is_null() {
            body["after"] = after;
        }
        let page = api.cluster("list_lines", body).await?;
        let lines = page["lines"].as_array().context("lines")?.iter();
        let names = lines.map(|line| line["line"].as_str().context("line").map(str::to_owned));
        pages.push(names.collect::<Result<_>>()?);
        after = page["next"].clone();
        if after.is_null() {
            return Ok(pages);
        }
    }
}

/// The cluster's status, once the node that answers has frames of all others.
async fn cluster(api: &Api, lines_min: u64) -> Result<()> {
    let status = eventually(
        "all nodes live and all shards are led",
        PATIENCE,
        async || {
            let status = api.cluster("status", json!({})).await?;
            let nodes = status["nodes"].as_array().context("nodes")?;
            let shards = status["shards"].as_array().context("shards")?;
            let all_live = nodes.iter().all(|node| node["alive"] == true);
            let all_led = shards.iter().all(|shard| shard["leader"].is_u64());
            let all_known = number(&status, "lines")? >= lines_min;
            Ok((all_live && all_led && all_known).then_some(status))
        },
    )
    .await?;
    ensure!(status["cluster"] == "e2e", "{status}");
    let nodes = status["nodes"].as_array().context("nodes")?;
    ensure!(
        nodes.iter().map(|node| &node["id"]).eq([1, 2, 3].iter()),
        "{status}"
    );
    let shards = status["shards"].as_array().context("shards")?;
    ensure!(shards.len() == 16, "{status}");
    for shard in shards {
        ensure!((1..=3).contains(&number(shard, "leader")?), "{shard}");
        ensure!(number(shard, "term")? >= 1, "{shard}");
        number(shard, "applied")?;
    }
    Ok(())
}
