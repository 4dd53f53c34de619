//! Requests that this node makes of others and of its own engine, so that it can answer one of a client or an operator.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_engine::{
    Ask as EngineAsk, Delivery, ForwardResult, Inbox, Input, LimitRequest, Now, Outcome, ReplyTo,
    Request, Via,
};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, Payload, decode};
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId, SENT_MS_HEADER, TIMEOUT_HEADER};
use nowserving_protocol::limits::PartReply;
use nowserving_protocol::note;
use nowserving_protocol::operation::Operation;
use nowserving_shard::clock::Micros;

use super::{NodeRequest, Output};

/// Between two tries while no node leads the shard: at first, and at most. It doubles, as a storm of them would delay the
/// election that they wait for.
const PAUSE_US: Micros = 20_000;
const PAUSE_MAX_US: Micros = 320_000;

/// What is asked, of whom and until when.
#[derive(Debug)]
pub(crate) struct Ask {
    pub subject: String,
    /// In MessagePack.
    pub payload: Bytes,
    pub effect: Effect,
    /// Who asks, and why, of an operator's.
    pub note: Option<Box<OperatorNote>>,
    pub until: Micros,
    /// It is sent until a leader answers, not once.
    pub repeats: bool,
}

/// What this node's engine is asked about counters of one shard, which this node leads as far as it knows.
#[derive(Debug)]
pub(crate) struct OwnAsk {
    pub shard: u32,
    pub domain: LineName,
    pub request: LimitRequest,
    pub until: Micros,
}

/// What a request does at the leader that takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// It counts hits in the leader's memory, each time that it is taken, under a name if they may be given back.
    Counts(Option<RequestId>),
    /// It happens once for this id however often it is sent.
    Once(RequestId),
}

/// What was answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// By another node.
    Bytes(Bytes),
    /// By this node's engine.
    Part(PartReply),
    /// By this node's engine, which does not lead the shard: others can be asked.
    Elsewhere,
}

/// Of which task it is, and which of its requests.
pub(crate) type Owner = (u64, usize);
/// How a request ended.
pub(crate) type Ended = (Owner, Result<Answer, ApiError>);

/// All requests that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    seed: u64,
    next: u64,
    open: HashMap<u64, Open>,
    /// When their next try begins, or their time is over.
    due: BTreeSet<(Micros, u64)>,
    /// What has ended since it was last looked at.
    pub ended: VecDeque<Ended>,
}

#[derive(Debug)]
struct Open {
    owner: Owner,
    due: Micros,
    to: To,
}

#[derive(Debug)]
enum To {
    Others(Tries),
    /// This node's engine, which may answer until `deadline`.
    Own {
        deadline: Micros,
        counts: bool,
    },
}

/// A request to others, which is sent until it is answered.
#[derive(Debug)]
struct Tries {
    ask: Ask,
    state: State,
    in_doubt: bool,
    pause_us: Micros,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pauses,
    Sent,
}

impl Asks {
    /// `seed`: another one for each start of a node, so that several do not repeat their requests at the same moments.
    pub fn new(seed: u64) -> Self {
        Asks {
            seed,
            ..Asks::default()
        }
    }

    /// Begins a request to others.
    pub fn begin(&mut self, owner: Owner, ask: Ask, now: Now, out: &mut Vec<Output>) {
        let tries = Tries {
            ask,
            state: State::Pauses,
            in_doubt: false,
            pause_us: PAUSE_US,
        };
        let id = self.open(owner, now.us, To::Others(tries));
        self.send(id, now, out);
    }

    /// Begins a request to this node's engine.
    pub fn begin_own(&mut self, owner: Owner, ask: OwnAsk, now: Now, out: &mut Vec<Output>) {
        if now.us >= ask.until {
            return self.ended.push_back((owner, Err(unavailable())));
        }
        // A tenth for the answer: "it may have counted" must not come before "it has not".
        let deadline = now.us + (ask.until - now.us) * 9 / 10;
        let counts = !matches!(ask.request, LimitRequest::Check { dry_run: true, .. });
        let id = self.open(owner, ask.until, To::Own { deadline, counts });
        let input = ask.request(id, deadline, now.us);
        out.push(Output::Engine { id, input });
    }

    fn open(&mut self, owner: Owner, due: Micros, to: To) -> u64 {
        self.next += 1;
        self.due.insert((due, self.next));
        self.open.insert(self.next, Open { owner, due, to });
        self.next
    }

    fn tries(&mut self, id: u64) -> Option<&mut Tries> {
        match &mut self.open.get_mut(&id)?.to {
            To::Others(tries) => Some(tries),
            To::Own { .. } => None,
        }
    }

    pub fn next_due(&self) -> Option<Micros> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Makes the tries that are due, and ends what nobody has answered.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Output>) {
        while let Some((due, id)) = self.due.first().copied()
            && due <= now.us
        {
            match self.open.get(&id).map(|open| &open.to) {
                Some(To::Others(tries)) => match tries.state {
                    State::Pauses => self.send(id, now, out),
                    State::Sent if tries.counts_again() => self.unheard(id, now),
                    State::Sent => self.unanswered(id),
                },
                Some(To::Own { counts, .. }) => {
                    let error = unanswered(*counts);
                    self.end(id, Err(error));
                }
                None => drop(self.due.pop_first()),
            }
        }
    }

    /// How a request ended that was sent to others.
    pub fn answered(&mut self, id: u64, result: ForwardResult, now: Now) {
        let Some(tries) = self.tries(id).filter(|it| it.state == State::Sent) else {
            return;
        };
        let in_doubt = tries.in_doubt;
        match result {
            ForwardResult::Answered { error, answer } => match error {
                None => self.end(id, Ok(Answer::Bytes(answer.payload))),
                Some(_) => {
                    let reply: Result<ErrorReply, ApiError> = decode(&answer.payload);
                    let error = reply.map_or_else(|error| error, |reply| reply.error);
                    self.refused(id, error, now);
                }
            },
            ForwardResult::NoResponders => self.unheard(id, now),
            // An earlier try went to a server that takes more.
            ForwardResult::TooLarge { .. } if in_doubt => self.end(id, Err(outcome_unknown())),
            // Nothing was sent.
            ForwardResult::TooLarge { bytes, bytes_max } => {
                self.end(id, Err(too_large(bytes, bytes_max)));
            }
            ForwardResult::TimedOut | ForwardResult::Failed => self.unanswered(id),
        }
    }

    /// What this node's engine has answered.
    pub fn own_answered(&mut self, id: u64, answer: Result<Outcome, ApiError>, now: Now) {
        let Some(To::Own { deadline, counts }) = self.open.get(&id).map(|open| &open.to) else {
            return;
        };
        let result = match answer {
            Ok(Outcome::LimitPart(part)) => Ok(Answer::Part(*part)),
            Ok(_) => Err(unanswered(*counts)),
            Err(error) if is_elsewhere(error.code) => match now.us < *deadline {
                true => Ok(Answer::Elsewhere),
                // It was asked for as long as there was time: to ask others now would end with an answer that nobody waits for.
                false => Err(unavailable()),
            },
            Err(error) => Err(error),
        };
        self.end(id, result);
    }

    /// The engine has no room for it.
    pub fn not_taken(&mut self, id: u64) {
        self.end(id, Err(overloaded()));
    }

    fn send(&mut self, id: u64, now: Now, out: &mut Vec<Output>) {
        let Some(tries) = self.tries(id) else {
            return;
        };
        let (ask, left) = (&tries.ask, tries.ask.until.saturating_sub(now.us));
        if left == 0 {
            return self.unheard(id, now);
        }
        out.push(Output::Request(NodeRequest {
            id,
            subject: ask.subject.clone(),
            headers: ask.headers(left, now.wall_ms),
            payload: ask.payload.clone(),
            timeout: Duration::from_micros(left),
        }));
        let until = ask.until;
        let until = match tries.counts_again() {
            true => until.min(now.us + 10_000),
            false => until,
        };
        self.set(id, State::Sent, until);
    }

    fn set(&mut self, id: u64, state: State, due: Micros) {
        if let Some(tries) = self.tries(id) {
            tries.state = state;
        }
        if let Some(open) = self.open.get_mut(&id) {
            self.due.remove(&(open.due, id));
            self.due.insert((due, id));
            open.due = due;
        }
    }

    /// It was not sent, or nobody listens: nothing happened.
    fn unheard(&mut self, id: u64, now: Now) {
        let seed = self.seed ^ id;
        let Some(tries) = self.tries(id) else {
            return;
        };
        if now.us >= tries.ask.until || !tries.ask.repeats {
            let error = unanswered(tries.in_doubt);
            return self.end(id, Err(error));
        }
        let pause_us = tries.pause_us + spread(seed, tries.pause_us);
        tries.pause_us = (tries.pause_us * 2).min(PAUSE_MAX_US);
        let due = (now.us + pause_us).min(tries.ask.until);
        self.set(id, State::Pauses, due);
    }

    fn refused(&mut self, id: u64, error: ApiError, now: Now) {
        let Some(tries) = self.tries(id) else {
            return;
        };
        let is_once = matches!(tries.ask.effect, Effect::Once(_));
        match error.code {
            _ if !tries.ask.repeats => self.end(id, Err(error)),
            // Nothing happened.
            code if is_elsewhere(code) => self.unheard(id, now),
            Code::OutcomeUnknown if is_once => {
                tries.in_doubt = true;
                self.unheard(id, now);
            }
            // An earlier try may have done it all the same.
            _ if tries.in_doubt => self.end(id, Err(outcome_unknown())),
            _ => self.end(id, Err(error)),
        }
    }

    /// It may have happened. Sent again, hits in memory would count twice. The time is over in most cases.
    fn unanswered(&mut self, id: u64) {
        let tries = self.tries(id);
        let in_doubt = tries.is_none_or(|it| it.in_doubt || it.ask.effect != Effect::None);
        self.end(id, Err(unanswered(in_doubt)));
    }

    fn end(&mut self, id: u64, result: Result<Answer, ApiError>) {
        if let Some(open) = self.open.remove(&id) {
            self.due.remove(&(open.due, id));
            self.ended.push_back((open.owner, result));
        }
    }
}

impl Tries {
    /// Broken on purpose, it sends hits in memory again, which count twice.
    fn counts_again(&self) -> bool {
        let counts = matches!(self.ask.effect, Effect::Counts(_));
        counts && nowserving_bite::is(nowserving_bite::Break::S20Again)
    }
}

/// The leader is another node by now, or there is none.
fn is_elsewhere(code: Code) -> bool {
    matches!(code, Code::NotLeader | Code::Unavailable)
}

fn unanswered(in_doubt: bool) -> ApiError {
    match in_doubt {
        true => outcome_unknown(),
        false => unavailable(),
    }
}

/// Up to half as long again.
fn spread(seed: u64, pause_us: Micros) -> Micros {
    let bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    pause_us / 2 * bits / 256
}

fn too_large(bytes: usize, max: usize) -> ApiError {
    ApiError::bad_request(format!(
        "payload: {bytes} bytes with headers, as nodes send it on, are more than the {max} that this NATS server takes in one message"
    ))
}

impl Ask {
    fn headers(&self, left_us: Micros, wall_ms: u64) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            (TIMEOUT_HEADER, (left_us / 1_000).max(1).to_string()),
            (SENT_MS_HEADER, wall_ms.to_string()),
        ];
        let id = match &self.effect {
            Effect::Once(id) => Some(id),
            Effect::Counts(name) => name.as_ref(),
            Effect::None => None,
        };
        headers.extend(id.map(|id| (REQUEST_ID_HEADER, id.as_str().to_owned())));
        headers.extend(self.note.iter().flat_map(|it| note::headers(it)));
        headers
    }
}

impl Answer {
    /// # Errors
    /// `unavailable`: it is of another type.
    pub fn read<R: Payload>(&self) -> Result<R, ApiError> {
        let Answer::Bytes(bytes) = self else {
            return Err(unavailable());
        };
        decode(bytes).map_err(|error| {
            let what = format!("a node's answer is not understood: {error}");
            ApiError::new(Code::Unavailable, what)
        })
    }

    /// [`Answer::read`], of what the engine may have answered, too.
    pub fn part(self) -> Result<PartReply, ApiError> {
        match self {
            Answer::Part(part) => Ok(part),
            Answer::Bytes(_) | Answer::Elsewhere => self.read(),
        }
    }
}

impl OwnAsk {
    fn request(self, id: u64, deadline: Micros, now: Micros) -> Input {
        let op = match self.request {
            LimitRequest::GiveBack { .. } => Operation::LimitGiveBack,
            _ => Operation::LimitPart,
        };
        let request = Request {
            shard: self.shard,
            line: self.domain,
            ask: EngineAsk::Limit(Box::new(self.request)),
            reply: ReplyTo {
                inbox: Inbox::Task(id),
                format: Format::MsgPack,
                op,
                pass: false,
                taken: now,
                trace: None,
            },
            deadline,
            id: None,
            sent_ms: None,
            note: None,
            payload: Bytes::new(),
        };
        Input::Request {
            request: Box::new(request),
            delivery: Delivery {
                // As from another node: it is answered here or refused, never forwarded.
                via: Via::Forwarded,
                routed_after: now,
                forwarded_at: None,
                shared: false,
                term: None,
            },
        }
    }
}

#[cfg(test)]
#[path = "asks_tests.rs"]
mod tests;
