//! Every operation of users, and what it answers.

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, CLOCKS_APART_MS, number, pointers};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

/// One line of a few people, through every operation.
pub async fn every_operation(api: Api, line: &str) -> Result<()> {
    api.admin(line, "create", json!({"seats": 2, "queue_limit": 4}))
        .await?;
    let mut tickets = Vec::new();
    for (number, key) in (1..).zip(["a", "b", "c", "d", "e"]) {
        let status = api.enter(line, key).await?;
        ensure!(
            status["line"] == line && status["lane"] == "normal",
            "{status}"
        );
        ensure!(status["token"] == number, "{status}");
        tickets.push(status["ticket"].clone());
        let again = api.enter(line, key).await?;
        ensure!(
            again["token"] == number && again["ticket"] == status["ticket"],
            "{again}"
        );
    }
    enters_and_polls(&api, line, &tickets).await?;
    through_checkout(&api, line, &tickets).await?;
    leaving(&api, line, &tickets).await?;
    seen(&api, line, &tickets).await?;
    info(&api, line).await
}

async fn enters_and_polls(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let admitted = api.status(line, &tickets[0]).await?;
    ensure!(admitted["state"] == "admitted", "{admitted}");
    ensure!(
        number(&admitted, "expires_at_ms")? > number(&admitted, "at_ms")?,
        "{admitted}"
    );
    for absent in [
        "position",
        "ahead",
        "eta_ms",
        "eta_p90_ms",
        "reason",
        "epoch",
    ] {
        ensure!(
            admitted.get(absent).is_none(),
            "{absent} of one admitted: {admitted}"
        );
    }

    for (token, consistency) in [
        (json!({"ticket": tickets[3]}), "leader"),
        (json!({"ticket": tickets[3]}), "linearizable"),
        (json!({"ticket": tickets[3]}), "local"),
        (json!({"key": "d"}), "leader"),
    ] {
        let mut body = token;
        body["consistency"] = consistency.into();
        let waiting = api.ok(line, "status", body).await?;
        ensure!(waiting.get("ticket").is_none(), "{waiting}");
        ensure!(waiting["state"] == "waiting", "{waiting}");
        ensure!(
            waiting["position"] == 2 && waiting["ahead"] == 1,
            "{waiting}"
        );
        ensure!(
            waiting["admitted_through"] == 2 && waiting["call_ahead"] == false,
            "{waiting}"
        );
        for unknown in ["eta_ms", "eta_p90_ms"] {
            ensure!(
                waiting.get(unknown).is_some_and(Value::is_null),
                "{unknown}: {waiting}"
            );
        }
        for absent in ["expires_at_ms", "reason", "epoch", "holes"] {
            ensure!(
                waiting.get(absent).is_none(),
                "{absent} of one waiting: {waiting}"
            );
        }
        // A third of waiting_idle_timeout_ms, half of claim_timeout_ms, by default.
        ensure!(
            (1..=60_000).contains(&number(&waiting, "poll_after_ms")?),
            "{waiting}"
        );
        number(&waiting, "version")?;
    }

    let found = api.ok(line, "find", json!({"key": "d"})).await?;
    ensure!(
        found["token"] == 4 && found["ticket"] == tickets[3],
        "{found}"
    );
    api.refused(line, "find", json!({"key": "nobody"}), Code::TokenNotFound)
        .await?;
    Ok(())
}

async fn through_checkout(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let claimed = api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    ensure!(claimed["state"] == "in_checkout", "{claimed}");
    let epoch = number(&claimed, "epoch")?;
    ensure!(epoch >= 1);
    let again = api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    ensure!(number(&again, "epoch")? == epoch, "{again}");
    // The same deadline: what remains of it only falls.
    ensure!(
        number(&again, "expires_in_ms")? <= number(&claimed, "expires_in_ms")?,
        "{again} after {claimed}"
    );

    let renewed = api
        .ok(line, "renew", json!({"ticket": tickets[0], "epoch": epoch}))
        .await?;
    let (old, new) = (
        number(&claimed, "expires_at_ms")?,
        number(&renewed, "expires_at_ms")?,
    );
    ensure!(
        new + CLOCKS_APART_MS >= old && renewed["state"] == "in_checkout",
        "{renewed} after {claimed}"
    );

    let other = api.ok(line, "claim", json!({"ticket": tickets[1]})).await?;
    ensure!(
        number(&other, "epoch")? > epoch,
        "epochs must grow: {other}"
    );

    for _ in 0..2 {
        let done = api
            .ok(
                line,
                "complete",
                json!({"ticket": tickets[0], "epoch": epoch}),
            )
            .await?;
        ensure!(
            done["state"] == "gone" && done["reason"] == "completed",
            "{done}"
        );
        ensure!(number(&done, "epoch")? == epoch, "{done}");
        let status = api.status(line, &tickets[0]).await?;
        ensure!(
            status["state"] == "gone" && status["reason"] == "completed",
            "{status}"
        );
    }
    // The freed seat went to the first waiting token.
    let next = api.status(line, &tickets[2]).await?;
    ensure!(next["state"] == "admitted", "{next}");
    let behind = api.status(line, &tickets[3]).await?;
    ensure!(behind["position"] == 1, "{behind}");
    Ok(())
}

async fn leaving(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    for _ in 0..2 {
        let left = api.ok(line, "leave", json!({"ticket": tickets[3]})).await?;
        ensure!(
            left["state"] == "gone" && left["reason"] == "left",
            "{left}"
        );
    }
    // A token that leaves while waiting frees no seat: token 5 is the first now, and still waits.
    let behind = api.status(line, &tickets[4]).await?;
    ensure!(
        behind["state"] == "waiting" && behind["position"] == 1,
        "{behind}"
    );
    // One that leaves with a seat does.
    api.ok(line, "leave", json!({"ticket": tickets[2]})).await?;
    let behind = api.status(line, &tickets[4]).await?;
    ensure!(behind["state"] == "admitted", "{behind}");
    // A key whose token is gone enters anew.
    let anew = api.enter(line, "a").await?;
    ensure!(anew["token"] == 6 && anew["ticket"] != tickets[0], "{anew}");
    Ok(())
}

/// 1 is completed, 2 in checkout, 3 and 4 have left, 5 is admitted.
async fn seen(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let mut asked = tickets.to_vec();
    asked.push("no ticket".into());
    let seen = api.ok(line, "seen", json!({"tickets": asked})).await?;
    ensure!(seen["line"] == line && seen["seen"] == 2, "{seen}");
    ensure!(seen["gone"] == json!([0, 2, 3]), "{seen}");
    ensure!(seen["invalid"] == json!([5]), "{seen}");
    ensure!(number(&seen, "poll_after_ms")? > 0, "{seen}");
    number(&seen, "version")?;
    for bad in [
        json!({}),
        json!({"tickets": []}),
        json!({"tickets": tickets[0]}),
        json!({"tickets": vec![&tickets[0]; 257]}),
        json!({"tickets": [tickets[0]], "consistency": "leader"}),
    ] {
        let refused = api.refused(line, "seen", bad, Code::BadRequest).await?;
        let message = refused["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("tickets") || message.contains("`consistency`"),
            "{refused}"
        );
    }
    let one = json!({"tickets": [tickets[0]]});
    api.refused("no-such-line", "seen", one, Code::LineNotFound)
        .await
        .map(drop)
}

async fn info(api: &Api, line: &str) -> Result<()> {
    for consistency in ["leader", "linearizable", "local"] {
        let info = api
            .ok(line, "info", json!({"consistency": consistency}))
            .await?;
        ensure!(info["line"] == line && info["phase"] == "open", "{info}");
        ensure!(info["seats"] == 2, "{info}");
        ensure!(info["settings"]["queue_limit"] == 4, "{info}");
        // 1 completed, 2 in checkout, 3 and 4 left, 5 admitted, 6 waiting. Also with `local`,
        // which may be behind: both routes of this cluster lead to the leader.
        ensure!(info["in_checkout"] == 1 && info["admitted"] == 1, "{info}");
        ensure!(pointers(&info)? == [1, 5, 9, 7], "{info}");
        ensure!(info["lanes"][0]["waiting"] == 1, "{info}");
    }
    Ok(())
}
