//! A line that the gateway follows: its settings by `info`, and by its events the places of all tokens, once for all watchers.
//!
//! Two tasks a line, whatever the number of visitors: one reads the line's events, one asks `info`. They end with the last
//! [`LineView`].

mod answered;
mod known;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{
    BoardReply, Client, Code, Error, InfoReply, LaneName, Line, LineName, Standing, StatusReply,
    StatusRequest, TokenBy,
};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

pub(crate) use self::answered::Trouble;
use self::answered::{Answered, Report};
pub(crate) use self::known::{Change, TokenChange};
use self::known::{Known, News};
use crate::config::Config;

/// How many changes a reader may be behind: then it gets [`Change::Missed`] in their place.
const BEHIND_MAX: usize = 4_096;
/// `info` is asked at least this often, so that what holds a line back is not long out of date.
const INFO_EVERY: Duration = Duration::from_secs(5);
/// Line events come in bursts (a draw, a schedule): they are followed by one question.
const INFO_PAUSE: Duration = Duration::from_millis(100);
/// However many visitors get no answer, and however often `/readyz` is asked.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// After a question that was not answered.
const INFO_RETRY: Duration = Duration::from_millis(500);
/// After the events have ended, by an error that lasts (a missing right).
const SUBSCRIBE_RETRY: Duration = Duration::from_secs(5);

/// One line, followed. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LineView(Arc<Inner>);

struct Inner {
    state: Arc<State>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

struct State {
    line: Line,
    patience: Duration,
    known: Mutex<Known>,
    info: Mutex<Option<Arc<InfoReply>>>,
    answered: Mutex<Answered>,
    /// Grows with each change.
    version: watch::Sender<u64>,
    changes: broadcast::Sender<Change>,
    ask_info: Notify,
    /// Whether the line answers at all should be known sooner: a visitor got no answer, or somebody wants to know.
    doubt: Notify,
    subscribed: AtomicBool,
}

impl LineView {
    /// Follows the line from now on.
    pub fn start(client: &Client, name: &LineName, config: &Config) -> LineView {
        let patience = Duration::from_millis(config.patience_ms);
        let state = Arc::new(State {
            line: client.with_deadline(patience).line_by_name(name.clone()),
            patience,
            known: Mutex::default(),
            info: Mutex::default(),
            answered: Mutex::default(),
            version: watch::Sender::new(0),
            changes: broadcast::Sender::new(BEHIND_MAX),
            ask_info: Notify::new(),
            doubt: Notify::new(),
            subscribed: AtomicBool::new(false),
        });
        let tasks = [
            tokio::spawn(Arc::clone(&state).follow_events()),
            tokio::spawn(Arc::clone(&state).follow_info()),
        ];
        LineView(Arc::new(Inner { state, tasks }))
    }

    /// For questions to the line, with the gateway's patience.
    pub fn line(&self) -> &Line {
        &self.0.state.line
    }

    /// The newest answer to `info`: at most some seconds old while the line answers. `None` until its first answer.
    pub fn info(&self) -> Option<Arc<InfoReply>> {
        lock(&self.0.state.info).clone()
    }

    /// The newest board, without holes.
    pub fn board(&self) -> Option<Arc<BoardReply>> {
        self.0.state.known().newest_board()
    }

    /// Where the token of a ticket stands, asked within the gateway's patience.
    pub async fn status(&self, ticket: &str, with_pass: bool) -> Result<StatusReply, Error> {
        let mut request = StatusRequest::new(TokenBy::Ticket(ticket.to_owned()));
        request.pass = with_pass;
        let answer = self.line().status_with(request).await;
        if answer.as_ref().is_err_and(is_unavailable) {
            self.doubt();
        }
        answer
    }

    /// Makes sure that the line answers, sooner than it would be asked anyway. Waits for nothing.
    pub fn doubt(&self) {
        self.0.state.doubt.notify_one();
    }

    /// The same for somebody who only looks: if the newest answer is old.
    pub fn look_again(&self) {
        if lock(&self.0.state.answered).is_worth_asking(Instant::now()) {
            self.doubt();
        }
    }

    /// Where tokens stand as far as events say, all at one moment.
    pub fn places<'a>(&self, tokens: impl Iterator<Item = (&'a LaneName, u64)>) -> Vec<Standing> {
        let known = self.0.state.known();
        tokens
            .map(|(lane, token)| known.standing(lane, token))
            .collect()
    }

    /// A number that grows with each event, each answer to `info`, and when the line goes away or comes back.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.state.version.subscribe()
    }

    /// The changes of tokens as they happen. A receiver that lags has missed some.
    pub fn token_changes(&self) -> broadcast::Receiver<Change> {
        self.0.state.changes.subscribe()
    }

    /// What is known now, also of a silence that is too short for [`LineView::is_away`]. `None`: the line has answered, and
    /// its events are subscribed to.
    pub fn trouble(&self) -> Option<Trouble> {
        let of_answer = lock(&self.0.state.answered).trouble().cloned();
        of_answer.or_else(|| (!self.is_subscribed()).then_some(Trouble::NoEvents))
    }

    /// Whether the line cannot be decided by the cluster. One question without an answer does not say so yet.
    pub fn is_unready(&self) -> bool {
        lock(&self.0.state.answered).lasts() || !self.is_subscribed()
    }

    /// Whether the newest question got no answer: sooner known than [`LineView::is_away`].
    pub fn is_unanswered(&self) -> bool {
        let answered = lock(&self.0.state.answered);
        matches!(answered.trouble(), Some(Trouble::Unanswered(_)))
    }

    fn is_subscribed(&self) -> bool {
        self.0.state.subscribed.load(Ordering::Relaxed)
    }

    /// The line has not answered for some seconds: longer than a change of leader takes.
    pub fn is_away(&self) -> bool {
        lock(&self.0.state.answered).is_away()
    }

    /// How long one question may take.
    pub fn patience(&self) -> Duration {
        self.0.state.patience
    }
}

impl State {
    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    async fn follow_events(self: Arc<State>) {
        let name = self.line.name().as_str();
        loop {
            let pause = match self.line.all_events().await {
                Ok(mut events) => {
                    self.subscribed.store(true, Ordering::Relaxed);
                    self.tell(News {
                        changes: vec![Change::Missed],
                        ask_info: true,
                    });
                    let error = loop {
                        match events.next().await {
                            Some(Ok(event)) => {
                                let news = self.known().take(&event);
                                self.tell(news);
                            }
                            Some(Err(error)) => break Some(error),
                            None => break None,
                        }
                    };
                    let error = error.map_or_else(String::new, |error| error.to_string());
                    warn!(line = name, error, "the events of the line have ended");
                    SUBSCRIBE_RETRY
                }
                // NATS is away: the line's first events wait for nobody once it is back.
                Err(error) if error.is_transient() => INFO_RETRY,
                Err(error) => {
                    warn!(line = name, %error, "the events of the line cannot be followed");
                    SUBSCRIBE_RETRY
                }
            };
            self.subscribed.store(false, Ordering::Relaxed);
            sleep(pause).await;
        }
    }

    fn tell(&self, news: News) {
        for change in news.changes {
            // Fails only without receivers.
            let _ = self.changes.send(change);
        }
        if news.ask_info {
            self.ask_info.notify_one();
        }
        self.version.send_modify(|version| *version += 1);
    }

    async fn follow_info(self: Arc<State>) {
        loop {
            let answer = self.line.info().await;
            self.note(answer.as_ref().err());
            let pause = match answer {
                Ok(info) => {
                    let pause = Duration::from_millis(info.settings.claim_timeout_ms / 2);
                    let news = self.known().info(&info);
                    *lock(&self.info) = Some(Arc::new(info));
                    self.tell(news);
                    pause.clamp(INFO_PAUSE, INFO_EVERY)
                }
                Err(error) if error.is_transient() => INFO_RETRY,
                Err(_) => {
                    // No such line, or a right is missing: its visitors hear it with the answers to their own questions.
                    lock(&self.info).take();
                    INFO_EVERY
                }
            };
            sleep(INFO_PAUSE).await;
            let doubted = async {
                sleep(DOUBT_PAUSE).await;
                self.doubt.notified().await;
            };
            tokio::select! {
                // Also when it is time.
                _ = timeout(pause, self.ask_info.notified()) => {}
                () = doubted => {}
            }
        }
    }

    /// Keeps how the newest question ended, and logs what changes by it.
    fn note(&self, error: Option<&Error>) {
        let is_heard = error.is_none_or(|error| error.code().is_some());
        let (report, away_changed) = {
            let mut answered = lock(&self.answered);
            let was_away = answered.is_away();
            let trouble = error.map(Trouble::of);
            let report = answered.note(trouble, is_heard, self.patience, Instant::now());
            (report, answered.is_away() != was_away)
        };
        if away_changed {
            self.version.send_modify(|version| *version += 1);
        }
        let line = self.line.name().as_str();
        let why = || error.map(ToString::to_string);
        match report {
            Report::Nothing => {}
            Report::Answers => info!(line, "the line answers"),
            Report::Away => warn!(line, "the line does not answer"),
            Report::Refused if error.and_then(Error::code) == Some(Code::LineNotFound) => warn!(
                line,
                "there is no line of this name: nobody gets a number, and those who have one are told that their place is not \
                 certain. Create it, or correct `line` in the configuration"
            ),
            Report::Refused => warn!(line, error = why(), "the line does not answer `info`"),
        }
    }
}

/// Whether an error says that the cluster cannot be reached, or does not decide now; else it has refused.
pub(crate) fn is_unavailable(error: &Error) -> bool {
    error.is_transient() || error.code().is_none()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
