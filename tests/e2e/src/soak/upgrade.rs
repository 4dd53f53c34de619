//! A cluster on its way from another build to this one.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;

use crate::cluster::Cluster;
use crate::wait::eventually;

/// Names the binary of the other build.
const OTHER_BUILD: &str = "NOWSERVING_OTHER_BIN";

/// Shards come back to a node that was restarted.
const LEADS_WITHIN: Duration = Duration::from_secs(30);

/// The nodes that are restarted, each with whether it gets this build: two of three go back before the switch.
const STEPS: [(u64, bool); 7] = [
    (1, true),
    (2, true),
    (2, false),
    (1, false),
    (1, true),
    (2, true),
    (3, true),
];

/// The binary with which all nodes begin.
#[must_use]
pub fn other_build() -> Option<OsString> {
    std::env::var_os(OTHER_BUILD)
}

/// Chooses the node that is restarted then, and the build that it gets. It leads a shard: so each build has led
/// beside the other one.
///
/// # Errors
/// It does not get a shard to lead.
pub async fn step(cluster: &mut Cluster, nth: usize) -> Result<u64> {
    let (node, _) = STEPS[nth % STEPS.len()];
    let this = STEPS.get(nth).is_none_or(|(_, this)| *this);
    cluster.set_build(node, this)?;
    eventually("the node leads a shard", LEADS_WITHIN, async || {
        let leads = cluster.leaders().await?.contains(&Some(node));
        Ok(leads.then_some(node))
    })
    .await
}
