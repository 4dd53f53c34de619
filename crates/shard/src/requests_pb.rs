//! Remembered requests, between this crate's types and protobuf.

use bytes::Bytes;
use nowserving_line::{CannotAdmit, Forbidden, Refused};

use crate::kv_pb::{kv_answer_from_pb, kv_answer_to_pb};
use crate::limits::pb::{
    hits_answer_from_pb, hits_answer_to_pb, rules_answer_from_pb, rules_answer_to_pb,
};
use crate::members_pb::{answer_from_pb, answer_to_pb};
use crate::op_pb::{at_from_pb, at_to_pb};
use crate::pb;
use crate::pb::remembered_request::Answer as PbAnswer;
use crate::pb::{Malformed, lane_name_from_pb, reason_from_pb};
use crate::requests::{Answer, Origin, Remembered, RequestId};

pub(crate) fn id_to_pb(id: RequestId) -> pb::RequestId {
    pb::RequestId {
        key: Bytes::copy_from_slice(&id.key.to_be_bytes()),
        origin: id.origin.into(),
    }
}

pub(crate) fn id_from_pb(id: &pb::RequestId) -> Result<RequestId, Malformed> {
    let key = <[u8; 16]>::try_from(&id.key[..]).map_err(|_| "a request id that is none")?;
    let origin = Origin::try_from(id.origin);
    Ok(RequestId {
        key: u128::from_be_bytes(key),
        origin: origin.map_err(|_| "a request id of unknown origin")?,
    })
}

pub(crate) fn remembered_to_pb(key: u128, it: &Remembered) -> pb::RememberedRequest {
    let origin = it.origin;
    let answer = match &it.answer {
        Answer::Token(at) => PbAnswer::Token(at_to_pb(at)),
        Answer::Callback { position } => PbAnswer::Callback(pb::CallbackAnswer {
            position: *position,
        }),
        Answer::Line => PbAnswer::Line(pb::Nothing {}),
        Answer::Called => PbAnswer::Called(pb::Nothing {}),
        Answer::Deleted { remaining } => PbAnswer::DeletedRemaining(*remaining),
        Answer::Refused(refused) => PbAnswer::Refusal(refusal_to_pb(refused)),
        Answer::BadSettings => PbAnswer::BadSettings(pb::Nothing {}),
        Answer::Members(answer) => PbAnswer::Members(answer_to_pb(answer)),
        Answer::Kv(answer) => PbAnswer::Kv(kv_answer_to_pb(answer)),
        Answer::LimitHits(answer) => PbAnswer::LimitHits(hits_answer_to_pb(answer)),
        Answer::LimitRules(answer) => PbAnswer::LimitRules(rules_answer_to_pb(answer)),
        Answer::LimitReset(was_there) => PbAnswer::LimitReset(*was_there),
    };
    pb::RememberedRequest {
        id: Some(id_to_pb(RequestId { key, origin })),
        at_ms: it.at_ms,
        answer: Some(answer),
    }
}

pub(crate) fn remembered_from_pb(
    it: pb::RememberedRequest,
) -> Result<(u128, Remembered), Malformed> {
    let id = id_from_pb(&it.id.ok_or("a remembered request without an id")?)?;
    let answer = match it.answer {
        Some(PbAnswer::Token(at)) => Answer::Token(at_from_pb(Some(at))?),
        Some(PbAnswer::Callback(pb::CallbackAnswer { position })) => Answer::Callback { position },
        Some(PbAnswer::Line(_)) => Answer::Line,
        Some(PbAnswer::Called(_)) => Answer::Called,
        Some(PbAnswer::DeletedRemaining(remaining)) => Answer::Deleted { remaining },
        Some(PbAnswer::Refusal(refusal)) => Answer::Refused(refusal_from_pb(refusal)?),
        Some(PbAnswer::BadSettings(_)) => Answer::BadSettings,
        Some(PbAnswer::Members(answer)) => Answer::Members(answer_from_pb(answer)?),
        Some(PbAnswer::Kv(answer)) => Answer::Kv(kv_answer_from_pb(answer)?),
        Some(PbAnswer::LimitHits(answer)) => Answer::LimitHits(hits_answer_from_pb(&answer)),
        Some(PbAnswer::LimitRules(answer)) => Answer::LimitRules(rules_answer_from_pb(&answer)?),
        Some(PbAnswer::LimitReset(was_there)) => Answer::LimitReset(was_there),
        None => return Err("a remembered request without an answer"),
    };
    let remembered = Remembered {
        origin: id.origin,
        at_ms: it.at_ms,
        answer,
    };
    Ok((id.key, remembered))
}

/// The refusals that have nothing but their kind, by number.
const PLAIN: [(u32, Refused); 24] = [
    (1, Refused::LineNotFound),
    (2, Refused::LineExists),
    (3, Refused::LineNotEmpty),
    (4, Refused::LineClosed),
    (5, Refused::LineDraining),
    (6, Refused::LineFull),
    (7, Refused::SoldOut),
    (8, Refused::TokenNotFound),
    (9, Refused::TicketInvalid),
    (10, Refused::NotAdmitted),
    (11, Refused::NotClaimed),
    (12, Refused::NotWaiting),
    (13, Refused::EpochStale),
    (14, Refused::VersionConflict),
    (15, Refused::AnotherIncarnation),
    (16, Refused::TokenGone(None)),
    (30, Refused::Forbidden(Forbidden::Jump)),
    (31, Refused::Forbidden(Forbidden::JumpsMax)),
    (50, Refused::CallbacksFull),
    (51, Refused::Forbidden(Forbidden::Callback)),
    (70, Refused::CannotAdmit(CannotAdmit::Phase)),
    (71, Refused::CannotAdmit(CannotAdmit::Quota)),
    (72, Refused::CannotAdmit(CannotAdmit::Seats)),
    (73, Refused::CannotAdmit(CannotAdmit::AdmissionRate)),
];
const LANE_FULL: u32 = 17;
const TOKEN_GONE: u32 = 18;
const NO_ROOM_KEPT: u32 = 19;

fn refusal_to_pb(refused: &Refused) -> pb::Refusal {
    let (kind, lane, number) = match refused {
        Refused::LaneFull { lane, limit } => (LANE_FULL, lane.as_str(), *limit),
        Refused::NoRoomKept { lane } => (NO_ROOM_KEPT, lane.as_str(), 0),
        Refused::TokenGone(Some(reason)) => (TOKEN_GONE, "", reason.code().into()),
        refused => {
            let plain = PLAIN.iter().find(|(_, it)| it == refused);
            (plain.map_or(0, |(kind, _)| *kind), "", 0)
        }
    };
    let lane = lane.to_owned();
    pb::Refusal { kind, lane, number }
}

fn refusal_from_pb(refusal: pb::Refusal) -> Result<Refused, Malformed> {
    match refusal.kind {
        LANE_FULL => Ok(Refused::LaneFull {
            lane: lane_name_from_pb(&refusal.lane)?,
            limit: refusal.number,
        }),
        NO_ROOM_KEPT => Ok(Refused::NoRoomKept {
            lane: lane_name_from_pb(&refusal.lane)?,
        }),
        TOKEN_GONE => Ok(Refused::TokenGone(Some(reason_from_pb(refusal.number)?))),
        kind => {
            let plain = PLAIN.iter().find(|(number, _)| *number == kind);
            let (_, refused) = plain.ok_or("a refusal that this build does not know")?;
            Ok(refused.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_kv as kv;
    use nowserving_line::{LaneName, Reason, TokenRef};

    use super::*;
    use crate::members::{MembersChanged, MembersRefused};

    #[test]
    fn every_answer_comes_back() {
        let at = TokenRef {
            incarnation: 3,
            lane: 2,
            token: 9,
        };
        let lane = LaneName::try_from("vip").unwrap();
        let mut answers = vec![
            Answer::Token(at),
            Answer::Line,
            Answer::Callback { position: Some(3) },
            Answer::Callback { position: None },
            Answer::Called,
            Answer::Deleted { remaining: 5 },
            Answer::BadSettings,
            Answer::Members(Ok(MembersChanged {
                version: 7,
                id: None,
            })),
            Answer::Members(Err(MembersRefused::NoMajority { alive: 1, all: 2 })),
            Answer::Members(Err(MembersRefused::TooMany)),
            Answer::Members(Err(MembersRefused::KeyNotNewer(1, 2))),
            Answer::Members(Err(MembersRefused::KeyNotLoaded {
                key: 2,
                nodes: vec![1, 3],
            })),
            Answer::Kv(Ok(kv::Reply { revision: 7 })),
            Answer::Kv(Err(kv::Refused::KeyNotFound)),
            Answer::Kv(Err(kv::Refused::VersionConflict { revision: 0 })),
            Answer::Kv(Err(kv::Refused::Full(kv::Full::BucketKeys))),
            Answer::Kv(Err(kv::Refused::Full(kv::Full::BucketBytes))),
            Answer::Kv(Err(kv::Refused::Full(kv::Full::Buckets))),
            Answer::Kv(Err(kv::Refused::Full(kv::Full::Bytes))),
            Answer::Refused(Refused::NoRoomKept { lane: lane.clone() }),
            Answer::Refused(Refused::LaneFull { lane, limit: 8 }),
            Answer::Refused(Refused::TokenGone(Some(Reason::Idle))),
        ];
        answers.extend(PLAIN.map(|(_, refused)| Answer::Refused(refused)));
        for (key, answer) in (u128::MAX - 60..).zip(answers) {
            for origin in [Origin::Client, Origin::Direct, Origin::Forwarder] {
                let remembered = Remembered {
                    origin,
                    at_ms: 77,
                    answer: answer.clone(),
                };
                let there = remembered_to_pb(key, &remembered);
                assert_eq!(remembered_from_pb(there).unwrap(), (key, remembered));
            }
        }
    }

    /// A refusal that is added to the line must be added here: the compiler says so.
    #[test]
    fn every_refusal_has_a_number() {
        for (number, refused) in &PLAIN {
            match refused {
                Refused::LineNotFound
                | Refused::LineExists
                | Refused::LineNotEmpty
                | Refused::LineClosed
                | Refused::LineDraining
                | Refused::LineFull
                | Refused::SoldOut
                | Refused::TokenNotFound
                | Refused::TicketInvalid
                | Refused::NotAdmitted
                | Refused::NotClaimed
                | Refused::NotWaiting
                | Refused::EpochStale
                | Refused::VersionConflict
                | Refused::AnotherIncarnation
                | Refused::TokenGone(_)
                | Refused::CallbacksFull
                | Refused::CannotAdmit(
                    CannotAdmit::Phase
                    | CannotAdmit::Quota
                    | CannotAdmit::Seats
                    | CannotAdmit::AdmissionRate,
                )
                | Refused::Forbidden(Forbidden::Jump | Forbidden::JumpsMax | Forbidden::Callback) =>
                {
                    assert_ne!(*number, 0)
                }
                Refused::LaneFull { .. } | Refused::NoRoomKept { .. } | Refused::BadField(_) => {
                    panic!("{refused:?}")
                }
            }
        }
    }
}
