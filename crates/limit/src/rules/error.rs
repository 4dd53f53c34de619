//! What is wrong in a file of rules, and where.

use std::fmt;

/// A place in a text; both are counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError {
    pub at: Position,
    /// The field, from the top of its document: `descriptors[0].rate_limit.unit`. Empty if the text is no YAML.
    pub field: String,
    /// What is wrong, and what the field may be.
    pub problem: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.at;
        write!(out, "line {line}, column {column}: ")?;
        if !self.field.is_empty() {
            write!(out, "{}: ", self.field)?;
        }
        out.write_str(&self.problem)
    }
}

/// More mistakes than that are not looked for.
pub const RULE_ERRORS_MAX: usize = 100;

/// All mistakes of a text, at least one, in their order: at most [`RULE_ERRORS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleErrors(pub Vec<RuleError>);

impl fmt::Display for RuleErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, error) in self.0.iter().enumerate() {
            if nth > 0 {
                out.write_str("\n")?;
            }
            error.fmt(out)?;
        }
        Ok(())
    }
}

impl std::error::Error for RuleErrors {}

impl From<RuleError> for RuleErrors {
    fn from(error: RuleError) -> Self {
        Self(vec![error])
    }
}
