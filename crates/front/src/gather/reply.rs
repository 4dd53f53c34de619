//! The answer to a request.

use std::fmt;

use nowserving_protocol::codec::{Format, encode};
use serde::Serialize;

/// It is encoded by its sender, as others can go on meanwhile.
pub struct Reply(Box<dyn FnOnce(Format) -> Vec<u8> + Send>);

impl Reply {
    pub(crate) fn of(reply: impl Serialize + Send + 'static) -> Reply {
        Reply(Box::new(move |format| encode(&reply, format)))
    }

    #[must_use]
    pub fn encode(self, format: Format) -> Vec<u8> {
        (self.0)(format)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reply").finish_non_exhaustive()
    }
}
