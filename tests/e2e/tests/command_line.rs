//! Every command of `nowserving` with `--json`: the fields of its answer, and its exit code.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{CLOCKS_APART_MS, Cli, Running, eventually, free_port, number};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(15);
const REFUSED: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;

/// The fields of every status; some states have more.
const STATUS: &str =
    "line incarnation lane token state admitted_through poll_after_ms version at_ms";
const BOARD: &str = "line incarnation version at_ms phase seats admitted in_checkout lanes";
const LANE: &str = "lane next_token done_through admitted_through accepts_through waiting";
const LINE: &str = "line incarnation version settings_version created_at_ms settings board counts";
const SETTINGS: &str = "seats queue_limit waiting_idle_timeout_ms claim_timeout_ms \
     checkout_timeout_ms checkout_max_ms token_events labels";

/// `line create|show|set|list|delete` and `cluster status`.
pub async fn operators(cli: &Cli) -> Result<()> {
    let made = done(
        cli,
        "line create cli-ops --seats 2 --queue-limit 5 --claim-timeout 60s \
         --waiting-idle-timeout 50s --checkout-timeout 70s --checkout-max 80s \
         --token-events false --label test=cli --label city=Taipei",
    )
    .await?;
    line(&made)?;
    let settings = &made["settings"];
    ensure!(settings["labels"]["city"] == "Taipei", "{settings}");
    ensure!(settings["token_events"] == false, "{settings}");
    for (name, value) in [
        ("seats", 2),
        ("queue_limit", 5),
        ("claim_timeout_ms", 60_000),
        ("waiting_idle_timeout_ms", 50_000),
        ("checkout_timeout_ms", 70_000),
        ("checkout_max_ms", 80_000),
    ] {
        ensure!(settings[name] == value, "{name}: {settings}");
    }

    let version = number(&made, "settings_version")?;
    let set = format!("line set cli-ops --seats 3 --unset labels --if-version {version}");
    let changed = done(cli, &set).await?;
    line(&changed)?;
    ensure!(changed["settings"]["seats"] == 3, "{changed}");
    ensure!(changed["settings"]["labels"] == serde_json::json!({}));
    refused(cli, &set, "version_conflict").await?;
    ensure!(done(cli, "line show cli-ops").await?["settings"] == changed["settings"]);
    list(cli).await?;

    done(cli, "enter cli-ops --key a").await?;
    refused(cli, "line delete cli-ops", "line_not_empty").await?;
    let deleted = done(cli, "line delete cli-ops --force").await?;
    has(&deleted, "line deleted remaining")?;
    ensure!(deleted["deleted"] == true && deleted["remaining"] == 0);
    refused(cli, "line show cli-ops", "line_not_found").await?;
    cluster(cli).await
}

/// By label, and page by page.
async fn list(cli: &Cli) -> Result<()> {
    for nth in 1..=3 {
        let create = "--seats 1 --queue-limit 0 --label test=cli-list";
        done(cli, &format!("line create cli-list-{nth} {create}")).await?;
    }
    for (flags, names, next) in [
        (
            "--limit 2",
            &["cli-list-1", "cli-list-2"][..],
            Value::from("cli-list-2"),
        ),
        ("--after cli-list-2", &["cli-list-3"], Value::Null),
    ] {
        // The node that answers may apply the newest change a moment later.
        let page = eventually("the lines are listed", PATIENCE, async || {
            let page = done(cli, &format!("line list --label test=cli-list {flags}")).await?;
            let lines = page["lines"].as_array().context("lines")?;
            let is_whole = lines.iter().map(|one| &one["line"]).eq(names.iter());
            ensure!(is_whole && page["next"] == next, "{page}");
            Ok(Some(page))
        })
        .await?;
        has(&page, "lines next")?;
        for one in page["lines"].as_array().context("lines")? {
            has(
                one,
                "line incarnation version phase seats queue_limit waiting admitted in_checkout labels",
            )?;
        }
    }
    Ok(())
}

async fn cluster(cli: &Cli) -> Result<()> {
    let status = eventually("all nodes live", PATIENCE, async || {
        let status = done(cli, "cluster status").await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        let all_live = nodes.iter().all(|node| node["alive"] == true);
        Ok(all_live.then_some(status))
    })
    .await?;
    has(&status, "cluster nodes shards lines answered_by")?;
    let nodes = status["nodes"].as_array().context("nodes")?;
    ensure!(nodes.len() == 3, "{status}");
    for node in nodes {
        has(node, "id alive leads metrics_addr version")?;
    }
    let shards = status["shards"].as_array().context("shards")?;
    ensure!(shards.len() == 16, "{status}");
    for shard in shards {
        has(shard, "shard leader term applied committed")?;
    }
    Ok(())
}

/// `enter|find|status|claim|renew|complete|leave|info`.
pub async fn users(cli: &Cli) -> Result<()> {
    let create = "line create cli-use --seats 1 --queue-limit 5 --claim-timeout 1h";
    done(cli, create).await?;
    let first = done(cli, "enter cli-use --key a --lane normal").await?;
    has(&first, STATUS)?;
    has(&first, "ticket expires_at_ms entered_at_ms")?;
    ensure!(first["token"] == 1 && first["state"] == "admitted");
    let again = done(cli, "enter cli-use --key a").await?;
    ensure!(again["ticket"] == first["ticket"], "{again}");
    // Without a key: each run is another visit.
    let second = done(cli, "enter cli-use --anonymous").await?;
    has(&second, STATUS)?;
    has(
        &second,
        "ticket position ahead eta_ms eta_p90_ms call_ahead",
    )?;
    ensure!(second["token"] == 2 && second["position"] == 1, "{second}");
    let found = done(cli, "find cli-use --key a").await?;
    ensure!(found["ticket"] == first["ticket"], "{found}");
    refused(cli, "find cli-use --key nobody", "token_not_found").await?;

    let ticket = first["ticket"].as_str().context("ticket")?;
    let waiting = second["ticket"].as_str().context("ticket")?;
    let by_key = done(cli, "status cli-use --key a").await?;
    ensure!(by_key["token"] == first["token"], "{by_key}");
    refused(cli, "status cli-use --key nobody", "token_not_found").await?;
    for consistency in ["leader", "linearizable", "local"] {
        let words = format!("status cli-use {waiting} --consistency {consistency}");
        let status = done(cli, &words).await?;
        has(&status, STATUS)?;
        ensure!(status["state"] == "waiting", "{status}");
        let info = done(cli, &format!("info cli-use --consistency {consistency}")).await?;
        board(&info)?;
        has(&info["settings"], SETTINGS.trim_end_matches(" labels"))?;
    }
    let seen = done(cli, &format!("seen cli-use {ticket} {waiting} nonsense")).await?;
    has(&seen, "line incarnation version at_ms poll_after_ms")?;
    ensure!(
        seen["seen"] == 2 && seen["gone"] == json!([]) && seen["invalid"] == json!([2]),
        "{seen}"
    );
    refused(cli, &format!("claim cli-use {waiting}"), "not_admitted").await?;
    refused(cli, &format!("complete cli-use {ticket}"), "not_claimed").await?;
    checkout(cli, ticket, waiting).await
}

async fn checkout(cli: &Cli, ticket: &str, waiting: &str) -> Result<()> {
    let claimed = done(cli, &format!("claim cli-use {ticket}")).await?;
    has(&claimed, STATUS)?;
    has(&claimed, "epoch expires_at_ms")?;
    ensure!(claimed["state"] == "in_checkout", "{claimed}");
    let epoch = number(&claimed, "epoch")?;
    let renewed = done(cli, &format!("renew cli-use {ticket} --epoch {epoch}")).await?;
    has(&renewed, STATUS)?;
    let (first, later) = (
        number(&claimed, "expires_at_ms")?,
        number(&renewed, "expires_at_ms")?,
    );
    ensure!(
        later + CLOCKS_APART_MS >= first,
        "{renewed} after {claimed}"
    );
    let stale = format!("complete cli-use {ticket} --epoch {}", epoch + 1);
    refused(cli, &stale, "epoch_stale").await?;
    let complete = format!("complete cli-use {ticket} --epoch {epoch}");
    let completed = done(cli, &complete).await?;
    has(&completed, STATUS)?;
    ensure!(completed["reason"] == "completed" && completed["epoch"] == epoch);

    let left = done(cli, &format!("leave cli-use {waiting}")).await?;
    has(&left, STATUS)?;
    ensure!(
        left["state"] == "gone" && left["reason"] == "left",
        "{left}"
    );
    let gone = refused(cli, &format!("claim cli-use {waiting}"), "token_gone").await?;
    ensure!(gone["reason"] == "left", "{gone}");
    Ok(())
}

/// `watch`: boards until it is interrupted; with a ticket, its place until it is gone.
pub async fn watch(cli: &Cli) -> Result<()> {
    done(cli, "line create cli-watch --seats 1 --queue-limit 5").await?;
    let mut boards = cli.start(&words("watch cli-watch")).await?;
    let mut version = 0;
    let mut ticket = String::new();
    for nth in 0..3 {
        let update = boards.next().await?.context("watch has ended")?;
        board(&update)?;
        has(&update, "gap")?;
        ensure!(number(&update, "version")? > version, "{update}");
        version = number(&update, "version")?;
        // Only now: the change must come between the first board and the next.
        let entered = done(cli, &format!("enter cli-watch --key k{nth}")).await?;
        if nth == 1 {
            entered["ticket"]
                .as_str()
                .context("ticket")?
                .clone_into(&mut ticket);
        }
    }
    let pid = boards.child.id().context("watch has ended")?;
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    kill_process(pid, Signal::INT)?;
    // Earlier output may still come; then it ends.
    while boards.next().await?.is_some() {}
    let ended = boards.child.wait().await?;
    ensure!(!matches!(ended.code(), Some(1..=3)), "an error: {ended}");

    let mut place = cli
        .start(&["watch", "cli-watch", "--ticket", &ticket])
        .await?;
    let first = place.next().await?.context("watch has ended")?;
    has(&first, STATUS)?;
    ensure!(
        first["state"] == "waiting" && first["position"] == 1,
        "{first}"
    );
    done(cli, &format!("leave cli-watch {ticket}")).await?;
    let mut last = first;
    while let Some(status) = place.next().await? {
        last = status;
    }
    ensure!(
        last["state"] == "gone" && last["reason"] == "left",
        "{last}"
    );
    ensure!(place.child.wait().await?.success());
    watched_events(cli).await
}

/// `watch --events`: what happens in the line, and to the token that is followed.
async fn watched_events(cli: &Cli) -> Result<()> {
    let create =
        "line create cli-events --seats 1 --queue-limit 2 --position-events 1 --callback-limit 9";
    done(cli, create).await?;
    let mut tickets = Vec::new();
    for key in ["ann", "bob", "cat"] {
        let entered = done(cli, &format!("enter cli-events --key {key}")).await?;
        let ticket = entered["ticket"].as_str().context("ticket")?;
        tickets.push(ticket.to_owned());
    }
    let mut line = cli.start(&words("watch cli-events --events")).await?;
    let mut token = cli
        .start(&["watch", "cli-events", "--events", "--ticket", &tickets[2]])
        .await?;
    // Each has subscribed once it prints.
    for watch in [&mut line, &mut token] {
        watch.next().await?.context("watch has ended")?;
    }
    done(cli, "callback cli-events --key dan").await?;
    done(cli, &format!("leave cli-events {}", tickets[1])).await?;
    let [told, room] = first_of(&mut token, ["position", "room"]).await?;
    ensure!(told["token"] == 3 && told["position"] == 1, "{told}");
    let [also] = first_of(&mut line, ["room"]).await?;
    ensure!(room["keys"] == json!(["dan"]) && also == room, "{room}");
    done(cli, &format!("leave cli-events {}", tickets[2])).await?;
    while token.next().await?.is_some() {}
    ensure!(token.child.wait().await?.success());
    Ok(())
}

/// The first event of each of these kinds. They come in any order, between boards and places.
async fn first_of<const N: usize>(watch: &mut Running, kinds: [&str; N]) -> Result<[Value; N]> {
    let mut found = [const { Value::Null }; N];
    while found.contains(&Value::Null) {
        let printed = watch.next().await?.context("watch has ended")?;
        let nth = kinds.iter().position(|kind| printed["event"] == *kind);
        if let Some(nth) = nth {
            found[nth] = printed;
        }
    }
    Ok(found)
}

/// Exit codes. Refused: 1. Wrong usage: 2. No node answers: 3.
pub async fn errors(cli: &Cli) -> Result<()> {
    for (command, code) in [
        ("enter cli-nowhere --key a", "line_not_found"),
        ("info cli-nowhere", "line_not_found"),
        ("watch cli-nowhere", "line_not_found"),
        ("line set cli-nowhere --seats 1", "line_not_found"),
        ("line delete cli-nowhere", "line_not_found"),
        ("status cli-nowhere nonsense", "ticket_invalid"),
    ] {
        refused(cli, command, code).await?;
    }
    done(cli, "line create cli-full --seats 1 --queue-limit 0").await?;
    for command in [
        "info cli-fulll",
        "line show cli-fulll",
        "find cli-fulll --key a",
    ] {
        let names = "there is no line cli-fulll; the nearest: cli-full";
        eventually("the nearest lines are named", PATIENCE, async || {
            // The node that answers may apply the newest change a moment later.
            let error = refused(cli, command, "line_not_found").await?;
            let message = error["message"].as_str().context("message")?;
            ensure!(message.starts_with(names), "{error}");
            Ok(Some(()))
        })
        .await?;
    }
    refused(
        cli,
        "line create cli-full --seats 1 --queue-limit 0",
        "line_exists",
    )
    .await?;
    done(cli, "enter cli-full --key a").await?;
    let full = refused(cli, "enter cli-full --key b", "line_full").await?;
    number(&full, "retry_after_ms")?;

    let bad_name = cli.run(&words("info no.such.name")).await?;
    bad_name.failed(USAGE, "bad_request")?;
    for (command, advice) in [
        (
            "line set cli-full --seats 0",
            "to stop admitting: --phase paused",
        ),
        (
            "line create cli-bad --seats 1 --queue-limit 10000001",
            "--queue-limit <N>': must be 0 to 10000000",
        ),
        (
            "line set cli-full --claim-timeout 120000",
            "--claim-timeout <TIME>': a duration with its unit, such as 250ms",
        ),
        (
            "line set cli-full --claim-timeout 8d",
            "--claim-timeout <TIME>': must be 100ms to 7d",
        ),
    ] {
        let error = cli
            .run(&words(command))
            .await?
            .failed(USAGE, "bad_request")?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(advice), "{command}: {error}");
    }
    for nonsense in ["", "enter", "line set cli-full", "nonsense"] {
        let said = cli.run(&words(nonsense)).await?;
        ensure!(said.code == USAGE, "{nonsense:?}: {said:?}");
    }

    let nobody = Cli::new(format!("nats://127.0.0.1:{}", free_port()?));
    let said = nobody.run(&words("info cli-full --timeout 500ms")).await?;
    said.failed(UNREACHABLE, "unavailable")?;
    // NATS is there, and no node of this name.
    let strangers = words("info cli-full --prefix nobody --timeout 500ms");
    let said = cli.run(&strangers).await?;
    said.failed(UNREACHABLE, "unavailable")?;
    Ok(())
}

/// A command line split as by a shell.
pub fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().collect()
}

/// Runs a command that must succeed.
pub async fn done(cli: &Cli, command: &str) -> Result<Value> {
    let said = cli.run(&words(command)).await?;
    said.done().with_context(|| command.to_owned())
}

/// Runs a command that the cluster refuses.
pub async fn refused(cli: &Cli, command: &str, code: &str) -> Result<Value> {
    let said = cli.run(&words(command)).await?;
    said.failed(REFUSED, code)
        .with_context(|| command.to_owned())
}

fn has(value: &Value, fields: &str) -> Result<()> {
    for field in fields.split_whitespace() {
        ensure!(value.get(field).is_some(), "no {field} in {value}");
    }
    Ok(())
}

fn board(value: &Value) -> Result<()> {
    has(value, BOARD)?;
    has(&value["lanes"][0], LANE)
}

fn line(value: &Value) -> Result<()> {
    has(value, LINE)?;
    has(&value["settings"], SETTINGS)?;
    has(&value["counts"], "issued waiting admitted in_checkout gone")?;
    board(&value["board"])
}
