//! The secret of the gateways of a shop.

use std::fmt;
use std::path::Path;

use data_encoding::HEXLOWER_PERMISSIVE;

/// 32 random bytes, the same on all gateways of a shop: one of them must take the pre-cookie that another has set.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From the hexadecimal digits in a file that only its owner can read.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn load(path: &Path) -> Result<Secret, String> {
        let text = nowserving_security::secret::read_text(path)?;
        let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Secret).ok_or_else(|| {
            "needs 64 hexadecimal digits, for example from `openssl rand -hex 32`".to_owned()
        })
    }

    /// Another one for each call, for a gateway that stands alone and may forget it.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Secret, String> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        Ok(Secret(bytes))
    }

    /// A key for one purpose.
    pub(crate) fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

impl From<[u8; 32]> for Secret {
    fn from(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
