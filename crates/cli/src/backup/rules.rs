//! The rules of rate limits in a backup. Counters are not put back: they count anew.

use nowserving_client::limits::ApplyRules;
use nowserving_client::{Admin, Code};
use nowserving_line::{KICK_TEXT_BYTES_MAX, LineName, OperatorNote};
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
    by: Option<Box<str>>,
) -> anyhow::Result<RestoredRules> {
    let (outcome, error) = match apply(admin, domain, rules, args, by).await {
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
    by: Option<Box<str>>,
) -> anyhow::Result<LineOutcome> {
    let present = match admin.show_limits(Some(domain)).await {
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
    };
    let reason = Some(reason(rules, args.why.reason.as_deref()).into());
    let admin = admin.with_note(OperatorNote { by, reason })?;
    admin.apply_limits(&request).await?;
    Ok(match present {
        0 => LineOutcome::Restored,
        _ => LineOutcome::Replaced,
    })
}

/// The operator's reason, and who applied the rules at first, also after a second restore.
fn reason(rules: &DomainRules, given: Option<&str>) -> String {
    const ORIGIN: &str = "restored from a backup; applied by ";
    let DomainRules { by, reason, .. } = rules;
    let by = if by.is_empty() { "unknown" } else { by };
    let origin = match reason.find(ORIGIN) {
        Some(at) => reason[at..].to_owned(),
        None if reason.is_empty() => format!("{ORIGIN}{by}"),
        None => format!("{ORIGIN}{by}: {reason}"),
    };
    let whole = match given {
        Some(given) => format!("{given}; {origin}"),
        None => origin,
    };
    // Of a release that took control characters.
    let mut whole = whole.replace(char::is_control, " ");
    whole.truncate(whole.floor_char_boundary(KICK_TEXT_BYTES_MAX));
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_who_applied_the_rules_at_first() {
        let rules = |by: &str, reason: &str| DomainRules {
            version: 1,
            text: "domain: shop".into(),
            at_ms: 0,
            by: by.to_owned(),
            reason: reason.to_owned(),
        };
        let origin = "restored from a backup; applied by ann: sale on Friday";
        assert_eq!(reason(&rules("ann", "sale on Friday"), None), origin);
        let first = reason(&rules("ann", "sale on Friday"), Some("disks are gone"));
        assert_eq!(first, format!("disks are gone; {origin}"));
        let second = reason(&rules("bob", &first), Some("again"));
        assert_eq!(second, format!("again; {origin}"));
        assert_eq!(reason(&rules("bob", &second), None), origin);
        let unknown = reason(&rules("", ""), None);
        assert_eq!(unknown, "restored from a backup; applied by unknown");
        let old = reason(&rules("ann", "a\nb"), None);
        assert!(old.ends_with("ann: a b"), "{old:?}");
        for by in ["ann", "anna"] {
            let long = reason(&rules(by, &"ä".repeat(KICK_TEXT_BYTES_MAX / 2)), None);
            assert!(long.len() <= KICK_TEXT_BYTES_MAX && long.ends_with('ä'));
        }
    }
}
