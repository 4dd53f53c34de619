//! The replicated state of one shard, and the one way to change it.
//!
//! All log entries are applied here: by the leader, which watches the events in order
//! to answer and to publish; by followers; by the thread that makes snapshots; and by a node that starts.

use nowserving_codec::Codec;
use nowserving_kv as kv;
use nowserving_line::{self as line, Limits, Lines, NUMBER_MAX, Stamp};

use crate::command::{Command, Entry, FORMAT_MIN};
use crate::limits::{LimitCommand, LimitReply, LimitsState};
use crate::members::{MembersChanged, MembersRefused, MembersState};
use crate::requests::{Answer, RequestId, Requests};
use crate::restore::{Discarded, RestoreCommand, RestoreError, RestoreReply, Uploads};

/// What a step of putting a line back counts as: its part of 32 KiB has about so many tokens.
const RESTORE_WORK: usize = 1_024;

/// The replicated state of one shard.
///
/// Another kind of object is one more field here, one more [`Command`] and one more part of a
/// snapshot.
#[derive(Debug)]
pub struct State {
    /// The newest format of an applied entry: what later formats add is not in this state.
    pub(crate) format: u32,
    pub(crate) clock: Clock,
    pub(crate) lines: Lines,
    pub(crate) requests: Requests,
    pub(crate) members: MembersState,
    pub(crate) uploads: Uploads,
    pub(crate) kv: kv::Store,
    pub(crate) limits: LimitsState,
}

/// The largest reading of the service clock in any applied entry. It never falls.
#[derive(Codec, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) now_ms: u64,
}

impl Clock {
    fn advance(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms.min(NUMBER_MAX));
    }
}

/// The outcome of an operation on a line.
#[derive(Debug)]
pub struct AppliedToLine<'a> {
    /// The place of the command in its entry.
    pub place: usize,
    pub op: &'a line::Op,
    /// Who asked for it, if an operator said so, and why.
    pub note: Option<&'a line::OperatorNote>,
    pub result: Result<line::Reply, line::Refused>,
    /// In the order in which they happened.
    pub events: &'a [line::Event],
}

/// The outcome of a step of putting a line back.
#[derive(Debug)]
pub struct AppliedRestore<'a> {
    /// The place of the command in its entry.
    pub place: usize,
    pub command: &'a RestoreCommand,
    pub result: Result<RestoreReply, RestoreError>,
    pub events: &'a [line::Event],
}

/// The outcome of a command about rate limits.
#[derive(Debug)]
pub struct AppliedLimit<'a> {
    /// The place of the command in its entry.
    pub place: usize,
    /// Of its request.
    pub id: Option<RequestId>,
    pub command: &'a LimitCommand,
    pub reply: LimitReply,
}

/// Watches an entry being applied. Every call comes with the state of that very moment: what an answer
/// shows is the effect of its command and of nothing later.
pub trait Observer {
    /// Whether events are wanted: [`AppliedToLine::events`], [`AppliedRestore::events`], [`Observer::kv_events`].
    /// Otherwise none are made.
    fn wants_events(&self) -> bool {
        true
    }

    /// This command is applied next.
    fn before(&mut self, _state: &State, _command: &Command) {}

    /// An operation on a line was applied.
    fn line(&mut self, _state: &State, _applied: AppliedToLine<'_>) {}

    /// An operator's request about the members was applied; it has this place in its entry.
    fn members(&mut self, _place: usize, _result: Result<MembersChanged, MembersRefused>) {}

    /// A step of putting a line back was applied.
    fn restore(&mut self, _state: &State, _applied: AppliedRestore<'_>) {}

    /// An operation on a key-value was applied; it has this place in its entry.
    fn kv(&mut self, _place: usize, _op: &kv::Op, _result: Result<kv::Reply, kv::Refused>) {}

    /// Key-values have changed, in this order.
    fn kv_events(&mut self, _events: &[kv::Event], _wall_ms: u64) {}
    /// A command about rate limits was applied.
    fn limit(&mut self, _state: &State, _applied: AppliedLimit<'_>) {}

    /// This is no part of the state any more, and may take long to drop.
    fn discard(&mut self, _discarded: Discarded) {}

    /// The command at this place of its entry was not done, as its request was answered before.
    fn copy(&mut self, _state: &State, _place: usize, _command: &Command, _answer: &Answer) {}
}

/// Nobody watches: followers, snapshots, restarts.
impl Observer for () {
    fn wants_events(&self) -> bool {
        false
    }
}

impl Default for State {
    /// No objects, the clock at 0.
    fn default() -> Self {
        State::with_limits(Limits::default())
    }
}

impl State {
    /// The same with other bounds of lines: all nodes must have the same. For the simulation.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        State {
            format: FORMAT_MIN,
            clock: Clock::default(),
            lines: Lines::with_limits(limits),
            requests: Requests::default(),
            members: MembersState::default(),
            uploads: Uploads::default(),
            kv: kv::Store::default(),
            limits: LimitsState::default(),
        }
    }
}

impl State {
    /// How much there is to be written into a snapshot: roughly, in tokens. O(1).
    #[must_use]
    pub fn size(&self) -> u64 {
        let tokens = self.lines.totals();
        let seated = tokens.admitted.saturating_add(tokens.in_checkout);
        let others = self.lines.len() + self.kv.len() + self.limits.saved().len();
        let live = tokens.waiting.saturating_add(seated);
        live.saturating_add(others as u64)
    }

    /// The service clock as replicated. A leader's own reading may be ahead of it.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms
    }

    /// The newest format of an applied entry.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.format
    }

    #[must_use]
    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    /// The requests that were answered lately.
    #[must_use]
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Where the memory of requests keeps an answer depends on this seed, which no client should know; nothing else does.
    pub fn set_seed(&mut self, seed: u128) {
        self.requests.set_seed(seed);
    }

    /// The members of the cluster.
    #[must_use]
    pub fn members(&self) -> &MembersState {
        &self.members
    }

    #[must_use]
    pub fn kv(&self) -> &kv::Store {
        &self.kv
    }

    /// Rate limits.
    #[must_use]
    pub fn limits(&self) -> &LimitsState {
        &self.limits
    }

    /// The bytes of the parts of lines that are being restored.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.uploads.bytes()
    }

    /// Applies the committed entry at this index of the log. It never fails and never panics,
    /// whatever is in the entry: a refusal is an answer. Returns how much work it was: about one for each command
    /// and each token that it touched.
    pub fn apply_entry(
        &mut self,
        index: u64,
        entry: &Entry,
        observer: &mut impl Observer,
    ) -> usize {
        self.format = self.format.max(entry.format);
        self.clock.advance(entry.now_ms);
        self.requests.forget(self.clock.now_ms);
        self.uploads.forget(self.clock.now_ms);
        let mut events = Vec::new();
        let mut kv_events = observer.wants_events().then(Vec::new);
        let expired = self.kv.expire(self.clock.now_ms, kv_events.as_mut());
        let mut work = entry.commands.len() + expired;
        for (place, command) in entry.commands.iter().enumerate() {
            let (id, command) = match command {
                Command::Once(id, command) => (Some(*id), command.as_ref()),
                command => (None, command),
            };
            if let Some(answer) = id.and_then(|id| self.requests.answer(id)) {
                observer.copy(self, place, command.unnoted(), &answer);
                continue;
            }
            let (note, command) = match command {
                Command::Noted(note, command) => (Some(note.as_ref()), command.as_ref()),
                command => (None, command),
            };
            observer.before(self, command);
            let stamp = Stamp {
                index,
                op_no: u32::try_from(place).unwrap_or(u32::MAX),
                now_ms: self.clock.now_ms,
                wall_ms: entry.wall_ms,
            };
            let wanted = observer.wants_events().then_some(&mut events);
            let op = match command {
                Command::Line(op) => op,
                Command::Members(command) => {
                    if let Some(result) = self.members.apply(command, entry.wall_ms) {
                        if let Some(id) = id {
                            let answer = Answer::Members(result.clone());
                            self.requests.remember(id, answer, self.clock.now_ms);
                        }
                        observer.members(place, result);
                    }
                    continue;
                }
                Command::Restore(command) => {
                    work += RESTORE_WORK;
                    let uploads = &mut self.uploads;
                    let result = uploads.apply(&mut self.lines, stamp, command, note, wanted);
                    let applied = AppliedRestore {
                        place,
                        command,
                        result,
                        events: &events,
                    };
                    observer.restore(self, applied);
                    events.clear();
                    continue;
                }
                Command::Kv(op) => {
                    let result = self.kv.apply(self.clock.now_ms, op, kv_events.as_mut());
                    if let Some(id) = id {
                        self.requests
                            .remember(id, Answer::Kv(result), self.clock.now_ms);
                    }
                    observer.kv(place, op, result);
                    continue;
                }
                Command::Limit(command) => {
                    work += self.limits.work(command);
                    let reply = match command {
                        LimitCommand::GiveBack(it) if !self.requests.forget_hits(it.request) => {
                            LimitReply::Hits(Vec::new())
                        }
                        command => self.limits.apply(command, stamp),
                    };
                    if let (Some(id), Some(answer)) = (id, Answer::of_limit(&reply)) {
                        self.requests.remember(id, answer, self.clock.now_ms);
                    }
                    let applied = AppliedLimit {
                        place,
                        id,
                        command,
                        reply,
                    };
                    observer.limit(self, applied);
                    continue;
                }
                // Nothing else has an answer: the clock has been advanced already.
                Command::Stamp | Command::Once(..) | Command::Noted(..) => continue,
            };
            if let line::Op::Touch { tokens, .. } = op {
                work += tokens.len();
            }
            let result = self.lines.apply_noted(stamp, op, note, wanted);
            if let Some(id) = id {
                let answer = Answer::of(&result);
                self.requests.remember(id, answer, self.clock.now_ms);
            }
            let applied = AppliedToLine {
                place,
                op,
                note,
                result,
                events: &events,
            };
            observer.line(self, applied);
            events.clear();
        }
        if let Some(kv_events) = kv_events.filter(|events| !events.is_empty()) {
            observer.kv_events(&kv_events, entry.wall_ms);
        }
        for discarded in self.uploads.take_discarded() {
            observer.discard(discarded);
        }
        work + self.lines.work_done(index) as usize
    }
}
