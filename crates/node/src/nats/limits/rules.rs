//! The rules that this node knows: the texts that shard 0 has, read off the loop's thread.

use std::sync::Arc;

use nowserving_front::limits::KnownRules;
use nowserving_limit::Rules;
use nowserving_shard::limits::RuleTexts;
use tokio::sync::watch;

use super::rule_counters::RuleCounters;

/// `None` until this node has caught up with shard 0.
pub type RulesReceiver = watch::Receiver<Option<Arc<KnownRules>>>;

/// Reads what the engine tells, until it ends.
pub async fn run(
    mut texts: watch::Receiver<Option<RuleTexts>>,
    known: watch::Sender<Option<Arc<KnownRules>>>,
    counters: Arc<RuleCounters>,
) -> anyhow::Result<()> {
    loop {
        let told = texts.borrow_and_update().clone();
        if let Some(told) = told {
            let (before, counters) = (known.borrow().clone(), counters.clone());
            let read = move || read(&told, before.as_deref(), &counters);
            let read = tokio::task::spawn_blocking(read);
            known.send_replace(Some(Arc::new(read.await?)));
        }
        if texts.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Domains that have not changed are not read again.
fn read(texts: &RuleTexts, before: Option<&KnownRules>, counters: &RuleCounters) -> KnownRules {
    let known = KnownRules::of(texts, before, |domain, text| {
        // They were read before they were replicated. A node with an older release may not understand all.
        let rules = Rules::parse(text).unwrap_or_else(|errors| {
            let domain = domain.as_str();
            tracing::error!(domain, %errors, "the rules of this domain are not understood");
            Rules::default()
        });
        counters.begin(&rules);
        rules
    });
    let all = known.domains.values().map(|domain| &domain.rules);
    counters.keep(all);
    known
}
