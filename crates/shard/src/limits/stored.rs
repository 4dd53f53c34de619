//! The bytes of rate limits, where they are not those of the types.

use std::ops::ControlFlow;

use nowserving_codec::{Codec, Malformed, Reader, Writer};
use nowserving_limit::{Counter, Limit, LimitParts, Moment, Saved, Window, key};

use super::{COUNTERS_MAX, LimitAsk, LimitChanges, LimitsState, RuleTexts, TimedAsk};

/// Hashes have so many counters: those from which on idle ones are looked for next, which moves on as they are used.
const PART_COUNTERS: usize = 256;
/// Fewer of them if they are long: the last one begins within this many bytes of the first.
const PART_COUNTERS_BYTES: usize = 65_536;

/// Algorithm and unit stand in the key, and the zone has done its part: the window is there.
impl Codec for TimedAsk {
    fn encode(&self, to: &mut Writer) {
        let TimedAsk { ask, at } = self;
        ask.key.encode(to);
        ask.limit.requests_per_unit().encode(to);
        ask.limit.parts().burst.encode(to);
        ask.hits.encode(to);
        ask.max_delay_us.encode(to);
        ask.when_full.encode(to);
        ask.is_shadow.encode(to);
        ask.is_quota.encode(to);
        let window = at.window;
        [
            at.now_us,
            window.start_us,
            window.end_us,
            window.next_end_us,
        ]
        .encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let key = Box::<[u8]>::decode(from)?;
        let head = key::head(&key).ok_or(Malformed("the key of a counter that is none"))?;
        let limit = Limit::new(LimitParts {
            algorithm: head.0,
            unit: head.1,
            requests_per_unit: Codec::decode(from)?,
            burst: Codec::decode(from)?,
            zone: None,
        });
        let ask = LimitAsk {
            limit: limit.map_err(|_| Malformed("a limit that is none"))?,
            key,
            hits: Codec::decode(from)?,
            max_delay_us: Codec::decode(from)?,
            when_full: Codec::decode(from)?,
            is_shadow: Codec::decode(from)?,
            is_quota: Codec::decode(from)?,
        };
        let [now_us, start_us, end_us, next_end_us] = Codec::decode(from)?;
        let window = Window {
            start_us,
            end_us,
            next_end_us,
        };
        let at = Moment { now_us, window };
        Ok(TimedAsk { ask, at })
    }
}

/// The bounds of the counters are those of the build, and what they take is counted anew.
impl Codec for LimitsState {
    fn encode(&self, to: &mut Writer) {
        self.rules.encode(to);
        self.resets.encode(to);
        self.changes.encode(to);
        self.saved.expired_to().map(<Box<[u8]>>::from).encode(to);
        to.number(self.saved.len() as u64);
        self.saved.each_after(None, |key, counter| {
            put_counter(key, counter, to);
            ControlFlow::Continue(())
        });
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut limits = LimitsState {
            rules: RuleTexts::decode(from)?,
            resets: Codec::decode(from)?,
            changes: LimitChanges::decode(from)?,
            saved: Saved::new(COUNTERS_MAX),
        };
        limits.saved.set_expired_to(Codec::decode(from)?);
        for _ in 0..from.count()? {
            let (key, counter) = <(Box<[u8]>, Counter)>::decode(from)?;
            let kind = key::head(&key).map(|(algorithm, _)| algorithm);
            if !kind.is_some_and(|kind| counter.fits(kind)) {
                return Err(Malformed("a counter of another kind than its key says"));
            }
            limits.saved.put(&key, counter);
        }
        Ok(limits)
    }
}

fn put_counter(key: &[u8], counter: &Counter, to: &mut Writer) {
    to.number(key.len() as u64);
    to.put(key);
    counter.encode(to);
}

impl LimitsState {
    /// For hashes of parts of the state: without the texts of rules, but for their versions, and of operators' changes the
    /// newest.
    pub(crate) fn encode_part(&self, to: &mut Writer) {
        self.rules.version().encode(to);
        self.resets.encode(to);
        for (_, rules) in self.rules.domains() {
            rules.version.encode(to);
        }
        self.changes.iter().next_back().cloned().encode(to);
        let first = to.bytes().len();
        let mut left = PART_COUNTERS;
        self.saved
            .each_after(self.saved.expired_to(), |key, counter| {
                put_counter(key, counter, to);
                left -= 1;
                if left == 0 || to.bytes().len() - first > PART_COUNTERS_BYTES {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
    }
}
