//! Keeps the events of lines in a file, for `nowserving archive report`. A service would let JetStream do that
//! (`deploy/jetstream`).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use nowserving_client::Client;
use serde_json::Value;
use tokio::task::JoinHandle;

/// After a line is deleted, its last event is on its way for no longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes until each of its lines has been created and deleted.
pub struct Archivist(JoinHandle<Result<()>>);

impl Archivist {
    /// From now on, every event of these lines becomes a row of the file, but for boards.
    pub async fn start(client: &Client, lines: &[&str], file: &Path) -> Result<Archivist> {
        let nats = client.nats().clone();
        let mut events = nats.subscribe("nowserving.event.>").await?;
        nats.flush().await?;
        let mut file = File::create(file).with_context(|| file.display().to_string())?;
        let mut left: BTreeSet<String> = lines.iter().map(ToString::to_string).collect();
        Ok(Archivist(tokio::spawn(async move {
            let mut begun = BTreeSet::new();
            while !left.is_empty() {
                let message = events.next().await.context("the connection has ended")?;
                let event: Value = serde_json::from_slice(&message.payload)?;
                let line = event["line"].as_str().unwrap_or_default();
                if message.subject.ends_with(".board") || !left.contains(line) {
                    continue;
                }
                match event["event"].as_str() {
                    Some("created") => {
                        begun.insert(line.to_owned());
                    }
                    // Not one that an earlier run has left behind.
                    Some("deleted") if begun.contains(line) => {
                        left.remove(line);
                    }
                    _ => {}
                }
                if begun.contains(line) {
                    writeln!(file, "{event}")?;
                }
            }
            Ok(())
        })))
    }

    /// Once the lines are deleted: returns when the file is complete.
    pub async fn end(self) -> Result<()> {
        let end = tokio::time::timeout(PATIENCE, self.0).await;
        end.context("events of the lines are missing")??
    }
}
