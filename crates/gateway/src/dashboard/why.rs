//! What is asked for by hand alone: one token with its journal, changes of a line, and a doctor who looks closer.

use nowserving_client::{
    AdminLine, Code, Error, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, JournalReply, LaneName,
    LineName, ListTokens, ListedToken, StatusReply, TokenName,
};
use nowserving_insight::{diagnosis::diagnosis, facts};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::object;
use super::{Dashboard, Failure};

/// Entries about one token.
const ENTRIES_MAX: u64 = 100;
/// Changes of a line.
const CHANGES_MAX: usize = 50;
/// So many pages of a journal are read; a line keeps about 8,192 entries.
const PAGES_MAX: usize = 99;

/// Which token: one of the three.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    /// With `token`; the line's default lane, if it is left out.
    lane: Option<String>,
    token: Option<u64>,
    key: Option<String>,
    ticket: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which<'a> {
    Token(Option<LaneName>, u64),
    Key(&'a str),
    Ticket(&'a str),
}

impl Asked {
    fn which(&self) -> Result<Which<'_>, Failure> {
        match (self.token, self.key.as_deref(), self.ticket.as_deref()) {
            (Some(token), None, None) => {
                let lane = self.lane.as_deref().map(str::parse).transpose();
                let lane = lane.map_err(|_| Failure::bad("lane: no name of a lane"))?;
                Ok(Which::Token(lane, token))
            }
            (None, Some(key), None) if self.lane.is_none() => Ok(Which::Key(key)),
            (None, None, Some(ticket)) if self.lane.is_none() => Ok(Which::Ticket(ticket)),
            _ => Err(Failure::bad("one of token (with lane), key and ticket")),
        }
    }
}

/// Why this token has not been admitted, or what has become of it.
pub async fn why(
    dashboard: &Dashboard,
    line: &LineName,
    asked: &Asked,
) -> Result<Map<String, Value>, Failure> {
    let which = asked.which()?;
    let _scan = dashboard.scan(line)?;
    let status = match which {
        Which::Token(..) => None,
        Which::Key(key) => Some(dashboard.user_line(line)?.status_by_key(key).await),
        Which::Ticket(ticket) => Some(dashboard.user_line(line)?.status(ticket).await),
    };
    let status = status.transpose().map_err(|error| hidden(&error))?;
    let (lane, number) = match (&status, which) {
        (Some(status), _) => (Some(status.lane.clone()), status.token),
        (None, Which::Token(lane, number)) => (lane, number),
        (None, _) => return Err(Failure::bad("one of token (with lane), key and ticket")),
    };
    let admin = dashboard.client.admin().line(line.as_str())?;
    let page = Journal {
        lane: lane.clone(),
        token: Some(number),
        limit: Some(ENTRIES_MAX),
        ..Journal::default()
    };
    let journal = admin.journal(&page).await?;
    let explain = journal.explain.as_ref();
    // It may have been moved since: then it has another number.
    let now = explain.map(|it| (it.lane.clone(), it.token));
    let (lane, number) = now
        .or(lane.map(|lane| (lane, number)))
        .ok_or_else(Failure::no_token)?;
    let listed = listed(&admin, &lane, number).await?;
    let mut token = match &listed {
        Some(listed) => object(json!(listed)),
        None => gone(&journal, &lane, number, status.as_ref()),
    };
    if let Some(status) = status.filter(|_| listed.is_some()) {
        // This question itself counts as a sign of life.
        token.remove("last_seen_ms");
        token.insert("eta_ms".to_owned(), json!(status.eta_ms.flatten()));
        token.insert("eta_p90_ms".to_owned(), json!(status.eta_p90_ms.flatten()));
    }
    let mut answer = object(json!({
        "token": token,
        "more": journal.next.is_some(),
        "entries": journal.entries,
    }));
    if let Some(explain) = &journal.explain {
        answer.insert("explain".to_owned(), json!(explain));
    }
    Ok(answer)
}

/// An error about a key or a ticket, which might quote it.
fn hidden(error: &Error) -> Failure {
    let failure = Failure::from(error.clone());
    let detail = match error.code() {
        Some(Code::TokenNotFound) => "nobody with this key is in the line",
        Some(Code::TicketInvalid) => "this is no ticket of this line",
        Some(Code::BadRequest) => "this is no key, or no ticket",
        _ => return failure,
    };
    Failure {
        detail: detail.to_owned(),
        ..failure
    }
}

/// The token, if it is live: the first one after the number before it.
async fn listed(
    line: &AdminLine,
    lane: &LaneName,
    number: u64,
) -> Result<Option<ListedToken>, Failure> {
    let page = ListTokens {
        lane: Some(lane.clone()),
        after: vec![TokenName {
            lane: lane.clone(),
            token: number.saturating_sub(1),
        }],
        limit: Some(1),
        ..ListTokens::default()
    };
    let reply = line.list_tokens(&page).await?;
    let mut tokens = reply.tokens.into_iter();
    Ok(tokens.find(|it| it.lane == *lane && it.token == number))
}

fn gone(
    journal: &JournalReply,
    lane: &LaneName,
    number: u64,
    status: Option<&StatusReply>,
) -> Map<String, Value> {
    let last = journal.entries.iter().rev().find(|it| it.what == "gone");
    let reason = last.and_then(|it| it.reason.clone());
    let reason = reason.or_else(|| status?.reason.as_ref().map(ToString::to_string));
    let entered = |it: &JournalEntryReply| it.entered_at_ms;
    let entered_at_ms = journal.explain.as_ref().and_then(|it| it.entered_at_ms);
    let entered_at_ms = entered_at_ms.or_else(|| journal.entries.iter().find_map(entered));
    let mut token = object(json!({
        "lane": lane.as_str(), "token": number, "state": "gone", "reason": reason,
    }));
    if let Some(entered_at_ms) = entered_at_ms {
        token.insert("entered_at_ms".to_owned(), entered_at_ms.into());
    }
    token
}

/// What operators and the schedule did to a line, the newest first.
pub async fn changes(
    dashboard: &Dashboard,
    line: &LineName,
) -> Result<Map<String, Value>, Failure> {
    let _scan = dashboard.scan(line)?;
    let admin = dashboard.client.admin().line(line.as_str())?;
    let mut page = Journal {
        of_line: true,
        limit: Some(JOURNAL_LIMIT_MAX),
        ..Journal::default()
    };
    // Pages begin with the oldest.
    let (mut newest, mut more) = (Vec::new(), false);
    for _ in 0..PAGES_MAX {
        let reply = admin.journal(&page).await?;
        newest.extend(reply.entries);
        let drop = newest.len().saturating_sub(CHANGES_MAX);
        more |= drop > 0;
        newest.drain(..drop);
        page.after = reply.next;
        if page.after.is_none() {
            break;
        }
    }
    newest.reverse();
    Ok(object(json!({ "entries": newest, "more": more })))
}

/// All that the doctor finds in a line, with the holders of its seats and its journal.
pub async fn findings(
    dashboard: &Dashboard,
    line: &LineName,
) -> Result<Map<String, Value>, Failure> {
    let _scan = dashboard.scan(line)?;
    let client = dashboard.client.clone();
    let facts = facts::gather(Some(line.as_str()), Ok(client)).await?;
    let found = diagnosis(None, &facts, &dashboard.options);
    Ok(object(
        json!({ "findings": found.findings, "in_order": found.in_order }),
    ))
}

/// Whatever a body is, it is read or refused.
#[cfg(test)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(asked) = serde_json::from_slice::<Asked>(bytes) {
        let _ = asked.which();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_token_is_named() {
        let which = |body: Value| {
            let asked: Asked = serde_json::from_value(body).map_err(|_| Failure::bad("body"))?;
            asked.which().map(|it| format!("{it:?}"))
        };
        for good in [
            json!({"token": 4}),
            json!({"lane": "normal", "token": 4}),
            json!({"key": "ann"}),
            json!({"ticket": "t"}),
        ] {
            assert!(which(good.clone()).is_ok(), "{good}");
        }
        for bad in [
            json!({}),
            json!({"lane": "normal"}),
            json!({"lane": "a b", "token": 4}),
            json!({"token": 4, "key": "ann"}),
            json!({"lane": "normal", "key": "ann"}),
            json!({"token": -1}),
            json!({"token": "4"}),
            json!({"other": 1}),
        ] {
            assert!(which(bad.clone()).is_err(), "{bad}");
        }
    }
}
