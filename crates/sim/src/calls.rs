//! What clients ask: calls, each of one or more attempts, and how they ended. The clients' history.
//!
//! A call through the SDK repeats what got no answer, on the other of its two subjects; a raw one is a
//! single attempt, with or without an id. Requests leave as messages of NATS, and answers come as such.

mod payload;
mod what;

pub use what::{Hits, What};

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::LineName;
use nowserving_protocol::admin::Configure;
use nowserving_protocol::codec::{Payload, decode};
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{
    ERROR_CODE_HEADER, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_HEADER,
};
use nowserving_protocol::limits::{CheckReply, PartReply, PartVerdict};
use nowserving_protocol::note;
use nowserving_protocol::operation::{On, Operation};
use nowserving_protocol::subject::Subjects;

use crate::clock::wall_ms;
use crate::env::Env;
use crate::faults::Fault;
use crate::nats::{Message, client_inbox};
use crate::random::Random;
use crate::settings;
use crate::timeline::Time;
use crate::world::Event;

/// The least that is left of a call for another attempt.
const ATTEMPT_MIN_US: Time = 10_000;
/// What nodes and clients may differ by in their clocks.
const TOLERANCE_MS: u64 = 5_000;
/// An attempt waits no longer than this.
const ATTEMPT_MAX_US: Time = 2_200_000;

/// A node's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    said: Rc<Result<Outcome, ApiError>>,
    bytes: Bytes,
}

impl AsRef<Result<Outcome, ApiError>> for Answer {
    fn as_ref(&self) -> &Result<Outcome, ApiError> {
        &self.said
    }
}

impl Answer {
    fn new(said: Result<Outcome, ApiError>, bytes: Bytes) -> Answer {
        let said = Rc::new(said);
        Answer { said, bytes }
    }

    /// Its bytes, of what a node has made of the answers of others.
    ///
    /// # Errors
    /// They are another answer's.
    pub fn read<R: Payload>(&self) -> Result<R, String> {
        decode(&self.bytes).map_err(|error| error.to_string())
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAnswered {
    /// NATS says that nobody listens: nothing happened.
    NoResponders,
    /// None came in time.
    TimedOut,
}

/// How a client sends what it asks.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// It repeats what was not answered.
    pub repeats: bool,
    /// It names the call.
    pub has_id: bool,
    /// It asks on the shard's own subject: first, if it repeats.
    pub own_subject: bool,
    /// It says when it sent each request.
    pub has_time: bool,
    /// It waits for the answer.
    pub waits: bool,
}

impl Manner {
    /// The SDK's.
    pub const SDK: Manner = Manner {
        repeats: true,
        has_id: true,
        own_subject: true,
        has_time: true,
        waits: true,
    };

    /// That of somebody who writes requests by hand.
    pub fn raw(random: &mut Random) -> Manner {
        Manner {
            repeats: false,
            has_id: random.below(3) == 0,
            own_subject: random.below(4) == 0,
            has_time: random.below(3) > 0,
            waits: true,
        }
    }
}

/// Whose subject a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Any node's.
    Plain,
    /// The leader's of a shard.
    Shard(u32),
}

/// A request, however often it is sent.
#[derive(Clone, Debug)]
pub struct Query {
    /// The call.
    pub call: usize,
    /// The shard of the line.
    pub shard: u32,
    /// The line.
    pub line: LineName,
    /// The operation.
    pub op: Operation,
    /// What is asked.
    pub what: What,
}

/// How an attempt ended for its client.
#[derive(Clone, Debug)]
pub struct End {
    /// When.
    pub at: Time,
    /// How.
    pub how: Result<Answer, NotAnswered>,
}

/// One request sent.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When.
    pub sent_at: Time,
    /// The time it was given.
    pub timeout_ms: u64,
    /// When its client says that it sent it.
    sent_ms: Option<u64>,
    /// For how long it is on its way to the server, as far as nodes take it after that.
    pub held_us: Time,
    /// Where to.
    pub to: To,
    /// How it ended; `None`: the run ended before it did.
    pub end: Option<End>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// With an answer.
    Ok(Answer),
    /// With a refusal. An earlier attempt may have had its effect all the same.
    Refused(Code),
    /// Nothing is known.
    Unknown,
    /// Nothing happened.
    Unavailable,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who calls.
    pub client: usize,
    /// What.
    pub query: Rc<Query>,
    payload: Bytes,
    manner: Manner,
    /// When it began.
    pub began_at: Time,
    deadline: Time,
    /// What was sent.
    pub attempts: Vec<Attempt>,
    /// How it ended.
    pub ended: Option<(Time, Ended)>,
    uncertain: bool,
    /// What a node asked others for it came twice.
    pub part_doubled: bool,
    backoff_us: Time,
    /// The newest version of the line that any client had seen by then.
    pub known_version: u64,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub struct Calls {
    /// In the order in which they began.
    pub all: Vec<Call>,
    /// All payloads of requests.
    asked: BTreeSet<Bytes>,
    /// What nodes have answered, by the place of its bytes: so a client has all of it, and not only what the contract
    /// shows.
    outcomes: BTreeMap<usize, Answer>,
    /// Writes that were answered as done.
    pub acknowledged: u64,
    /// The same, and those that were refused by what a line is: a closed one serves, too.
    pub decided: u64,
}

/// The name that a client gives to its call.
fn request_name(call: usize) -> String {
    format!("call-{call}")
}

impl Query {
    /// The subject.
    fn subject(&self, to: To) -> String {
        let subjects = Subjects::default();
        match to {
            To::Plain => subjects.plain(self.op, &self.line),
            _ if matches!(self.op.on(), On::Cluster | On::Members) => subjects.of_cluster(self.op),
            To::Shard(shard) => subjects.leader(self.op, shard, &self.line),
        }
    }
}

impl Call {
    /// What is sent with an attempt.
    fn headers(&self, sent: &Attempt) -> Vec<(String, String)> {
        let timeout = Some((TIMEOUT_HEADER, sent.timeout_ms.to_string()));
        let sent_ms = sent.sent_ms.map(|ms| (SENT_MS_HEADER, ms.to_string()));
        let id = (self.manner.has_id).then(|| (REQUEST_ID_HEADER, request_name(self.query.call)));
        let note = self.query.what.note();
        let note = note.iter().flat_map(note::headers);
        let all = timeout.into_iter().chain(sent_ms).chain(id).chain(note);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Whether its client gave it an id.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.manner.has_id
    }
}

impl Calls {
    /// What a node has answered with these bytes.
    pub fn keep_outcome(&mut self, bytes: Bytes, outcome: Outcome) {
        let place = bytes.as_ptr() as usize;
        self.outcomes.insert(place, Answer::new(Ok(outcome), bytes));
    }

    /// Whether a client has asked this.
    #[must_use]
    pub fn is_asked(&self, payload: &Bytes) -> bool {
        self.asked.contains(payload)
    }

    /// What an answer says to its client.
    #[must_use]
    pub fn answer(&self, message: &Message) -> Answer {
        let mut headers = message.headers.iter();
        if headers.any(|(name, _)| name == ERROR_CODE_HEADER) {
            let reply: Result<ErrorReply, _> = decode(&message.payload);
            let error = reply.map_or_else(|error| error, |reply| reply.error);
            return Answer::new(Err(error), message.payload.clone());
        }
        let answer = self.outcomes.get(&(message.payload.as_ptr() as usize));
        answer.cloned().unwrap_or_else(|| {
            let error = ApiError::new(Code::Unknown, "an answer of nobody");
            Answer::new(Err(error), Bytes::new())
        })
    }

    /// A node asks this, for a client.
    pub fn keep_asked(&mut self, payload: Bytes) {
        self.asked.insert(payload);
    }
}

/// What an answer says that a node has made of those of others. Of all but checks the checkers read the bytes.
///
/// # Errors
/// It cannot be read.
pub fn outcome_of(op: Operation, bytes: &[u8]) -> Result<Outcome, ApiError> {
    let reply = match op {
        Operation::LimitCheck => decode(bytes)?,
        _ => CheckReply::default(),
    };
    let limited = reply.descriptors.into_iter().filter(|it| !it.unmatched);
    let verdicts = limited.map(|it| PartVerdict {
        allowed: it.allowed,
        limit: it.limit.unwrap_or_default(),
        remaining: it.remaining.unwrap_or_default(),
        ..PartVerdict::default()
    });
    Ok(Outcome::LimitPart(Box::new(PartReply {
        verdicts: verdicts.collect(),
    })))
}

impl Env {
    /// Sets a client's clock by so much.
    pub fn set_client_clock(&mut self, client: usize, by_ms: i64) {
        if let Some(ahead_ms) = self.client_clocks.get_mut(client) {
            *ahead_ms += by_ms;
        }
    }

    /// A client begins a call.
    pub fn call(
        &mut self,
        client: usize,
        (line, shard): (LineName, u32),
        what: What,
        manner: Manner,
        time_us: Time,
    ) {
        let number = self.calls.all.len();
        let op = what.operation();
        let payload: Bytes = match what.payload(&line, &self.link.keys.tickets) {
            Ok(payload) => payload.into(),
            Err(error) => return self.violated("S14", format!("{what:?} is not asked: {error}")),
        };
        self.calls.asked.insert(payload.clone());
        let now = self.timeline.now();
        let known_version = self.known_versions.get(&line).copied().unwrap_or(0);
        let query = Rc::new(Query {
            call: number,
            shard,
            line,
            op,
            what,
        });
        self.calls.all.push(Call {
            client,
            query,
            payload,
            manner,
            began_at: now,
            deadline: now + time_us,
            attempts: Vec::new(),
            ended: None,
            uncertain: false,
            part_doubled: false,
            backoff_us: 20_000,
            known_version,
        });
        self.attempt(number);
        if !manner.waits
            && let Some(call) = self.calls.all.get_mut(number)
        {
            call.ended = Some((now, Ended::Unknown));
        }
    }

    /// The server gives an attempt's message to two nodes.
    pub fn delivered_twice(&mut self, (call, attempt): (usize, usize)) {
        let sent = self.calls.all.get(call);
        if let Some(sent) = sent.and_then(|call| call.attempts.get(attempt)) {
            self.comes_twice(call, (sent.timeout_ms, sent.to, 0));
        }
    }

    /// The server gives out two copies of what a node asks another: if it is a change of one of many lines, the node may
    /// be told that one copy was refused, and the other takes effect.
    pub fn part_delivered_twice(&mut self, message: &Message) {
        let of_line = message.subject.contains(".admin.line.");
        let change = match of_line && message.subject.ends_with(".configure") {
            true => decode::<Configure>(&message.payload).ok(),
            false => None,
        };
        let call = change.and_then(|change| settings::call_of(&change.settings));
        if let Some(call) = call.and_then(|call| self.calls.all.get_mut(call)) {
            call.part_doubled = true;
        }
    }

    /// Two copies of one write are under way, of which one answer is seen. With an id they are one call.
    /// Without, they count as two calls: a client may mean it that way.
    fn comes_twice(&mut self, number: usize, (timeout_ms, to, held_us): (u64, To, Time)) {
        let now = self.timeline.now();
        let count = self.calls.all.len();
        let Some(call) = self.calls.all.get_mut(number) else {
            return;
        };
        if !call.query.what.is_change() {
            return;
        }
        let attempt = Attempt {
            sent_at: now,
            timeout_ms,
            sent_ms: None,
            held_us,
            to,
            end: None,
        };
        if call.manner.has_id {
            call.uncertain = true;
            return call.attempts.push(attempt);
        }
        let mut copy = call.clone();
        copy.client = usize::MAX;
        copy.began_at = now;
        copy.query = Rc::new(Query {
            call: count,
            ..Query::clone(&call.query)
        });
        copy.attempts = vec![attempt];
        copy.ended = Some((now, Ended::Unknown));
        self.calls.all.push(copy);
    }

    /// Sends a call's request (again).
    pub fn attempt(&mut self, number: usize) {
        let now = self.timeline.now();
        let mapped = self.mapped;
        let Some(call) = self.calls.all.get_mut(number) else {
            return;
        };
        if call.ended.is_some() {
            return;
        }
        let wait_us = call.deadline.saturating_sub(now).min(ATTEMPT_MAX_US);
        let timeout_ms = (wait_us * 10 / 11_000).max(1);
        let attempt = call.attempts.len();
        let own_subject = call.manner.own_subject && attempt.is_multiple_of(2);
        // An operators' subject is not mapped.
        let to = match &call.query.what {
            What::Read { op, .. } if matches!(op.on(), On::Cluster | On::AdminLimit) => To::Plain,
            What::Members(_)
            | What::ConfigureLines(_)
            | What::KvList { .. }
            | What::LimitReset { .. }
            | What::LimitRules { .. } => To::Plain,
            What::Limit(_) | What::LimitChanging(_) if !own_subject => To::Plain,
            What::Kv(_) | What::KvGet(_) if !own_subject => To::Plain,
            _ if own_subject || (mapped && !call.query.op.is_admin()) => {
                To::Shard(call.query.shard)
            }
            _ => To::Plain,
        };
        let waits = call.manner.waits;
        let (client, has_time) = (call.client, call.manner.has_time);
        let way_us = self.client_sends(client);
        let ahead_ms = self.client_clocks.get(client).copied().unwrap_or(0);
        // By a clock that is ahead of the node's, it is younger than it is.
        let tolerated_ms = TOLERANCE_MS + (ahead_ms + self.nodes_behind_ms).max(0) as u64;
        let held_us = match has_time {
            true => way_us.min(tolerated_ms * 1_000),
            false => way_us,
        };
        let Some(call) = self.calls.all.get_mut(number) else {
            return;
        };
        call.attempts.push(Attempt {
            sent_at: now,
            timeout_ms,
            sent_ms: has_time.then(|| wall_ms(now, ahead_ms)),
            held_us,
            to,
            end: None,
        });
        let (client, op, line) = (call.client, call.query.op, call.query.line.clone());
        self.note(format_args!(
            "client {client}: call {number}.{attempt} {op} {line} on {to:?}, {timeout_ms} ms"
        ));
        if attempt > 0 {
            self.counts.add(Fault::ClientRetry);
        }
        let timeout = Event::AttemptTimesOut {
            call: number,
            attempt,
        };
        if waits {
            self.timeline.after(wait_us, timeout);
        }
        let mut copies = 1;
        if self.strikes(Fault::RequestDoubled) {
            copies = 2;
            self.comes_twice(number, (timeout_ms, to, held_us));
        }
        for _ in 0..copies {
            if self.strikes(Fault::RequestLost) {
                continue;
            }
            let request = Event::RequestAtServer {
                call: number,
                attempt,
            };
            self.timeline.after(way_us, request);
        }
    }

    /// A client's request reaches the server.
    pub fn request_at_server(&mut self, number: usize, attempt: usize) {
        let Some(call) = self.calls.all.get(number) else {
            return;
        };
        let Some(sent) = call.attempts.get(attempt) else {
            return;
        };
        let waits = call.manner.waits;
        let message = Message {
            subject: call.query.subject(sent.to).into(),
            reply: waits.then(|| client_inbox(number, attempt)),
            headers: call.headers(sent).into(),
            payload: call.payload.clone(),
            call: Some((number, attempt)),
        };
        self.publish(message);
    }

    /// An attempt ended for its client; true if that ends the call. One that comes after the client has
    /// stopped waiting is not seen by anybody.
    pub fn attempt_ends(
        &mut self,
        number: usize,
        attempt: usize,
        how: Result<Answer, NotAnswered>,
    ) -> bool {
        let now = self.timeline.now();
        let Some(call) = self.calls.all.get_mut(number) else {
            return false;
        };
        let Some(sent) = call.attempts.get_mut(attempt) else {
            return false;
        };
        if sent.end.is_some() || call.ended.is_some() {
            return false;
        }
        let word = describe(&how);
        sent.end = Some(End {
            at: now,
            how: how.clone(),
        });
        self.note(format_args!("client: call {number}.{attempt} ends: {word}"));
        let ended = match how {
            Ok(answer) => match answer.as_ref() {
                Ok(_) => Some(Ended::Ok(answer)),
                Err(error) => self.refused(number, error),
            },
            Err(NotAnswered::TimedOut) => self.missed(number, true, 0),
            Err(NotAnswered::NoResponders) => self.missed(number, false, 0),
        };
        let Some(ended) = ended else {
            return false;
        };
        let Some(call) = self.calls.all.get_mut(number) else {
            return false;
        };
        let line = call.query.line.clone();
        let wrote = matches!(call.query.what, What::Write(_));
        let local = call.query.what.is_local();
        call.ended = Some((now, ended.clone()));
        let is_decided = matches!(ended, Ended::Ok(_) | Ended::Refused(_));
        self.calls.decided += u64::from(wrote && is_decided);
        match &ended {
            Ended::Ok(answer) => {
                self.calls.acknowledged += u64::from(wrote);
                // A follower may know of an entry before its leader does, whose disk is slow.
                if !local {
                    let version = version_of(answer);
                    let known = self.known_versions.entry(line).or_default();
                    *known = version.unwrap_or(0).max(*known);
                }
            }
            Ended::Unknown => self.counts.add(Fault::ClientGivesUp),
            Ended::Refused(_) | Ended::Unavailable => {}
        }
        true
    }

    fn refused(&mut self, number: usize, error: &ApiError) -> Option<Ended> {
        let again = matches!(
            error.code,
            Code::Unavailable | Code::NotLeader | Code::Overloaded | Code::OutcomeUnknown
        );
        if again {
            let wait_us = error.retry_after_ms.unwrap_or(0) * 1_000;
            return self.missed(number, error.code == Code::OutcomeUnknown, wait_us);
        }
        Some(Ended::Refused(error.code))
    }

    /// An attempt led nowhere: another one, unless the call is over.
    fn missed(&mut self, number: usize, uncertain: bool, wait_us: Time) -> Option<Ended> {
        let now = self.timeline.now();
        let jitter = self.random.below(20_000);
        let call = self.calls.all.get_mut(number)?;
        call.uncertain |= uncertain && call.query.what.is_change();
        let wait_us = wait_us.max(call.backoff_us + jitter);
        call.backoff_us = (call.backoff_us * 2).min(250_000);
        if call.manner.repeats && now + wait_us + ATTEMPT_MIN_US < call.deadline {
            self.timeline
                .after(wait_us, Event::CallRepeats { call: number });
            return None;
        }
        Some(match call.uncertain {
            true => Ended::Unknown,
            false => Ended::Unavailable,
        })
    }
}

/// The line's version in an answer.
#[must_use]
pub fn version_of(answer: &Answer) -> Option<u64> {
    match answer.as_ref() {
        Ok(Outcome::Status { status, .. }) => Some(status.version),
        Ok(Outcome::Reply(ReplyBody::Line(line))) => Some(line.version),
        Ok(Outcome::Reply(ReplyBody::Info(info))) => Some(info.board.version),
        Ok(Outcome::Reply(ReplyBody::Tokens(page))) => Some(page.version),
        Ok(Outcome::Reply(ReplyBody::Callback(reply))) => Some(reply.version),
        _ => None,
    }
}

fn describe(how: &Result<Answer, NotAnswered>) -> String {
    match how {
        Err(NotAnswered::NoResponders) => "no responders".to_owned(),
        Err(NotAnswered::TimedOut) => "no answer in time".to_owned(),
        Ok(answer) => describe_answer(answer),
    }
}

/// An answer in few words.
#[must_use]
pub fn describe_answer(answer: &Answer) -> String {
    match answer.as_ref() {
        Err(error) => format!("refused: {}", error.code),
        Ok(Outcome::Status { status, .. }) => format!(
            "token {}/{}/{} {} v{}",
            status.at.incarnation,
            status.at.lane,
            status.at.token,
            status.state.as_str(),
            status.version
        ),
        Ok(Outcome::Reply(ReplyBody::Line(line))) => {
            format!("line {} v{}", line.line, line.version)
        }
        Ok(Outcome::Reply(ReplyBody::Deleted(it))) => format!("deleted, {} remain", it.remaining),
        Ok(Outcome::Reply(ReplyBody::Kicked(reply))) => format!("{} kicked", reply.kicked),
        Ok(Outcome::Reply(ReplyBody::Callback(reply))) => {
            format!("place {:?} v{}", reply.position, reply.version)
        }
        Ok(_) => "ok".to_owned(),
    }
}
