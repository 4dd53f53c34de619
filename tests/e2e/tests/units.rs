//! Baskets: what a seat reserves of the quota, what a visit used, and what is free again; by the command and by JSON.

use anyhow::{Result, ensure};
use nowserving_e2e::{Api, Cli};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::command_line::done;

pub async fn of_a_quota(api: &Api, cli: &Cli) -> Result<()> {
    let line = "units-baskets";
    let words = format!(
        "line create {line} --seats 2 --queue-limit 9 --quota 6 --standby-percent 100 --quota-per-visit 4"
    );
    let made = done(cli, &words).await?;
    ensure!(made["settings"]["quota"]["per_visit"] == 4, "{made}");
    let mut tickets = Vec::new();
    for key in ["a", "b", "c"] {
        tickets.push(api.enter(line, key).await?["ticket"].clone());
    }
    let status = api.status(line, &tickets[0]).await?;
    ensure!(status["units"] == 4, "{status}");
    let last = api.status(line, &tickets[1]).await?;
    ensure!(last["units"] == 2, "what is left: {last}");
    ensure!(left(cli, line).await? == 0);

    wrong(api, line, &tickets).await?;
    let first = json!({"ticket": tickets[0], "units": 3});
    api.ok(line, "claim", json!({"ticket": tickets[0]})).await?;
    let gone = api.ok(line, "complete", first).await?;
    ensure!(gone["reason"] == "completed", "{gone}");
    // A repetition has the first answer, and uses nothing more.
    let again = json!({"ticket": tickets[0], "units": 4});
    let again = api.ok(line, "complete", again).await?;
    ensure!(again["reason"] == "completed", "{again}");
    let third = api.status(line, &tickets[2]).await?;
    ensure!((&third["state"], &third["units"]) == (&json!("admitted"), &json!(1)));

    // By default all that the seat reserves: here two of the six.
    api.ok(line, "claim", json!({"ticket": tickets[1]})).await?;
    api.ok(line, "complete", json!({"ticket": tickets[1]}))
        .await?;
    let ticket = tickets[2].as_str().unwrap_or_default();
    done(cli, &format!("claim {line} {ticket}")).await?;
    let gone = done(cli, &format!("complete {line} {ticket} --units 1")).await?;
    ensure!(gone["reason"] == "completed", "{gone}");
    api.refused(line, "enter", json!({"key": "d"}), Code::SoldOut)
        .await?;
    journaled(cli, line).await
}

/// Every wrong `units`, and a wrong `per_visit`.
async fn wrong(api: &Api, line: &str, tickets: &[Value]) -> Result<()> {
    let [first, _, waiting] = tickets else {
        anyhow::bail!("three tickets")
    };
    let complete = |ticket: &Value, units: Value| json!({"ticket": ticket, "units": units});
    let early = complete(first, json!(1));
    api.refused(line, "complete", early, Code::NotClaimed)
        .await?;
    let early = complete(waiting, json!(1));
    api.refused(line, "complete", early, Code::NotAdmitted)
        .await?;
    api.ok(line, "claim", json!({"ticket": first})).await?;
    for (units, words) in [
        (json!(5), "units: at most 4: what its seat reserves"),
        (json!(1_001), "units"),
        (json!(-1), "units"),
        (json!("two"), "units"),
        (json!(1.5), "units"),
    ] {
        let body = complete(first, units);
        let refused = api
            .refused(line, "complete", body, Code::BadRequest)
            .await?;
        let message = refused["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{words}: {refused}");
    }
    for per_visit in [json!(0), json!(1_001), json!("many")] {
        let quota = json!({"quota": {"total": 6, "per_visit": per_visit}});
        let refused = api
            .admin_refused(line, "configure", quota, Code::BadRequest)
            .await?;
        let message = refused["message"].as_str().unwrap_or_default();
        ensure!(message.contains("per_visit"), "{refused}");
    }
    Ok(())
}

async fn left(cli: &Cli, line: &str) -> Result<u64> {
    let shown = done(cli, &format!("line show {line}")).await?;
    nowserving_e2e::number(&shown, "quota_left")
}

/// The journal says what each visit used.
async fn journaled(cli: &Cli, line: &str) -> Result<()> {
    let journal = done(cli, &format!("line journal {line}")).await?;
    let entries = journal["entries"].as_array().into_iter().flatten();
    let used: Vec<_> = entries
        .filter_map(|entry| entry["units"].as_u64())
        .collect();
    ensure!(used == [3, 2, 1], "{journal}");
    Ok(())
}
