//! Operators end tokens: by every selector, by raw requests and by the command.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cli, HOUR_MS};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

/// A line of two lanes with one seat and these in it: ann holds the seat, then bob, cat and dan wait.
async fn crowd(api: &Api, line: &str) -> Result<()> {
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    let settings = json!({"seats": 1, "queue_limit": 100, "lanes": lanes});
    api.admin(line, "create", settings).await?;
    for (key, lane) in [
        ("ann", "normal"),
        ("bob", "normal"),
        ("cat", "normal"),
        ("dan", "vip"),
    ] {
        api.ok(line, "enter", json!({"key": key, "lane": lane}))
            .await?;
    }
    Ok(())
}

pub async fn every_selector(api: Api, line: &str) -> Result<()> {
    crowd(&api, line).await?;
    let counted = kick(&api, line, json!({"all": true, "dry_run": true})).await?;
    ensure!(
        counted["kicked"] == 4 && counted["dry_run"] == true,
        "{counted}"
    );
    let of_state = json!({"all": true, "state": "admitted", "dry_run": true});
    let counted = kick(&api, line, of_state).await?;
    let ann = json!([{"lane": "normal", "token": 1, "key": "ann", "state": "admitted"}]);
    ensure!(counted["sample"] == ann, "{counted}");

    // The seat of the first goes to the next one.
    let named =
        json!({"tokens": [{"lane": "normal", "token": 1}, {"lane": "normal", "token": 77}]});
    let noted = api.noted("ops", "paid twice");
    let kicked = kick(&noted, line, named.clone()).await?;
    ensure!(kicked["kicked"] == 1 && kicked["sample"] == ann, "{kicked}");
    ensure!(api.ok(line, "find", json!({"key": "bob"})).await?["state"] == "admitted");
    let again = kick(&noted, line, named).await?;
    ensure!(again["kicked"] == 0, "it is gone: {again}");
    ensure!(again["not_found"] == json!([0, 1]), "{again}");
    let kicked = kick(&api, line, json!({"keys": ["cat", "nobody"]})).await?;
    ensure!(
        kicked["kicked"] == 1 && kicked["sample"][0]["token"] == 3,
        "{kicked}"
    );
    ensure!(kicked["not_found"] == json!([1]), "{kicked}");
    let kicked = kick(&api, line, json!({"idle_over_ms": 600_000})).await?;
    ensure!(
        kicked["kicked"] == 0 && kicked["sample"] == json!([]),
        "{kicked}"
    );
    let kicked = kick(&api, line, json!({"lane": "vip", "state": "waiting"})).await?;
    ensure!(
        kicked["kicked"] == 1 && kicked["sample"][0]["key"] == "dan",
        "{kicked}"
    );
    ensure!(kick(&api, line, json!({"all": true})).await?["kicked"] == 1);

    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["counts"]["gone"]["kicked"] == 4, "{shown}");
    let journal = api.admin(line, "journal", json!({})).await?;
    let entries = journal["entries"].as_array().cloned().unwrap_or_default();
    let kicks: Vec<&Value> = entries.iter().filter(|it| it["what"] == "kicked").collect();
    ensure!(
        kicks.len() == 4,
        "one for each that ended a token: {journal}"
    );
    ensure!(kicks[0]["selector"] == json!({"tokens": 2}), "{journal}");
    ensure!(
        kicks[0]["reason"] == "paid twice" && kicks[0]["by"] == "ops",
        "{journal}"
    );
    ensure!(
        kicks[2]["selector"] == json!({"lane": "vip", "state": "waiting"}),
        "{journal}"
    );
    ensure!(kicks[3]["selector"] == json!({"all": true}), "{journal}");
    let after = entries
        .iter()
        .skip_while(|it| it["what"] != "kicked")
        .nth(1);
    ensure!(
        after.is_some_and(|it| it["reason"] == "kicked" && it["token"] == 1),
        "{journal}"
    );
    refusals(&api, line).await
}

async fn kick(api: &Api, line: &str, body: Value) -> Result<Value> {
    api.admin(line, "kick", body).await
}

async fn refusals(api: &Api, line: &str) -> Result<()> {
    for (body, says) in [
        (json!({}), "exactly one of"),
        (json!({"all": true, "lane": "vip"}), "exactly one of"),
        (json!({"tokens": []}), "tokens"),
        (
            json!({"tokens": [{"lane": "gold", "token": 1}]}),
            "tokens[0].lane",
        ),
        (json!({"keys": [""]}), "keys[0]"),
        (json!({"lane": "gold"}), "lane"),
        (json!({"idle_over_ms": 0}), "idle_over_ms"),
        (json!({"idle_over_ms": 5, "state": "in_checkout"}), "state"),
        (json!({"all": true, "reason": "x"}), "reason"),
        (json!({"all": true, "why": "x"}), "why"),
    ] {
        let error = api
            .admin_refused(line, "kick", body.clone(), Code::BadRequest)
            .await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{body}: {error}");
    }
    api.admin_refused(
        "no-such-line",
        "kick",
        json!({"all": true}),
        Code::LineNotFound,
    )
    .await?;
    api.enter(line, "eve").await?;
    api.admin(line, "configure", json!({"phase": "closed"}))
        .await?;
    api.admin_refused(line, "kick", json!({"all": true}), Code::LineClosed)
        .await?;
    Ok(())
}

/// More than one entry of the log, with the command; it asks before it ends many.
pub async fn by_command(api: Api, cli: Cli, line: &str) -> Result<()> {
    let settings = json!({"seats": 1, "queue_limit": 5_000, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    let keys: Vec<String> = (0..1_200).map(|n| format!("k{n}")).collect();
    for some in keys.chunks(100) {
        let entered = some.iter().map(|key| api.enter(line, key));
        try_join_all(entered).await?;
    }
    let dry = cli
        .run(&["line", "kick", line, "--all", "--dry-run"])
        .await?;
    let dry = dry.done()?;
    ensure!(dry["kicked"] == 1_200 && dry["sample"].as_array().is_some_and(|it| it.len() == 10));
    let unasked = cli.run(&["line", "kick", line, "--all"]).await?;
    unasked.failed(2, "bad_request")?;
    let few = [
        "line", "kick", line, "--token", "normal:1", "--key", "k-none",
    ];
    cli.run(&few).await?.failed(2, "bad_request")?;
    let one = cli
        .run(&["line", "kick", line, "--token", "normal:1"])
        .await?;
    ensure!(one.done()?["kicked"] == 1);
    for (which, count) in [
        ("--key k5", 1),
        ("--lane normal --state waiting", 1_198),
        ("--idle-over 10m", 0),
    ] {
        let words = format!("line kick {line} {which} --dry-run");
        let words: Vec<&str> = words.split(' ').collect();
        let dry = cli.run(&words).await?.done()?;
        ensure!(dry["kicked"] == count, "{which}: {dry}");
    }
    let rest = [
        "line",
        "kick",
        line,
        "--all",
        "--yes",
        "--reason",
        "fire drill",
    ];
    ensure!(cli.run(&rest).await?.done()?["kicked"] == 1_199);
    let none = cli.run(&["line", "kick", "nowhere", "--all"]).await?;
    none.failed(1, "line_not_found")?;
    Ok(())
}
