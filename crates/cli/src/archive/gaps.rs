//! Where an archive lacks events.

use std::collections::BTreeMap;

use nowserving_client::LineName;
use serde::Serialize;

use super::events::{LineEvents, What};
use super::waited::Waited;

/// Events of tokens that may be missing, as far as `prev_version` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub line: String,
    pub incarnation: u64,
    /// The last version before the gap of which there is an event; 0: the archive begins with the gap.
    pub after_version: u64,
    /// No event of a version up to this one, and after `after_version`, is here.
    pub through_version: u64,
    /// Of the event before the gap.
    pub after_at_ms: Option<u64>,
    /// Of the event after it.
    pub before_at_ms: u64,
}

/// Two events of one version that say different things: one of them was altered, or is of another line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Differing {
    pub line: String,
    pub incarnation: u64,
    pub version: u64,
}

/// Numbers of a lane that were issued, as a later one is known, and of which there is no event at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingNumbers {
    pub line: String,
    pub incarnation: u64,
    pub lane: String,
    pub count: u64,
    /// The first of them.
    pub first: u64,
}

/// Between two events of tokens, every version that the second one says was published must be there. A new leader does
/// not know what was published last, and names the version that it found: so changes without an event (a renewed seat)
/// can look like a gap, but no gap looks like none.
pub fn of_line(name: &LineName, incarnation: u64, events: &LineEvents) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut last: Option<(u64, u64)> = None;
    let created = events.line.iter().find(|(_, it)| &*it.event == "created");
    let begin = created.map_or(0, |(version, _)| *version);
    for (version, happened) in &events.tokens {
        let after = last.map_or(begin, |(version, _)| version);
        let through = happened.prev_version.min(version - 1);
        if through > after {
            let line_events = events.line.range(after + 1..=through);
            // A draw issues its numbers at once, with a version each.
            let drawn = line_events
                .clone()
                .filter_map(|(_, it)| it.draw.as_ref()?.took_part);
            let explained = line_events.count() as u64 + drawn.sum::<u64>();
            if explained < through - after {
                gaps.push(Gap {
                    line: name.to_string(),
                    incarnation,
                    after_version: after,
                    through_version: through,
                    after_at_ms: last.map(|(_, at_ms)| at_ms),
                    before_at_ms: happened.at_ms,
                });
            }
        }
        last = Some((*version, happened.at_ms));
    }
    gaps
}

/// Numbers are issued without gaps, so one that is unknown below a known one proves that events are missing.
pub fn missing_numbers(
    name: &LineName,
    incarnation: u64,
    events: &LineEvents,
) -> Vec<MissingNumbers> {
    let mut known: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for happened in events.tokens.values() {
        let mut note = |(lane, token): (usize, u64)| known.entry(lane).or_default().push(token);
        note(happened.id);
        if let What::Moved { to, .. } = happened.what {
            note(to);
        }
    }
    // A number that the draw had for one who was gone by then has no event.
    let waited = Waited::for_the_draw(events).unwrap_or_default();
    for (lane, tokens) in &mut known {
        tokens.extend(waited.numbers(*lane));
    }
    let mut missing = Vec::new();
    for (lane, mut tokens) in known {
        tokens.sort_unstable();
        tokens.dedup();
        let issued = tokens.last().copied().unwrap_or(0);
        let count = issued - tokens.len() as u64;
        let in_place = (1..).zip(&tokens).find(|(nth, token)| nth != *token);
        if let Some((first, _)) = in_place {
            missing.push(MissingNumbers {
                line: name.to_string(),
                incarnation,
                lane: events.lanes[lane].to_string(),
                count,
                first,
            });
        }
    }
    missing
}
