//! `call_ahead`, `position_cap`, `held_back_by` and `release_on_claim`.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, number};
use nowserving_protocol::subject::shard_of;
use serde_json::{Value, json};

use super::{act, has, next_is, serve, shows};
use crate::command_line::done;

/// The first two waiting tokens are called ahead, each once, however often others join or leave.
pub async fn call_ahead(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = cluster.api().subscribe(events).await?;
    let settings = json!({"seats": 1, "queue_limit": 20, "call_ahead": 2});
    let made = api.admin(line, "create", settings).await?;
    ensure!(made["settings"]["call_ahead"] == 2, "{made}");
    let mut people = vec![Value::Null];
    for key in ["a", "b", "c", "d", "e", "f"] {
        people.push(api.enter(line, key).await?);
    }
    let called = async |token: usize, called: bool| {
        shows(&api, line, &people[token], json!({"call_ahead": called})).await
    };
    for token in 1..=6 {
        called(token, [2, 3].contains(&token)).await?;
    }
    // c goes, so d is called; and when b has its seat, e.
    act(&api, line, "leave", &people[3]).await?;
    called(4, true).await?;
    serve(&api, line, &people[1]).await?;
    called(2, false).await?;
    called(4, true).await?;
    called(5, true).await?;
    called(6, false).await?;
    // Fewer are called now, and then as many again: no token is called twice.
    for many in [0, 2] {
        api.admin(line, "configure", json!({"call_ahead": many}))
            .await?;
        called(5, many > 0).await?;
    }
    act(&api, line, "leave", &people[6]).await?;
    for (token, what) in [
        (1, "admitted"),
        (2, "call_ahead"),
        (3, "call_ahead"),
        (3, "gone"),
        (4, "call_ahead"),
        (1, "claimed"),
        (1, "gone"),
        (2, "admitted"),
        (5, "call_ahead"),
        (6, "gone"),
    ] {
        next_is(&mut incoming, "normal", token, what, json!({})).await?;
    }
    Ok(())
}

/// Each lane has its own first tokens, and a moved token is called where it is.
pub async fn call_ahead_by_lane(cluster: &Cluster, line: &str) -> Result<()> {
    let api = cluster.api();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = api.subscribe(events).await?;
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    let settings = json!({"seats": 1, "queue_limit": 20, "call_ahead": 1, "lanes": lanes});
    api.admin(line, "create", settings).await?;
    for key in ["a", "b", "c"] {
        api.enter(line, key).await?;
    }
    super::enter(api, line, "vip", "v").await?;
    let move_b = json!({"lane": "normal", "token": 2, "to": "vip"});
    let moved = api.admin(line, "move", move_b).await?;
    has(&moved, &json!({"token": 2, "call_ahead": false}))?;
    for (lane, token, what) in [
        ("normal", 1, "admitted"),
        ("normal", 2, "call_ahead"),
        ("vip", 1, "call_ahead"),
        ("normal", 2, "moved"),
        ("normal", 3, "call_ahead"),
    ] {
        next_is(&mut incoming, lane, token, what, json!({})).await?;
    }
    Ok(())
}

/// `held_back_by` and the leader, shown to operators and users alike.
pub async fn held_back(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let shown = async || -> Result<Value> {
        let shown = super::show(&api, line).await?;
        let info = api.ok(line, "info", json!({})).await?;
        ensure!(
            shown["held_back_by"]["by"] == info["held_back_by"]["by"],
            "{shown} {info}"
        );
        Ok(info)
    };
    let then = async |settings: Value| -> Result<Value> {
        api.admin(line, "configure", settings).await?;
        Ok(shown().await?["held_back_by"].clone())
    };
    let settings = json!({"seats": 1, "queue_limit": 20});
    let made = api.admin(line, "create", settings).await?;
    ensure!(made["held_back_by"] == json!({"by": "nothing"}), "{made}");
    let info = shown().await?;
    let shard = shard_of(line, cluster.options().shards);
    let leader = cluster.leader_of(line).await?;
    for reply in [&made, &info] {
        has(reply, &json!({"shard": shard, "leader": leader}))?;
    }
    for key in ["a", "b", "c", "d"] {
        api.enter(line, key).await?;
    }
    ensure!(shown().await?["held_back_by"] == json!({"by": "seats"}));
    let paused = then(json!({"phase": "paused"})).await?;
    ensure!(
        paused == json!({"by": "phase", "phase": "paused"}),
        "{paused}"
    );
    let quota = json!({"total": 1, "standby_percent": 900});
    let sold = then(json!({"phase": "open", "quota": quota})).await?;
    ensure!(sold == json!({"by": "quota"}), "{sold}");
    // One goes in with the unit that there is; the next one has more than a quarter of an hour.
    let rate = json!({"per_second": 0.001, "burst": 1});
    let rated = json!({"quota": null, "seats": 9, "admission_rate": rate});
    let paced = then(rated).await?;
    ensure!(paced["by"] == "admission_rate", "{paced}");
    ensure!(
        (1..=1_000_000).contains(&number(&paced, "next_in_ms")?),
        "{paced}"
    );
    number(&paced, "next_at_ms")?;
    let free = then(json!({"admission_rate": null})).await?;
    ensure!(free == json!({"by": "nothing"}), "{free}");
    Ok(())
}

/// Past the cap no status shows the position.
pub async fn position_cap(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let settings = json!({"seats": 1, "queue_limit": 20, "position_cap": 2});
    api.admin(line, "create", settings).await?;
    let first = api.enter(line, "a").await?;
    let mut people = Vec::new();
    for key in ["b", "c", "d", "e"] {
        people.push(api.enter(line, key).await?);
    }
    let exact = |position: u64| json!({"position": position, "ahead": position - 1, "turn": position, "position_capped": null});
    let capped = json!({"position": 2, "ahead": 1, "turn": null, "position_capped": true});
    has(&people[1], &exact(2))?;
    has(&people[2], &capped)?;
    has(&people[3], &capped)?;
    let info = api.ok(line, "info", json!({})).await?;
    has(&info["settings"], &json!({"position_cap": 2}))?;

    for (nth, person) in people.iter().enumerate() {
        let body = json!({"ticket": person["ticket"], "holes": true});
        let status = api.ok(line, "status", body).await?;
        let tells = status.get("holes").is_some();
        ensure!(tells == (nth < 2), "holes only up to the cap: {status}");
        for op in ["find", "enter"] {
            let key = ["b", "c", "d", "e"][nth];
            let found = api.ok(line, op, json!({"key": key})).await?;
            let fields = if nth < 2 {
                exact(nth as u64 + 1)
            } else {
                capped.clone()
            };
            has(&found, &fields)?;
        }
    }
    serve(&api, line, &first).await?;
    shows(&api, line, &people[2], exact(2)).await?;
    shows(&api, line, &people[3], capped).await?;
    api.admin(line, "configure", json!({"position_cap": null}))
        .await?;
    shows(&api, line, &people[3], exact(3)).await?;
    Ok(())
}

/// A claim completes: the seat goes on at once, and a repeated claim has the same answer.
pub async fn release_on_claim(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = cluster.api().subscribe(events).await?;
    let settings = json!({"seats": 1, "queue_limit": 20, "release_on_claim": true});
    api.admin(line, "create", settings).await?;
    let mut people = Vec::new();
    for key in ["a", "b", "c"] {
        people.push(api.enter(line, key).await?);
    }
    let mut epoch = 0;
    for person in &people {
        shows(&api, line, person, json!({"state": "admitted"})).await?;
        let claimed = act(&api, line, "claim", person).await?;
        let end = json!({"state": "gone", "reason": "completed", "token": person["token"]});
        has(&claimed, &end)?;
        ensure!(number(&claimed, "epoch")? > epoch, "{claimed}");
        epoch = number(&claimed, "epoch")?;
        for op in ["claim", "status", "complete"] {
            let again = act(&api, line, op, person).await?;
            has(&again, &end)?;
            ensure!(again["epoch"] == epoch, "{op}: {again}");
        }
    }
    for token in 1..=3 {
        for what in ["admitted", "claimed", "gone"] {
            let reason = if what == "gone" {
                json!("completed")
            } else {
                Value::Null
            };
            let fields = json!({"reason": reason});
            next_is(&mut incoming, "normal", token, what, fields).await?;
        }
    }
    // Switched off, a repeated claim of before still has the same answer.
    api.admin(line, "configure", json!({"release_on_claim": false}))
        .await?;
    let again = act(&api, line, "claim", &people[2]).await?;
    has(&again, &json!({"state": "gone", "epoch": epoch}))?;
    let next = api.enter(line, "d").await?;
    let claimed = act(&api, line, "claim", &next).await?;
    has(&claimed, &json!({"state": "in_checkout"}))
}

/// By the command line tool.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-shown --seats 1 --queue-limit 9 --call-ahead 1 --position-cap 1 \
         --release-on-claim true",
    )
    .await?;
    let settings = json!({"call_ahead": 1, "position_cap": 1, "release_on_claim": true});
    has(&made["settings"], &settings)?;
    let first = done(cli, "enter cli-shown --key a").await?;
    let second = done(cli, "enter cli-shown --key b").await?;
    let near = json!({"position": 1, "call_ahead": true, "position_capped": null});
    has(&second, &near)?;
    let third = done(cli, "enter cli-shown --key c").await?;
    has(
        &third,
        &json!({"position": 1, "call_ahead": false, "position_capped": true}),
    )?;
    let ticket = first["ticket"].as_str().context("ticket")?;
    let claim = format!("claim cli-shown {ticket}");
    let claimed = done(cli, &claim).await?;
    has(&claimed, &json!({"state": "gone", "reason": "completed"}))?;
    ensure!(done(cli, &claim).await?["epoch"] == claimed["epoch"]);
    done(
        cli,
        "line set cli-shown --unset call_ahead,position_cap,release_on_claim",
    )
    .await?;
    let ticket = second["ticket"].as_str().context("ticket")?;
    let claimed = done(cli, &format!("claim cli-shown {ticket}")).await?;
    has(&claimed, &json!({"state": "in_checkout"}))
}
