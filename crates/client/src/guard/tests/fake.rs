//! A line in memory, with one lane, on tokio's paused clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nowserving_line::{LaneName, LineName, State};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::user::{Key, StatusReply};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::guard::calls::{Calls, Place, Turn};

/// A call takes this long.
pub(super) const TRIP: Duration = Duration::from_millis(5);
/// A call that is not answered is given up after this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const CHECKOUT: Duration = Duration::from_secs(30);
pub(super) const CHECKOUT_MAX: Duration = Duration::from_secs(300);

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
    tokens: BTreeMap<u64, Token>,
    next: u64,
    epoch: u64,
    renewals: u64,
    /// In the order of admission.
    admitted: Vec<u64>,
    release_on_claim: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Answers {
    #[default]
    Always,
    Never,
    /// To `enter`: it takes effect, and is not answered.
    NotToEnter,
}

struct Token {
    key: Vec<u8>,
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
        self.lock().answers = answers;
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
        self.lock().tokens[&token].reason
    }

    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let line = self.lock();
        line.tokens.values().map(|it| it.key.clone()).collect()
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

    async fn call<T>(
        &self,
        is_enter: bool,
        does: impl FnOnce(&mut Lines) -> Result<T>,
    ) -> Result<T> {
        tokio::time::sleep(TRIP).await;
        let answers = self.lock().answers;
        if answers == Answers::Never {
            tokio::time::sleep(PATIENCE).await;
            return Err(Error::new(Kind::Unavailable, "nobody answers"));
        }
        let done = does(&mut self.lock());
        self.changed.notify_waiters();
        if is_enter && answers == Answers::NotToEnter {
            tokio::time::sleep(PATIENCE).await;
            return Err(Error::new(Kind::OutcomeUnknown, "nobody answers"));
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
        let now = Instant::now();
        let is_over = |token: &Token| token.state == State::InCheckout && token.expires <= now;
        let over = self.tokens.iter().filter(|(_, token)| is_over(token));
        let over: Vec<u64> = over.map(|(token, _)| *token).collect();
        for token in over {
            self.end(token, "checkout_expired");
        }
    }

    fn end(&mut self, number: u64, reason: &'static str) {
        if let Some(token) = self.tokens.get_mut(&number)
            && token.state != State::Gone
        {
            token.state = State::Gone;
            token.reason = reason;
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

    fn live(&mut self, ticket: &str) -> Result<&mut Token> {
        let token = self.tokens.get_mut(&number(ticket)).expect("its ticket");
        if token.state == State::Gone {
            let mut api = ApiError::new(Code::TokenGone, "gone");
            api.reason = Some(token.reason.to_owned());
            return Err(refused(Code::TokenGone).with_api(api));
        }
        Ok(token)
    }

    fn status(&self, number: u64) -> StatusReply {
        let token = &self.tokens[&number];
        let left = token.expires.saturating_duration_since(Instant::now());
        let is_claimed = token.state == State::InCheckout;
        StatusReply {
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
            ticket: Some(format!("T{number}")),
            holes: None,
        }
    }
}

fn number(ticket: &str) -> u64 {
    let number = ticket.strip_prefix('T').and_then(|it| it.parse().ok());
    number.expect("a ticket of this line")
}

fn refused(code: Code) -> Error {
    Error::new(Kind::Refused(code), "refused").with_api(ApiError::new(code, "refused"))
}

impl Calls for Fake {
    async fn enter(&self, key: Key, _: Option<LaneName>) -> Result<StatusReply> {
        let enter = |line: &mut Lines| {
            if line.held() + line.count(State::Waiting) >= line.seats + line.queue_limit {
                let api = ApiError::new(Code::LineFull, "full").retry_after_ms(3_000);
                return Err(refused(Code::LineFull).with_api(api));
            }
            let number = line.next;
            line.next += 1;
            let now = Instant::now();
            let token = Token {
                key: key.into_bytes().into_vec(),
                state: State::Waiting,
                reason: "",
                epoch: 0,
                claimed: now,
                expires: now,
            };
            line.tokens.insert(number, token);
            line.fill();
            Ok(line.status(number))
        };
        self.call(true, enter).await
    }

    async fn turn(&self, place: &Place) -> Result<Turn> {
        loop {
            let changed = self.changed.notified();
            let (state, reason) = {
                let line = self.lock();
                let token = &line.tokens[&place.token];
                (token.state, token.reason)
            };
            match state {
                State::Waiting => {}
                State::Admitted | State::InCheckout => return Ok(Turn::Admitted),
                State::Gone => return Ok(Turn::Gone(reason.to_owned())),
            }
            // The next poll.
            if tokio::time::timeout(Duration::from_secs(1), changed)
                .await
                .is_err()
            {
                self.call(false, |_| Ok(())).await?;
            }
        }
    }

    async fn claim(&self, ticket: &str) -> Result<StatusReply> {
        let claim = |line: &mut Lines| {
            line.epoch += 1;
            let epoch = line.epoch;
            let release_on_claim = line.release_on_claim;
            let token = line.live(ticket)?;
            if token.state == State::Waiting {
                return Err(refused(Code::NotAdmitted));
            }
            token.state = State::InCheckout;
            token.epoch = epoch;
            token.claimed = Instant::now();
            token.expires = token.claimed + CHECKOUT;
            if release_on_claim {
                line.end(number(ticket), "completed");
            }
            Ok(line.status(number(ticket)))
        };
        self.call(false, claim).await
    }

    async fn renew(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        let renew = |line: &mut Lines| {
            line.renewals += 1;
            let token = line.live(ticket)?;
            assert_eq!(token.epoch, epoch);
            token.expires = (Instant::now() + CHECKOUT).min(token.claimed + CHECKOUT_MAX);
            Ok(line.status(number(ticket)))
        };
        self.call(false, renew).await
    }

    async fn complete(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        let complete = |line: &mut Lines| {
            assert_eq!(line.live(ticket)?.epoch, epoch);
            line.end(number(ticket), "completed");
            Ok(line.status(number(ticket)))
        };
        self.call(false, complete).await
    }

    async fn leave(&self, ticket: &str) -> Result<StatusReply> {
        let leave = |line: &mut Lines| {
            line.live(ticket)?;
            line.end(number(ticket), "left");
            Ok(line.status(number(ticket)))
        };
        self.call(false, leave).await
    }

    async fn find(&self, key: Key) -> Result<StatusReply> {
        let find = |line: &mut Lines| {
            let is_it = |token: &Token| token.key == key.as_bytes() && token.state != State::Gone;
            let found = line.tokens.iter().find(|(_, token)| is_it(token));
            let number = found.map(|(number, _)| *number);
            let number = number.ok_or_else(|| refused(Code::TokenNotFound))?;
            Ok(line.status(number))
        };
        self.call(false, find).await
    }

    async fn is_back(&self) -> bool {
        tokio::time::sleep(TRIP).await;
        self.lock().answers != Answers::Never
    }
}
