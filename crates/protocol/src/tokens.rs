//! `list_tokens`: the live tokens of a line, page by page. docs/protocol/operators.md.

use nowserving_line::{
    self as line, LANE_TABLE_MAX, LaneName, LineName, ListedThrough, Live, Stage, State, Timestamp,
    Token, TokenRef,
};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::journal::{lane_id, lane_name};
use crate::key::Key;
use crate::kick::{LiveState, TokenName};
use crate::page::Room;
use crate::wire;

/// The tokens on a page of `list_tokens` if the request has no limit.
pub const LIST_TOKENS_DEFAULT: u64 = 100;
/// The most tokens on one page.
pub const LIST_TOKENS_MAX: u64 = 1_000;
/// A page looks at so many tokens: with a `state` that few have it has fewer tokens than its limit.
const LOOKS_MAX: usize = 8_192;

/// `list_tokens`: a page of a line's live tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListTokens {
    /// Only tokens in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LiveState>,
    /// Only tokens of this lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// By number, if left out.
    #[serde(default)]
    pub order: TokenOrder,
    /// [`TokensReply::next`] of the page before: of each lane that is named, only larger numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<TokenName>,
    /// How many tokens at most, 1 to [`LIST_TOKENS_MAX`]; by default [`LIST_TOKENS_DEFAULT`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, LIST_TOKENS_MAX>"
    )]
    pub limit: Option<u64>,
}

/// The order of the tokens in `list_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TokenOrder {
    /// Lane by lane as the settings list them, each by its numbers.
    #[default]
    Number,
    /// Waiting tokens only, as they would be admitted if seats became free now, over all lanes.
    Service,
}

/// The answer to `list_tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokensReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version.
    pub version: u64,
    /// When this was answered, on the wall clock of the answering node.
    pub at_ms: u64,
    /// The page.
    pub tokens: Vec<ListedToken>,
    /// The `after` of the next page; null on the last one.
    pub next: Option<Vec<TokenName>>,
}

/// A token in a [`TokensReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedToken {
    /// Its lane.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number there.
    pub token: u64,
    /// Its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Its state.
    #[serde(with = "wire::StateWord")]
    pub state: State,
    /// When it entered, on the wall clock of the leader at that time.
    pub entered_at_ms: u64,
    /// While waiting: how many milliseconds ago its client was last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_ms: Option<u64>,
    /// While it holds a seat: in how many milliseconds that expires, unless it is claimed, renewed or completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// In checkout: how many milliseconds ago it claimed its seat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_ago_ms: Option<u64>,
    /// While waiting: 1 + the number of tokens waiting before it in its lane, also past the line's `position_cap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// While waiting: 1 + the number of tokens of all lanes that would be admitted before it, as things are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
}

impl ListTokens {
    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        let seated = matches!(
            self.state,
            Some(LiveState::Admitted | LiveState::InCheckout)
        );
        if self.order == TokenOrder::Service && seated {
            let what = "state: with order service only waiting, as only tokens that wait are in it";
            return Err(ApiError::bad_request(what));
        }
        if self.after.len() > LANE_TABLE_MAX {
            return Err(ApiError::bad_request(format!(
                "after: at most {LANE_TABLE_MAX} lanes"
            )));
        }
        Ok(())
    }

    /// Waiting tokens are found without looking at others.
    fn waiting_only(&self) -> Option<line::ListOrder> {
        match (self.order, self.state) {
            (TokenOrder::Service, _) => Some(line::ListOrder::Service),
            (TokenOrder::Number, Some(LiveState::Waiting)) => Some(line::ListOrder::Number),
            (TokenOrder::Number, _) => None,
        }
    }
}

impl TokensReply {
    /// The requested page at this time. `last_seen_ms` is what the leader knows of a waiting token, on the service clock.
    /// `bad_request` if the line never had a lane of the request.
    pub fn new(
        line: &line::Line,
        request: &ListTokens,
        now: Timestamp,
        last_seen_ms: impl Fn(TokenRef, Live<'_>) -> u64,
    ) -> Result<TokensReply, ApiError> {
        let lane = request.lane.as_ref();
        let lane = lane.map(|lane| lane_id(line, "lane", lane)).transpose()?;
        let mut through = ListedThrough::new();
        for TokenName { lane, token } in &request.after {
            let last = through.entry(lane_id(line, "after", lane)?).or_default();
            *last = (*last).max(*token);
        }
        let wanted = request.state.map(State::from);
        let limit = request.limit.unwrap_or(LIST_TOKENS_DEFAULT);
        // LIST_TOKENS_MAX at most if it was decoded, so nothing is cut by this.
        let limit = usize::try_from(limit.min(LIST_TOKENS_MAX)).unwrap_or(usize::MAX);
        let candidates: &mut dyn Iterator<Item = (u8, Token)> = match request.waiting_only() {
            Some(order) => &mut line.waiting_after(order, lane, &through),
            None => &mut line.live_after(lane, &through),
        };
        let (mut tokens, mut room, mut looks, mut more) = (Vec::new(), Room::new(), 0, false);
        for (lane, token) in candidates {
            let Some((at, live)) = line.live_at(lane, token) else {
                continue;
            };
            more = tokens.len() >= limit || looks >= LOOKS_MAX;
            if more {
                break;
            }
            if wanted.is_none_or(|state| state == live.state()) {
                let seen_ms =
                    |live: Live<'_>| now.service_ms.saturating_sub(last_seen_ms(at, live));
                let token = listed(line, at, live, now, seen_ms);
                more = !room.takes(&token);
                if more {
                    break;
                }
                tokens.push(token);
            }
            looks += 1;
            through.insert(lane, token);
        }
        let next = through.into_iter().map(|(lane, token)| TokenName {
            lane: lane_name(line, lane),
            token,
        });
        Ok(TokensReply {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            version: line.version(),
            at_ms: now.wall_ms,
            tokens,
            next: more.then(|| next.collect()),
        })
    }
}

fn listed(
    line: &line::Line,
    at: TokenRef,
    live: Live<'_>,
    now: Timestamp,
    seen_ms: impl Fn(Live<'_>) -> u64,
) -> ListedToken {
    let place = line.place_of(at.lane, at.token);
    let claimed_at_ms = match live.stage {
        Stage::InCheckout { claimed_at_ms, .. } => Some(claimed_at_ms),
        Stage::Waiting { .. } | Stage::Admitted { .. } => None,
    };
    ListedToken {
        lane: lane_name(line, at.lane),
        token: at.token,
        // Keys of live tokens have 1 to 128 bytes.
        key: live.key.and_then(|key| Key::new(key).ok()),
        state: live.state(),
        entered_at_ms: live.entered.at.wall_ms,
        last_seen_ms: place.map(|_| seen_ms(live)),
        expires_in_ms: live.deadline_ms().map(|ms| now.until_ms(ms)),
        claimed_ago_ms: claimed_at_ms.map(|ms| now.service_ms.saturating_sub(ms)),
        position: place.map(|(position, _)| position),
        turn: place.map(|(_, turn)| turn),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::decode;

    fn read(json: &str) -> Result<ListTokens, ApiError> {
        let ask: ListTokens = decode(json.as_bytes())?;
        ask.check().map(|()| ask)
    }

    #[test]
    fn requests_are_read_and_written() {
        for good in [
            "{}",
            r#"{"state": "admitted", "lane": "vip", "order": "number", "limit": 1000}"#,
            r#"{"order": "service", "state": "waiting", "limit": 1}"#,
            r#"{"after": [{"lane": "vip", "token": 3}, {"lane": "normal", "token": 9}]}"#,
        ] {
            let ask = read(good).unwrap();
            let there = serde_json::to_string(&ask).unwrap();
            assert_eq!(read(&there).unwrap(), ask, "{good}");
        }
        assert_eq!(read("{}").unwrap(), ListTokens::default());
    }

    #[test]
    fn refusals_name_the_field() {
        let many = vec![r#"{"lane": "vip", "token": 3}"#; LANE_TABLE_MAX + 1].join(",");
        for (bad, says) in [
            (r#"{"limit": 0}"#.to_owned(), "limit"),
            (r#"{"limit": 1001}"#.to_owned(), "limit"),
            (r#"{"state": "gone"}"#.to_owned(), "state"),
            (r#"{"order": "key"}"#.to_owned(), "order"),
            (r#"{"lane": "v p"}"#.to_owned(), "lane"),
            (r#"{"after": [{"lane": "vip"}]}"#.to_owned(), "after[0]"),
            (r#"{"after": 5}"#.to_owned(), "after"),
            (format!(r#"{{"after": [{many}]}}"#), "after: at most 64"),
            (
                r#"{"order": "service", "state": "in_checkout"}"#.to_owned(),
                "state: with order service",
            ),
            (r#"{"keys": true}"#.to_owned(), "keys"),
        ] {
            let message = read(&bad).unwrap_err().message;
            assert!(message.contains(says), "{bad}: {message}");
        }
    }
}
