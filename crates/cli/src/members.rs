//! The commands that change the nodes of a cluster. Each asks until the cluster accepts the change, and then watches the
//! cluster make it: to interrupt or repeat the command harms nothing.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use nowserving_client::{
    Admin, ChangeMembers, ClusterStatus, Code, DiskId, MembersReply, NodeStatus, Operation,
};
use tokio::time::Instant;

use crate::wait::{self, Display, Left};
use crate::{confirm, tables};
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{NotInTime, Output, WrongUsage};
use nowserving_terminal::{duration, number};

/// How often a refused change is repeated because the leader lags behind the node that answered before: it has not heard yet
/// of the node that asks to be added, or that the last change is made.
const BEHIND_MAX: u32 = 3;
/// A node that asks to be added does so this often.
const ASKS_EVERY: Duration = Duration::from_secs(1);

/// The flags of every change.
#[derive(Debug, Args)]
pub struct Change {
    /// Why the change is made; shown by `cluster changes`.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Asks once, and does not wait until the change is made. The cluster makes it all the same.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait until the change is accepted, and then until it is made. After that the command ends with exit
    /// code 3: a change that was accepted goes on.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration::between(1..=86_400_000))]
    within: u64,
}

/// Adds a node that was started with --join.
#[derive(Debug, Args)]
pub struct AddNode {
    /// The disk of the node, as `cluster status` shows it [default: the only node that asks to be added].
    #[arg(value_parser = disk_id)]
    disk: Option<DiskId>,
    #[command(flatten)]
    change: Change,
}

/// Removes a node.
#[derive(Debug, Args)]
pub struct RemoveNode {
    /// The number of the node.
    #[arg(value_parser = node_number)]
    node: u64,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    change: Change,
}

/// Replaces a node.
#[derive(Debug, Args)]
pub struct ReplaceNode {
    /// The number of the node to replace.
    #[arg(value_parser = node_number)]
    node: u64,
    /// The disk of the node that takes its place, as `cluster status` shows it [default: that of the same
    /// node with its new disk, or of the only node that asks to be added].
    #[arg(value_parser = disk_id)]
    disk: Option<DiskId>,
    #[command(flatten)]
    change: Change,
}

/// Drains a node.
#[derive(Debug, Args)]
pub struct Drain {
    /// The number of the node.
    #[arg(value_parser = node_number)]
    node: u64,
    /// Ends the drain: the node leads its share again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    change: Change,
}

/// Moves leadership.
#[derive(Debug, Args)]
pub struct Transfer {
    /// Numbers of shards, for example 0,3-5; or all.
    #[arg(value_name = "SHARDS")]
    shards: String,
    /// The node to lead them, while it is alive; without it they are spread evenly again. If it only has to catch up, the
    /// command waits for that.
    #[arg(long, value_name = "NODE", value_parser = node_number)]
    to: Option<u64>,
    #[command(flatten)]
    change: Change,
}

/// A value parser for the numbers of nodes.
pub fn node_number(text: &str) -> Result<u64, String> {
    number::between(1..=65_535)(text)
}

fn disk_id(text: &str) -> Result<DiskId, &'static str> {
    text.parse().map_err(|_| {
        "a disk id has 16 hexadecimal digits, as `cluster status` shows them; the node gets its number from the cluster"
    })
}

/// Adds a node.
pub async fn add(
    admin: &Admin,
    args: AddNode,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let disk = match args.disk {
        Some(disk) => disk,
        None => disk_of(admin, Operation::AddNode, None).await?,
    };
    let request = ChangeMembers {
        disk: Some(disk),
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::AddNode,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// Removes a node.
pub async fn remove(
    admin: &Admin,
    args: RemoveNode,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    if !args.yes {
        confirm::ask(&format!("remove node {} for good", args.node), output)?;
    }
    let request = ChangeMembers {
        node: Some(args.node),
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::RemoveNode,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// Replaces a node.
pub async fn replace(
    admin: &Admin,
    args: ReplaceNode,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let disk = match args.disk {
        Some(disk) => disk,
        None => disk_of(admin, Operation::ReplaceNode, Some(args.node)).await?,
    };
    let request = ChangeMembers {
        node: Some(args.node),
        disk: Some(disk),
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::ReplaceNode,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// Drains a node, or ends that.
pub async fn drain(
    admin: &Admin,
    args: Drain,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    if !args.undo {
        leaves_a_leader(&admin.cluster_status().await?, args.node)?;
    }
    let request = ChangeMembers {
        node: Some(args.node),
        drained: Some(!args.undo),
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::Drain,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// Another node can lead: else drained ones go on leading, and the drain never ends.
fn leaves_a_leader(status: &ClusterStatus, drained: u64) -> anyhow::Result<()> {
    let others = status.nodes.iter().filter(|it| it.id != drained);
    let mut why = Vec::new();
    for NodeStatus {
        id,
        alive,
        drained,
        votes_in,
        ..
    } in others
    {
        match (drained, alive, votes_in) {
            (true, ..) => why.push(format!("node {id} is drained")),
            (_, false, _) => why.push(format!("node {id} is silent")),
            (.., 0) => why.push(format!("node {id} has no vote yet")),
            _ => return Ok(()),
        }
    }
    let why = match why.is_empty() {
        true => "there is none".to_owned(),
        false => why.join(", "),
    };
    bail!("no other node can lead: {why}")
}

/// Moves leadership.
pub async fn transfer(
    admin: &Admin,
    args: Transfer,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let count = admin.cluster_status().await?.shards.len() as u32;
    let shards = shards_of(&args.shards, count)?;
    let request = ChangeMembers {
        shards: Some(shards),
        node: args.to,
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::Transfer,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// `all`, or as `cluster status` shows them: `0, 3-5`. There are `count`.
fn shards_of(text: &str, count: u32) -> Result<Vec<u32>, WrongUsage> {
    if text == "all" {
        return Ok((0..count).collect());
    }
    let number = |text: &str| -> Result<u32, WrongUsage> {
        let form = || {
            WrongUsage(format!(
                "SHARDS: {text:?}: numbers and ranges, for example 0,3-5, or all"
            ))
        };
        let shard = text.trim().parse().map_err(|_| form())?;
        match shard < count {
            true => Ok(shard),
            false => Err(WrongUsage(format!(
                "SHARDS: there is no shard {shard}: the last is {}",
                count.saturating_sub(1)
            ))),
        }
    };
    let mut shards = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            let wrong = format!("SHARDS: {part:?}: the first is larger than the last");
            return Err(WrongUsage(wrong));
        }
        shards.extend(first..=last);
    }
    Ok(shards)
}

/// The disk of the node to be added: of the candidate that fits, or of the same change if it is decided already.
async fn disk_of(admin: &Admin, op: Operation, replaced: Option<u64>) -> anyhow::Result<DiskId> {
    for _ in 0..BEHIND_MAX {
        if let Some(disk) = known_disk(admin, op, replaced).await? {
            return Ok(disk);
        }
        // The node that has answered may not have heard it yet.
        tokio::time::sleep(ASKS_EVERY).await;
    }
    let disk = known_disk(admin, op, replaced).await?;
    disk.context("no node asks to be added: start one with `nowserving node --join` first")
}

/// That disk, as far as the node that answers knows.
async fn known_disk(
    admin: &Admin,
    op: Operation,
    replaced: Option<u64>,
) -> anyhow::Result<Option<DiskId>> {
    let status = admin.cluster_status().await?;
    if let Some(disk) = the_candidate(&status, replaced)? {
        return Ok(Some(disk));
    }
    let mut changes = admin.members_changes().await?.changes.into_iter().rev();
    let decided = match replaced {
        // A number is replaced only once.
        Some(_) => changes.find(|it| it.op == op.name() && it.request.node == replaced),
        None => changes
            .next()
            .filter(|it| it.op == op.name() && status.members.shards_changing > 0),
    };
    Ok(decided.and_then(|it| it.request.disk))
}

/// The candidate that was node `of`, or else the only one.
fn the_candidate(status: &ClusterStatus, of: Option<u64>) -> anyhow::Result<Option<DiskId>> {
    let candidates = &status.members.candidates;
    let same = candidates.iter().filter(|it| of.is_some() && it.node == of);
    let same: Vec<DiskId> = same.map(|it| it.disk).collect();
    let all: Vec<DiskId> = candidates.iter().map(|it| it.disk).collect();
    match (&same[..], &all[..]) {
        ([disk], _) | ([], [disk]) => Ok(Some(*disk)),
        (_, []) => Ok(None),
        _ => bail!(
            "several nodes ask to be added: name the disk of one, as `cluster status` shows them"
        ),
    }
}

/// Asks for a change, and waits until it is made.
pub async fn make(
    admin: &Admin,
    op: Operation,
    request: ChangeMembers,
    (change, global): (&Change, &Global),
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let admin = &admin.with_note(global.note(change.reason.as_deref()))?;
    let within = Duration::from_millis(change.within);
    let reply = match change.no_wait {
        true => admin.change_members(op, &request).await?,
        false => accepted(admin, op, &request, Instant::now() + within).await?,
    };
    if !change.no_wait {
        let what = "the change is not made yet, and the cluster continues with it";
        let left = |status: &ClusterStatus| left(op, &request, &reply, status);
        wait::until(admin, (within, Duration::ZERO), what, left).await?;
    }
    output.answer(&reply, |reply| said(op, reply, change.no_wait))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for a change, and again while it is refused for a reason that passes: each time with a request id of its own, as a
/// copy of a refused request is refused.
async fn accepted(
    admin: &Admin,
    op: Operation,
    request: &ChangeMembers,
    until: Instant,
) -> anyhow::Result<MembersReply> {
    let mut display = Display::new("{spinner} {wide_msg}");
    let mut behind = 0;
    loop {
        let error = match admin.change_members(op, request).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let Some(pause) = error.retry_after() else {
            return Err(error.into());
        };
        match error.code() {
            // The node that shall lead only has to catch up.
            Some(Code::MembersRefused) => {}
            Some(Code::NodeNotFound | Code::MembersChanging) if behind < BEHIND_MAX => behind += 1,
            _ => return Err(error.into()),
        }
        if Instant::now() + pause >= until {
            return Err(NotInTime(format!("nothing was changed: {}", error.message())).into());
        }
        display.show(error.message());
        tokio::time::sleep(pause).await;
    }
}

/// What is left of a change.
fn left(
    op: Operation,
    request: &ChangeMembers,
    reply: &MembersReply,
    status: &ClusterStatus,
) -> Option<Left> {
    if status.members.version < reply.members_version {
        return Some(Left {
            shards: 0,
            text: format!("node {} has not heard of it yet", status.answered_by),
        });
    }
    let open = open_shards(op, request, status);
    let lags = |it: &&NodeStatus| it.alive && tables::lags(it, status);
    let lagging = status.nodes.iter().filter(lags);
    let lagging = lagging.map(|it| format!("; node {}: {}", it.id, tables::caught_up(it, status)));
    let absent = absent(op, status);
    let absent = absent.map(|it| format!("; {it}"));
    (open > 0).then(|| Left {
        shards: status.shards.len().saturating_sub(open),
        text: format!("{op}: {} to go", tables::many(open as u64, "shard"))
            + &lagging.chain(absent).collect::<String>(),
    })
}

/// The nodes that take no part, of those that a change waits for: the ones without a vote everywhere, and all
/// while a shard has no leader.
fn absent<'a>(op: Operation, status: &'a ClusterStatus) -> impl Iterator<Item = String> + 'a {
    // A node that has taken the place of another can only be replaced.
    let instead = match op {
        Operation::AddNode => "remove-node",
        _ => "replace-node",
    };
    let is_leaderless = status.shards.iter().any(|it| it.leader.is_none());
    let nodes = status.nodes.iter().filter(|it| !it.leaving);
    nodes.filter_map(move |it| {
        let joins = (it.votes_in as usize) < status.shards.len();
        // One that votes in a shard already cannot be taken back before the change is made.
        let absence = wait::absence(it, (it.votes_in == 0).then_some(instead));
        absence.filter(|_| joins || is_leaderless)
    })
}

/// The shards that do not have the change yet.
fn open_shards(op: Operation, request: &ChangeMembers, status: &ClusterStatus) -> usize {
    let led = |such: &dyn Fn(u32, Option<u64>) -> bool| {
        let shards = status.shards.iter();
        shards.filter(|it| such(it.shard, it.leader)).count()
    };
    let asked = |shard: u32| {
        request
            .shards
            .as_ref()
            .is_some_and(|it| it.contains(&shard))
    };
    match op {
        Operation::Drain if request.drained == Some(true) => {
            led(&|_, leader| leader == request.node)
        }
        Operation::Transfer if request.node.is_some() => {
            led(&|shard, leader| asked(shard) && leader != request.node)
        }
        Operation::Drain | Operation::Transfer | Operation::RotateKey => {
            led(&|_, leader| leader.is_none())
        }
        _ => status.members.shards_changing as usize + led(&|_, leader| leader.is_none()),
    }
}

fn said(op: Operation, reply: &MembersReply, decided_only: bool) -> String {
    let node = reply
        .node
        .map_or_else(String::new, |id| format!(", node {id}"));
    let state = if decided_only { "decided" } else { "done" };
    format!(
        "{op}{node}: {state}, members version {}",
        reply.members_version
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_names_the_silent_nodes_that_it_waits_for() {
        let shard = json!({"shard": 0, "leader": 1, "term": 2, "applied": 5, "committed": 5});
        let node = |id, alive, votes_in| json!({"id": id, "alive": alive, "leads": 0, "votes_in": votes_in, "caught_up_in": 2});
        let mut status: ClusterStatus = serde_json::from_value(json!({
            "cluster": "dev", "lines": 3, "answered_by": 1,
            "nodes": [node(1, true, 2), node(2, false, 2), node(6, false, 0)],
            "shards": [shard, shard],
            "members": {"version": 3, "shards_changing": 1}
        }))
        .unwrap();
        let reply = serde_json::from_value(json!({"members_version": 3, "node": 6})).unwrap();
        let text = |op, status: &ClusterStatus| {
            let left = left(op, &ChangeMembers::default(), &reply, status);
            left.unwrap().text
        };
        let silent = "node 6 is silent: start it, or `nowserving cluster";
        assert_eq!(
            text(Operation::AddNode, &status),
            format!("add_node: 1 shard to go; {silent} remove-node 6`")
        );
        let replaced = text(Operation::ReplaceNode, &status);
        assert!(
            replaced.ends_with(&format!("{silent} replace-node 6`")),
            "{replaced}"
        );
        status.nodes[2].votes_in = 1;
        let begun = text(Operation::AddNode, &status);
        assert!(begun.ends_with("; node 6 is silent: start it"), "{begun}");
        status.shards[1].leader = None;
        let leaderless = text(Operation::AddNode, &status);
        assert!(
            leaderless.contains("; node 2 is silent: start it;"),
            "{leaderless}"
        );
    }

    #[test]
    fn shards_are_typed_as_they_are_shown() {
        assert_eq!(shards_of("all", 3).unwrap(), [0, 1, 2]);
        assert_eq!(shards_of("0, 3-5,7", 16).unwrap(), [0, 3, 4, 5, 7]);
        for (wrong, why) in [
            ("", "numbers and ranges"),
            ("a", "numbers and ranges"),
            ("1-", "numbers and ranges"),
            ("0,99", "no shard 99: the last is 15"),
            ("0,5-3", "the first is larger"),
        ] {
            let error = shards_of(wrong, 16).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn the_last_node_that_can_lead_is_not_drained() {
        let node = |id: u64, alive: bool, drained: bool| json!({"id": id, "alive": alive, "leads": 0, "votes_in": 1, "drained": drained});
        let of = |nodes: serde_json::Value| -> ClusterStatus {
            let status = json!({"cluster": "dev", "lines": 0, "answered_by": 1, "nodes": nodes, "shards": []});
            serde_json::from_value(status).unwrap()
        };
        let three = of(json!([
            node(1, true, true),
            node(2, false, false),
            node(3, true, false)
        ]));
        let refused = leaves_a_leader(&three, 3).unwrap_err().to_string();
        assert_eq!(
            refused,
            "no other node can lead: node 1 is drained, node 2 is silent"
        );
        assert!(leaves_a_leader(&three, 1).is_ok());
        let alone = of(json!([node(1, true, false)]));
        assert!(leaves_a_leader(&alone, 1).is_err());
    }

    #[test]
    fn a_number_is_no_disk_id() {
        assert!(disk_id("6").unwrap_err().starts_with("a disk id has 16"));
        assert!(disk_id("00f3a1d2c4b59687").is_ok());
    }
}
