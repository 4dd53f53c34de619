//! `nowserving cluster …`: how the nodes and shards do; backups.

use std::process::ExitCode;

use clap::Subcommand;

use crate::args::Global;
use crate::backup::{self, BackupArgs, RestoreArgs};
use crate::members::{self, AddNode, Drain, RemoveNode, ReplaceNode, Transfer};
use crate::output::{Output, is_broken_pipe};
use crate::tables;

/// Shows the state of the cluster, changes its nodes, saves and restores its lines.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows the nodes, and which of them leads which shards.
    #[command(after_help = "\
What is shown is the view of the node that answers. A shard without a leader is said first, and the
exit code is then 1.

Examples:
  nowserving cluster status
  nowserving cluster status --json | jq '.shards[] | select(.leader == null)'")]
    Status,
    /// Adds a node that was started with --join.
    AddNode(AddNode),
    /// Removes a node from all shards; its process ends then.
    RemoveNode(RemoveNode),
    /// Replaces a node by another one, or by itself if it lost its disk.
    ReplaceNode(ReplaceNode),
    /// Makes a node lead no shard, for example before maintenance.
    Drain(Drain),
    /// Makes a node lead shards, for as long as it can.
    Transfer(Transfer),
    /// Shows the newest changes of the nodes: what, when, by whom and why.
    Changes,
    Backup(BackupArgs),
    Restore(RestoreArgs),
}

/// Runs one of them.
pub async fn run(
    command: ClusterCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let admin = global.connect().await?.admin();
    match command {
        ClusterCommand::Status => {
            let status = admin.cluster_status().await?;
            let leaderless = status.shards.iter().any(|shard| shard.leader.is_none());
            match output.answer(&status, |status| tables::cluster(status, output)) {
                // A reader that wants the first line only (`| head -1`) gets the same exit code.
                Err(error) if !is_broken_pipe(&error) => Err(error),
                _ => Ok(ExitCode::from(u8::from(leaderless))),
            }
        }
        ClusterCommand::Changes => {
            let changes = admin.members_changes().await?;
            output.answer(&changes, |changes| tables::members_changes(changes, output))?;
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Backup(args) => backup::back_up(&admin, &args, output).await,
        ClusterCommand::Restore(args) => backup::restore(&admin, &args, output).await,
        ClusterCommand::AddNode(args) => members::add(&admin, args, output).await,
        ClusterCommand::RemoveNode(args) => members::remove(&admin, args, output).await,
        ClusterCommand::ReplaceNode(args) => members::replace(&admin, args, output).await,
        ClusterCommand::Drain(args) => members::drain(&admin, args, output).await,
        ClusterCommand::Transfer(args) => members::transfer(&admin, args, output).await,
    }
}
