//! The messages that prost makes of `proto/{entry,members,settings,snapshot}.proto`, and helpers that the conversions
//! between them and the types of the crates share.

use nowserving_line as line;
use nowserving_line::{LaneName, Reason, Token};

pub use self::generated::*;

#[allow(missing_docs, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/nowserving.v1.rs"));
}

/// The fault in a message that protobuf itself can read.
pub(crate) type Malformed = &'static str;

/// Conversions, both ways, between a type of the line crate and the message that has the same fields.
macro_rules! same_fields {
    ($($ours:ident = $message:ident { $($field:ident),* })*) => {$(
        impl From<line::$ours> for $message {
            fn from(line::$ours { $($field),* }: line::$ours) -> Self {
                Self { $($field),* }
            }
        }

        impl From<$message> for line::$ours {
            fn from($message { $($field),* }: $message) -> Self {
                Self { $($field),* }
            }
        }
    )*};
}

same_fields! {
    AdmissionRate = AdmissionRate { per_second_micro, burst }
    Arrivals = Arrivals { count, since_ms, began_ms, last_ms }
    Bucket = Bucket { level_nano, at_ms }
    Shadow = Shadow { admitted, held_back, refused, over_seats_max }
    EtaGiven = EtaGiven { eta_ms, eta_p90_ms }
    Window = ForecastWindow { releases, seat_ms }
}

/// Converts every item of a list.
pub(crate) fn all<T, U, L: FromIterator<U>>(
    items: Vec<T>,
    convert: impl FnMut(T) -> Result<U, Malformed>,
) -> Result<L, Malformed> {
    items.into_iter().map(convert).collect()
}

pub(crate) fn lane_from_pb(lane: u32) -> Result<u8, Malformed> {
    u8::try_from(lane).map_err(|_| "a lane's place beyond 255")
}

pub(crate) fn lane_name_from_pb(name: &str) -> Result<LaneName, Malformed> {
    LaneName::try_from(name).map_err(|_| "the name of a lane that is none")
}

pub(crate) fn line_name_from_pb(name: &str) -> Result<line::LineName, Malformed> {
    line::LineName::try_from(name).map_err(|_| "a line's name that is none")
}

pub(crate) fn reason_from_pb(code: u32) -> Result<Reason, Malformed> {
    let reason = u8::try_from(code).ok().and_then(Reason::from_code);
    reason.ok_or("a reason that this build does not know")
}

/// The 16 bytes of an upload's id.
pub(crate) fn upload_id_from_pb(id: &[u8]) -> Result<u128, Malformed> {
    let id = <[u8; 16]>::try_from(id).map_err(|_| "the id of an upload that is none")?;
    Ok(u128::from_be_bytes(id))
}

pub(crate) fn digest_from_pb(digest: &[u8]) -> Result<[u8; 32], Malformed> {
    digest.try_into().map_err(|_| "a digest that is none")
}

pub(crate) fn token_to_pb((lane, token): (u8, Token)) -> LaneToken {
    LaneToken {
        lane: lane.into(),
        token,
    }
}

pub(crate) fn token_from_pb(at: LaneToken) -> Result<(u8, Token), Malformed> {
    Ok((lane_from_pb(at.lane)?, at.token))
}
