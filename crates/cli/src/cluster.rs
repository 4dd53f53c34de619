//! `nowserving cluster …`: how the nodes and shards do; backups.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::backup::{self, BackupArgs, RestoreArgs};
use crate::members::{self, AddNode, Drain, RemoveNode, ReplaceNode, Transfer};
use crate::pass::{self, JwksArgs};
use crate::rotate::{self, NewKey, RotateKey};
use crate::{tables, wait};
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, is_broken_pipe};

/// Shows the state of the cluster, changes its nodes, saves and restores its lines.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Shows the nodes, and which of them leads which shards.
    #[command(after_help = "\
It is the view of the node that answers. Shards without a leader come first, and the exit code is then 1; so it is
while another cluster answers on the same prefix, which is named above the table.

States of a node: alive; catching up; silent (nothing is heard of it); refused (with the reason above the table);
joining; leaving; drained; disk full. docs/operations.md says what to do about each.

Examples:
  nowserving cluster status
  nowserving cluster status --wait              before the next node is restarted
  nowserving cluster status --json | jq '.shards[] | select(.leader == null)'")]
    Status(Status),
    /// Adds a node that was started with --join.
    #[command(after_help = "\
The node gets the next number that was never used, catches up, and then votes. Ctrl-C ends only the display; the
cluster continues. Keep the number of nodes odd: four tolerate one failure, like three.

Examples:
  nowserving node --join --nats nats://10.0.0.5:4222 --key-file cluster.key --data-dir /var/lib/nowserving
  nowserving cluster add-node --reason \"from three to five\"")]
    AddNode(AddNode),
    /// Removes a node from all shards; its process ends then.
    #[command(after_help = "\
Asks first; without a terminal it needs --yes. Refused unless a majority of the nodes that remain is alive. Ctrl-C ends
only the display; the cluster continues.

Examples:
  nowserving cluster remove-node 5 --reason \"from five to three\"
  nowserving cluster remove-node 5 --yes")]
    RemoveNode(RemoveNode),
    /// Replaces a node by another one, or by itself if it lost its disk.
    #[command(after_help = "\
Of a dead machine: start a node with --join on another one first. Of a node that lost its disk: start it with its
old configuration first; it takes the new number by itself. Ctrl-C ends only the display; the cluster continues.

Examples:
  nowserving cluster replace-node 3
  nowserving cluster replace-node 3 00f3a1d2c4b59687 --reason \"dead mainboard\"")]
    ReplaceNode(ReplaceNode),
    /// Makes a node lead no shard, for example before maintenance.
    #[command(after_help = "\
It lasts until --undo, also across restarts of the node. The last node that can lead is not drained. A node that is stopped (SIGTERM) hands its leadership over
without this.

Examples:
  nowserving cluster drain 2 --reason \"new memory\"
  nowserving cluster drain 2 --undo")]
    Drain(Drain),
    /// Makes a node lead shards, for as long as it can.
    #[command(after_help = "\
Examples:
  nowserving cluster transfer 0,3-5 --to 1
  nowserving cluster transfer all                     spread evenly again")]
    Transfer(Transfer),
    /// Adds a new key to a key file: the first step of a rotation.
    #[command(after_help = "\
The key is random and has the next id. The file is replaced as a whole, and stays readable by its owner only. Nothing
changes in the cluster until `cluster rotate-key`. Give every node the same file: nodes look at it every few seconds.

Examples:
  nowserving cluster new-key /etc/nowserving/cluster.key")]
    NewKey(NewKey),
    /// Puts a new key in force: it signs tickets and seals what nodes send each other.
    #[command(after_help = "\
Refused until all nodes have loaded the key; `cluster status` shows which ones have. Tickets of the old key stay good
for --tickets-until. After that its line can be removed from the key files. With the id of the key in force, only that
time is changed: docs/operate/failures.md says what to do about a leaked key.

Examples:
  nowserving cluster rotate-key --reason \"once a year\"
  nowserving cluster rotate-key --to 2 --tickets-until 0s --reason \"key 1 leaked\"")]
    RotateKey(RotateKey),
    /// Shows the newest changes of the nodes: what, when, by whom and why.
    Changes,
    /// Prints the public keys by which passes are checked, as a JSON Web Key Set.
    #[command(after_help = "\
Run it again before and after the cluster's key is rotated. docs/pass.md says how an edge checks passes.

Examples:
  nowserving cluster jwks --out /var/www/jwks.json
  nowserving cluster jwks --json | jq -r '.keys[].kid'")]
    Jwks(JwksArgs),
    Backup(BackupArgs),
    Restore(RestoreArgs),
}

/// Shows the nodes and shards.
#[derive(Debug, Args)]
pub struct Status {
    /// Waits until the cluster is well: every node is alive and has caught up in all shards, each shard has a leader,
    /// and no change of the members is under way.
    #[arg(long)]
    wait: bool,
    /// How long to wait. After that the command ends with exit code 3, and says what is missing.
    #[arg(long, requires = "wait", value_name = "TIME", default_value = "10m", value_parser = duration::between(1..=86_400_000))]
    within: u64,
}

/// Runs one of them.
pub async fn run(
    command: ClusterCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    if let ClusterCommand::NewKey(args) = &command {
        return rotate::new_key(args, output);
    }
    let client = global.connect().await?;
    let admin = client.admin();
    match command {
        ClusterCommand::Status(args) => {
            let status = match args.wait {
                true => wait::until_well(&admin, Duration::from_millis(args.within)).await?,
                false => admin.cluster_status().await?,
            };
            let leaderless = status.shards.iter().any(|shard| shard.leader.is_none());
            let broken = leaderless || !status.other_clusters.is_empty();
            match output.answer(&status, |status| tables::cluster(status, output)) {
                // A reader that wants the first line only (`| head -1`) gets the same exit code.
                Err(error) if !is_broken_pipe(&error) => Err(error),
                _ => Ok(ExitCode::from(u8::from(broken))),
            }
        }
        ClusterCommand::Changes => {
            let changes = admin.members_changes().await?;
            output.answer(&changes, |changes| tables::members_changes(changes, output))?;
            Ok(ExitCode::SUCCESS)
        }
        ClusterCommand::Jwks(args) => pass::jwks(&admin, &args, output).await,
        ClusterCommand::Backup(args) => backup::back_up(&admin, &args, output).await,
        ClusterCommand::Restore(args) => {
            backup::restore(&client, &admin, &args, global, output).await
        }
        ClusterCommand::AddNode(args) => members::add(&admin, args, global, output).await,
        ClusterCommand::RemoveNode(args) => members::remove(&admin, args, global, output).await,
        ClusterCommand::ReplaceNode(args) => members::replace(&admin, args, global, output).await,
        ClusterCommand::Drain(args) => members::drain(&admin, args, global, output).await,
        ClusterCommand::Transfer(args) => members::transfer(&admin, args, global, output).await,
        ClusterCommand::NewKey(args) => rotate::new_key(&args, output),
        ClusterCommand::RotateKey(args) => rotate::rotate(&admin, args, global, output).await,
    }
}
