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

/// What to do: a command that runs as it is printed, with words about it; or words alone where no command does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mend {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A finding, with the commands that mend it.
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
    /// What to do, if there is something, the first thing first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mend: Vec<Mend>,
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

    /// The same, and this command mends it. It begins with `nowserving`, and a shell takes it as it is.
    pub fn run(mut self, command: impl Into<String>) -> Finding {
        self.mend.push(Mend {
            command: Some(command.into()),
            remark: None,
        });
        self
    }

    /// The same, with words about the command: when it is the right one, or what else it does.
    pub fn run_if(mut self, command: impl Into<String>, remark: impl Into<String>) -> Finding {
        self.mend.push(Mend {
            command: Some(command.into()),
            remark: Some(remark.into()),
        });
        self
    }

    /// The same, and no command does what these words say.
    pub fn advise(mut self, remark: impl Into<String>) -> Finding {
        self.mend.push(Mend {
            command: None,
            remark: Some(remark.into()),
        });
        self
    }

    /// The same, with one more line about it.
    pub fn detail(mut self, line: impl Into<String>) -> Finding {
        self.details.push(line.into());
        self
    }

    /// It all in one line: the text, and what to do.
    pub fn in_words(&self) -> String {
        let mend = self.mend.iter().map(|Mend { command, remark }| {
            let command = command.as_ref().map(|command| format!("`{command}`"));
            let words = [command, remark.clone()].into_iter().flatten();
            words.collect::<Vec<_>>().join(" ")
        });
        let mend: Vec<String> = mend.collect();
        match mend.is_empty() {
            true => self.text.clone(),
            false => format!("{}. To do: {}", self.text, mend.join("; ")),
        }
    }

    /// The commands that mend it.
    pub fn commands(&self) -> Vec<&str> {
        let commands = self.mend.iter();
        commands.filter_map(|it| it.command.as_deref()).collect()
    }
}
