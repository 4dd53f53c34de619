//! Changes of a line: few, each with a name and a reason for the journal.

use ::http::StatusCode;
use nowserving_client::{
    AdminLine, CallNext, Code, Configure, Error, Journal, Kick, LineName, OperatorNote, TokenName,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{Reader, object};
use super::{Dashboard, Failure};

/// As the journal takes it.
const TEXT_BYTES_MAX: usize = 128;
const REQUEST_ID_DIGITS: usize = 32;

/// The body of a change; each operation has some of these.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    by: Option<String>,
    reason: String,
    request_id: String,
    incarnation: Option<u64>,
    if_version: Option<u64>,
    phase: Option<String>,
    seats: Option<u64>,
    n: Option<u32>,
    lane: Option<String>,
    token: Option<u64>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
enum Change {
    Configure(Box<Configure>),
    CallNext { call: CallNext, incarnation: u64 },
    Kick(Kick),
}

impl Asked {
    /// The change, and who makes it why.
    fn read(&self, op: &str, reader: &Reader) -> Result<(Change, OperatorNote), Failure> {
        let by = reader.by.as_ref().or(self.by.as_ref());
        let by = by.ok_or_else(|| Failure::bad("by: who asks"))?;
        for (text, what) in [
            (by, "by: 1 to 128 bytes without control characters"),
            (
                &self.reason,
                "reason: 1 to 128 bytes without control characters",
            ),
        ] {
            let is_long = !(1..=TEXT_BYTES_MAX).contains(&text.trim().len());
            if is_long || text.chars().any(char::is_control) {
                return Err(Failure::bad(what));
            }
        }
        let is_hex = self.request_id.bytes().all(|it| it.is_ascii_hexdigit());
        if self.request_id.len() != REQUEST_ID_DIGITS || !is_hex {
            return Err(Failure::bad("request_id: 32 hexadecimal digits"));
        }
        let note = OperatorNote {
            by: Some(by.trim().into()),
            reason: Some(self.reason.trim().into()),
        };
        Ok((self.change(op)?, note))
    }

    fn change(&self, op: &str) -> Result<Change, Failure> {
        let incarnation = self.incarnation;
        let incarnation =
            incarnation.ok_or_else(|| Failure::bad("incarnation: that of the line"))?;
        match op {
            "phase" => {
                let phase = self.phase.as_deref();
                let is_known = matches!(phase, Some("open" | "paused" | "draining" | "closed"));
                if !is_known {
                    return Err(Failure::bad("phase: open, paused, draining or closed"));
                }
                self.configure("phase", json!(phase), incarnation)
            }
            "seats" => {
                let seats = self.seats.ok_or_else(|| Failure::bad("seats: a number"))?;
                self.configure("seats", json!(seats), incarnation)
            }
            "call-next" => {
                let lane = self.lane.as_ref().map(|_| self.lane()).transpose()?;
                let lane = lane.as_ref().map(nowserving_client::LaneName::as_str);
                let call = json!({"n": self.n, "lane": lane, "call_id": self.request_id});
                let call = serde_json::from_value(call);
                let call = call.map_err(|_| Failure::bad("n: 1 to 1024"))?;
                Ok(Change::CallNext { call, incarnation })
            }
            "kick" => {
                let lane = self.lane()?;
                let token = self.token.ok_or_else(|| Failure::bad("token: a number"))?;
                Ok(Change::Kick(Kick {
                    tokens: Some(vec![TokenName { lane, token }]),
                    incarnation: Some(incarnation),
                    ..Kick::default()
                }))
            }
            _ => Err(Failure::not_found("there is no such change")),
        }
    }

    fn configure(&self, name: &str, value: Value, incarnation: u64) -> Result<Change, Failure> {
        let if_version = self.if_version;
        let if_version =
            if_version.ok_or_else(|| Failure::bad("if_version: that of the settings"))?;
        let mut body = Map::new();
        body.insert(name.to_owned(), value);
        body.insert("if_version".to_owned(), if_version.into());
        body.insert("incarnation".to_owned(), incarnation.into());
        let configure = serde_json::from_value(Value::Object(body));
        // It says the range.
        let configure = configure.map_err(|error| Failure::bad(&format!("{name}: {error}")))?;
        Ok(Change::Configure(Box::new(configure)))
    }

    fn lane(&self) -> Result<nowserving_client::LaneName, Failure> {
        let lane = self.lane.as_ref().and_then(|lane| lane.parse().ok());
        lane.ok_or_else(|| Failure::bad("lane: the name of a lane"))
    }
}

/// Makes a change.
pub async fn change(
    dashboard: &Dashboard,
    line: &LineName,
    op: &str,
    asked: &Asked,
    reader: &Reader,
) -> Result<Map<String, Value>, Failure> {
    let (change, note) = asked.read(op, reader)?;
    if !reader.changes {
        return Err(Failure {
            status: StatusCode::FORBIDDEN,
            code: "read_only".to_owned(),
            detail: "this dashboard may change nothing (allow_changes)".to_owned(),
        });
    }
    tracing::info!(%line, op, by = note.by.as_deref(), "an operator asks for a change");
    let plain = dashboard.client.admin().line(line.as_str())?;
    let noted = plain.with_note(note.clone())?;
    let answer = match change {
        Change::Configure(configure) => {
            let version = match noted.configure(&configure).await {
                Ok(reply) => reply.settings_version,
                Err(error) => made_before(&plain, &configure, &note, error).await?,
            };
            json!({ "version": version })
        }
        Change::CallNext { call, incarnation } => {
            if plain.show().await?.incarnation != incarnation {
                return Err(Failure::conflict());
            }
            let reply = noted.call_next(&call).await?;
            let admitted = reply.admitted.iter();
            let admitted = admitted.map(|it| json!({"lane": it.lane.as_str(), "token": it.token}));
            json!({ "admitted": admitted.collect::<Vec<_>>() })
        }
        Change::Kick(kick) => json!({ "kicked": noted.kick(&kick).await?.kicked }),
    };
    // What is shown next has the change.
    dashboard.wake.notify_one();
    Ok(object(answer))
}

/// A request that is sent again, as its outcome was not known, is refused for the version that it has made itself. The first
/// entry of the journal since says whether it was this one: the same person, reason and setting.
async fn made_before(
    line: &AdminLine,
    configure: &Configure,
    note: &OperatorNote,
    error: Error,
) -> Result<u64, Failure> {
    if error.code() != Some(Code::VersionConflict) {
        return Err(error.into());
    }
    let page = Journal {
        after: configure.if_version,
        limit: Some(1),
        of_line: true,
        ..Journal::default()
    };
    let Ok(journal) = line.journal(&page).await else {
        return Err(error.into());
    };
    let entry = journal.entries.first().filter(|entry| {
        let asked = serde_json::to_value(configure).unwrap_or_default();
        let is_asked = |name: &str, to: &Value| asked.get(name) == Some(to);
        let mut changes = entry.changes.iter().flatten();
        Some(journal.incarnation) == configure.incarnation
            && entry.what == "configured"
            && entry.by.as_deref() == note.by.as_deref()
            && entry.reason.as_deref() == note.reason.as_deref()
            && changes.any(|it| is_asked(&it.setting, &it.to))
    });
    entry.map(|entry| entry.version).ok_or_else(|| error.into())
}

/// Whatever a body is, it is read or refused.
#[cfg(test)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(asked) = serde_json::from_slice::<Asked>(bytes) {
        for op in ["phase", "seats", "call-next", "kick", "other"] {
            let _ = asked.read(op, &Reader::default());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(op: &str, change: impl FnOnce(&mut Value)) -> Result<(Change, OperatorNote), Failure> {
        let mut body = json!({
            "by": " ann ", "reason": "the printer", "request_id": "0123456789abcdef0123456789abcdef",
            "incarnation": 7, "if_version": 40, "phase": "paused", "seats": 12, "n": 2,
            "lane": "normal", "token": 17,
        });
        change(&mut body);
        let asked: Asked = serde_json::from_value(body).map_err(|_| Failure::bad("body"))?;
        asked.read(op, &Reader::default())
    }

    #[test]
    fn changes_are_of_what_was_looked_at() {
        let (change, note) = asked("phase", |_| {}).unwrap();
        assert_eq!(
            (note.by.as_deref(), note.reason.as_deref()),
            (Some("ann"), Some("the printer"))
        );
        let Change::Configure(configure) = change else {
            panic!("{change:?}");
        };
        let body = serde_json::to_value(&configure).unwrap();
        assert_eq!(
            body,
            json!({"phase": "paused", "if_version": 40, "incarnation": 7})
        );
        let (change, _) = asked("call-next", |_| {}).unwrap();
        let Change::CallNext { call, incarnation } = change else {
            panic!("{change:?}");
        };
        assert_eq!((call.n, incarnation, call.call_id.len()), (2, 7, 32));
        let (change, _) = asked("kick", |_| {}).unwrap();
        let Change::Kick(kick) = change else {
            panic!("{change:?}");
        };
        assert_eq!(kick.incarnation, Some(7));
        assert_eq!(kick.tokens.unwrap()[0].token, 17);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        type Break = fn(&mut Value);
        let cases: [(&str, &str, Break); 12] = [
            ("phase", "by", |it| it["by"] = Value::Null),
            ("phase", "by", |it| it["by"] = "a\nb".into()),
            ("phase", "reason", |it| it["reason"] = " ".into()),
            ("phase", "reason", |it| it["reason"] = "ü".repeat(65).into()),
            ("phase", "request_id", |it| it["request_id"] = "12".into()),
            ("phase", "incarnation", |it| it["incarnation"] = Value::Null),
            ("phase", "if_version", |it| it["if_version"] = Value::Null),
            ("phase", "phase", |it| it["phase"] = "pre_open".into()),
            ("seats", "seats", |it| it["seats"] = 5_000_000.into()),
            ("call-next", "n", |it| it["n"] = 0.into()),
            ("kick", "lane", |it| it["lane"] = "a b".into()),
            ("kick", "token", |it| it["token"] = Value::Null),
        ];
        for (op, word, change) in cases {
            let failure = asked(op, change).unwrap_err();
            assert!(failure.detail.contains(word), "{op} {word}: {failure:?}");
            assert_eq!(failure.status, StatusCode::BAD_REQUEST);
        }
        let none = asked("delete", |_| {}).unwrap_err();
        assert_eq!(none.status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_proxy_s_name_goes_before_that_of_the_body() {
        let body = json!({"by": "eve", "reason": "x", "incarnation": 1, "if_version": 1, "seats": 1,
            "request_id": "0123456789abcdef0123456789abcdef"});
        let asked: Asked = serde_json::from_value(body).unwrap();
        let reader = Reader {
            changes: true,
            by: Some("ann".to_owned()),
        };
        let (_, note) = asked.read("seats", &reader).unwrap();
        assert_eq!(note.by.as_deref(), Some("ann"));
    }
}
