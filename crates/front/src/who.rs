//! Who asks for an operator's change: the user that the NATS server names, where the node's setting `trust_request_info`
//! says that it does, else the name in the request's header.
//!
//! The server names the user of a request that comes by a service import with `share: true`, in place of a header that
//! the client sent. It leaves the header of a client of the nodes' own account as it is.

use nowserving_engine::Via;
use nowserving_line::{KICK_TEXT_BYTES_MAX, OperatorNote};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{BY_HEADER, REASON_HEADER};
use nowserving_protocol::note;
use nowserving_protocol::operation::{Effect, Operation};
use serde::Deserialize;

use crate::Message;
use crate::parse::header;

/// JSON about the client, by the server or by anybody.
const REQUEST_INFO_HEADER: &str = "Nats-Request-Info";

#[derive(Deserialize)]
struct RequestInfo {
    #[serde(default)]
    user: Option<String>,
}

/// The node's setting `trust_request_info`: whether only the NATS server can have written that header.
#[derive(Debug, Clone, Copy)]
pub struct TrustRequestInfo(pub bool);

impl TrustRequestInfo {
    /// Who asks for this operation, and why; `None` if nobody says it.
    ///
    /// # Errors
    /// `bad_request`: a header is there twice, or is not as it must be.
    pub fn note(
        self,
        message: &Message<'_>,
        via: Via,
        op: Operation,
    ) -> Result<Option<Box<OperatorNote>>, ApiError> {
        let text = |name| header(message, name, |value| note::read(name, value));
        let mut said = OperatorNote {
            by: text(BY_HEADER)?,
            reason: text(REASON_HEADER)?,
        };
        // A backend tells it every few seconds, which is no operator's act unless the request says so.
        let is_act = op != Operation::CapacityTold || !said.is_empty();
        if is_act && let Some(user) = self.user(message, via)? {
            said.by = Some(user);
        }
        Ok((!said.is_empty()).then(|| Box::new(said)))
    }

    /// The user that the NATS server names. On a request that a node forwards, it is in the header of the name.
    fn user(self, message: &Message<'_>, via: Via) -> Result<Option<Box<str>>, ApiError> {
        if !self.0 || via == Via::Forwarded {
            return Ok(None);
        }
        // nats-server replaces the first of two such headers, so one that a client sent could stand before its own.
        let user = header(message, REQUEST_INFO_HEADER, |info| Ok(named_in(info)))?.flatten();
        Ok(user.filter(|it| is_name(it)).map(Into::into))
    }
}

/// Whether the cluster records who asked for it.
pub(crate) fn takes_note(op: Operation) -> bool {
    let parts = [Operation::RestorePart, Operation::KvRestore];
    op.is_admin() && op.effect() != Effect::Read && !parts.contains(&op)
}

/// Name and reason, empty if not said.
pub(crate) fn said(note: Option<&OperatorNote>) -> (String, String) {
    let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    note.map_or_else(Default::default, |it| (text(&it.by), text(&it.reason)))
}

/// Another server's header may have another form: then it names nobody.
pub(super) fn named_in(info: &str) -> Option<String> {
    let info: RequestInfo = serde_json::from_str(info).ok()?;
    info.user
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= KICK_TEXT_BYTES_MAX && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_short_text_without_control_characters() {
        assert!(is_name("ann") && is_name("UAB7X"));
        assert!(!is_name("") && !is_name("a\nb") && !is_name(&"x".repeat(129)));
        let shared = named_in(r#"{"acc": "OPS", "user": "ann", "rtt": 5}"#);
        assert_eq!(shared.as_deref(), Some("ann"));
        assert_eq!(named_in(r#"{"acc": "OPS"}"#), None, "not shared");
    }
}
