//! A draw at the opening: by the command and by JSON, and through the death of its leader.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, eventually, number};
use nowserving_line::{Hash, LaneName, Lots, commitment};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::command_line::done;

const PATIENCE: Duration = Duration::from_secs(60);
/// Beyond the last event of a draw.
const QUIET: Duration = Duration::from_secs(2);
/// So many are drawn in tens of log entries.
const CROWD: u64 = 30_000;
const ROWS: u64 = 500;

pub async fn by_command(api: &Api, cli: &Cli) -> Result<()> {
    let line = "draws-sale";
    let mut events = api.subscribe(format!("nowserving.event.{line}.>")).await?;
    let words = format!(
        "line create {line} --seats 2 --queue-limit 50 --phase pre_open --opening draw \
         --lane normal --lane vip:limit=5"
    );
    let made = done(cli, &words).await?;
    ensure!(made["settings"]["opening"] == "draw", "{made}");
    let commitment = sealed(cli, line).await?;

    let mut tickets = BTreeMap::new();
    for key in ["a", "b", "c", "d", "e", "f", "g"] {
        let entered = api.enter(line, key).await?;
        ensure!(entered["state"] == "waiting", "{entered}");
        for field in ["position", "ahead", "turn", "eta_ms"] {
            ensure!(entered.get(field).is_none_or(Value::is_null), "{entered}");
        }
        ensure!(entered["held_back_by"]["by"] == "phase", "{entered}");
        tickets.insert(number(&entered, "token")?, entered["ticket"].clone());
    }
    let vip = json!({"key": "v", "lane": "vip"});
    api.ok(line, "enter", vip).await?;
    let board = api.ok(line, "info", json!({})).await?;
    ensure!(board["undrawn"] == true, "{board}");
    ensure!(board["draw"]["state"] == "awaited", "{board}");
    ensure!(board["draw"].get("seed").is_none(), "a secret: {board}");
    wrong(api, cli, line).await?;

    let third = json!({"ticket": tickets[&3]});
    api.ok(line, "leave", third).await?;
    done(cli, &format!("line set {line} --draw-beacon 7-12-40")).await?;
    done(cli, &format!("line open {line}")).await?;
    let shown = eventually("the draw is done", PATIENCE, async || {
        let shown = done(cli, &format!("line draw {line}")).await?;
        Ok((shown["state"] == "done").then_some(shown))
    });
    let shown = shown.await?;
    ensure!(shown["commitment"] == commitment, "{shown}");
    ensure!((&shown["took_part"], &shown["drawn"]) == (&json!(7), &json!(7)));
    ensure!(shown["beacon"] == "7-12-40", "{shown}");
    has_the_numbers_of_its_lots(api, line, &shown, &tickets).await?;
    let counts = &done(cli, &format!("line show {line}")).await?["counts"];
    ensure!(
        (&counts["issued"], &counts["drawn"]) == (&json!(15), &json!(7)),
        "{counts}"
    );
    ensure!(counts["gone"]["moved"] == 0, "{counts}");

    let mut rows = String::new();
    while let Ok(Some(event)) = tokio::time::timeout(QUIET, events.next()).await {
        rows.push_str(std::str::from_utf8(&event.payload)?);
        rows.push('\n');
    }
    is_verified(cli, line, &rows).await
}

/// The hash of the seed, once the leader has brought that in.
async fn sealed(cli: &Cli, line: &str) -> Result<String> {
    eventually("a commitment", PATIENCE, async || {
        let shown = done(cli, &format!("line draw {line}")).await?;
        Ok(shown["commitment"].as_str().map(str::to_owned))
    })
    .await
}

/// Every wrong value of the two settings, and what cannot be done before the draw.
async fn wrong(api: &Api, cli: &Cli, line: &str) -> Result<()> {
    for (change, words) in [
        (json!({"opening": "lottery"}), "opening: "),
        (json!({"opening": 1}), "opening: "),
        (
            json!({"draw_beacon": ""}),
            "draw_beacon: 1 to 128 visible ASCII",
        ),
        (json!({"draw_beacon": " 7"}), "draw_beacon: "),
        (json!({"draw_beacon": "siebzehn ü"}), "draw_beacon: "),
        (json!({"draw_beacon": "7".repeat(129)}), "draw_beacon: "),
        (json!({"draw_beacon": 7}), "draw_beacon: "),
    ] {
        let refused = api
            .admin_refused(line, "configure", change, Code::BadRequest)
            .await?;
        let message = refused["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{words}: {refused}");
    }
    for words in [
        ["line", "set", line, "--opening", "lottery"],
        ["line", "draw", line, "--beacon", "7"],
    ] {
        let refused = cli.run(&words).await?;
        ensure!(refused.code == 2, "{refused:?}");
    }
    let words = ["line", "set", line, "--draw-beacon", ""];
    cli.run(&words).await?.failed(1, "bad_request")?;
    let take = json!({"key": "a"});
    api.admin_refused(line, "take", take, Code::NotAdmitted)
        .await?;
    Ok(())
}

fn hash(shown: &Value, field: &str) -> Result<Hash> {
    let hex = shown[field].as_str().context("hexadecimal digits")?;
    let bytes = (0..hex.len()).step_by(2);
    let bytes = bytes.map(|at| Ok(u8::from_str_radix(&hex[at..at + 2], 16)?));
    let bytes: Vec<u8> = bytes.collect::<Result<_>>()?;
    bytes.try_into().ok().context("32 bytes")
}

/// What the seed makes of each number that took part in the lane `normal`, of which the last one issued is known.
fn drawn(
    shown: &Value,
    incarnation: u64,
    took_part: &[u64],
    last: u64,
) -> Result<BTreeMap<u64, u64>> {
    let seed = hash(shown, "seed")?;
    ensure!(commitment(&seed) == hash(shown, "commitment")?, "{shown}");
    let beacon = shown["beacon"].as_str().unwrap_or_default();
    let lots = Lots::new(&seed, beacon, incarnation);
    let normal = LaneName::default();
    let mut order = took_part.to_vec();
    order.sort_by_key(|token| (lots.lot(&normal, *token), *token));
    Ok(order.into_iter().zip(last + 1..).collect())
}

/// By the tickets from before the draw.
async fn has_the_numbers_of_its_lots(
    api: &Api,
    line: &str,
    shown: &Value,
    tickets: &BTreeMap<u64, Value>,
) -> Result<()> {
    let incarnation = number(&api.ok(line, "info", json!({})).await?, "incarnation")?;
    let took_part: Vec<u64> = tickets.keys().copied().filter(|it| *it != 3).collect();
    let expected = drawn(shown, incarnation, &took_part, 7)?;
    // They tie with the one of the other lane, so theirs goes first.
    for (old, new) in expected {
        let status = api.status(line, &tickets[&old]).await?;
        ensure!(number(&status, "token")? == new, "{old}: {status}");
        let (state, position) = match new {
            8 | 9 => ("admitted", None),
            new => ("waiting", Some(new - 9)),
        };
        ensure!(status["state"] == state, "{old}: {status}");
        ensure!(status["position"].as_u64() == position, "{old}: {status}");
        let again = &status["ticket"];
        ensure!(
            again.is_string() && *again != tickets[&old],
            "a new one: {status}"
        );
    }
    Ok(())
}

async fn is_verified(cli: &Cli, line: &str, rows: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("events.jsonl");
    let verify = async |rows: &str, more: &[&str]| {
        std::fs::write(&file, rows)?;
        let file = file.to_str().context("a path of text")?;
        let words = [&["line", "draw", line, "--verify", file], more].concat();
        cli.run(&words).await
    };
    let good = verify(rows, &["--beacon", "7-12-40"]).await?;
    let said = good.lines.first().context("an answer")?;
    ensure!(good.code == 0 && said["verdict"] == "holds", "{good:?}");
    ensure!(said["took_part"] == 7, "{said}");
    let other = verify(rows, &["--beacon", "1-2-3"]).await?;
    ensure!(other.code == 1 && other.lines[0]["verdict"] == "does_not_hold");
    let without = |words: &str| {
        let rows = rows.lines().filter(|row| !row.contains(words));
        rows.map(|row| format!("{row}\n")).collect::<String>()
    };
    let cut = verify(&without("\"event\":\"entered\""), &[]).await?;
    ensure!(
        cut.code == 1 && cut.lines[0]["verdict"] == "cannot_tell",
        "{cut:?}"
    );
    let none = verify("", &[]).await?;
    none.failed(1, "failed")?;
    Ok(())
}

/// The leader is killed in the midst of a draw of many: it is finished, with the numbers that the seed gives, and nobody is
/// admitted before.
pub async fn over_a_crash(cluster: &mut Cluster) -> Result<()> {
    let line = "draws-crash";
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 3, "queue_limit": CROWD, "phase": "pre_open", "opening": "draw",
        "token_events": false, "waiting_idle_timeout_ms": HOUR_MS, "claim_timeout_ms": HOUR_MS,
    });
    let made = api.admin(line, "create", settings).await?;
    for first in (0..CROWD).step_by(ROWS as usize) {
        let rows = (first..first + ROWS).map(|row| json!({"key": format!("k{}", row + 1)}));
        let rows: Vec<Value> = rows.collect();
        let body = json!({"import_id": "crowd", "first_row": first, "rows": rows});
        api.admin(line, "import", body).await?;
    }
    let leader = cluster.leader_of(line).await?;
    api.admin(line, "configure", json!({"phase": "open"}))
        .await?;
    let drawn_of = async || {
        let seen = api.ok(line, "info", json!({})).await?;
        number(&seen["draw"], "drawn")
    };
    let drawn_before = loop {
        match drawn_of().await? {
            0 => {}
            some => break some,
        }
    };
    cluster.process(leader)?.kill().await?;
    eprintln!("killed with {drawn_before} of {CROWD} drawn");
    let shown = eventually("the draw is done", PATIENCE, async || {
        let shown = api.ok(line, "info", json!({})).await?;
        let undrawn = shown["undrawn"] == true;
        ensure!(
            !undrawn || shown["admitted"] == 0,
            "admitted before: {shown}"
        );
        Ok((!undrawn).then_some(shown))
    });
    let shown = shown.await?;
    ensure!(number(&shown["draw"], "took_part")? == CROWD, "{shown}");
    let took_part: Vec<u64> = (1..=CROWD).collect();
    let incarnation = number(&made, "incarnation")?;
    let expected = drawn(&shown["draw"], incarnation, &took_part, CROWD)?;
    for key in (1..=CROWD).step_by(97) {
        let found = api
            .ok(line, "status", json!({"key": format!("k{key}")}))
            .await?;
        ensure!(number(&found, "token")? == expected[&key], "{key}: {found}");
    }
    let board = api.ok(line, "info", json!({})).await?;
    ensure!(number(&board, "admitted")? == 3, "{board}");
    ensure!(
        number(&board["lanes"][0], "admitted_through")? == CROWD + 3,
        "{board}"
    );
    cluster.start_node(leader).await
}
