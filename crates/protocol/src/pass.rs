//! The signed pass in replies: docs/protocol/users.md. `crates/pass` makes and checks them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A pass, as it is sent. Never printed: whoever has it is let in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pass(String);

impl Pass {
    /// The JWT.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The JWT.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl From<String> for Pass {
    fn from(text: String) -> Pass {
        Pass(text)
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pass({} bytes)", self.0.len())
    }
}
