//! `nowserving cluster …`: how the nodes and shards do.

use std::process::ExitCode;

use clap::Subcommand;

use crate::args::Global;
use crate::output::{Output, is_broken_pipe};
use crate::tables;

/// Shows the state of the cluster.
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
}

/// Runs one of them.
pub async fn run(
    command: ClusterCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let ClusterCommand::Status = command;
    let status = global.connect().await?.admin().cluster_status().await?;
    let leaderless = status.shards.iter().any(|shard| shard.leader.is_none());
    match output.answer(&status, |status| tables::cluster(status, output)) {
        // A reader that wants the first line only (`| head -1`) gets the same exit code.
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(ExitCode::from(u8::from(leaderless))),
    }
}
