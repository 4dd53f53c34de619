//! Kicks between the line crate's types and protobuf.

use nowserving_line::{KickItem, KickNote, KickSelector, Kicked, State};

use crate::pb;
use crate::pb::kick_note::Selector;
use crate::pb::{Malformed, lane_from_pb};

pub(crate) fn kick_item_to_pb(item: &KickItem) -> pb::KickItem {
    pb::KickItem {
        lane: item.lane.into(),
        token: item.token,
        state: state_to_pb(item.state),
        clock_ms: item.clock_ms,
    }
}

pub(crate) fn kick_item_from_pb(item: pb::KickItem) -> Result<KickItem, Malformed> {
    Ok(KickItem {
        lane: lane_from_pb(item.lane)?,
        token: item.token,
        state: state_from_pb(item.state)?,
        clock_ms: item.clock_ms,
    })
}

pub(crate) fn note_to_pb(note: &KickNote) -> pb::KickNote {
    let selector = match note.selector {
        KickSelector::Tokens(count) => Selector::Tokens(count),
        KickSelector::Keys(count) => Selector::Keys(count),
        KickSelector::IdleOverMs(ms) => Selector::IdleOverMs(ms),
        KickSelector::Lane(id) => Selector::Lane(id.into()),
        KickSelector::All => Selector::All(pb::KickAll {}),
    };
    pb::KickNote {
        selector: Some(selector),
        state: state_to_pb(note.state),
        reason: note.reason.as_deref().map(str::to_owned),
        by: note.by.as_deref().map(str::to_owned),
    }
}

pub(crate) fn note_from_pb(note: pb::KickNote) -> Result<KickNote, Malformed> {
    let selector = match note.selector {
        Some(Selector::Tokens(count)) => KickSelector::Tokens(count),
        Some(Selector::Keys(count)) => KickSelector::Keys(count),
        Some(Selector::IdleOverMs(ms)) => KickSelector::IdleOverMs(ms),
        Some(Selector::Lane(id)) => KickSelector::Lane(lane_from_pb(id)?),
        Some(Selector::All(_)) => KickSelector::All,
        None => return Err("a kick that does not say of whom"),
    };
    Ok(KickNote {
        selector,
        state: state_from_pb(note.state)?,
        reason: note.reason.map(Into::into),
        by: note.by.map(Into::into),
    })
}

pub(crate) fn kicked_to_pb(kicked: &Kicked) -> pb::Kicked {
    pb::Kicked {
        version: kicked.version,
        note: Some(note_to_pb(&kicked.note)),
    }
}

pub(crate) fn kicked_from_pb(kicked: pb::Kicked) -> Result<Kicked, Malformed> {
    Ok(Kicked {
        version: kicked.version,
        note: note_from_pb(kicked.note.ok_or("a kick without a note")?)?,
    })
}

pub(crate) fn state_to_pb(state: Option<State>) -> i32 {
    let state = match state {
        Some(State::Waiting) => pb::LiveState::Waiting,
        Some(State::Admitted) => pb::LiveState::Admitted,
        Some(State::InCheckout) => pb::LiveState::InCheckout,
        // No token in the log is asked to be gone.
        Some(State::Gone) | None => pb::LiveState::Unspecified,
    };
    state.into()
}

pub(crate) fn state_from_pb(state: i32) -> Result<Option<State>, Malformed> {
    Ok(match pb::LiveState::try_from(state) {
        Ok(pb::LiveState::Unspecified) => None,
        Ok(pb::LiveState::Waiting) => Some(State::Waiting),
        Ok(pb::LiveState::Admitted) => Some(State::Admitted),
        Ok(pb::LiveState::InCheckout) => Some(State::InCheckout),
        Err(_) => return Err("a state that this build does not know"),
    })
}
