//! Calls of operators and their answers, between the line crate's types and protobuf.

use bytes::Bytes;
use nowserving_line::{CallItem, CalledToken, TakeBy};

use crate::pb;
use crate::pb::call_item::Item;
use crate::pb::take::By;
use crate::pb::{Malformed, lane_from_pb, lane_name_from_pb};

pub(crate) fn take_by_to_pb(by: &TakeBy) -> By {
    match by {
        TakeBy::Key(key) => By::Key(Bytes::copy_from_slice(key)),
        TakeBy::Number { lane, token } => By::Number(pb::LaneNumber {
            lane: lane.as_str().to_owned(),
            token: *token,
        }),
    }
}

pub(crate) fn take_by_from_pb(by: Option<By>) -> Result<TakeBy, Malformed> {
    Ok(match by.ok_or("a take of a token that it does not name")? {
        By::Key(key) => TakeBy::Key(key[..].into()),
        By::Number(pb::LaneNumber { lane, token }) => TakeBy::Number {
            lane: lane_name_from_pb(&lane)?,
            token,
        },
    })
}

pub(crate) fn call_item_to_pb(item: &CallItem) -> pb::CallItem {
    let item = match item {
        CallItem::Call(id) => Item::CallId(id.to_string()),
        CallItem::Admitted(token) => Item::Admitted(pb::CalledToken {
            lane: token.lane.into(),
            token: token.token,
            key: token.key.as_deref().map(Bytes::copy_from_slice),
        }),
    };
    pb::CallItem { item: Some(item) }
}

pub(crate) fn call_item_from_pb(item: pb::CallItem) -> Result<CallItem, Malformed> {
    let item = item
        .item
        .ok_or("a part of a call that this build does not know")?;
    Ok(match item {
        Item::CallId(id) => CallItem::Call(id.into()),
        Item::Admitted(token) => CallItem::Admitted(CalledToken {
            lane: lane_from_pb(token.lane)?,
            token: token.token,
            // A copy, so that a key does not hold on to the whole file.
            key: token.key.map(|key| key[..].into()),
        }),
    })
}
