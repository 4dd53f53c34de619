//! Being told: positions, and room after a refusal; by the command and by JSON, with their errors.

use anyhow::{Context, Result, ensure};
use async_nats::Subscriber;
use nowserving_e2e::{Cli, Cluster, number, under_one_leader};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::events;

/// The command refuses these words, and says why.
async fn misused(cli: &Cli, words: &[&str], why: &str) -> Result<()> {
    let wrong = cli.run(words).await?.failed(2, "bad_request")?;
    let message = wrong["message"].as_str().unwrap_or_default();
    ensure!(message.contains(why), "{why}: {wrong}");
    Ok(())
}

/// A token event comes when a place falls to one of the positions, and not where a token enters.
pub async fn positions(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-positions", positions_of).await
}

async fn positions_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let words = format!("line create {line} --seats 1 --queue-limit 9 --position-events 1,3");
    let words: Vec<&str> = words.split(' ').collect();
    let made = cli.run(&words).await?.done()?;
    ensure!(
        made["settings"]["position_events"] == json!([3, 1]),
        "{made}"
    );
    let text = cli.run_as_text(&["line", "show", line]).await?;
    ensure!(format!("{text:?}").contains("3,1"), "{text:?}");
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.token.>"))
        .await?;
    let mut tickets = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        tickets.push(api.enter(line, key).await?["ticket"].clone());
    }
    // b to e wait; c goes, so d is second and e third.
    api.ok(line, "leave", json!({"ticket": tickets[2]})).await?;
    told(&mut incoming, 5, 3).await?;
    api.ok(line, "leave", json!({"ticket": tickets[0]})).await?;
    told(&mut incoming, 4, 1).await?;
    for (wrong, field) in [
        (json!([1, 2, 3, 4, 5, 6, 7, 8, 9]), "position_events"),
        (json!([3, 0]), "position_events[1]"),
        (json!([10_000_001]), "position_events[0]"),
        (json!([3, 3]), "position_events"),
        (json!(3), "position_events"),
    ] {
        let body = json!({"position_events": wrong});
        let refused = api.admin_refused(line, "configure", body, Code::BadRequest);
        let message = refused.await?.to_string();
        ensure!(message.contains(field), "{field}: {message}");
    }
    let again = json!({"position_events": [2, 5]});
    let shown = api.admin(line, "configure", again).await?;
    ensure!(
        shown["settings"]["position_events"] == json!([5, 2]),
        "{shown}"
    );
    let wrong = ["line", "set", line, "--position-events", "3,0"];
    misused(&cli, &wrong, "--position-events").await?;
    let unset = json!({"position_events": null});
    let shown = api.admin(line, "configure", unset).await?;
    ensure!(shown["settings"]["position_events"] == json!([]), "{shown}");
    Ok(())
}

/// The next event `position` is of this token, with this place.
async fn told(incoming: &mut Subscriber, token: u64, position: u64) -> Result<()> {
    loop {
        let event = events::next(incoming).await?;
        if event["event"] == "position" {
            ensure!(
                event["token"] == token && event["position"] == position,
                "want {token} at {position}: {event}"
            );
            return Ok(());
        }
    }
}

/// Keys that a full line refuses are named as room comes.
pub async fn room(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-room", room_of).await
}

async fn room_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 0, "callback_limit": 2});
    api.admin(line, "create", settings).await?;
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let ann = |op| api.ok(line, op, json!({"key": "ann"}));
    let free = ann("callback").await?;
    ensure!(free["room"] == true && free["position"].is_null(), "{free}");
    let first = api.enter(line, "first").await?;
    api.refused(line, "enter", json!({"key": "ann"}), Code::LineFull)
        .await?;
    for _ in 0..2 {
        let listed = ann("callback").await?;
        ensure!(
            listed["room"] == false && listed["position"] == 1,
            "{listed}"
        );
        ensure!(
            listed["line"] == line && listed["at_ms"].is_u64(),
            "{listed}"
        );
    }
    let words = ["callback", line, "--key", "bob"];
    let listed = cli.run(&words).await?.done()?;
    ensure!(listed["position"] == 2, "{listed}");
    let text = cli.run_as_text(&words).await?;
    ensure!(format!("{text:?}").contains("position"), "{text:?}");
    api.refused(line, "callback", json!({"key": "eve"}), Code::LineFull)
        .await?;

    api.ok(line, "leave", json!({"ticket": first["ticket"]}))
        .await?;
    let event = named(&mut incoming).await?;
    ensure!(
        event["keys"] == json!(["ann"]) && event["lane"] == "normal",
        "{event}"
    );
    ensure!(
        event["version"].as_u64() > listed["version"].as_u64(),
        "{event} after {listed}"
    );
    let entered = api.enter(line, "ann").await?;
    misused(&cli, &["callback", line], "--key").await?;
    let full = api.admin(line, "configure", json!({"callback_limit": 0}));
    full.await?;
    api.refused(line, "callback", json!({"key": "eve"}), Code::Forbidden)
        .await?;
    api.refused(line, "callback", json!({"key": ""}), Code::BadRequest)
        .await?;
    api.refused(line, "callback", json!({}), Code::BadRequest)
        .await?;
    api.ok(line, "leave", json!({"ticket": entered["ticket"]}))
        .await?;
    let event = named(&mut incoming).await?;
    ensure!(
        event["keys"] == json!(["bob"]),
        "still on the list: {event}"
    );
    Ok(())
}

async fn named(incoming: &mut Subscriber) -> Result<Value> {
    loop {
        let event = events::next(incoming).await?;
        if event["event"] == "room" {
            return Ok(event);
        }
    }
}

/// Who cannot enter any more is not listed.
pub async fn no_room(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let line = "told-no-room";
    let settings = json!({
        "seats": 1, "queue_limit": 9, "callback_limit": 2, "release_on_claim": true, "quota": {"total": 1},
    });
    api.admin(line, "create", settings).await?;
    let first = api.enter(line, "first").await?;
    api.ok(line, "claim", json!({"ticket": first["ticket"]}))
        .await?;
    api.refused(line, "callback", json!({"key": "ann"}), Code::SoldOut)
        .await?;
    for phase in ["draining", "closed"] {
        api.admin(line, "configure", json!({"phase": phase}))
            .await?;
        api.refused(line, "callback", json!({"key": "ann"}), Code::LineClosed)
            .await?;
    }
    Ok(())
}

/// A token that has little time left is called, and stays called.
pub async fn by_time(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-time", by_time_of).await
}

async fn by_time_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    // Seats are given by the rate alone, so the forecast is known at once.
    let settings = json!({
        "seats": 1_000, "queue_limit": 1_000, "call_ahead_ms": 3_600_000,
        "admission_rate": {"per_second": 0.001, "burst": 1},
    });
    let made = api.admin(line, "create", settings).await?;
    ensure!(made["settings"]["call_ahead_ms"] == 3_600_000, "{made}");
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.token.>"))
        .await?;
    let mut statuses = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        statuses.push(api.enter(line, key).await?);
    }
    let (mut called, mut others) = (0, 0);
    for status in statuses
        .iter()
        .filter(|status| status["state"] == "waiting")
    {
        let eta_ms = status["eta_ms"].as_u64().context("a forecast")?;
        let soon = eta_ms <= 3_600_000;
        ensure!(status["call_ahead"] == soon, "{status}");
        called += u64::from(soon);
        others += u64::from(!soon);
    }
    ensure!(called > 0 && others > 0, "{called} called, {others} not");
    for _ in 0..called {
        while events::next(&mut incoming).await?["event"] != "call_ahead" {}
    }
    let words = ["line", "set", line, "--call-ahead-time", "30m"];
    let set = cli.run(&words).await?.done()?;
    ensure!(set["settings"]["call_ahead_ms"] == 1_800_000, "{set}");
    misused(
        &cli,
        &["line", "set", line, "--call-ahead-time", "8d"],
        "--call-ahead-time",
    )
    .await?;
    let body = json!({"call_ahead_ms": 604_800_001});
    let refused = api.admin_refused(line, "configure", body, Code::BadRequest);
    let message = refused.await?.to_string();
    ensure!(message.contains("call_ahead_ms"), "{message}");
    // Nothing is known of its time now, and it stays called.
    let paused = json!({"phase": "paused"});
    api.admin(line, "configure", paused).await?;
    let status = api.status(line, &statuses[1]["ticket"]).await?;
    ensure!(
        status["call_ahead"] == true && status["eta_ms"].is_null(),
        "{status}"
    );
    Ok(())
}

/// The seats follow a backend, and fall when it is silent.
pub async fn capacity(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-capacity", capacity_of).await
}

async fn capacity_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 9, "seats_when_silent": 0});
    api.admin(line, "create", settings).await?;
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let words = ["line", "capacity", line, "--seats", "3", "--for", "1h"];
    let told = cli.run(&words).await?.done()?;
    ensure!(
        told["settings"]["seats"] == 1 && told["board"]["seats"] == 3,
        "{told}"
    );
    ensure!(told["capacity_told"]["seats"] == 3, "{told}");
    let event = events::next(&mut incoming).await?;
    ensure!(
        event["event"] == "seats" && event["seats"] == 3 && event["silent"] == false,
        "{event}"
    );
    let soon = json!({"seats": 2, "for_ms": 100});
    api.admin(line, "capacity_told", soon).await?;
    let event = events::next(&mut incoming).await?;
    ensure!(event["seats"] == 2 && event["silent"] == false, "{event}");
    let event = events::next(&mut incoming).await?;
    ensure!(event["seats"] == 0 && event["silent"] == true, "{event}");
    let entered = api.enter(line, "a").await?;
    ensure!(entered["state"] == "waiting", "{entered}");
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["capacity_told"]["silent"] == true, "{shown}");
    for (body, field) in [
        (json!({"seats": 1_000_001, "for_ms": 1_000}), "seats"),
        (json!({"seats": -1, "for_ms": 1_000}), "seats"),
        (json!({"seats": 1}), "for_ms"),
        (json!({"seats": 1, "for_ms": 99}), "for_ms"),
        (json!({"seats": null, "for_ms": 1_000}), "for_ms"),
        (json!({}), "seats"),
        (json!({"seats": 1, "for_ms": 1_000, "until": 5}), "until"),
    ] {
        let refused = api.admin_refused(line, "capacity_told", body, Code::BadRequest);
        let message = refused.await?.to_string();
        ensure!(message.contains(field), "{field}: {message}");
    }
    misused(&cli, &["line", "capacity", line, "--seats", "3"], "--for").await?;
    let words = ["line", "capacity", line, "--forget"];
    let told = cli.run(&words).await?.done()?;
    ensure!(
        told["board"]["seats"] == 1 && told["capacity_told"].is_null(),
        "{told}"
    );
    let status = api.status(line, &entered["ticket"]).await?;
    ensure!(status["state"] == "admitted", "{status}");
    Ok(())
}

/// A quota that is renewed every second: sold out, and then not any more.
pub async fn renewed(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "told-renewed", renewed_of).await
}

async fn renewed_of(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let words = [
        "line",
        "create",
        line,
        "--seats",
        "1",
        "--queue-limit",
        "9",
        "--quota",
        "1",
        "--quota-renew",
        "5s",
        "--release-on-claim",
        "true",
    ];
    let made = cli.run(&words).await?.done()?;
    ensure!(
        made["settings"]["quota"]["renew"] == json!({"every_ms": 5_000}),
        "{made}"
    );
    let mut incoming = api
        .subscribe(format!("nowserving.event.{line}.line"))
        .await?;
    let first = api.enter(line, "a").await?;
    let claim = json!({"ticket": first["ticket"]});
    let claimed = number(&api.ok(line, "claim", claim).await?, "version")?;
    loop {
        let event = events::next(&mut incoming).await?;
        // A window may also have begun since the line was made.
        if event["event"] == "quota_renewed" && number(&event, "version")? > claimed {
            break;
        }
    }
    let next = api.enter(line, "b").await?;
    ensure!(next["state"] == "admitted", "{next}");
    let words = [
        "line",
        "set",
        line,
        "--quota",
        "1",
        "--quota-renew",
        "06:00 Asia/Taipei",
    ];
    let set = cli.run(&words).await?.done()?;
    let daily = json!({"at": "06:00", "zone": "Asia/Taipei"});
    ensure!(set["settings"]["quota"]["renew"] == daily, "{set}");
    let wrong = [
        "line",
        "set",
        line,
        "--quota",
        "1",
        "--quota-renew",
        "25:00 Asia/Taipei",
    ];
    misused(&cli, &wrong, "--quota-renew").await?;
    let hourly = json!({"quota": {"total": 1, "renew": {"every_ms": 3_600_000}}});
    let set = api.admin(line, "configure", hourly).await?;
    let every = json!({"every_ms": 3_600_000});
    ensure!(set["settings"]["quota"]["renew"] == every, "{set}");
    for renew in [
        json!(["06:00", "Asia/Taipei"]),
        json!({"at": "25:00", "zone": "Asia/Taipei"}),
        json!({"at": "06:00", "zone": "Asia/Nowhere"}),
        json!({"at": "06:00"}),
        json!({"every_ms": 999}),
        json!({"every_ms": 5_000, "at": "06:00", "zone": "UTC"}),
    ] {
        let body = json!({"quota": {"total": 1, "renew": renew}});
        let refused = api.admin_refused(line, "configure", body, Code::BadRequest);
        let message = refused.await?.to_string();
        ensure!(message.contains("quota.renew"), "{message}");
    }
    Ok(())
}
