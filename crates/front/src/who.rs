//! Who asks for an operator's change: the user that the NATS server names, where the node's setting `trust_request_info`
//! says that it does, else the name in the request.
//!
//! The server names the user of a request that comes by a service import with `share: true`, in place of a header that
//! the client sent. It leaves the header of a client of the nodes' own account as it is.

use nowserving_engine::{Ask, LimitRequest, Via};
use nowserving_line::{KICK_TEXT_BYTES_MAX, Op, OperatorNote};
use nowserving_protocol::error::ApiError;
use nowserving_shard::restore::RestoreStep;
use serde::Deserialize;

use crate::Message;
use crate::forward::USER_HEADER;
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
    /// The user that the NATS server names; `None` if it names none.
    ///
    /// # Errors
    /// `bad_request`: a header is there twice.
    pub fn user(self, message: &Message<'_>, via: Via) -> Result<Option<Box<str>>, ApiError> {
        let user = match via {
            // Only nodes send these.
            Via::Forwarded => header(message, USER_HEADER, |text| Ok(text.to_owned()))?,
            // nats-server replaces the first of two such headers, so one that a client sent could stand before its own.
            Via::Plain | Via::Shard(_) if self.0 => {
                header(message, REQUEST_INFO_HEADER, |info| Ok(named_in(info)))?.flatten()
            }
            Via::Plain | Via::Shard(_) => None,
        };
        Ok(user.filter(|it| is_name(it)).map(Into::into))
    }
}

/// Another server's header may have another form: then it names nobody.
pub(super) fn named_in(info: &str) -> Option<String> {
    let info: RequestInfo = serde_json::from_str(info).ok()?;
    info.user
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= KICK_TEXT_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Puts the user in the place of the name that an operator's request gives.
pub(super) fn name_user(ask: &mut Ask, note: &mut Option<Box<OperatorNote>>, user: &str) {
    match ask {
        Ask::Kick(kick) => kick.by = Some(user.to_owned()),
        Ask::Members(request) => request.by = user.to_owned(),
        Ask::Limit(request) => {
            if let LimitRequest::Command(command) = request.as_mut()
                && let Some(by) = command.by_mut()
            {
                *by = user.to_owned();
            }
        }
        // A backend tells it every few seconds, which is no operator's act unless the request says so.
        Ask::Write(Op::CapacityTold { .. }) if note.is_none() => {}
        Ask::Restore(command) if !matches!(command.step, RestoreStep::Finish { .. }) => {}
        Ask::Write(_) | Ask::Restore(_) => {
            note.get_or_insert_default().by = Some(user.into());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::LineName;
    use nowserving_shard::limits::{DeleteRules, LimitCommand};

    use super::*;

    fn told() -> Ask {
        Ask::Write(Op::CapacityTold {
            line: LineName::try_from("shop").unwrap(),
            told: None,
        })
    }

    #[test]
    fn the_user_of_the_server_wins_over_the_name_in_the_request() {
        let given = || {
            Some(Box::new(OperatorNote {
                by: Some("somebody".into()),
                reason: Some("because".into()),
            }))
        };
        let mut note = given();
        name_user(&mut told(), &mut note, "ann");
        let note = note.unwrap();
        assert_eq!(note.by.as_deref(), Some("ann"));
        assert_eq!(note.reason.as_deref(), Some("because"));
        let mut none = None;
        name_user(&mut told(), &mut none, "a-backend");
        assert_eq!(none, None, "a backend's own telling is not noted");
        let mut kick = Ask::Kick(Box::default());
        name_user(&mut kick, &mut None, "ann");
        let Ask::Kick(kick) = kick else {
            panic!("{kick:?}");
        };
        assert_eq!(kick.by.as_deref(), Some("ann"));
    }

    #[test]
    fn changes_of_rate_limits_have_the_user_of_the_server() {
        let delete = LimitCommand::Delete(DeleteRules {
            domain: LineName::try_from("shop").unwrap(),
            if_version: None,
            by: "somebody".into(),
            reason: "because".into(),
        });
        let mut ask = Ask::Limit(Box::new(LimitRequest::Command(delete)));
        name_user(&mut ask, &mut None, "ann");
        let Ask::Limit(request) = ask else {
            panic!("{ask:?}");
        };
        let LimitRequest::Command(LimitCommand::Delete(delete)) = *request else {
            panic!("{request:?}");
        };
        assert_eq!((&*delete.by, &*delete.reason), ("ann", "because"));
    }

    #[test]
    fn a_user_is_a_short_text_without_control_characters() {
        assert!(is_name("ann") && is_name("UAB7X"));
        assert!(!is_name("") && !is_name("a\nb") && !is_name(&"x".repeat(129)));
        let shared = named_in(r#"{"acc": "OPS", "user": "ann", "rtt": 5}"#);
        assert_eq!(shared.as_deref(), Some("ann"));
        assert_eq!(named_in(r#"{"acc": "OPS"}"#), None, "not shared");
    }
}
