//! What a kick's request selects in a line.

use std::collections::BTreeSet;

use nowserving_line::{KickSelector, LaneName, Line, Live, TokenRef};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kick::{Kick, KickedToken};
use nowserving_protocol::user::Key;

/// The tokens among which a kick chooses.
pub(super) enum Choice {
    Named(Vec<TokenRef>),
    /// All of a lane, or of the line.
    Lane(Option<u8>),
}

pub(super) fn choose(line: &Line, ask: &Kick) -> Result<(KickSelector, Choice), ApiError> {
    let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    let mut known = BTreeSet::new();
    let mut once = |at: TokenRef| known.insert(at).then_some(at);
    if let Some(tokens) = &ask.tokens {
        let mut named = Vec::with_capacity(tokens.len());
        for (place, it) in tokens.iter().enumerate() {
            let lane = lane_id(line, &it.lane, &format!("tokens[{place}].lane"))?;
            named.extend(once(line.resolve(TokenRef {
                incarnation: line.incarnation(),
                lane,
                token: it.token,
            })));
        }
        let selector = KickSelector::Tokens(count(tokens.len()));
        return Ok((selector, Choice::Named(named)));
    }
    if let Some(keys) = &ask.keys {
        let named = keys.iter().filter_map(|key| line.find(key.as_bytes()));
        let named = named.filter_map(once).collect();
        let selector = KickSelector::Keys(count(keys.len()));
        return Ok((selector, Choice::Named(named)));
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

pub(super) fn shown(line: &Line, at: TokenRef, live: &Live) -> KickedToken {
    let lane = line.lane_names().nth(usize::from(at.lane));
    KickedToken {
        lane: lane.cloned().unwrap_or_default(),
        token: at.token,
        // Keys of live tokens have 1 to 128 bytes.
        key: live.key.as_deref().and_then(|key| Key::new(key).ok()),
        state: live.state(),
    }
}
