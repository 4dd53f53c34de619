//! The commands that give a cluster a new key: one on the key file, one on the cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use nowserving_client::{Admin, ChangeMembers, ClusterStatus, KeyReply, Operation};
use nowserving_node::key_file;
use serde::Serialize;

use crate::members::{Change, make};
use nowserving_terminal::global::Global;
use nowserving_terminal::output::Output;
use nowserving_terminal::{duration, number};

/// Adds a key to a key file.
#[derive(Debug, Args)]
pub struct NewKey {
    /// The key file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Rotates the key.
#[derive(Debug, Args)]
pub struct RotateKey {
    /// The id of the key that shall be in force [default: the newer one of the two that the nodes have loaded].
    #[arg(long, value_name = "ID", value_parser = number::between::<u8>(0..=255))]
    to: Option<u8>,
    /// How long tickets of the old key stay good, from now on; 0s: they are void at once.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::between(0..=31_622_400_000))]
    tickets_until: u64,
    #[command(flatten)]
    change: Change,
}

/// The key that was added.
#[derive(Debug, Serialize)]
struct Added {
    file: PathBuf,
    #[serde(flatten)]
    key: KeyReply,
}

/// Adds a key to a key file.
pub fn new_key(args: &NewKey, output: &Output) -> anyhow::Result<ExitCode> {
    let keys = key_file::add_next(&args.file)?;
    let newest = keys.prints().pop().context("a key file without keys")?;
    let added = Added {
        file: args.file.clone(),
        key: newest.into(),
    };
    output.answer(&added, |added| {
        format!(
            "{} has key {} now, fingerprint {}. Give all nodes the same file, then run `nowserving cluster rotate-key`",
            added.file.display(),
            added.key.id,
            added.key.fingerprint
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Puts another key in force.
pub async fn rotate(
    admin: &Admin,
    args: RotateKey,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let key_id = match args.to {
        Some(id) => id,
        None => next(&admin.cluster_status().await?)?,
    };
    let request = ChangeMembers {
        key_id: Some(key_id),
        old_for_ms: Some(args.tickets_until),
        ..ChangeMembers::default()
    };
    make(
        admin,
        Operation::RotateKey,
        request,
        (&args.change, global),
        output,
    )
    .await
}

/// The key that waits to be put in force.
fn next(status: &ClusterStatus) -> anyhow::Result<u8> {
    let next = status.key.as_ref().and_then(|key| key.next);
    next.with_context(|| {
        format!(
            "node {} has loaded no newer key: run `nowserving cluster new-key` on the key file, and give all nodes the \
             same file; or name the key in force with --to, to change until when old tickets are good",
            status.answered_by
        )
    })
}
