//! Changes of many settings at once, while the leader dies: all of them or none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cluster, Reply, eventually, number};
use serde_json::{Value, json};

use super::show;
use crate::crash::insist;

const LINE: &str = "changes";
const ROUNDS: u64 = 4;
const WORKERS: usize = 4;

/// The settings of a round: each differs from those of every other, and seats are only added.
fn settings(round: u64) -> Value {
    json!({
        "seats": 3 + round,
        "queue_limit": 1_000_000 + round,
        "claim_timeout_ms": 100_000 + round,
        "admission_rate": {"per_second": 200 + round, "burst": 10 + round},
        "lanes": [
            {"name": "normal"}, {"name": "vip", "boost_ms": 1_000 + round, "queue_limit": 5_000 + round},
        ],
        "call_ahead": round,
        "quota": {"total": 1_000_000 + round, "standby_percent": round},
        "position_cap": 1_000 + round,
        "labels": {"round": round.to_string()},
    })
}

/// kill -9 of the leader with a change on its way, round by round, while tokens come and go.
pub async fn all_or_nothing(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let made = api.admin(LINE, "create", settings(0)).await?;
    let (over, tokens) = (Cell::new(false), RefCell::new(BTreeSet::new()));
    let people = try_join_all((0..WORKERS).map(|worker| come_and_go(&api, worker, &over, &tokens)));
    let changes = async {
        let mut now = made;
        for round in 1..=ROUNDS {
            now = change(cluster, round, now).await?;
        }
        over.set(true);
        anyhow::Ok(now)
    };
    let (_, now) = tokio::try_join!(people, changes)?;
    let before = show(&api, LINE).await?;
    ensure!(before["settings"] == now["settings"], "{before}");

    super::restart_all(cluster).await?;
    let after = show(&api, LINE).await?;
    for field in ["settings", "settings_version", "incarnation"] {
        ensure!(after[field] == before[field], "{before} has become {after}");
    }
    let issued = number(&after["counts"], "issued")?;
    ensure!(issued >= tokens.borrow().len() as u64, "{after}");
    held_within_seats(&after["board"])
}

/// One round: the old or the new settings are in force, and the answer fits.
async fn change(cluster: &mut Cluster, round: u64, old: Value) -> Result<Value> {
    let api = cluster.api().clone();
    let leader = cluster.leader_of(LINE).await?;
    let subject = format!("nowserving.admin.line.{LINE}.configure");
    let body = serde_json::to_vec(&settings(round))?;
    let asking = api.within(1_000);
    let ask = asking.ask_subject(&subject, body);
    let kill = async {
        // From before it is written until after it is answered.
        for _ in 0..(round - 1) * 4 {
            api.settle().await?;
        }
        cluster.process(leader)?.kill().await?;
        anyhow::Ok(())
    };
    let (reply, killed) = tokio::join!(ask, kill);
    killed?;
    let outcome = outcome(reply);

    let now = eventually("another leads", Duration::from_secs(15), async || {
        show(&api, LINE).await.map(Some)
    })
    .await?;
    eprintln!(
        "round {round}: {outcome:?}, seats {}",
        now["settings"]["seats"]
    );
    let is_new = now["settings"]["seats"] == 3 + round;
    if is_new {
        holds(&now, round)?;
        ensure!(
            outcome != Outcome::Nothing,
            "the answer was that nothing happened"
        );
    } else {
        ensure!(now["settings"] == old["settings"], "{old} has become {now}");
        ensure!(now["settings_version"] == old["settings_version"], "{now}");
        ensure!(outcome != Outcome::Done, "the answer was that it is done");
    }
    held_within_seats(&now["board"])?;
    // On any leader: the old one is back, and leads again.
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    let back = show(&api, LINE).await?;
    ensure!(
        back["settings"] == now["settings"],
        "{now} has become {back}"
    );
    Ok(back)
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Done,
    Nothing,
    Unknown,
}

fn outcome(reply: Result<Reply>) -> Outcome {
    match reply {
        Ok(reply) if reply.code.is_none() => Outcome::Done,
        Ok(reply) if reply.passes() => Outcome::Nothing,
        _ => Outcome::Unknown,
    }
}

/// All of a round's settings are in force.
fn holds(line: &Value, round: u64) -> Result<()> {
    let wanted = settings(round);
    for (name, value) in wanted.as_object().context("settings")? {
        let found = &line["settings"][name];
        let same = match name.as_str() {
            // Shown with all parts of each.
            "lanes" => {
                found[0]["name"] == "normal"
                    && found[1]["boost_ms"] == 1_000 + round
                    && found[1]["queue_limit"] == 5_000 + round
            }
            "admission_rate" => {
                found["per_second"].as_f64() == value["per_second"].as_f64()
                    && found["burst"] == value["burst"]
            }
            _ => found == value,
        };
        ensure!(same, "{name} of round {round}, want {value}: {line}");
    }
    Ok(())
}

fn held_within_seats(board: &Value) -> Result<()> {
    let held = number(board, "admitted")? + number(board, "in_checkout")?;
    ensure!(held <= number(board, "seats")?, "{board}");
    Ok(())
}

/// Visits until it is over; no number may be given twice.
async fn come_and_go(
    api: &Api,
    worker: usize,
    over: &Cell<bool>,
    tokens: &RefCell<BTreeSet<(String, u64)>>,
) -> Result<()> {
    let api = api.within(1_000);
    for nth in 0.. {
        if over.get() {
            break;
        }
        let lane = ["normal", "vip"][nth % 2];
        let body = json!({"key": format!("{worker}-{nth}"), "lane": lane});
        let status = insist(&api, LINE, "enter", &body).await?;
        let token = (lane.to_owned(), number(&status, "token")?);
        let fresh = tokens.borrow_mut().insert(token);
        ensure!(fresh && status["lane"] == lane, "given twice: {status}");
        let ticket = json!({"ticket": status["ticket"]});
        if status["state"] == "admitted" {
            insist(&api, LINE, "claim", &ticket).await?;
            insist(&api, LINE, "complete", &ticket).await?;
        } else if nth % 3 == 0 {
            insist(&api, LINE, "leave", &ticket).await?;
        }
        let info = insist(&api, LINE, "info", &json!({})).await?;
        held_within_seats(&info)?;
    }
    Ok(())
}
