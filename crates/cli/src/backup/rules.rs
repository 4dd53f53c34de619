//! The rules of rate limits in a backup. Counters are not put back: they count anew.

use nowserving_client::limits::{ApplyRules, ShowRules};
use nowserving_client::{Admin, Code};
use nowserving_line::LineName;
use nowserving_protocol::members::REASON_MAX_BYTES;
use nowserving_shard::limits::DomainRules;
use serde::Serialize;

use super::{LineOutcome, RestoreArgs, is_refusal};

#[derive(Debug, Serialize)]
pub struct RestoredRules {
    pub domain: String,
    pub outcome: LineOutcome,
    /// Why they were refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Applies the rules of one domain if there are none, or with --overwrite.
pub async fn put_back(
    admin: &Admin,
    domain: &LineName,
    rules: &DomainRules,
    args: &RestoreArgs,
) -> anyhow::Result<RestoredRules> {
    let (outcome, error) = match apply(admin, domain, rules, args).await {
        Ok(outcome) => (outcome, None),
        Err(error) if is_refusal(&error) => (LineOutcome::Refused, Some(format!("{error:#}"))),
        Err(error) => return Err(error),
    };
    Ok(RestoredRules {
        domain: domain.as_str().to_owned(),
        outcome,
        error,
    })
}

async fn apply(
    admin: &Admin,
    domain: &LineName,
    rules: &DomainRules,
    args: &RestoreArgs,
) -> anyhow::Result<LineOutcome> {
    let request = ShowRules {
        domain: Some(domain.clone()),
    };
    let present = match admin.show_limits(&request).await {
        Ok(shown) => shown.domains.first().map_or(0, |it| it.version),
        Err(error) if error.code() == Some(Code::DomainNotFound) => 0,
        Err(error) => return Err(error.into()),
    };
    match (present, args.dry_run) {
        (0, true) => return Ok(LineOutcome::WouldRestore),
        (1.., _) if !args.overwrite => return Ok(LineOutcome::Exists),
        (_, true) => return Ok(LineOutcome::WouldReplace),
        _ => {}
    }
    let request = ApplyRules {
        rules: rules.text.to_string(),
        dry_run: false,
        if_version: Some(present),
        by: None,
        reason: Some(reason(rules)),
    };
    admin.apply_limits(&request).await?;
    Ok(match present {
        0 => LineOutcome::Restored,
        _ => LineOutcome::Replaced,
    })
}

/// The rules are those of somebody else, and this is another change.
fn reason(rules: &DomainRules) -> String {
    let DomainRules { by, reason, .. } = rules;
    let whole = format!("restored from a backup; applied by {by:?}: {reason}");
    // The longest that is taken.
    let end = (0..=REASON_MAX_BYTES.min(whole.len())).rfind(|end| whole.is_char_boundary(*end));
    whole.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}
