//! `nowserving cluster …`: how the nodes and shards do.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::args::Global;
use crate::output::Output;
use crate::tables;

/// Shows how the cluster does.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows the nodes, and which of them leads which shards.
    #[command(after_help = "\
What is shown is the view of the node that answers. A shard without a leader is said first, and the
exit code is then 1.

Examples:
  nowserving cluster status
  nowserving cluster status --json | jq '.shards[] | select(.leader == null)'")]
    Status(ClusterStatusArgs),
}

#[derive(Debug, Args)]
pub struct ClusterStatusArgs {}

/// Runs one of them.
pub async fn run(
    command: ClusterCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let ClusterCommand::Status(ClusterStatusArgs {}) = command;
    let status = global.connect().await?.admin().cluster_status().await?;
    output.answer(&status, |status| tables::cluster(status, output))?;
    let leaderless = status.shards.iter().any(|shard| shard.leader.is_none());
    Ok(ExitCode::from(u8::from(leaderless)))
}
