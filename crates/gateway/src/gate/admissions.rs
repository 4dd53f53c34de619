//! Who holds a seat: asked of the line once for many requests.
//!
//! The line's events end an admission at once. If one was lost, its visitor is let in for as long as an answer is believed
//! ([`Config::admission_stale_ms`]), and while the cluster does not answer, until the pass ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use nowserving_client::{Error, LaneName, LineName, State, StatusReply};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::cache::{Cache, Gaps, Held, Looked, Recent, Seat, TicketHash, TokenHash};
use crate::config::Config;
use crate::lines::{Change, LineView, TokenChange, is_unavailable};

/// Admissions of all lines: about 1 KiB each.
const ADMISSIONS_MAX: usize = 65_536;
/// So that checks on several cores seldom wait for each other.
const PARTS: usize = 32;
/// Tokens that have just gone: an answer about them may be older than their end.
const GONE_MAX: usize = 8_192;
/// Visits that are being completed at once. What is beyond ends with its seat's time.
const COMPLETIONS_MAX: usize = 16_384;
/// Questions under way at once, renewals too. More are not asked: the cluster is slow or away.
const QUESTIONS_MAX: usize = 2_048;
/// An admitted request to the path that completes a visit passes, and so do those for what its page needs.
const COMPLETE_AFTER: Duration = Duration::from_secs(5);
const COMPLETE_ATTEMPTS: u32 = 5;

/// The admissions of all lines.
pub(crate) struct Admissions {
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Admissions {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct Inner {
    /// So that nobody can look for tickets with the same hash.
    key: [u8; 32],
    stale: Duration,
    parts: Vec<Mutex<Cache>>,
    /// Locked before a part, never after one.
    tokens: Mutex<Tokens>,
    gaps: BTreeMap<LineName, Gaps>,
    under_way: Mutex<HashMap<(TicketHash, bool), Question>>,
    permits: Arc<Semaphore>,
    /// They wait for some seconds, so they take no places of questions.
    completions: Arc<Semaphore>,
    /// The gateway stops: visits are completed at once.
    stops: watch::Sender<bool>,
}

/// Tokens, as events name them.
struct Tokens {
    /// The tickets in the cache: of a token that was moved, several.
    tickets: HashMap<TokenHash, Vec<TicketHash>>,
    gone: Recent<TokenHash>,
}

impl Tokens {
    fn forget(&mut self, token: TokenHash, ticket: TicketHash) {
        if let Some(tickets) = self.tickets.get_mut(&token) {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                self.tickets.remove(&token);
            }
        }
    }
}

type Question = Shared<BoxFuture<'static, Result<Arc<Checked>, Unanswered>>>;

/// What the line says of a ticket.
#[derive(Debug)]
pub(super) struct Checked {
    pub status: StatusReply,
    /// If it holds a seat that lets its visitor in.
    pub held: Option<Held>,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(super) enum Unanswered {
    Line(Error),
    /// It is not asked now: too many questions are under way, or the line is known to be away.
    Busy,
}

impl Unanswered {
    /// Whether the cluster cannot be reached, or does not decide now.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Unanswered::Line(error) => is_unavailable(error),
            Unanswered::Busy => true,
        }
    }
}

impl Admissions {
    /// Follows the lines from now on.
    pub fn new(config: &Config, lines: &BTreeMap<LineName, LineView>) -> Admissions {
        let gaps = lines.keys().map(|line| (line.clone(), Gaps::default()));
        let parts = (0..PARTS).map(|_| Mutex::new(Cache::new(ADMISSIONS_MAX / PARTS)));
        let inner = Arc::new(Inner {
            key: rand::random(),
            stale: Duration::from_millis(config.admission_stale_ms),
            parts: parts.collect(),
            tokens: Mutex::new(Tokens {
                tickets: HashMap::new(),
                gone: Recent::new(GONE_MAX),
            }),
            gaps: gaps.collect(),
            under_way: Mutex::default(),
            permits: Arc::new(Semaphore::new(QUESTIONS_MAX)),
            completions: Arc::new(Semaphore::new(COMPLETIONS_MAX)),
            stops: watch::Sender::new(false),
        });
        let follow = |(line, view): (&LineName, &LineView)| {
            let changes = view.token_changes();
            tokio::spawn(Arc::clone(&inner).follow(line.clone(), changes))
        };
        Admissions {
            tasks: lines.iter().map(follow).collect(),
            inner,
        }
    }

    /// The holder of this ticket has left, or got another one.
    pub fn forget(&self, line: &LineName, ticket: &str) {
        self.inner.remove(self.inner.ticket(line, ticket));
    }

    /// What is known of a ticket without asking.
    pub(super) fn look(&self, view: &LineView, ticket: &str) -> Looked {
        let ticket = self.inner.ticket(view.line().name(), ticket);
        let renew_every = view
            .info()
            .map(|info| third(info.settings.checkout_timeout_ms));
        self.inner
            .part(ticket)
            .look(ticket, Instant::now(), renew_every)
    }

    /// Asks the line. Requests with one ticket that come meanwhile share the answer. `claims`: an admitted visitor goes into
    /// checkout.
    pub(super) async fn ask(
        &self,
        view: &LineView,
        ticket: &str,
        claims: bool,
    ) -> Result<Arc<Checked>, Unanswered> {
        let hash = self.inner.ticket(view.line().name(), ticket);
        let question = {
            let mut under_way = lock(&self.inner.under_way);
            match under_way.get(&(hash, claims)) {
                Some(question) => question.clone(),
                None => {
                    let permit = Arc::clone(&self.inner.permits).try_acquire_owned();
                    let permit = permit.map_err(|_| Unanswered::Busy)?;
                    let (inner, view, ticket) =
                        (Arc::clone(&self.inner), view.clone(), ticket.to_owned());
                    // In a task: the first one that asks may go away.
                    let task = tokio::spawn(async move {
                        let answer = inner.question(&view, hash, &ticket, claims).await;
                        lock(&inner.under_way).remove(&(hash, claims));
                        drop(permit);
                        answer
                    });
                    let question = async move { task.await.unwrap_or(Err(Unanswered::Busy)) };
                    let question = question.boxed().shared();
                    under_way.insert((hash, claims), question.clone());
                    question
                }
            }
        };
        question.await
    }

    /// Makes the seat of an active visitor last, in the background.
    pub(super) fn renew(&self, view: &LineView, ticket: &str, epoch: u64) {
        let Ok(permit) = Arc::clone(&self.inner.permits).try_acquire_owned() else {
            return;
        };
        let (inner, view, ticket) = (Arc::clone(&self.inner), view.clone(), ticket.to_owned());
        tokio::spawn(async move {
            let hash = inner.ticket(view.line().name(), &ticket);
            match view.line().renew(&ticket, epoch).await {
                // It has no pass.
                Ok(_) => drop(inner.question(&view, hash, &ticket, false).await),
                Err(error) => debug!(%error, "a seat was not renewed"),
            }
            drop(permit);
        });
    }

    /// Ends the visit soon, in the background.
    pub(super) fn complete(&self, view: &LineView, ticket: &str, epoch: Option<u64>) {
        let hash = self.inner.ticket(view.line().name(), ticket);
        let Ok(permit) = Arc::clone(&self.inner.completions).try_acquire_owned() else {
            return;
        };
        if !self.inner.part(hash).completes(hash) {
            return;
        }
        let (inner, view, ticket) = (Arc::clone(&self.inner), view.clone(), ticket.to_owned());
        let mut stops = inner.stops.subscribe();
        tokio::spawn(async move {
            // Also when it has stopped already.
            let _ = timeout(COMPLETE_AFTER, stops.wait_for(|stops| *stops)).await;
            for _ in 0..COMPLETE_ATTEMPTS {
                let done = match epoch {
                    Some(_) => view.line().complete(&ticket, epoch, None).await,
                    // In a line where a claim is all that there is.
                    None => view.line().claim(&ticket).await,
                };
                match done {
                    Err(error) if error.is_transient() => sleep(view.patience()).await,
                    Err(error) => {
                        debug!(%error, "a visit was not completed");
                        break;
                    }
                    Ok(_) => break,
                }
            }
            inner.remove(hash);
            drop(permit);
        });
    }

    /// Completes at once what is to be completed, and waits for that, for so long.
    pub async fn finish(&self, within: Duration) {
        self.inner.stops.send_replace(true);
        let all = self.inner.completions.acquire_many(COMPLETIONS_MAX as u32);
        if timeout(within, all).await.is_err() {
            let left = COMPLETIONS_MAX - self.inner.completions.available_permits();
            warn!(
                left,
                "visits were not completed: their seats come back with their times"
            );
        }
    }
}

impl Inner {
    /// One question and, if need be, a claim. Keeps the answer.
    async fn question(
        &self,
        view: &LineView,
        hash: TicketHash,
        ticket: &str,
        claims: bool,
    ) -> Result<Arc<Checked>, Unanswered> {
        let gaps = self.gaps.get(view.line().name());
        let asked_at = gaps.map(Gaps::count);
        let settings = view.info().map(|info| info.settings.clone());
        let releases = settings
            .as_ref()
            .is_some_and(|settings| settings.release_on_claim);
        let mut now = Instant::now();
        let mut status = self.answer(hash, view.status(ticket, true).await)?;
        if status.state == State::Admitted && claims && settings.is_none() {
            // In a line with `release_on_claim` a claim would end the visit: it is not known whether this is one.
            return Err(Unanswered::Busy);
        }
        if status.state == State::Admitted && claims && !releases {
            now = Instant::now();
            let claimed = view.line().claim_with_pass(ticket).await;
            if claimed.as_ref().is_err_and(is_unavailable) {
                view.doubt();
            }
            status = match claimed {
                Err(error) if !error.is_transient() => {
                    debug!(%error, "not claimed: the seat has gone meanwhile");
                    self.answer(hash, view.status(ticket, true).await)?
                }
                claimed => self.answer(hash, claimed)?,
            };
        }
        let lets_in = match status.state {
            State::InCheckout => true,
            // Its claim ends the token: the shop claims, or the path that completes.
            State::Admitted => releases,
            State::Waiting | State::Gone => false,
        };
        if !lets_in {
            self.remove(hash);
            return Ok(Arc::new(Checked { status, held: None }));
        }
        let timeout_ms = settings.map(|settings| settings.checkout_timeout_ms);
        let seat = self.seat(view.line().name(), &status, now, timeout_ms);
        let held = Held {
            pass: seat.pass.clone(),
            epoch: seat.epoch,
            renews: false,
        };
        if let (Some(gaps), Some(asked_at)) = (gaps, asked_at) {
            self.keep(hash, seat, gaps, asked_at);
        }
        Ok(Arc::new(Checked {
            status,
            held: Some(held),
        }))
    }

    /// A refusal says that the ticket is of no use any more.
    fn answer(
        &self,
        hash: TicketHash,
        answer: Result<StatusReply, Error>,
    ) -> Result<StatusReply, Unanswered> {
        answer.map_err(|error| {
            let unanswered = Unanswered::Line(error);
            if !unanswered.is_unavailable() {
                self.remove(hash);
            }
            unanswered
        })
    }

    /// `now`: when it was asked.
    fn seat(
        &self,
        line: &LineName,
        status: &StatusReply,
        now: Instant,
        checkout_timeout_ms: Option<u64>,
    ) -> Seat {
        let left = Duration::from_millis(status.expires_in_ms.unwrap_or(0));
        let pass_left = status.pass_expires_in_ms.map(Duration::from_millis);
        let held = pass_left.map_or(left, |pass_left| left.min(pass_left));
        let pass = status.pass.as_ref().and_then(|pass| {
            let mut pass = HeaderValue::from_str(pass.as_str()).ok()?;
            pass.set_sensitive(true);
            Some(pass)
        });
        let before_end = checkout_timeout_ms.map_or(Duration::ZERO, |ms| 2 * third(ms));
        Seat {
            token: self.token(line, &status.lane, status.token),
            pass,
            epoch: status.epoch,
            believed_until: now + held.min(self.stale),
            held_until: now + held,
            renew_from: now + left.saturating_sub(before_end),
        }
    }

    fn keep(&self, hash: TicketHash, seat: Seat, gaps: &Gaps, asked_at: u64) {
        let token = seat.token;
        // Until it is kept: the event of its end may come at any moment.
        let mut tokens = lock(&self.tokens);
        if tokens.gone.has(token) {
            return;
        }
        let mut part = self.part(hash);
        let before = part.token(hash);
        let dropped = part.put(hash, seat, gaps, asked_at);
        drop(part);
        if let Some(before) = before.filter(|before| *before != token) {
            tokens.forget(before, hash);
        }
        if let Some((ticket, of)) = dropped {
            tokens.forget(of, ticket);
        }
        let tickets = tokens.tickets.entry(token).or_default();
        if !tickets.contains(&hash) {
            tickets.push(hash);
        }
    }

    fn remove(&self, hash: TicketHash) {
        let mut tokens = lock(&self.tokens);
        if let Some(token) = self.part(hash).remove(hash) {
            tokens.forget(token, hash);
        }
    }

    /// Takes the changes of a line as they come.
    async fn follow(self: Arc<Inner>, line: LineName, mut changes: broadcast::Receiver<Change>) {
        loop {
            match changes.recv().await {
                Ok(Change::Token {
                    lane,
                    token,
                    what: TokenChange::Gone,
                }) => self.has_gone(&line, &lane, token),
                Ok(Change::Token { .. }) => {}
                Ok(Change::Anew) => {
                    // Its numbers begin again.
                    lock(&self.tokens).gone.clear();
                    self.missed(&line);
                }
                Ok(Change::Missed) | Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.missed(&line)
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    fn missed(&self, line: &LineName) {
        if let Some(gaps) = self.gaps.get(line) {
            gaps.add();
        }
    }

    fn has_gone(&self, line: &LineName, lane: &LaneName, token: u64) {
        let token = self.token(line, lane, token);
        let mut tokens = lock(&self.tokens);
        tokens.gone.add(token);
        let tickets = tokens.tickets.remove(&token).unwrap_or_default();
        for ticket in tickets {
            self.part(ticket).remove(ticket);
        }
    }

    fn part(&self, ticket: TicketHash) -> MutexGuard<'_, Cache> {
        lock(&self.parts[ticket.0 as usize % self.parts.len()])
    }

    fn ticket(&self, line: &LineName, ticket: &str) -> TicketHash {
        TicketHash(self.hash(&[line.as_str().as_bytes(), b" ", ticket.as_bytes()]))
    }

    fn token(&self, line: &LineName, lane: &LaneName, token: u64) -> TokenHash {
        let parts = [
            line.as_str().as_bytes(),
            b"  ",
            lane.as_str().as_bytes(),
            b" ",
            &token.to_be_bytes(),
        ];
        TokenHash(self.hash(&parts))
    }

    fn hash(&self, parts: &[&[u8]]) -> u128 {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in parts {
            hasher.update(part);
        }
        let mut hash = [0; 16];
        hasher.finalize_xof().fill(&mut hash);
        u128::from_be_bytes(hash)
    }
}

fn third(ms: u64) -> Duration {
    Duration::from_millis(ms / 3)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
