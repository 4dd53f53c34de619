//! Every error code that a client can cause in a healthy cluster. (Without a quorum: see
//! `unreachable_leader`. `line_closed` while a large line is being deleted: see `large_lines`.
//! `overloaded`, `not_leader`, `outcome_unknown`: see `bad_luck`.)

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

/// Causes them one after the other.
pub async fn every_error(api: Api, line: &str) -> Result<()> {
    let settings = json!({"seats": 1, "queue_limit": 2});
    api.admin(line, "create", settings.clone()).await?;
    api.admin_refused(line, "create", settings, Code::LineExists)
        .await?;

    let mut tickets = Vec::new();
    for key in ["a", "b", "c"] {
        tickets.push(api.enter(line, key).await?["ticket"].clone());
    }
    nothing_there(&api, line, &tickets[0]).await?;
    full(&api, line).await?;
    wrong_state(&api, line, &tickets).await?;
    gone(&api, line, &tickets).await?;
    unknown_operations(&api, line).await?;

    api.admin_refused(line, "delete", json!({}), Code::LineNotEmpty)
        .await?;
    Ok(())
}

async fn nothing_there(api: &Api, line: &str, ticket: &Value) -> Result<()> {
    let nowhere = "no-such-line";
    api.refused(nowhere, "enter", json!({"key": "a"}), Code::LineNotFound)
        .await?;
    api.refused(nowhere, "info", json!({}), Code::LineNotFound)
        .await?;
    api.refused(nowhere, "find", json!({"key": "a"}), Code::LineNotFound)
        .await?;
    for op in ["show", "configure", "delete"] {
        api.admin_refused(nowhere, op, json!({}), Code::LineNotFound)
            .await?;
    }
    api.refused(
        line,
        "status",
        json!({"key": "nobody"}),
        Code::TokenNotFound,
    )
    .await?;
    for (body, names) in [
        (json!({}), "ticket"),
        (json!({"ticket": ticket, "key": "a"}), "key"),
        (json!({"key": "x".repeat(129)}), "key"),
    ] {
        let error = api.refused(line, "status", body, Code::BadRequest).await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.starts_with(names), "{error}");
    }
    api.refused(line, "find", json!({"key": "nobody"}), Code::TokenNotFound)
        .await?;
    // The ticket is checked first: it names its line.
    for op in ["status", "claim", "complete", "leave"] {
        api.refused(nowhere, op, json!({"ticket": ticket}), Code::TicketInvalid)
            .await?;
    }
    Ok(())
}

async fn full(api: &Api, line: &str) -> Result<()> {
    let error = api
        .refused(line, "enter", json!({"key": "d"}), Code::LineFull)
        .await?;
    ensure!(number(&error, "retry_after_ms")? > 0, "{error}");
    // A live key is answered all the same.
    ensure!(api.enter(line, "b").await?["token"] == 2);
    Ok(())
}

async fn wrong_state(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let (seated, waiting) = (&tickets[0], &tickets[1]);
    api.refused(line, "claim", json!({"ticket": waiting}), Code::NotAdmitted)
        .await?;
    api.refused(
        line,
        "complete",
        json!({"ticket": waiting}),
        Code::NotAdmitted,
    )
    .await?;
    api.refused(
        line,
        "renew",
        json!({"ticket": waiting, "epoch": 1}),
        Code::NotAdmitted,
    )
    .await?;
    api.refused(
        line,
        "complete",
        json!({"ticket": seated}),
        Code::NotClaimed,
    )
    .await?;
    api.refused(
        line,
        "renew",
        json!({"ticket": seated, "epoch": 1}),
        Code::NotClaimed,
    )
    .await?;

    let epoch = number(
        &api.ok(line, "claim", json!({"ticket": seated})).await?,
        "epoch",
    )?;
    for wrong in [epoch - 1, epoch + 1] {
        let body = json!({"ticket": seated, "epoch": wrong});
        api.refused(line, "renew", body.clone(), Code::EpochStale)
            .await?;
        api.refused(line, "complete", body, Code::EpochStale)
            .await?;
    }
    // Entering changes the line's version, not its settings: only a change of those conflicts.
    let before = number(&api.admin(line, "show", json!({})).await?, "version")?;
    api.enter(line, "a").await?;
    api.admin(
        line,
        "configure",
        json!({"if_version": before, "queue_limit": 3}),
    )
    .await?;
    let stale = json!({"if_version": before, "seats": 1});
    api.admin_refused(line, "configure", stale, Code::VersionConflict)
        .await?;
    Ok(())
}

async fn gone(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    api.ok(line, "leave", json!({"ticket": tickets[2]})).await?;
    for (op, body) in [
        ("claim", json!({"ticket": tickets[2]})),
        ("renew", json!({"ticket": tickets[2], "epoch": 1})),
        ("complete", json!({"ticket": tickets[2]})),
    ] {
        let error = api.refused(line, op, body, Code::TokenGone).await?;
        ensure!(error["reason"] == "left", "{op}: {error}");
    }
    api.ok(line, "complete", json!({"ticket": tickets[0]}))
        .await?;
    let error = api
        .refused(
            line,
            "leave",
            json!({"ticket": tickets[0]}),
            Code::TokenGone,
        )
        .await?;
    ensure!(error["reason"] == "completed", "{error}");
    Ok(())
}

async fn unknown_operations(api: &Api, line: &str) -> Result<()> {
    let error = api
        .refused(line, "teleport", json!({}), Code::BadRequest)
        .await?;
    ensure!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("teleport")),
        "{error}"
    );
    api.admin_refused(line, "teleport", json!({}), Code::BadRequest)
        .await?;
    Ok(())
}
