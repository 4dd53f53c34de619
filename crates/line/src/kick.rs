//! Operators end tokens: [`crate::Op::Kick`]. The leader chooses the tokens and proposes them in lists; here the tokens
//! of one list end.

use nowserving_codec::Codec;

use crate::gone::Gone;
use crate::line::Line;
use crate::transitions::{ApplyCtx, Ended};
use crate::{BadField, KICK_MAX, Reason, Refused, Reply, State, Token, TokenRef};

/// The longest text in a [`KickNote`], in bytes.
pub const KICK_TEXT_BYTES_MAX: usize = 128;
/// About the memory that a note takes beside its texts.
const NOTE_BYTES: usize = 96;

/// A token that an operator ends.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct KickItem {
    pub lane: u8,
    /// Its number in that lane, now or before it was moved.
    pub token: Token,
    /// Only while it is in this state.
    pub state: Option<State>,
    /// Only while its clock ([`crate::Live::clock_ms`]) has no later reading: its client was not seen since.
    pub clock_ms: Option<u64>,
}

/// How an operator chose the tokens, to be shown.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KickSelector {
    /// So many that were named by lane and number.
    Tokens(u32),
    /// So many that were named by key.
    Keys(u32),
    /// Waiting ones whose clients were not seen for longer than this.
    IdleOverMs(u64),
    /// All of the lane with this id.
    Lane(u8),
    All,
}

/// What the journal says of a kick.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct KickNote {
    pub selector: KickSelector,
    /// Only tokens in this state.
    pub state: Option<State>,
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub reason: Option<Box<str>>,
    /// At most [`KICK_TEXT_BYTES_MAX`] bytes.
    pub by: Option<Box<str>>,
}

/// A note in the journal. Notes are kept apart from the entries, as changes of settings are.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub struct Kicked {
    /// The version of its entry.
    pub version: u64,
    pub note: KickNote,
}

impl KickNote {
    /// Whether a line with so many lanes can have it.
    pub(crate) fn check(&self, lanes: usize) -> Result<(), BadField> {
        for (field, text) in [("reason", &self.reason), ("by", &self.by)] {
            if text
                .as_ref()
                .is_some_and(|it| it.len() > KICK_TEXT_BYTES_MAX)
            {
                return Err(BadField::new(field, "at most 128 bytes"));
            }
        }
        match self.selector {
            KickSelector::Lane(id) if usize::from(id) >= lanes => {
                Err(BadField::new("lane", "no such lane"))
            }
            _ => Ok(()),
        }
    }
}

impl Kicked {
    /// Counts against [`crate::JOURNAL_CHANGES_BYTES`].
    pub(crate) fn bytes(&self) -> usize {
        let texts = [&self.note.reason, &self.note.by].into_iter().flatten();
        NOTE_BYTES + texts.map(|text| text.len()).sum::<usize>()
    }
}

impl Line {
    /// Ends the tokens of the list, as far as the entry's work limit goes. The note is journaled before the first token
    /// that ends, and not at all if none does.
    pub(crate) fn kick(
        &mut self,
        items: &[KickItem],
        note: Option<&KickNote>,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<Reply, Refused> {
        self.check_open()?;
        note.map_or(Ok(()), |note| note.check(self.lanes.len()))?;
        let (mut ended, mut note) = (Ended::default(), note);
        let taken = items.len().min(KICK_MAX).min(*ctx.work_left as usize);
        for item in &items[..taken] {
            *ctx.work_left -= 1;
            if let Some(at) = self.would_kick(item) {
                if let Some(note) = note.take() {
                    self.journal_kick(note, ctx.wall_ms);
                }
                let gone = Gone::new(Reason::Kicked, None);
                ended.add(self.end_as(at.lane, at.token, gone, ctx));
            }
        }
        // Not before the end of the list: a token later in the list must not be admitted first.
        self.fill_freed_seats(&ended, ctx);
        Ok(Reply::Kicked {
            ended: ended.count(),
            taken: taken as u64,
        })
    }

    /// The live token that this item of an [`crate::Op::Kick`] would end now.
    pub fn would_kick(&self, item: &KickItem) -> Option<TokenRef> {
        let at = self.resolve(self.token_ref(item.lane, item.token));
        let live = self.live(at.lane, at.token)?;
        let same = item.state.is_none_or(|state| state == live.state())
            && item.clock_ms.is_none_or(|ms| live.clock_ms() <= ms);
        same.then_some(at)
    }

    /// Who kicked tokens, and why, by the version of its journal entry. `None` once it is forgotten: see
    /// [`crate::JOURNAL_CHANGES_BYTES`].
    pub fn kick_note(&self, version: u64) -> Option<&KickNote> {
        self.journal.kick(version)
    }
}
