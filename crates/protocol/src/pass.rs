//! The signed pass in replies, and the public keys by which it is checked: docs/protocol/users.md. `crates/pass` makes and checks them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A pass, as it is sent. Never printed: whoever has it is let in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

/// A public key, as RFC 7517 and RFC 8037 have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Jwk {
    /// `OKP`.
    pub kty: String,
    /// `Ed25519`.
    #[serde(default)]
    pub crv: String,
    /// The key's 32 bytes in Base64url.
    #[serde(default)]
    pub x: String,
    /// Its name, which stands in the header of each pass.
    #[serde(default)]
    pub kid: String,
    /// `EdDSA`.
    #[serde(default)]
    pub alg: String,
    /// `sig`.
    #[serde(default, rename = "use")]
    pub usage: String,
}

/// A key set: the answer to `admin.cluster.jwks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Jwks {
    /// The one that signs first.
    pub keys: Vec<Jwk>,
}
