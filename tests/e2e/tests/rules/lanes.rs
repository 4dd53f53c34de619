//! Lanes: the order of admission, a lane's own limit, lanes that are removed and come back.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, CLOCKS_APART_MS, Cli, Cluster, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::{act, enter, lane_of, next_of, serve, show, shows};
use crate::command_line::{done, refused};

/// Name, `boost_ms`, `absolute`. The second boost is so small that it decides only between tokens that
/// enter in the same moment of the service clock.
const LANES: [(&str, u64, bool); 5] = [
    ("normal", 0, false),
    ("early", 20, false),
    ("vip", 600_000, false),
    ("staff", 0, true),
    ("crew", 1_000, true),
];

/// Tokens are admitted in the order of `absolute`, then boost and time of entering.
pub async fn order(cluster: &Cluster, api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let events = format!("nowserving.event.{line}.token.>");
    let mut incoming = cluster.api().subscribe(events).await?;
    let lanes = LANES.map(
        |(name, boost_ms, absolute)| json!({"name": name, "boost_ms": boost_ms, "absolute": absolute}),
    );
    let settings = json!({"seats": 1, "queue_limit": 100, "lanes": lanes});
    let made = api.admin(line, "create", settings).await?;
    for (lane, (name, boost_ms, absolute)) in made["settings"]["lanes"]
        .as_array()
        .context("lanes")?
        .iter()
        .zip(LANES)
    {
        let wanted = json!({"name": name, "boost_ms": boost_ms, "absolute": absolute});
        super::has(lane, &wanted)?;
    }

    let first = api.enter(line, "first").await?;
    ensure!(
        first["lane"] == "normal" && first["state"] == "admitted",
        "the first lane is the default: {first}"
    );
    next_of(&mut incoming, "admitted").await?;
    let mut people = Vec::new();
    for nth in 0..30 {
        // In an order that has nothing to do with that of the lanes.
        let lane = LANES[(nth * nth + nth / 3) % LANES.len()].0;
        people.push(enter(&api, line, lane, &format!("k{nth}")).await?);
    }

    let mut turns = turns(&api, line, &people).await?;
    let mut last = first;
    while !people.is_empty() {
        serve(&api, line, &last).await?;
        let next = next_of(&mut incoming, "admitted").await?;
        let turn = turns.remove(0);
        ensure!(
            turn == (next["lane"].clone(), next["token"].clone()),
            "{turn:?}"
        );
        let is_next = |one: &Value| one["lane"] == next["lane"] && one["token"] == next["token"];
        let place = people.iter().position(is_next);
        last = people.swap_remove(place.with_context(|| format!("who is {next}?"))?);
        for other in &people {
            ensure!(!comes_before(other, &last)?, "{other} was before {last}");
        }
    }
    Ok(())
}

/// The lane and number of each waiting token, in the order of their turns.
async fn turns(api: &Api, line: &str, people: &[Value]) -> Result<Vec<(Value, Value)>> {
    let mut turns = Vec::new();
    for one in people {
        let now = api.status(line, &one["ticket"]).await?;
        ensure!(number(&now, "turn")? >= number(&now, "position")?, "{now}");
        turns.push((number(&now, "turn")?, now));
    }
    turns.sort_by_key(|(turn, _)| *turn);
    let in_order = (1..).zip(&turns).all(|(nth, (turn, _))| nth == *turn);
    ensure!(in_order, "each turn once: {turns:?}");
    let ids = turns.into_iter();
    Ok(ids
        .map(|(_, now)| (now["lane"].clone(), now["token"].clone()))
        .collect())
}

/// Whether one is surely first. Times are shown of the wall clock, and the service clock, which
/// decides, may have stood still between the two: it goes on by as much at most.
fn comes_before(one: &Value, other: &Value) -> Result<bool> {
    if one["lane"] == other["lane"] {
        return Ok(number(one, "token")? < number(other, "token")?);
    }
    let (_, boost_ms, absolute) = lane_set(one)?;
    let (_, other_boost_ms, other_absolute) = lane_set(other)?;
    if absolute != other_absolute {
        return Ok(absolute);
    }
    let later_ms = number(one, "entered_at_ms")?.saturating_sub(number(other, "entered_at_ms")?);
    Ok(boost_ms > other_boost_ms + later_ms + CLOCKS_APART_MS)
}

fn lane_set(status: &Value) -> Result<(&'static str, u64, bool)> {
    let set = LANES.iter().find(|(name, _, _)| status["lane"] == *name);
    set.copied().context("a lane that was not asked for")
}

/// A lane with a limit of its own is full when others are not.
pub async fn own_limit(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let lanes = json!([{"name": "normal"}, {"name": "vip", "queue_limit": 2}]);
    let settings = json!({"seats": 1, "queue_limit": 5, "lanes": lanes});
    api.admin(line, "create", settings).await?;
    // No token waits yet: the limit of waiting tokens does not count one that is admitted at once.
    let board = api.ok(line, "info", json!({})).await?;
    ensure!(lane_of(&board, "vip")?["accepts_through"] == 3, "{board}");
    enter(&api, line, "vip", "seated").await?;
    let second = enter(&api, line, "vip", "a").await?;
    enter(&api, line, "vip", "b").await?;
    let into_vip = |key: &str| json!({"key": key, "lane": "vip"});
    let full = api
        .refused(line, "enter", into_vip("c"), Code::LineFull)
        .await?;
    number(&full, "retry_after_ms")?;
    let board = api.ok(line, "info", json!({})).await?;
    let (vip, normal) = (lane_of(&board, "vip")?, lane_of(&board, "normal")?);
    ensure!(
        vip["accepts_through"] == 3 && vip["next_token"] == 4,
        "{board}"
    );
    // Six may be in the line, and three are; nothing is promised ahead in a line of two lanes.
    ensure!(
        normal["accepts_through"] == 3 && normal["admitted_through"] == 0,
        "{board}"
    );
    // A live key is answered all the same, and the other lane takes new tokens.
    let again = api.ok(line, "enter", into_vip("a")).await?;
    ensure!(again["token"] == second["token"], "{again}");
    enter(&api, line, "normal", "c").await?;
    act(&api, line, "leave", &second).await?;
    let late = enter(&api, line, "vip", "d").await?;
    ensure!(late["token"] == 4 && late["position"] == 2, "{late}");
    enter(&api, line, "normal", "e").await?;
    enter(&api, line, "normal", "f").await?;
    // Now it is the line that is full.
    let more = json!({"key": "g", "lane": "normal"});
    api.refused(line, "enter", more, Code::LineFull).await?;
    Ok(())
}

/// A lane with live tokens stays; one without goes, and goes on with its numbers when it returns.
pub async fn removed_and_returned(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let both = json!([{"name": "normal"}, {"name": "vip", "boost_ms": 600_000}]);
    let one = json!({"lanes": [{"name": "normal"}], "seats": 9});
    let settings = json!({"seats": 1, "queue_limit": 50, "lanes": both});
    let made = api.admin(line, "create", settings).await?;
    enter(&api, line, "normal", "a").await?;
    let vip = enter(&api, line, "vip", "b").await?;
    let refused = api
        .admin_refused(line, "configure", one.clone(), Code::BadRequest)
        .await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("lanes"), "{refused}");
    let now = show(&api, line).await?;
    ensure!(now["settings"] == made["settings"], "{now}");
    ensure!(now["settings_version"] == made["settings_version"], "{now}");

    act(&api, line, "leave", &vip).await?;
    let changed = api.admin(line, "configure", one).await?;
    ensure!(
        changed["board"]["lanes"].as_array().context("lanes")?.len() == 1,
        "{changed}"
    );
    let into = json!({"key": "c", "lane": "vip"});
    let refused = api.refused(line, "enter", into, Code::BadRequest).await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("lane"), "{refused}");
    let gone = json!({"state": "gone", "reason": "left", "lane": "vip", "token": 1});
    shows(&api, line, &vip, gone.clone()).await?;

    // Back, and now the default, as it is listed first.
    let both = json!({"lanes": [{"name": "vip"}, {"name": "normal"}]});
    let changed = api.admin(line, "configure", both).await?;
    let lane = &changed["board"]["lanes"][0];
    ensure!(
        lane["lane"] == "vip" && lane["next_token"] == 2,
        "{changed}"
    );
    ensure!(changed["default_lane"] == "vip", "{changed}");
    let back = api.enter(line, "c").await?;
    ensure!(back["lane"] == "vip" && back["token"] == 2, "{back}");
    shows(&api, line, &vip, gone).await?;

    // Until another one is set. That one cannot go then.
    let normal = json!({"default_lane": "normal"});
    let changed = api.admin(line, "configure", normal).await?;
    ensure!(changed["default_lane"] == "normal", "{changed}");
    let info = api.ok(line, "info", json!({})).await?;
    ensure!(info["settings"]["default_lane"] == "normal", "{info}");
    ensure!(api.enter(line, "d").await?["lane"] == "normal");
    for wrong in [
        json!({"default_lane": "web"}),
        json!({"lanes": [{"name": "vip"}]}),
    ] {
        let refused = api
            .admin_refused(line, "configure", wrong, Code::BadRequest)
            .await?;
        let message = refused["message"].as_str().unwrap_or_default();
        ensure!(message.starts_with("default_lane: "), "{refused}");
    }
    let first = json!({"default_lane": null});
    let changed = api.admin(line, "configure", first).await?;
    ensure!(changed["default_lane"] == "vip", "{changed}");
    ensure!(changed["settings"]["default_lane"].is_null(), "{changed}");
    Ok(())
}

/// By the command line tool.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-lanes --seats 1 --queue-limit 20 --lane vip:boost=10m --lane normal \
         --lane staff:absolute:limit=1",
    )
    .await?;
    let lanes = json!([
        {"name": "vip", "boost_ms": 600_000, "absolute": false, "queue_limit": null},
        {"name": "normal", "boost_ms": 0, "absolute": false, "queue_limit": null},
        {"name": "staff", "boost_ms": 0, "absolute": true, "queue_limit": 1},
    ]);
    ensure!(made["settings"]["lanes"] == lanes, "{made}");
    let mut last = done(cli, "enter cli-lanes --key first").await?;
    ensure!(last["lane"] == "vip", "the first is the default: {last}");
    for (lane, key) in [("normal", "a"), ("vip", "b"), ("staff", "c")] {
        done(cli, &format!("enter cli-lanes --key {key} --lane {lane}")).await?;
    }
    refused(cli, "enter cli-lanes --key d --lane staff", "line_full").await?;
    for key in ["c", "b", "a"] {
        let ticket = last["ticket"].as_str().context("ticket")?;
        done(cli, &format!("claim cli-lanes {ticket}")).await?;
        done(cli, &format!("complete cli-lanes {ticket}")).await?;
        last = done(cli, &format!("find cli-lanes --key {key}")).await?;
        ensure!(last["state"] == "admitted", "{key} is next: {last}");
    }
    let less = "line set cli-lanes --lane vip";
    let error = refused(cli, less, "bad_request").await?;
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(message.contains("lanes"), "{error}");
    let ticket = last["ticket"].as_str().context("ticket")?;
    done(cli, &format!("leave cli-lanes {ticket}")).await?;
    let left = done(cli, less).await?;
    ensure!(left["settings"]["lanes"][0]["boost_ms"] == 0, "{left}");
    Ok(())
}
