//! What a kick's request selects in a line.

use std::collections::BTreeSet;

use nowserving_line::{KickSelector, LaneName, Line, Live, TokenRef};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::{Kick, KickedToken};
use nowserving_protocol::user::Key;

/// The tokens among which a kick chooses.
pub(super) enum Choice {
    /// Each once, with its place in the request.
    Named {
        tokens: Vec<(u32, TokenRef)>,
        /// The places of keys without a live token.
        not_found: Vec<u32>,
    },
    /// All of a lane, or of the line.
    Lane(Option<u8>),
}

pub(super) fn choose(line: &Line, ask: &Kick) -> Result<(KickSelector, Choice), ApiError> {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut known = BTreeSet::new();
    let mut once = |at: TokenRef| known.insert(at).then_some(at);
    if let Some(tokens) = &ask.tokens {
        let mut named = Vec::with_capacity(tokens.len());
        for (place, it) in (0..).zip(tokens) {
            let lane = lane_id(line, &it.lane, &format!("tokens[{place}].lane"))?;
            let at = line.resolve(TokenRef {
                incarnation: line.incarnation(),
                lane,
                token: it.token,
            });
            named.extend(once(at).map(|at| (place, at)));
        }
        let selector = KickSelector::Tokens(count(tokens.len()));
        let not_found = Vec::new();
        return Ok((
            selector,
            Choice::Named {
                tokens: named,
                not_found,
            },
        ));
    }
    if let Some(keys) = &ask.keys {
        let (mut tokens, mut not_found) = (Vec::new(), Vec::new());
        for (place, key) in (0..).zip(keys) {
            match line.find(key.as_bytes()) {
                Some(at) => tokens.extend(once(at).map(|at| (place, at))),
                None => not_found.push(place),
            }
        }
        let selector = KickSelector::Keys(count(keys.len()));
        return Ok((selector, Choice::Named { tokens, not_found }));
    }
    if let Some(lane) = &ask.lane {
        let id = lane_id(line, lane, "lane")?;
        return Ok((KickSelector::Lane(id), Choice::Lane(Some(id))));
    }
    let selector = match ask.idle_over_ms {
        Some(ms) => KickSelector::IdleOverMs(ms),
        None => KickSelector::All,
    };
    Ok((selector, Choice::Lane(None)))
}

fn lane_id(line: &Line, name: &LaneName, field: &str) -> Result<u8, ApiError> {
    let mut lanes = (0..).zip(line.lane_names());
    let found = lanes.find(|(_, lane)| *lane == name).map(|(id, _)| id);
    found.ok_or_else(|| {
        let limit = line.no_lane("lane", name).limit;
        ApiError::bad_request(format!("{field}: {limit}"))
    })
}

pub(super) fn shown(line: &Line, at: TokenRef, live: Live<'_>) -> KickedToken {
    let lane = line.lane_names().nth(usize::from(at.lane));
    KickedToken {
        lane: lane.cloned().unwrap_or_default(),
        token: at.token,
        // Keys of live tokens have 1 to 128 bytes.
        key: live.key.and_then(|key| Key::new(key).ok()),
        state: live.state(),
    }
}
