//! A line in memory, with one lane, on tokio's paused clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nowserving_adapt::LineNow;
use nowserving_line::{LaneName, LineName, State};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::user::{Key, StatusReply};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::guard::calls::{ASK_FOR, Calls, Place, Turn};

/// A call takes this long.
pub(super) const TRIP: Duration = Duration::from_millis(5);
/// A call that is not answered is given up after this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const CHECKOUT: Duration = Duration::from_secs(30);
pub(super) const CHECKOUT_MAX: Duration = Duration::from_secs(300);
/// The latest that the contract allows an `enter` to take effect: 2 s + 1 s + 5 s after it was sent.
const ENTERS_WITHIN: Duration = Duration::from_secs(8);

#[derive(Clone)]
pub(super) struct Fake {
    line: Arc<Mutex<Lines>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Lines {
    seats: usize,
    queue_limit: usize,
    answers: Answers,
    /// Those that wait or hold a seat.
    tokens: BTreeMap<u64, Token>,
    gone: BTreeMap<u64, Token>,
    next: u64,
    epoch: u64,
    renewals: u64,
    claims: u64,
    /// Since when no call is answered: the cluster's clock stands still.
    stopped: Option<Instant>,
    /// In the order of admission.
    admitted: Vec<u64>,
    release_on_claim: bool,
    /// The seats that were told.
    told: Vec<u32>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Answers {
    #[default]
    Always,
    Never,
    /// `enter` takes effect, and is not answered.
    NotToEnter,
    /// `enter` takes effect as late as it can, and is not answered.
    EnterLate,
    /// No call that changes the line.
    OnlyReads,
    /// Too many requests.
    Busy,
    /// All changes are refused.
    Forbids,
    /// The seats may not be told.
    ForbidsTelling,
    /// The turn is told too early.
    Early,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Enter,
    Write,
    Read,
}

struct Token {
    key: Vec<u8>,
    ticket: String,
    state: State,
    reason: &'static str,
    epoch: u64,
    claimed: Instant,
    expires: Instant,
}

impl Fake {
    pub(super) fn new(seats: usize, queue_limit: usize) -> Fake {
        let line = Lines {
            seats,
            queue_limit,
            next: 1,
            ..Lines::default()
        };
        Fake {
            line: Arc::new(Mutex::new(line)),
            changed: Arc::default(),
        }
    }

    pub(super) fn answers(&self, answers: Answers) {
        let mut line = self.lock();
        line.answers = answers;
        if answers == Answers::Never {
            line.stopped.get_or_insert_with(Instant::now);
        } else if let Some(stopped) = line.stopped.take() {
            for token in line.tokens.values_mut() {
                token.expires += stopped.elapsed();
                token.claimed += stopped.elapsed();
            }
        }
    }

    /// Into another lane: the token has a new ticket, and the old one is forgotten.
    pub(super) fn moves(&self, token: u64) {
        let mut line = self.lock();
        let moved = line.tokens.get_mut(&token).expect("a token");
        moved.ticket = format!("moved-{token}");
    }

    pub(super) fn claims(&self) -> u64 {
        self.lock().claims
    }

    pub(super) fn release_on_claim(&self) {
        self.lock().release_on_claim = true;
    }

    /// How many tokens wait, and how many hold seats.
    pub(super) fn live(&self) -> (usize, usize) {
        let line = self.lock();
        (line.count(State::Waiting), line.held())
    }

    pub(super) fn admitted(&self) -> Vec<u64> {
        self.lock().admitted.clone()
    }

    pub(super) fn renewals(&self) -> u64 {
        self.lock().renewals
    }

    pub(super) fn reason(&self, token: u64) -> &'static str {
        self.lock().any(token).reason
    }

    pub(super) fn seats(&self) -> usize {
        self.lock().seats
    }

    pub(super) fn told(&self) -> Vec<u32> {
        self.lock().told.clone()
    }

    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let line = self.lock();
        let tokens = line.tokens.values().chain(line.gone.values());
        tokens.map(|it| it.key.clone()).collect()
    }

    /// Ends a token, as an operator or a timeout does.
    pub(super) fn end(&self, token: u64, reason: &'static str) {
        self.lock().end(token, reason);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        let mut line = self.line.lock().expect("a test has failed");
        line.expire();
        line
    }

    async fn call<T>(&self, op: Op, does: impl FnOnce(&mut Lines) -> Result<T>) -> Result<T> {
        tokio::time::sleep(TRIP).await;
        let answers = self.lock().answers;
        let nobody = |kind| Error::new(kind, "nobody answers");
        match answers {
            Answers::Never => {
                tokio::time::sleep(PATIENCE).await;
                return Err(nobody(Kind::Unavailable));
            }
            Answers::OnlyReads if op != Op::Read => {
                tokio::time::sleep(PATIENCE).await;
                return Err(nobody(Kind::Unavailable));
            }
            Answers::Busy => {
                tokio::time::sleep(PATIENCE).await;
                let busy = ApiError::new(Code::Overloaded, "busy").retry_after_ms(2_000);
                return Err(nobody(Kind::Unavailable).with_api(busy));
            }
            Answers::Forbids if op != Op::Read => return Err(refused(Code::Forbidden)),
            _ => {}
        }
        let done = does(&mut self.lock());
        self.changed.notify_waiters();
        if op == Op::Enter && answers == Answers::NotToEnter {
            tokio::time::sleep(PATIENCE).await;
            return Err(nobody(Kind::OutcomeUnknown));
        }
        tokio::time::sleep(TRIP).await;
        done
    }
}

impl Lines {
    fn count(&self, state: State) -> usize {
        self.tokens.values().filter(|it| it.state == state).count()
    }

    fn held(&self) -> usize {
        self.count(State::Admitted) + self.count(State::InCheckout)
    }

    fn expire(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        let now = Instant::now();
        let is_over = |token: &Token| token.state == State::InCheckout && token.expires <= now;
        let over = self.tokens.iter().filter(|(_, token)| is_over(token));
        let over: Vec<u64> = over.map(|(token, _)| *token).collect();
        for token in over {
            self.end(token, "checkout_expired");
        }
    }

    fn end(&mut self, number: u64, reason: &'static str) {
        if let Some(mut token) = self.tokens.remove(&number) {
            token.state = State::Gone;
            token.reason = reason;
            self.gone.insert(number, token);
        }
        self.fill();
    }

    fn fill(&mut self) {
        while self.held() < self.seats {
            let mut tokens = self.tokens.iter_mut();
            let next = tokens.find(|(_, token)| token.state == State::Waiting);
            let Some((number, token)) = next else { return };
            token.state = State::Admitted;
            self.admitted.push(*number);
        }
    }

    fn enter(&mut self, key: &Key) -> Result<StatusReply> {
        if let Some(number) = self.find(key) {
            return Ok(self.status(number));
        }
        if self.held() + self.count(State::Waiting) >= self.seats + self.queue_limit {
            let api = ApiError::new(Code::LineFull, "full").retry_after_ms(3_000);
            return Err(refused(Code::LineFull).with_api(api));
        }
        let number = self.next;
        self.next += 1;
        let now = Instant::now();
        let token = Token {
            key: key.as_bytes().to_vec(),
            ticket: format!("T{number}"),
            state: State::Waiting,
            reason: "",
            epoch: 0,
            claimed: now,
            expires: now,
        };
        self.tokens.insert(number, token);
        self.fill();
        Ok(self.status(number))
    }

    fn find(&self, key: &Key) -> Option<u64> {
        let is_it = |token: &Token| token.key == key.as_bytes();
        let mut tokens = self.tokens.iter();
        let found = tokens.find(|(_, token)| is_it(token));
        found.map(|(number, _)| *number)
    }

    /// The number of a token that is not gone.
    fn live(&self, ticket: &str) -> Result<u64> {
        let mut tokens = self.tokens.iter().chain(&self.gone);
        let found = tokens.find(|(_, token)| token.ticket == ticket);
        let (number, token) = found.ok_or_else(|| refused(Code::TicketInvalid))?;
        if token.state == State::Gone {
            let mut api = ApiError::new(Code::TokenGone, "gone");
            api.reason = Some(token.reason.to_owned());
            return Err(refused(Code::TokenGone).with_api(api));
        }
        Ok(*number)
    }

    fn token(&mut self, number: u64) -> &mut Token {
        self.tokens.get_mut(&number).expect("a live token")
    }

    fn any(&self, number: u64) -> &Token {
        let token = self.tokens.get(&number);
        token.or_else(|| self.gone.get(&number)).expect("a token")
    }

    fn status(&self, number: u64) -> StatusReply {
        let token = self.any(number);
        let left = token.expires.saturating_duration_since(Instant::now());
        let is_claimed = token.state == State::InCheckout;
        StatusReply {
            units: None,
            pass: None,
            pass_expires_in_ms: None,
            line: LineName::try_from("fake").expect("a name"),
            incarnation: 1,
            lane: LaneName::try_from("normal").expect("a name"),
            token: number,
            state: token.state,
            position: None,
            position_capped: false,
            ahead: None,
            turn: None,
            eta_ms: None,
            eta_p90_ms: None,
            eta_from: None,
            phase: None,
            held_back_by: None,
            call_ahead: false,
            admitted_through: 0,
            epoch: (token.epoch > 0).then_some(token.epoch),
            expires_at_ms: None,
            expires_in_ms: is_claimed.then_some(left.as_millis() as u64),
            reason: (token.state == State::Gone).then(|| token.reason.to_owned()),
            entered_at_ms: None,
            poll_after_ms: 1_000,
            version: 1,
            at_ms: 1,
            ticket: Some(token.ticket.clone()),
            holes: None,
        }
    }
}

fn refused(code: Code) -> Error {
    Error::new(Kind::Refused(code), "refused").with_api(ApiError::new(code, "refused"))
}

impl Calls for Fake {
    async fn enter(&self, key: Key, _: Option<LaneName>) -> Result<StatusReply> {
        if self.lock().answers == Answers::EnterLate {
            let (line, held_back) = (self.clone(), key);
            tokio::spawn(async move {
                // It was sent again until the caller gave up.
                tokio::time::sleep(PATIENCE + ENTERS_WITHIN).await;
                let entered = line.lock().enter(&held_back);
                entered.expect("there is room");
            });
            tokio::time::sleep(PATIENCE).await;
            return Err(Error::new(Kind::OutcomeUnknown, "nobody answers"));
        }
        self.call(Op::Enter, |line| line.enter(&key)).await
    }

    async fn turn(&self, place: &mut Place) -> Result<Turn> {
        loop {
            let changed = self.changed.notified();
            let (state, reason, answers) = {
                let line = self.lock();
                let token = line.any(place.token);
                place.ticket.clone_from(&token.ticket);
                (token.state, token.reason, line.answers)
            };
            match state {
                State::Waiting if answers == Answers::Early => return Ok(Turn::Admitted),
                State::Waiting => {}
                State::Admitted | State::InCheckout => return Ok(Turn::Admitted),
                State::Gone => return Ok(Turn::Gone(reason.to_owned())),
            }
            // The next poll.
            if tokio::time::timeout(Duration::from_secs(1), changed)
                .await
                .is_err()
            {
                self.call(Op::Read, |_| Ok(())).await?;
            }
        }
    }

    async fn claim(&self, ticket: &str) -> Result<StatusReply> {
        let claim = |line: &mut Lines| {
            line.claims += 1;
            let number = line.live(ticket)?;
            if line.token(number).state == State::Waiting {
                return Err(refused(Code::NotAdmitted));
            }
            line.epoch += 1;
            let epoch = line.epoch;
            let token = line.token(number);
            token.state = State::InCheckout;
            token.epoch = epoch;
            token.claimed = Instant::now();
            token.expires = token.claimed + CHECKOUT;
            if line.release_on_claim {
                line.end(number, "completed");
            }
            Ok(line.status(number))
        };
        self.call(Op::Write, claim).await
    }

    async fn renew(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        let renew = |line: &mut Lines| {
            line.renewals += 1;
            let number = line.live(ticket)?;
            let token = line.token(number);
            assert_eq!(token.epoch, epoch);
            token.expires = (Instant::now() + CHECKOUT).min(token.claimed + CHECKOUT_MAX);
            Ok(line.status(number))
        };
        self.call(Op::Write, renew).await
    }

    async fn complete(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        let complete = |line: &mut Lines| {
            let number = line.live(ticket)?;
            assert_eq!(line.token(number).epoch, epoch);
            line.end(number, "completed");
            Ok(line.status(number))
        };
        self.call(Op::Write, complete).await
    }

    async fn leave(&self, ticket: &str) -> Result<StatusReply> {
        let leave = |line: &mut Lines| {
            let number = line.live(ticket)?;
            line.end(number, "left");
            Ok(line.status(number))
        };
        self.call(Op::Write, leave).await
    }

    async fn find(&self, key: Key) -> Result<StatusReply> {
        let find = |line: &mut Lines| {
            let number = line.find(&key);
            let number = number.ok_or_else(|| refused(Code::TokenNotFound))?;
            Ok(line.status(number))
        };
        self.call(Op::Read, find).await
    }

    async fn seats(&self) -> Result<LineNow> {
        let now = |line: &mut Lines| {
            Ok(LineNow {
                seats: line.seats as u32,
                held: line.held() as u64,
            })
        };
        self.call(Op::Read, now).await
    }

    async fn tell(&self, seats: u32, _: Duration) -> Result<()> {
        let tell = |line: &mut Lines| {
            if line.answers == Answers::ForbidsTelling {
                return Err(refused(Code::Forbidden));
            }
            line.told.push(seats);
            line.seats = seats as usize;
            line.fill();
            Ok(())
        };
        self.call(Op::Write, tell).await
    }

    async fn answers(&self) -> bool {
        tokio::time::sleep(TRIP).await;
        let answers = self.lock().answers != Answers::Never;
        if !answers {
            tokio::time::sleep(ASK_FOR).await;
        }
        answers
    }
}
