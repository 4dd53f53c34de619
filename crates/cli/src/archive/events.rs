//! The events of an archive, each once and in the order of their versions.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use nowserving_client::{Key, LaneName, LineName};
use nowserving_protocol::event::{LineEvent, TokenEvent};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A lane by its place in [`LineEvents::lanes`], and a number.
pub type Id = (usize, u64);

/// All events that were read, by line and incarnation.
#[derive(Debug, Default)]
pub struct Archive {
    pub lines: BTreeMap<(LineName, u64), LineEvents>,
    /// Events of tokens and lines that came more than once.
    pub duplicates: u64,
    /// Rows that are no events.
    pub unreadable: u64,
    pub first_unreadable: Option<RowOf>,
    /// All rows.
    pub rows: u64,
    /// What is being read, and its last row.
    place: RowOf,
    /// Rows that are events, boards too.
    readable: u64,
}

/// Where a row stands.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RowOf {
    /// A file, standard input or a stream.
    pub source: String,
    /// From 1.
    pub row: u64,
}

/// The events of one creation of a line, by version. No two of one kind have the same.
#[derive(Debug, Default)]
pub struct LineEvents {
    pub lanes: Vec<LaneName>,
    pub tokens: BTreeMap<u64, Happened>,
    pub line: BTreeMap<u64, OfLine>,
    /// Versions of which two events differ.
    pub differing: BTreeSet<u64>,
}

/// What happened to a token. Small: an archive of a day has millions.
#[derive(Debug, Clone, PartialEq)]
pub struct Happened {
    pub prev_version: u64,
    pub at_ms: u64,
    pub id: Id,
    pub key: Option<Key>,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Entered {
        position: Option<u64>,
    },
    Admitted {
        /// An operator took it out of order.
        taken: bool,
    },
    Claimed,
    Gone {
        reason: Box<str>,
    },
    Moved {
        to: Id,
        by: Option<Box<str>>,
    },
    /// Nothing that a report shows: `call_ahead`, and what later releases add.
    Other,
}

/// A change of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct OfLine {
    pub prev_version: u64,
    pub at_ms: u64,
    pub event: Box<str>,
    /// With `phase`: the phase.
    pub phase: Option<Box<str>>,
    /// With an event of the draw at the opening.
    pub draw: Option<DrawTold>,
}

/// What an event of the draw says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrawTold {
    pub commitment: Option<String>,
    pub seed: Option<String>,
    pub beacon: Option<String>,
    pub took_part: Option<u64>,
    pub digest: Option<String>,
}

/// The fields that tell the kinds of events apart.
#[derive(Deserialize)]
struct Kind {
    event: Option<IgnoredAny>,
    token: Option<IgnoredAny>,
    lanes: Option<IgnoredAny>,
    bucket: Option<IgnoredAny>,
}

impl Archive {
    /// The next rows come from there.
    pub fn begin(&mut self, source: &str) {
        self.place = RowOf {
            source: source.to_owned(),
            row: 0,
        };
    }

    /// Whether there were rows, and none of them could be read.
    pub fn is_unreadable(&self) -> bool {
        self.unreadable > 0 && self.readable == 0
    }

    /// Takes the next row: an event as it was published; its subject may stand before it.
    pub fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        self.place.row += 1;
        let begin = row.iter().position(|byte| *byte == b'{');
        let read = begin.and_then(|begin| self.read(&row[begin..]));
        if read.is_some() {
            self.readable += 1;
        } else if !row.trim_ascii().is_empty() {
            self.unreadable += 1;
            self.first_unreadable
                .get_or_insert_with(|| self.place.clone());
        }
    }

    fn read(&mut self, event: &[u8]) -> Option<()> {
        let kind: Kind = serde_json::from_slice(event).ok()?;
        match kind {
            Kind { token: Some(_), .. } => {
                let event: TokenEvent = serde_json::from_slice(event).ok()?;
                self.token(event)
            }
            // Of a key-value.
            Kind {
                bucket: Some(_), ..
            } => Some(()),
            Kind { event: Some(_), .. } => {
                let event: LineEvent = serde_json::from_slice(event).ok()?;
                self.line(event);
                Some(())
            }
            // A board repeats what the events say.
            Kind { lanes, .. } => lanes.map(|_| ()),
        }
    }

    fn token(&mut self, event: TokenEvent) -> Option<()> {
        // Numbers and versions begin with 1.
        if event.version == 0 || event.token == 0 || event.to_token == Some(0) {
            return None;
        }
        let line = self.lines.entry((event.line, event.incarnation));
        let line = line.or_default();
        let id = (line.lane(event.lane), event.token);
        let what = match event.event.as_str() {
            "entered" => What::Entered {
                position: event.position,
            },
            "admitted" => What::Admitted {
                taken: event.by.as_deref() == Some("take"),
            },
            "claimed" => What::Claimed,
            "gone" => What::Gone {
                reason: event.reason?.into(),
            },
            "moved" => What::Moved {
                to: (line.lane(event.to_lane?), event.to_token?),
                by: event.by.map(Into::into),
            },
            _ => What::Other,
        };
        let happened = Happened {
            prev_version: event.prev_version,
            at_ms: event.at_ms,
            id,
            key: event.key,
            what,
        };
        // What an old and a new leader published may differ in `prev_version`: the first one counts.
        match line.tokens.entry(event.version) {
            Entry::Vacant(place) => drop(place.insert(happened)),
            Entry::Occupied(first) => {
                self.duplicates += 1;
                let as_published = Happened {
                    prev_version: first.get().prev_version,
                    ..happened
                };
                if *first.get() != as_published {
                    line.differing.insert(event.version);
                }
            }
        }
        Some(())
    }

    fn line(&mut self, event: LineEvent) {
        let line = self.lines.entry((event.line, event.incarnation));
        let draw = DrawTold {
            commitment: event.commitment,
            seed: event.seed,
            beacon: event.beacon,
            took_part: event.took_part,
            digest: event.digest,
        };
        let of_line = OfLine {
            prev_version: event.prev_version,
            at_ms: event.at_ms,
            event: event.event.into(),
            phase: event.phase.map(Into::into),
            draw: Some(draw).filter(|draw| *draw != DrawTold::default()),
        };
        let line = line.or_default();
        match line.line.entry(event.version) {
            Entry::Vacant(place) => drop(place.insert(of_line)),
            Entry::Occupied(first) => {
                self.duplicates += 1;
                let as_published = OfLine {
                    prev_version: first.get().prev_version,
                    ..of_line
                };
                if *first.get() != as_published {
                    line.differing.insert(event.version);
                }
            }
        }
    }
}

impl LineEvents {
    fn lane(&mut self, name: LaneName) -> usize {
        let known = self.lanes.iter().position(|lane| *lane == name);
        known.unwrap_or_else(|| {
            self.lanes.push(name);
            self.lanes.len() - 1
        })
    }
}
