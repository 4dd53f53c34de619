//! One thing that the doctor has to say.

use serde::Serialize;

/// How bad a finding is; the worst are reported first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It stops the line, or all lines.
    Problem,
    /// It does not stop anything yet, or slows it down.
    Warning,
    /// As somebody has set it: the reason why the line stands, and nothing is broken.
    Note,
}

/// A finding, with the command that mends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    /// A fixed word that a script can look for, as `no_leader`.
    pub code: &'static str,
    /// What was found.
    pub text: String,
    /// More about it, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// What to do, if there is something: commands, or words where no command does it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mend: Vec<String>,
}

impl Finding {
    pub fn new(severity: Severity, code: &'static str, text: impl Into<String>) -> Finding {
        Finding {
            severity,
            code,
            text: text.into(),
            details: Vec::new(),
            mend: Vec::new(),
        }
    }

    pub fn problem(code: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Problem, code, text)
    }

    pub fn warning(code: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, code, text)
    }

    pub fn note(code: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, code, text)
    }

    /// The same, and this command or advice mends it.
    pub fn mend(mut self, command: impl Into<String>) -> Finding {
        self.mend.push(command.into());
        self
    }

    /// The same, with one more line about it.
    pub fn detail(mut self, line: impl Into<String>) -> Finding {
        self.details.push(line.into());
        self
    }
}
