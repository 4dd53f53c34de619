//! The question before `restore --overwrite` takes back what happened since the backup.

use super::{LineOutcome, RestoreDone};
use crate::tables::many;

/// What a restore would replace, by its dry run: `replace 2 lines, the rules of 1 domain`. None: nothing.
pub fn replaces(counted: &RestoreDone) -> Option<String> {
    let is_replaced = |outcome: &LineOutcome| *outcome == LineOutcome::WouldReplace;
    let lines = counted.lines.iter().map(|it| it.outcome);
    let lines = lines.filter(is_replaced).count();
    let domains = counted.rules.iter().map(|it| it.outcome);
    let domains = domains.filter(is_replaced).count();
    // A dry run does not tell which of them are there.
    let keys = counted.keys.restored();
    let mut parts = Vec::new();
    if lines > 0 {
        parts.push(many(lines as u64, "line"));
    }
    if domains > 0 {
        parts.push(format!("the rules of {}", many(domains as u64, "domain")));
    }
    if keys > 0 {
        parts.push(format!("up to {}", many(keys, "key-value")));
    }
    (!parts.is_empty()).then(|| {
        let (parts, cluster) = (parts.join(", "), &counted.cluster);
        format!("replace {parts} by what they were in the backup of {cluster}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{RestoredLine, RestoredRules};
    use super::*;

    #[test]
    fn only_what_is_there_is_asked_about() {
        let mut counted = RestoreDone {
            cluster: "shop".to_owned(),
            ..RestoreDone::default()
        };
        assert_eq!(replaces(&counted), None);
        let outcomes = [LineOutcome::WouldRestore, LineOutcome::WouldReplace];
        counted.lines = outcomes
            .map(|outcome| RestoredLine {
                line: "l".to_owned(),
                live: 3,
                outcome,
                error: None,
            })
            .into();
        let question = replaces(&counted).unwrap();
        let end = "by what they were in the backup of shop";
        assert_eq!(question, format!("replace 1 line {end}"));
        counted.rules = outcomes
            .map(|outcome| RestoredRules {
                domain: "d".to_owned(),
                outcome,
                error: None,
            })
            .into();
        let question = replaces(&counted).unwrap();
        assert_eq!(
            question,
            format!("replace 1 line, the rules of 1 domain {end}")
        );
    }
}
