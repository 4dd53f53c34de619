//! What a limiter asks of the cluster, so that its rules are tested without one.

use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, CheckReply, limit_shard_of};

use crate::client::Client;
use crate::error::Result;

pub(super) trait Calls: Clone + Send + Sync + 'static {
    /// One check, all its attempts within this time.
    fn check(
        &self,
        check: &Check,
        within: Duration,
    ) -> impl Future<Output = Result<CheckReply>> + Send;
}

#[derive(Clone)]
pub(super) struct Remote {
    client: Client,
    domain: LineName,
}

impl Remote {
    pub(super) fn new(client: Client, domain: LineName) -> Remote {
        Remote { client, domain }
    }
}

impl Calls for Remote {
    async fn check(&self, check: &Check, within: Duration) -> Result<CheckReply> {
        let client = self.client.with_deadline(within);
        // The leader of the first descriptor's shard answers from its memory, if it has the other ones' counters, too.
        let shard = |shards| {
            let first = check.descriptors.first().map_or(&[][..], Vec::as_slice);
            limit_shard_of(&self.domain, first, shards)
        };
        client.leader_call(&self.domain, shard, check).await
    }
}
