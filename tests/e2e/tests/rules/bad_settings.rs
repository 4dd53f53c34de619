//! Invalid settings: refused whole, with the name of the invalid part, and nothing has changed.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Format, HOUR_MS, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::show;
use crate::command_line::{done, refused, words};

/// A setting, what is wrong with it, and what the error must name.
type Wrong = (&'static str, Value, &'static str);

fn numbers() -> Vec<Wrong> {
    let mut all = Vec::new();
    for (field, least, most) in [
        ("seats", 1, 1_000_000),
        ("queue_limit", 0, 10_000_000),
        ("waiting_idle_timeout_ms", 100, 604_800_000),
        ("claim_timeout_ms", 100, 604_800_000),
        ("checkout_timeout_ms", 100, 604_800_000),
        ("checkout_max_ms", 100, 604_800_000),
        ("call_ahead", 0, 10_000_000),
        ("position_cap", 1, 10_000_000_i64),
    ] {
        for value in [json!(least - 1), json!(most + 1), json!(1.5), json!("100")] {
            all.push((field, value, field));
        }
        for value in [
            json!(true),
            json!([100]),
            json!({"ms": 100}),
            json!(u64::MAX),
        ] {
            all.push((field, value, field));
        }
    }
    all.push(("seats", Value::Null, "seats"));
    all.push(("queue_limit", Value::Null, "queue_limit"));
    all.push((
        "queue_limit",
        json!(9_007_199_254_740_993_u64),
        "queue_limit",
    ));
    all
}

fn words_and_flags() -> Vec<Wrong> {
    let mut all = Vec::new();
    for field in ["release_on_claim", "token_events"] {
        for value in [json!(1), json!("true"), json!([true]), json!({})] {
            all.push((field, value, field));
        }
    }
    for value in [
        json!("shut"),
        json!("Open"),
        json!(""),
        json!(1),
        json!(true),
        json!(["open"]),
    ] {
        all.push(("phase", value, "phase"));
    }
    let many: serde_json::Map<_, _> = (0..17).map(|n| (format!("l{n}"), json!("x"))).collect();
    for value in [
        json!([]),
        json!("a"),
        json!({"a": 1}),
        json!({"": "a"}),
        json!({"a": "x".repeat(65)}),
        json!({("x".repeat(65)): "a"}),
        Value::Object(many),
    ] {
        all.push(("labels", value, "labels"));
    }
    all.push(("no_such_setting", json!(1), "no_such_setting"));
    all.push(("no_such_setting", Value::Null, "no_such_setting"));
    all.push(("Seats", json!(1), "Seats"));
    all
}

fn parts() -> Vec<Wrong> {
    let rate = |per_second: Value, burst: Value| json!({"per_second": per_second, "burst": burst});
    let quota = |total: Value, standby: Value| json!({"total": total, "standby_percent": standby});
    let mut all = Vec::new();
    for per_second in [
        json!(0),
        json!(0.0009),
        json!(1_000_000.5),
        json!(-1),
        json!("1"),
        json!(null),
    ] {
        all.push((
            "admission_rate",
            rate(per_second, json!(1)),
            "admission_rate.per_second",
        ));
    }
    for burst in [
        json!(0),
        json!(1_000_001),
        json!(1.5),
        json!("1"),
        json!(null),
    ] {
        all.push((
            "admission_rate",
            rate(json!(1), burst),
            "admission_rate.burst",
        ));
    }
    for total in [
        json!(0),
        json!(1_000_000_001),
        json!(-1),
        json!("1"),
        json!(null),
    ] {
        all.push(("quota", quota(total, json!(0)), "quota.total"));
    }
    for standby in [json!(1_001), json!(-1), json!(0.5), json!("1")] {
        all.push(("quota", quota(json!(1), standby), "quota.standby_percent"));
    }
    all.extend([
        ("admission_rate", json!(5), "admission_rate"),
        ("admission_rate", json!([5, 1]), "admission_rate"),
        ("admission_rate", json!({}), "per_second"),
        ("admission_rate", json!({"per_second": 1}), "burst"),
        ("admission_rate", json!({"burst": 1}), "per_second"),
        (
            "admission_rate",
            json!({"per_second": 1, "burst": 1, "per_minute": 1}),
            "per_minute",
        ),
        ("quota", json!(5), "quota"),
        ("quota", json!([5, 0]), "quota"),
        ("quota", json!({"standby_percent": 1}), "total"),
        ("quota", json!({"total": 1, "sold": 1}), "sold"),
    ]);
    all
}

fn lanes() -> Vec<Wrong> {
    let third = |lane: Value| json!([{"name": "a"}, {"name": "b"}, lane]);
    let mut all = Vec::new();
    for name in [
        json!(""),
        json!("a b"),
        json!("a.b"),
        json!("é"),
        json!(1),
        json!(null),
    ] {
        all.push(("lanes", third(json!({"name": name})), "lanes[2].name"));
    }
    let long = third(json!({"name": "x".repeat(65)}));
    all.push(("lanes", long, "lanes[2].name"));
    all.push(("lanes", third(json!({"name": "b"})), "lanes[2]: name"));
    for boost_ms in [
        json!(-1),
        json!(604_800_001),
        json!(0.5),
        json!("10m"),
        json!(true),
    ] {
        let lane = json!({"name": "c", "boost_ms": boost_ms});
        all.push(("lanes", third(lane), "lanes[2].boost_ms"));
    }
    for absolute in [json!(1), json!("yes"), json!([])] {
        let lane = json!({"name": "c", "absolute": absolute});
        all.push(("lanes", third(lane), "lanes[2].absolute"));
    }
    for limit in [json!(-1), json!(10_000_001), json!("5"), json!({})] {
        let lane = json!({"name": "c", "queue_limit": limit});
        all.push(("lanes", third(lane), "lanes[2].queue_limit"));
    }
    let nine: Vec<Value> = (0..9).map(|n| json!({"name": format!("l{n}")})).collect();
    all.extend([
        ("lanes", third(json!({})), "name"),
        ("lanes", third(json!("c")), "lanes[2]"),
        ("lanes", third(json!(["c", 0])), "lanes[2]"),
        ("lanes", third(json!({"name": "c", "weight": 2})), "weight"),
        ("lanes", json!([]), "lanes"),
        ("lanes", json!("normal"), "lanes"),
        ("lanes", json!({"name": "normal"}), "lanes"),
        ("lanes", json!({"normal": {}}), "lanes"),
        ("lanes", Value::Array(nine), "lanes"),
    ]);
    all
}

/// Each at creation, and as a change beside one that would have been good.
pub async fn every_one(api: Api, line: String) -> Result<()> {
    let line = line.as_str();
    let all: Vec<Wrong> = [numbers(), words_and_flags(), parts(), lanes()].concat();
    let good = json!({"seats": 1, "queue_limit": 5, "claim_timeout_ms": HOUR_MS});
    for (field, value, names) in &all {
        let mut body = good.clone();
        body[field] = value.clone();
        refused_naming(&api, line, "create", body, names).await?;
    }
    for missing in ["seats", "queue_limit"] {
        let mut body = good.clone();
        body.as_object_mut().context("a map")?.remove(missing);
        refused_naming(&api, line, "create", body, missing).await?;
    }
    let at_creation = json!({"seats": 1, "queue_limit": 1, "if_version": 1});
    refused_naming(&api, line, "create", at_creation, "if_version").await?;
    api.admin_refused(line, "show", json!({}), Code::LineNotFound)
        .await?;

    api.admin(line, "create", good).await?;
    let first = api.enter(line, "a").await?;
    let before = show(&api, line).await?;
    for (field, value, names) in &all {
        // The good half of the change must not be taken either.
        let body = json!({"claim_timeout_ms": 7_777, (*field): value});
        refused_naming(&api, line, "configure", body, names).await?;
    }
    for version in [json!(-1), json!("1"), json!(1.5), json!({})] {
        let body = json!({"seats": 2, "if_version": version});
        refused_naming(&api, line, "configure", body, "if_version").await?;
    }
    unchanged(&api, line, &before, &first).await
}

/// Bodies that no map in a program can be.
pub async fn texts(api: Api) -> Result<()> {
    let line = "bad-settings-text";
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 5}))
        .await?;
    let first = api.enter(line, "a").await?;
    let before = show(&api, line).await?;
    let deep = format!("{{\"lanes\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    for (text, names) in [
        ("{\"seats\":2,\"seats\":3}", "seats"),
        ("{\"phase\":\"open\",\"phase\":\"paused\"}", "phase"),
        ("{\"quota\":{\"total\":1,\"total\":2}}", "total"),
        ("{\"quota\":{\"total\":1},\"quota\":null}", "quota"),
        (
            "{\"admission_rate\":{\"per_second\":1,\"per_second\":2,\"burst\":1}}",
            "per_second",
        ),
        (
            "{\"admission_rate\":{\"per_second\":1e400,\"burst\":1}}",
            "",
        ),
        ("{\"admission_rate\":{\"per_second\":NaN,\"burst\":1}}", ""),
        (
            "{\"admission_rate\":{\"per_second\":1e-4,\"burst\":1}}",
            "per_second",
        ),
        ("{\"lanes\":[{\"name\":\"a\",\"name\":\"b\"}]}", "name"),
        ("{\"labels\":{\"a\":\"1\",\"a\":\"2\"}}", "labels"),
        ("{\"call_ahead\":9007199254740993}", "call_ahead"),
        ("{\"position_cap\":1e400}", ""),
        ("{\"seats\":2} {\"seats\":3}", ""),
        (deep.as_str(), ""),
    ] {
        let subject = format!("nowserving.admin.line.{line}.configure");
        let reply = api.call_subject(&subject, text.to_owned()).await?;
        let error = reply.refused(Format::Json, Code::BadRequest);
        let error = error.with_context(|| format!("{text:.200}"))?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(names), "{text:.200}: {error}");
    }
    unchanged(&api, line, &before, &first).await
}

/// The tool prints the error in one line: the cluster's message, or its own.
pub async fn by_cli(cli: &Cli) -> Result<()> {
    let line = "cli-bad";
    done(cli, "line create cli-bad --seats 1 --queue-limit 5").await?;
    let before = done(cli, "line show cli-bad").await?;
    for (flags, names) in [
        ("--lane a --lane a", "lanes[1]: name"),
        ("--position-events 3,3", "position_events"),
    ] {
        let command = format!("line set {line} --token-events false {flags}");
        let error = refused(cli, &command, "bad_request").await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(names), "{command}: {error}");
        let said = cli.run_as_text(&words(&command)).await?;
        ensure!(
            said.code == 1 && said.lines.is_empty(),
            "{command}: {said:?}"
        );
        let one = said.stderr.trim_end();
        ensure!(
            one.starts_with("error: ") && one.contains(names) && !one.contains('\n'),
            "{command}: {said:?}"
        );
    }
    for flags in [
        "--seats many",
        "--seats 0",
        "--queue-limit 10000001",
        "--call-ahead 10000001",
        "--position-cap 0",
        "--position-events 3,0",
        "--quota 0",
        "--quota 5 --standby-percent 1001",
        "--lane a --lane b:boost=8d",
        "--lane a:limit=10000001",
        "--claim-timeout 99ms",
        "--checkout-max 604800001ms",
        "--seats -1",
        "--phase shut",
        "--admission-rate 5",
        "--admission-rate 0/5",
        "--admission-rate 1/0",
        "--admission-rate 5/x",
        "--lane",
        "--lane a.b",
        "--lane a:boost=10",
        "--lane a:weight=2",
        "--lane a:limit=-1",
        "--label =",
        "--standby-percent 5",
        "--release-on-claim maybe",
        "--unset seats",
        "--unset nonsense",
        "--phase open --unset phase",
        "--no-such-setting 1",
        "--if-version x --seats 2",
    ] {
        wrong_usage(cli, &format!("line set {line} {flags}")).await?;
    }
    let after = done(cli, "line show cli-bad").await?;
    for field in ["settings", "settings_version", "version"] {
        ensure!(after[field] == before[field], "{after}");
    }
    Ok(())
}

/// Exit code 2, and the first line says why.
async fn wrong_usage(cli: &Cli, command: &str) -> Result<()> {
    let said = cli.run_as_text(&words(command)).await?;
    ensure!(
        said.code == 2 && said.lines.is_empty(),
        "{command}: {said:?}"
    );
    ensure!(said.stderr.starts_with("error: "), "{command}: {said:?}");
    Ok(())
}

async fn refused_naming(api: &Api, line: &str, op: &str, body: Value, names: &str) -> Result<()> {
    let error = api.admin_refused(line, op, body.clone(), Code::BadRequest);
    let error = error.await?;
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains(names),
        "{op} {body}: does not name {names}: {error}"
    );
    Ok(())
}

/// Nothing has changed, and the line lives.
async fn unchanged(api: &Api, line: &str, before: &Value, first: &Value) -> Result<()> {
    let after = show(api, line).await?;
    for field in ["settings", "settings_version", "version", "counts"] {
        ensure!(after[field] == before[field], "{before} has become {after}");
    }
    super::serve(api, line, first).await?;
    let next = api.enter(line, "b").await?;
    ensure!(next["state"] == "admitted", "{next}");
    ensure!(
        number(&next, "token")? == number(first, "token")? + 1,
        "{next}"
    );
    Ok(())
}
