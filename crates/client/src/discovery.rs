//! The number of shards of the cluster, from NATS's service discovery.
//!
//! Each node is an instance of the service `nowserving`, with `shards` and `prefix` in its metadata.
//! Without a reply, requests go to the plain subjects, which costs one more hop.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use nowserving_protocol::subject::Subjects;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::transport::Connection;

const INFO_SUBJECT: &str = "$SRV.INFO.nowserving";
/// How long a call waits at most for the discovery before it.
const ANSWER_MAX: Duration = Duration::from_millis(250);
/// The least time between two discoveries, so that calls to an unreachable cluster do not send one each.
const INTERVAL: Duration = Duration::from_secs(5);

/// The number of shards, once it is known.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    /// 0 while it is not known.
    count: AtomicU32,
    /// A shard subject had no subscribers; the count may be wrong by now.
    suspect: AtomicBool,
    asked_at: Mutex<Option<Instant>>,
}

impl Shards {
    /// The number of shards; `None` while it is not known. At most one caller at a time waits for a
    /// reply; the others continue with the count known so far.
    pub(crate) async fn get(&self, connection: &Connection, subjects: &Subjects) -> Option<u32> {
        let known = match self.count.load(Ordering::Relaxed) {
            0 => None,
            count => Some(count),
        };
        if known.is_some() && !self.suspect.load(Ordering::Relaxed) {
            return known;
        }
        let Ok(mut asked_at) = self.asked_at.try_lock() else {
            return known;
        };
        if asked_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            return known;
        }
        *asked_at = Some(Instant::now());
        let Some(count) = ask(connection, subjects.prefix()).await else {
            return known;
        };
        debug!(count, "shards learned");
        self.count.store(count, Ordering::Relaxed);
        self.suspect.store(false, Ordering::Relaxed);
        Some(count)
    }

    /// A shard's subject has no subscribers: there is no leader now, or the count is wrong.
    pub(crate) fn suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }
}

/// The shard count from the first reply of a node with our prefix.
async fn ask(connection: &Connection, prefix: &str) -> Option<u32> {
    let Connection { nats, denials } = connection;
    let mut denied = denials.listen();
    let inbox = nats.new_inbox();
    let mut answers = nats.subscribe(inbox.clone()).await.ok()?;
    nats.publish_with_reply(INFO_SUBJECT, inbox, bytes::Bytes::new())
        .await
        .ok()?;
    let first = async {
        while let Some(message) = answers.next().await {
            if message.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
                return None;
            }
            if let Some(count) = read(&message.payload, prefix) {
                return Some(count);
            }
        }
        None
    };
    tokio::select! {
        // Discovery is optional; a call that lacks a right reports that itself.
        _ = denied.request(INFO_SUBJECT) => None,
        first = tokio::time::timeout(ANSWER_MAX, first) => first.ok().flatten(),
    }
}

/// The shards of an instance that serves `prefix`.
fn read(payload: &[u8], prefix: &str) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_slice(payload).ok()?;
    let metadata = &info["metadata"];
    if metadata["prefix"]
        .as_str()
        .is_some_and(|other| other != prefix)
    {
        return None;
    }
    let count = metadata["shards"].as_str()?.parse().ok()?;
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_metadata_of_our_cluster_only() {
        let info = |metadata: &str| format!(r#"{{"name":"nowserving","metadata":{metadata}}}"#);
        let ours = info(r#"{"shards":"16","prefix":"nowserving","cluster":"c"}"#);
        assert_eq!(read(ours.as_bytes(), "nowserving"), Some(16));
        assert_eq!(read(ours.as_bytes(), "other"), None);
        assert_eq!(read(info(r#"{"shards":"16"}"#).as_bytes(), "any"), Some(16));
        for bad in [r#"{"shards":"0"}"#, r#"{"shards":"x"}"#, "{}", "[]"] {
            assert_eq!(read(info(bad).as_bytes(), "nowserving"), None, "{bad}");
        }
        assert_eq!(read(b"{}", "nowserving"), None);
        assert_eq!(read(b"", "nowserving"), None);
    }

    #[test]
    fn fuzz_an_answer() {
        let texts = [
            r#"{"name":"nowserving","metadata":{"shards":"16","prefix":"nowserving","cluster":"c"}}"#,
            r#"{"metadata":{"shards":"4294967295"}}"#,
        ];
        let seeds = texts.map(|text| text.as_bytes().to_vec());
        nowserving_testkit::target!(seeds.into(), |bytes| {
            assert_ne!(read(bytes, "nowserving"), Some(0));
        });
    }
}
