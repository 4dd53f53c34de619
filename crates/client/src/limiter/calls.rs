//! What a limiter asks of the cluster, so that its rules are tested without one.

use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::limits::{Check, CheckReply};

use crate::client::Client;
use crate::error::Result;
use crate::retry::Effect;

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
        let effect = match check.dry_run {
            true => Effect::Read,
            false => Effect::Write,
        };
        let client = self.client.with_deadline(within);
        client.limit_call(&self.domain, effect, check).await
    }
}
