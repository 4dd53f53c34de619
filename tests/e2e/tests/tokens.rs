//! The tokens of a line are listed: by raw requests and by the command.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cli, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::command_line::{done, refused};

/// In two lanes, the second ahead by ten minutes: ann has claimed her seat, bob has not, and the others wait.
async fn crowd(api: &Api, line: &str) -> Result<()> {
    let lanes = json!([{"name": "normal"}, {"name": "vip", "boost_ms": 600_000}]);
    let settings = json!({"seats": 2, "queue_limit": 100, "lanes": lanes, "position_cap": 1});
    api.admin(line, "create", settings).await?;
    for (key, lane) in [
        ("ann", "normal"),
        ("bob", "normal"),
        ("cat", "normal"),
        ("dan", "normal"),
        ("eve", "vip"),
        ("fay", "vip"),
    ] {
        api.ok(line, "enter", json!({"key": key, "lane": lane}))
            .await?;
    }
    let ann = api.ok(line, "find", json!({"key": "ann"})).await?;
    api.ok(line, "claim", json!({"ticket": ann["ticket"]}))
        .await?;
    Ok(())
}

async fn list(api: &Api, line: &str, body: Value) -> Result<Value> {
    api.admin(line, "list_tokens", body).await
}

fn keys(page: &Value) -> Result<Vec<&str>> {
    let tokens = page["tokens"].as_array().context("tokens")?;
    let keys = tokens.iter().map(|token| token["key"].as_str());
    keys.collect::<Option<_>>().context("keys")
}

pub async fn in_both_orders(api: Api, line: &str) -> Result<()> {
    crowd(&api, line).await?;
    let all = list(&api, line, json!({})).await?;
    ensure!(
        keys(&all)? == ["ann", "bob", "cat", "dan", "eve", "fay"],
        "{all}"
    );
    ensure!(all["next"].is_null() && all["line"] == line, "{all}");
    let (ann, dan) = (&all["tokens"][0], &all["tokens"][3]);
    ensure!(
        ann["state"] == "in_checkout" && ann["token"] == 1 && ann["lane"] == "normal",
        "{ann}"
    );
    for absent in ["position", "turn", "last_seen_ms"] {
        ensure!(ann.get(absent).is_none(), "{absent}: {ann}");
    }
    // Operators see past the cap.
    ensure!(dan["position"] == 2 && dan["turn"] == 4, "{dan}");
    ensure!(number(dan, "last_seen_ms")? < 60_000, "{dan}");
    ensure!(
        number(dan, "entered_at_ms")? >= number(ann, "entered_at_ms")?,
        "{all}"
    );

    let next = list(&api, line, json!({"order": "service"})).await?;
    ensure!(keys(&next)? == ["eve", "fay", "cat", "dan"], "{next}");
    for (state, wanted) in [
        ("waiting", vec!["cat", "dan", "eve", "fay"]),
        ("admitted", vec!["bob"]),
        ("in_checkout", vec!["ann"]),
    ] {
        let of_state = list(&api, line, json!({"state": state})).await?;
        ensure!(keys(&of_state)? == wanted, "{of_state}");
    }
    let body = json!({"lane": "vip", "order": "service", "state": "waiting"});
    ensure!(keys(&list(&api, line, body).await?)? == ["eve", "fay"]);
    pages(&api, line).await?;
    refusals(&api, line).await
}

/// A token that stays is on one page, though others leave and enter meanwhile.
async fn pages(api: &Api, line: &str) -> Result<()> {
    let first = list(api, line, json!({"order": "service", "limit": 1})).await?;
    ensure!(keys(&first)? == ["eve"], "{first}");
    ensure!(
        first["next"] == json!([{"lane": "vip", "token": 1}]),
        "{first}"
    );
    let eve = api.ok(line, "find", json!({"key": "eve"})).await?;
    api.ok(line, "leave", json!({"ticket": eve["ticket"]}))
        .await?;
    let body = json!({"order": "service", "limit": 2, "after": first["next"]});
    let second = list(api, line, body).await?;
    ensure!(keys(&second)? == ["fay", "cat"], "{second}");
    ensure!(second["tokens"][0]["turn"] == 1, "as things are: {second}");
    api.ok(line, "enter", json!({"key": "gus", "lane": "vip"}))
        .await?;
    let body = json!({"order": "service", "limit": 2, "after": second["next"]});
    let last = list(api, line, body).await?;
    ensure!(keys(&last)? == ["gus", "dan"], "{last}");
    ensure!(last["next"].is_null(), "{last}");
    Ok(())
}

async fn refusals(api: &Api, line: &str) -> Result<()> {
    for (body, says) in [
        (json!({"limit": 0}), "limit"),
        (json!({"limit": 1001}), "limit"),
        (json!({"state": "gone"}), "state"),
        (json!({"order": "service", "state": "admitted"}), "state"),
        (json!({"order": "age"}), "order"),
        (json!({"lane": "gold"}), "lane"),
        (json!({"after": [{"lane": "gold", "token": 1}]}), "after"),
        (json!({"after": [{"lane": "vip", "token": -1}]}), "after[0]"),
        (json!({"keys": true}), "keys"),
    ] {
        let error = api
            .admin_refused(line, "list_tokens", body.clone(), Code::BadRequest)
            .await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{body}: {error}");
    }
    api.admin_refused("no-such-line", "list_tokens", json!({}), Code::LineNotFound)
        .await?;
    Ok(())
}

/// A full page of the longest keys fits a message, and the command goes from page to page.
pub async fn by_command(api: Api, cli: Cli, line: &str) -> Result<()> {
    let cli = &cli;
    let settings = json!({"seats": 1, "queue_limit": 5_000});
    api.admin(line, "create", settings).await?;
    // Written to a message, each byte takes six.
    let key = |nth| format!("{nth:04}{}", "\u{1}".repeat(124));
    let keys: Vec<String> = (0..1_200).map(key).collect();
    for some in keys.chunks(100) {
        let entered = some.iter().map(|key| api.enter(line, key));
        try_join_all(entered).await?;
    }
    let most = list(&api, line, json!({"limit": 1000})).await?;
    let on_page = most["tokens"].as_array().context("tokens")?.len();
    ensure!((40..100).contains(&on_page), "{on_page} on a page");
    ensure!(!most["next"].is_null());

    let all = done(cli, &format!("line tokens {line} --limit 5000")).await?;
    let tokens = all["tokens"].as_array().context("tokens")?;
    let numbers: Vec<Option<u64>> = tokens.iter().map(|it| it["token"].as_u64()).collect();
    ensure!(numbers == (1..=1_200).map(Some).collect::<Vec<_>>());
    ensure!(all["next"].is_null());
    let words =
        format!("line tokens {line} --state waiting --order service --lane normal --limit 2");
    let two = done(cli, &words).await?;
    ensure!(
        two["tokens"][1]["turn"] == 2 && !two["next"].is_null(),
        "{two}"
    );
    let admitted = done(cli, &format!("line tokens {line} --state admitted")).await?;
    ensure!(admitted["tokens"][0]["token"] == 1, "{admitted}");
    ensure!(admitted["next"].is_null(), "{admitted}");
    let wrong = format!("line tokens {line} --state admitted --order service");
    refused(cli, &wrong, "bad_request").await?;
    Ok(())
}
