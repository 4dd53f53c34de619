//! Who made a change: the name in the request, or the user that nats-server names, if the nodes are told to trust it.

use anyhow::{Context, Result, ensure};
use async_nats::{Client, ConnectOptions, HeaderMap, Request};
use nowserving_e2e::{Api, Cluster, Options, PASSWORD, eventually, run};
use serde_json::{Value, json};

use crate::members::PATIENCE;

const FORGED: &str = r#"{"user": "mallory"}"#;

/// The operator `ann` has an account of her own. The tests' user is in the nodes' account, where nobody should be.
fn accounts() -> String {
    format!(
        r#"accounts {{
            NODES {{
                users: [{{user: nodes, password: "{PASSWORD}"}}, {{user: tests, password: "{PASSWORD}"}}]
                exports: [{{service: "nowserving.admin.>"}}]
            }}
            OPERATORS {{
                users: [{{user: ann, password: "{PASSWORD}"}}]
                imports: [{{service: {{account: NODES, subject: "nowserving.admin.>"}}, share: true}}]
            }}
        }}
        "#
    )
}

/// `bob`, as he says, asks with so many forged headers; again while the node has only just started, or lost its lease by a pause.
async fn ask(client: &Client, subject: &str, body: Value, forged: usize) -> Result<Value> {
    let mut headers = HeaderMap::new();
    headers.insert("Nowserving-By", "bob");
    for _ in 0..forged {
        headers.append("Nats-Request-Info", FORGED);
    }
    let payload = serde_json::to_vec(&body)?;
    eventually("the node answers", PATIENCE, async || {
        let request = Request::new().headers(headers.clone());
        let request = request.payload(payload.clone().into());
        let answer = client.send_request(subject.to_owned(), request).await?;
        let answer: Value = serde_json::from_slice(&answer.payload)?;
        let code = answer["error"]["code"].as_str();
        let passes =
            code.is_some_and(|it| ["unavailable", "not_leader", "overloaded"].contains(&it));
        Ok((!passes).then_some(answer))
    })
    .await
}

/// Creates the line and applies rules of that name. Returns the names noted for both.
async fn noted(api: &Api, client: &Client, name: &str, forged: usize) -> Result<[Value; 2]> {
    let create = json!({"seats": 1, "queue_limit": 1});
    let subject = format!("nowserving.admin.line.{name}.create");
    let created = ask(client, &subject, create, forged).await?;
    ensure!(created["line"] == name, "{created}");
    let journal = api.admin(name, "journal", json!({})).await?;
    let entries = journal["entries"].as_array().context("entries")?;
    let made = entries.iter().find(|entry| entry["what"] == "created");

    let rules = format!(
        "domain: {name}\ndescriptors:\n  - key: ip\n    rate_limit: {{unit: hour, requests_per_unit: 1}}\n"
    );
    let apply = json!({ "rules": rules });
    let applied = ask(client, "nowserving.admin.limit.apply", apply, forged).await?;
    ensure!(applied.get("error").is_none(), "{applied}");
    let shown = api.limit("show", json!({"domain": name})).await?;
    let line_by = made.context("not in the journal")?["by"].clone();
    Ok([line_by, shown["domains"][0]["by"].clone()])
}

#[tokio::test]
async fn the_servers_user_counts_if_the_nodes_trust_the_header() -> Result<()> {
    let options = Options {
        nodes: 1,
        shards: 1,
        mapping: false,
        authorization: Some(accounts()),
        ..Options::default()
    };
    run(options, without_and_with_the_setting).await
}

async fn without_and_with_the_setting(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let login = ConnectOptions::with_user_and_password("ann".into(), PASSWORD.into());
    let ann = login.connect(cluster.nats.url()).await?;
    for (client, name) in [(api.client(), "forged"), (&ann, "imported")] {
        let by = noted(&api, client, name, 1).await?;
        ensure!(by == ["bob", "bob"], "{name}: {by:?}");
    }

    cluster.process(1)?.stop(PATIENCE).await?;
    let file = cluster.folder().join("trust.toml");
    std::fs::write(&file, "trust_request_info = true\n")?;
    let flags = cluster.flags(1)?.with("--config", file);
    let mut node = cluster.start_stranger("trusting", &flags).await?;
    cluster.wait_served().await?;
    // The server puts its own header in place of the one that ann sent.
    let by = noted(&api, &ann, "trusted", 1).await?;
    ensure!(by == ["ann", "ann"], "{by:?}");
    let direct = "nowserving.admin.shard.0.trusted.limit_delete";
    let deleted = ask(&ann, direct, json!({"domain": "trusted"}), 1).await?;
    ensure!(deleted.get("error").is_none(), "{deleted}");
    let listed = api.limit("changes", json!({"domain": "trusted"})).await?;
    let changes = listed["changes"].as_array().context("changes")?;
    let by: Vec<&Value> = changes.iter().map(|it| &it["by"]).collect();
    ensure!(by == ["ann", "ann"], "{listed}");
    // Of two it leaves one.
    let pause = json!({"phase": "paused"});
    let subject = "nowserving.admin.line.trusted.configure";
    let refused = ask(&ann, subject, pause, 2).await?;
    ensure!(refused["error"]["code"] == "bad_request", "{refused}");
    // Why nobody else may be in the nodes' account.
    let by = noted(&api, api.client(), "inside", 1).await?;
    ensure!(by == ["mallory", "mallory"], "{by:?}");
    node.stop(PATIENCE).await?;
    Ok(())
}
