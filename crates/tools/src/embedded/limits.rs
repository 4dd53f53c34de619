//! Rules of rate limits for a cluster that is measured or shown.

use std::time::Duration;

use anyhow::ensure;
use nowserving_client::limits::{ApplyRules, Check, Entry};
use nowserving_client::{Client, LimitFallback, LimiterOptions};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// So many answers in a row come from all three nodes, but for one run in billions.
const ANSWERS: usize = 60;

/// Applies the rules of a domain and waits until all nodes know them: until then, requests are allowed by a node
/// that does not.
///
/// # Errors
/// They are refused, or no answer comes.
pub async fn apply_limits(client: &Client, domain: &str, rules: String) -> anyhow::Result<()> {
    let request = ApplyRules {
        rules,
        ..ApplyRules::default()
    };
    client.admin().apply_limits(&request).await?;
    let mut options = LimiterOptions::default();
    options.on_unavailable = LimitFallback::Fail;
    options.patience = DEADLINE;
    let limiter = client.limiter_with(domain, options)?;
    let ask = Check {
        dry_run: true,
        ..Check::new(vec![vec![Entry::new("known", "")]])
    };
    let deadline = Instant::now() + DEADLINE;
    let mut known = 0;
    while known < ANSWERS {
        ensure!(
            Instant::now() < deadline,
            "some node does not learn the rules"
        );
        if limiter.check_with(&ask).await?.unmatched {
            known = 0;
            tokio::time::sleep(PAUSE).await;
        } else {
            known += 1;
        }
    }
    Ok(())
}
