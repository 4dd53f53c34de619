//! The diagnosis as people read it.

use console::Style;
use nowserving_insight::diagnosis::Diagnosis;
use nowserving_insight::finding::{Finding, Mend, Severity};
use nowserving_terminal::output::Output;

pub fn diagnosis(diagnosis: &Diagnosis, output: &Output) -> String {
    let mut lines = diagnosis.in_order.clone();
    let found = &diagnosis.findings;
    if !lines.is_empty() {
        lines.push(String::new());
    }
    match found.is_empty() {
        true => lines.push("nothing is wrong".to_owned()),
        false => lines.extend(found.iter().zip(1..).flat_map(|(it, n)| one(it, n, output))),
    }
    lines.join("\n")
}

fn one(finding: &Finding, number: usize, output: &Output) -> Vec<String> {
    let style = Style::new().force_styling(output.colour);
    let (word, style) = match finding.severity {
        Severity::Problem => ("PROBLEM", style.red().bold()),
        Severity::Warning => ("warning", style.yellow()),
        Severity::Note => ("note", style.cyan()),
    };
    let mut lines = vec![format!(
        "{number}. {}: {}",
        style.apply_to(word),
        finding.text
    )];
    lines.extend(finding.details.iter().map(|line| format!("     {line}")));
    lines.extend(finding.mend.iter().flat_map(mend));
    lines
}

/// A command is alone on its line, so that it can be copied.
fn mend(mend: &Mend) -> Vec<String> {
    match (&mend.command, &mend.remark) {
        (Some(command), Some(remark)) => {
            vec![format!("   → {command}"), format!("     ({remark})")]
        }
        (Some(words), None) | (None, Some(words)) => vec![format!("   → {words}")],
        (None, None) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Output = Output {
        json: false,
        colour: false,
        live: false,
    };

    #[test]
    fn findings_are_numbered_and_say_what_to_do() {
        let it = Diagnosis {
            line: None,
            findings: vec![
                Finding::problem("no_leader", "no leader").advise("start a node"),
                Finding::note("phase", "paused")
                    .detail("by ann")
                    .run_if("nowserving line open x", "if it may"),
            ],
            in_order: vec!["NATS".to_owned()],
        };
        let text = diagnosis(&it, &PLAIN);
        let expected = "NATS\n\n1. PROBLEM: no leader\n   → start a node\n2. note: paused\n     by ann\n   → nowserving line open x\n     (if it may)";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_findings_it_says_so() {
        let it = Diagnosis {
            line: None,
            findings: Vec::new(),
            in_order: Vec::new(),
        };
        assert_eq!(diagnosis(&it, &PLAIN), "nothing is wrong");
    }
}
