//! The long lists of a dump: as items, and live tokens as the bytes that a snapshot has of them, so that neither writing
//! nor reading one makes records of all tokens. With a million they would take more memory than the line.

use nowserving_codec::{Codec, Malformed, Reader, Writer};

use crate::dump::{LineDump, LineItem};
use crate::{Caller, Entered, EtaGiven, Live, LiveRecord, Stage, Token};

/// The live tokens of a lane, in order of number, in a [`crate::LaneDump`].
pub trait LiveList: Default {
    fn of<'a>(live: impl Iterator<Item = (Token, Live<'a>)>) -> Self;

    /// Calls `take` with each.
    ///
    /// # Errors
    /// The first one of `take`.
    fn each(
        &self,
        take: impl FnMut(Token, Live<'_>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str>;
}

impl LiveList for Vec<(Token, LiveRecord)> {
    fn of<'a>(live: impl Iterator<Item = (Token, Live<'a>)>) -> Self {
        live.map(|(token, live)| (token, live.to_record()))
            .collect()
    }

    fn each(
        &self,
        mut take: impl FnMut(Token, Live<'_>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        self.iter()
            .try_for_each(|(token, live)| take(*token, live.view()))
    }
}

/// The same list as bytes: those of the list are its count and they. They are the same in every format so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveBytes {
    count: usize,
    bytes: Vec<u8>,
}

/// The bytes have all that any format has.
const EVERY_FORMAT: u32 = u32::MAX;

impl LiveList for LiveBytes {
    fn of<'a>(live: impl Iterator<Item = (Token, Live<'a>)>) -> Self {
        let mut to = Writer::new(EVERY_FORMAT);
        let count = live.map(|(token, live)| put(token, live, &mut to)).count();
        LiveBytes {
            count,
            bytes: to.into_bytes(),
        }
    }

    fn each(
        &self,
        mut take: impl FnMut(Token, Live<'_>) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut from = Reader::new(&self.bytes, EVERY_FORMAT);
        for _ in 0..self.count {
            let read = Read::from(&mut from).map_err(|malformed| malformed.0)?;
            take(read.token, read.view())?;
        }
        Ok(())
    }
}

impl Codec for LiveBytes {
    fn encode(&self, to: &mut Writer) {
        to.number(self.count as u64);
        to.put(&self.bytes);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = from.count()?;
        let bytes = from.rest();
        for _ in 0..count {
            Read::from(from)?;
        }
        let length = bytes.len() - from.left();
        Ok(LiveBytes {
            count,
            bytes: bytes[..length].to_vec(),
        })
    }
}

/// As a [`LiveRecord`] and its number are encoded.
fn put(token: Token, live: Live<'_>, to: &mut Writer) {
    token.encode(to);
    live.key.is_some().encode(to);
    if let Some(key) = live.key {
        to.number(key.len() as u64);
        to.put(key);
    }
    live.entered.encode(to);
    live.stage.encode(to);
    to.number(live.moved_from.len() as u64);
    for old in live.moved_from {
        old.encode(to);
    }
    live.jumps.encode(to);
    live.eta_given.encode(to);
}

/// A [`LiveRecord`] and its number whose key is where it was read from.
struct Read<'a> {
    token: Token,
    key: Option<&'a [u8]>,
    entered: Entered,
    stage: Stage,
    moved_from: Box<[(u8, Token)]>,
    jumps: u8,
    eta_given: Option<EtaGiven>,
}

impl<'a> Read<'a> {
    fn from(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Read {
            token: Codec::decode(from)?,
            key: match bool::decode(from)? {
                true => {
                    let length = from.count()?;
                    Some(from.take(length)?)
                }
                false => None,
            },
            entered: Codec::decode(from)?,
            stage: Codec::decode(from)?,
            moved_from: Codec::decode(from)?,
            jumps: Codec::decode(from)?,
            eta_given: Codec::decode(from)?,
        })
    }

    fn view(&self) -> Live<'_> {
        Live {
            key: self.key,
            entered: self.entered,
            stage: self.stage,
            moved_from: &self.moved_from,
            jumps: self.jumps,
            eta_given: self.eta_given,
        }
    }
}

impl<L: LiveList> LineDump<L> {
    /// Takes its long lists out: those who took part in a draw; by lane, the live tokens; and all others.
    pub(crate) fn take_lists(
        &mut self,
    ) -> (
        impl Iterator<Item = LineItem> + use<L>,
        Vec<L>,
        impl Iterator<Item = LineItem> + use<L>,
    ) {
        let (mut draw, mut live, mut callers) = (Vec::new(), Vec::new(), Vec::new());
        for (id, lane) in (0..).zip(&mut self.lanes) {
            draw.push((id, std::mem::take(&mut lane.draw)));
            live.push(std::mem::take(&mut lane.live));
            callers.push((id, std::mem::take(&mut lane.callers)));
        }
        let draw = draw.into_iter().flat_map(|(id, pages)| {
            let pages = pages.into_iter();
            pages.map(move |page| LineItem::Draw(id, page))
        });
        let callers = callers.into_iter().flat_map(|(lane, callers)| {
            let callers = callers.into_iter();
            callers.map(move |(number, key)| LineItem::Caller(Caller { lane, number, key }))
        });
        let gone = std::mem::take(&mut self.gone).into_iter();
        let gone = gone.map(|(lane, token, gone)| LineItem::Gone(lane, token, gone));
        let journal = std::mem::take(&mut self.journal).into_iter();
        let changes = std::mem::take(&mut self.settings_changes).into_iter();
        let kicks = std::mem::take(&mut self.kicks).into_iter();
        let notes = std::mem::take(&mut self.notes).into_iter();
        let calls = std::mem::take(&mut self.calls).into_iter();
        let others = callers
            .chain(gone)
            .chain(journal.map(LineItem::Journal))
            .chain(changes.map(|it| LineItem::Settings(Box::new(it))))
            .chain(kicks.map(LineItem::Kicked))
            .chain(notes.map(LineItem::Noted))
            .chain(calls.map(LineItem::Call));
        (draw, live, others)
    }
}

impl LineDump {
    /// Takes its long lists out, item by item, in the order in which [`crate::LineBuilder::add`] wants them.
    pub fn take_items(&mut self) -> impl Iterator<Item = LineItem> + use<> {
        let (draw, live, others) = self.take_lists();
        let live = (0..).zip(live).flat_map(|(id, live)| {
            let live = live.into_iter();
            live.map(move |(token, live)| LineItem::Live(id, token, live))
        });
        draw.chain(live).chain(others)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_codec::{decode, encode};
    use proptest::prelude::*;

    use super::*;
    use crate::Timestamp;

    fn record() -> impl Strategy<Value = (Token, LiveRecord)> {
        let key = prop::option::of(prop::collection::vec(any::<u8>(), 0..300));
        let moved_from = prop::collection::vec(any::<(u8, u64)>(), 0..3);
        let others = (any::<u8>(), prop::option::of(any::<[u32; 2]>()), 0..3_u8);
        (key, any::<[u64; 6]>(), moved_from, others).prop_map(
            |(key, numbers, moved_from, (jumps, eta, stage))| {
                let [token, service_ms, wall_ms, version, deadline_ms, epoch] = numbers;
                let units = jumps.into();
                let stage = match stage {
                    0 => Stage::Waiting {
                        last_seen_ms: deadline_ms,
                    },
                    1 => Stage::Admitted { deadline_ms, units },
                    _ => Stage::InCheckout {
                        deadline_ms,
                        units,
                        claimed_at_ms: wall_ms,
                        epoch,
                    },
                };
                let at = Timestamp {
                    service_ms,
                    wall_ms,
                };
                let record = LiveRecord {
                    key: key.map(Into::into),
                    entered: Entered { at, version },
                    stage,
                    moved_from: moved_from.into(),
                    jumps,
                    eta_given: eta.map(|[eta_ms, eta_p90_ms]| EtaGiven { eta_ms, eta_p90_ms }),
                };
                (token, record)
            },
        )
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_the_records(
            records in prop::collection::vec(record(), 0..5),
            format in prop::sample::select(vec![1, 2, EVERY_FORMAT]),
            cut in any::<prop::sample::Index>(),
        ) {
            let list = LiveBytes::of(records.iter().map(|(token, live)| (*token, live.view())));
            let bytes = encode(&list, format);
            prop_assert_eq!(&bytes, &encode(&records, format));
            prop_assert_eq!(decode::<LiveBytes>(&bytes, format), Ok(list.clone()));
            let mut read = Vec::new();
            list.each(|token, live| {
                read.push((token, live.to_record()));
                Ok(())
            }).unwrap();
            prop_assert_eq!(read, records);
            let cut = &bytes[..cut.index(bytes.len())];
            prop_assert!(decode::<LiveBytes>(cut, format).is_err());
        }
    }
}
