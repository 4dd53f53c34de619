//! The question before `restore --overwrite` takes back what happened since the backup.

use super::{LineOutcome, RestoreDone};
use crate::tables::{clock, many};

impl RestoreDone {
    /// Whether something exists already, by a dry run without --overwrite.
    pub fn exist_some(&self) -> bool {
        let domains = self.rules.iter().map(|it| it.outcome);
        let mut outcomes = self.lines.iter().map(|it| it.outcome).chain(domains);
        outcomes.any(|it| it == LineOutcome::Exists) || self.keys.exist() > 0
    }
}

/// What would be replaced in the cluster `here`, by that dry run.
pub fn of(counted: &RestoreDone, here: &str) -> String {
    let exists = |outcome: LineOutcome| outcome == LineOutcome::Exists;
    let lines = counted.lines.iter().filter(|it| exists(it.outcome));
    let domains = counted.rules.iter().filter(|it| exists(it.outcome));
    let domains = named(domains.map(|it| it.domain.as_str()).collect(), "domain");
    let parts = [
        named(lines.map(|it| it.line.as_str()).collect(), "line"),
        domains.map(|domains| format!("the rules of {domains}")),
        (counted.keys.exist() > 0).then(|| many(counted.keys.exist(), "key-value")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let live: u64 = counted.lines.iter().filter_map(|it| it.live_before).sum();
    let live = match live {
        0 => String::new(),
        _ => format!(" ({} in line now)", many(live, "token")),
    };
    format!(
        "replace {}{live} in cluster {here} with the backup of {} and lose what happened since",
        parts.join(", "),
        clock(counted.created_at_ms)
    )
}

/// One by its name, several by their number.
fn named(names: Vec<&str>, what: &str) -> Option<String> {
    match names[..] {
        [] => None,
        [one] => Some(format!("{what} {one}")),
        _ => Some(many(names.len() as u64, what)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RestoredLine, RestoredRules};
    use super::*;

    fn line(name: &str, outcome: LineOutcome, live_before: Option<u64>) -> RestoredLine {
        RestoredLine {
            line: name.to_owned(),
            live: 3,
            live_before,
            outcome,
            error: None,
        }
    }

    #[test]
    fn only_what_exists_is_asked_about() {
        let mut counted = RestoreDone {
            cluster: "old".to_owned(),
            lines: vec![line("new", LineOutcome::WouldRestore, None)],
            ..RestoreDone::default()
        };
        assert!(!counted.exist_some());
        counted
            .lines
            .push(line("shop-1", LineOutcome::Exists, Some(0)));
        assert!(counted.exist_some());
        let backup = clock(0);
        let end =
            format!("in cluster prod with the backup of {backup} and lose what happened since");
        assert_eq!(of(&counted, "prod"), format!("replace line shop-1 {end}"));
        counted
            .lines
            .push(line("shop-2", LineOutcome::Exists, Some(15)));
        counted.rules.push(RestoredRules {
            domain: "api".to_owned(),
            outcome: LineOutcome::Exists,
            error: None,
        });
        assert_eq!(
            of(&counted, "prod"),
            format!("replace 2 lines, the rules of domain api (15 tokens in line now) {end}")
        );
    }
}
