//! Proof that requests reach this node: a message to itself, the way requests come.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use crossbeam_channel::Sender;
use futures::StreamExt as _;

use super::stats::Stats;
use crate::clock::monotonic_us;
use nowserving_engine::Input;
use nowserving_shard::clock::Micros;
use tokio::sync::watch;

/// The service clock stops about five intervals after the last echo.
const INTERVAL: Duration = Duration::from_millis(50);

/// Sends probes and reports their echoes, until the loop ends.
///
/// # Errors
/// The subscription cannot be made.
pub async fn run(
    client: Client,
    control: Sender<Input>,
    stats: Arc<Stats>,
    probed: watch::Sender<Micros>,
) -> anyhow::Result<()> {
    let mut turned_away = 0;
    let inbox = client.new_inbox();
    let mut echoes = client.subscribe(inbox.clone()).await?;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                // While disconnected a probe would only lie in the buffer and come back late.
                if client.connection_state() == async_nats::connection::State::Connected {
                    let sent_at = monotonic_us().to_le_bytes().to_vec();
                    let _ = client.publish(inbox.clone(), sent_at.into()).await;
                }
            }
            echo = echoes.next() => {
                let Some(echo) = echo else {
                    return Ok(());
                };
                let Ok(sent_at) = <[u8; 8]>::try_from(&echo.payload[..]) else {
                    continue;
                };
                let sent_at = u64::from_le_bytes(sent_at).min(monotonic_us());
                // Nobody listens: the node ends.
                let _ = probed.send(sent_at);
                // The probe came back, but requests before it were dropped or refused unread: clients
                // cannot reach this node.
                let before = std::mem::replace(&mut turned_away, stats.turned_away());
                if before != turned_away {
                    continue;
                }
                if control.send(Input::ProbeEchoed { sent_at }).is_err() {
                    return Ok(());
                }
            }
        }
    }
}
