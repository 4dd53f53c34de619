//! Announcements of operators: key-values of one bucket, by the names of lines.
//!
//! An event of the bucket says that a key has changed, and the key is read then. Events can be lost, so all keys are read
//! now and then, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{Client, Code, Error, EventStream, Kind, Kv, KvEvent, LineName};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::config::{Config, ConfigError};

/// A longer text is not shown.
const CHARS_MAX: usize = 500;
/// Names of languages are short.
const LANGUAGE_BYTES_MAX: usize = 35;
/// An announcement whose event was lost comes this much later, at most.
const READ_EVERY: Duration = Duration::from_secs(30);
/// While the cluster does not answer.
const RETRY: Duration = Duration::from_secs(3);

/// The announcement of one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// By language; without one if it is the same for all. Not empty.
    texts: Vec<(Option<String>, String)>,
}

impl Notice {
    /// Of a value: a text, or a JSON object of texts by language. `None`: it says nothing.
    fn read(value: &[u8]) -> Result<Option<Notice>, &'static str> {
        let text = std::str::from_utf8(value)
            .map_err(|_| "it is no text")?
            .trim();
        let texts = match text.starts_with('{') {
            false => vec![(None, text.to_owned())],
            true => {
                let texts: BTreeMap<String, String> = serde_json::from_str(text)
                    .map_err(|_| "what begins with { must be a JSON object of texts by language")?;
                let is_language = |name: &str| {
                    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                    (1..=LANGUAGE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
                };
                if !texts.keys().all(|name| is_language(name)) {
                    return Err("a language is named as en, de or zh-Hant");
                }
                let texts = texts.into_iter();
                texts
                    .map(|(language, text)| (Some(language), text.trim().to_owned()))
                    .collect()
            }
        };
        let texts: Vec<_> = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .collect();
        if texts
            .iter()
            .any(|(_, text)| text.chars().count() > CHARS_MAX)
        {
            return Err("a text has at most 500 characters");
        }
        Ok((!texts.is_empty()).then_some(Notice { texts }))
    }

    /// For a reader of this language, as a catalogue is named: in it, or in what it is a kind of, or in English, or in the
    /// first one that there is.
    pub fn for_reader(&self, language: &str) -> Value {
        let kind = language.split('-').next().unwrap_or(language);
        let of = |wanted: &str| {
            self.texts.iter().find(|(name, _)| {
                name.as_ref()
                    .is_some_and(|name| name.eq_ignore_ascii_case(wanted))
            })
        };
        let found = of(language).or_else(|| of(kind)).or_else(|| of("en"));
        let mut shown = Map::new();
        if let Some((name, text)) = found.or(self.texts.first()) {
            shown.insert("text".to_owned(), text.as_str().into());
            if let Some(name) = name {
                shown.insert("lang".to_owned(), name.as_str().into());
            }
        }
        Value::Object(shown)
    }
}

/// What a stream is told.
pub(crate) fn event_data(notice: Option<&Notice>, language: &str) -> Value {
    match notice {
        Some(notice) => notice.for_reader(language),
        None => json!({"text": null}),
    }
}

/// The announcements of all lines.
pub(crate) struct Notices {
    state: Arc<State>,
    /// `None`: no bucket is configured.
    task: Option<JoinHandle<()>>,
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.task.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Default)]
struct State {
    all: Mutex<BTreeMap<LineName, Known>>,
    /// Changes with each of them.
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    revision: u64,
    notice: Option<Arc<Notice>>,
}

impl Notices {
    /// Follows the bucket of the configuration, if it names one.
    pub fn start(
        client: &Client,
        config: &Config,
        lines: impl Iterator<Item = LineName>,
    ) -> Result<Notices, ConfigError> {
        let state = Arc::new(State::default());
        let Some(bucket) = &config.notices_bucket else {
            return Ok(Notices { state, task: None });
        };
        let client = client.with_deadline(Duration::from_millis(config.patience_ms));
        let bucket = client
            .kv(bucket)
            .map_err(|error| ConfigError::new("notices_bucket", error.to_string()))?;
        let following = Following {
            lines: lines.collect(),
            bucket,
            state: Arc::clone(&state),
            is_refused: false,
        };
        Ok(Notices {
            state,
            task: Some(tokio::spawn(following.run())),
        })
    }

    /// The announcement of a line.
    pub fn of(&self, line: &LineName) -> Option<Arc<Notice>> {
        self.state.of(line)
    }

    /// For the streams of a line; `None`: there are no announcements.
    pub fn follow(&self, line: &LineName) -> Option<LineNotice> {
        self.task.as_ref()?;
        Some(LineNotice {
            line: line.clone(),
            changes: self.state.version.subscribe(),
            state: Arc::clone(&self.state),
        })
    }
}

/// The announcement of one line, followed.
pub(crate) struct LineNotice {
    line: LineName,
    /// With those of other lines.
    changes: watch::Receiver<u64>,
    state: Arc<State>,
}

impl LineNotice {
    /// What is announced now.
    pub fn now(&self) -> Option<Arc<Notice>> {
        self.state.of(&self.line)
    }

    /// Waits until it may have changed.
    pub async fn changed(&mut self) {
        // The state has the sender.
        let _ = self.changes.changed().await;
    }
}

impl State {
    fn of(&self, line: &LineName) -> Option<Arc<Notice>> {
        lock(&self.all).get(line)?.notice.clone()
    }

    /// Takes what is at a key now; `None`: there is no such key.
    fn take(&self, line: &LineName, value: Option<(u64, &[u8])>) {
        let mut all = lock(&self.all);
        let known = all.entry(line.clone()).or_default();
        let revision = value.map_or(0, |(revision, _)| revision);
        if revision == known.revision {
            return;
        }
        known.revision = revision;
        let notice = value.map_or(Ok(None), |(_, value)| Notice::read(value));
        let notice = notice.unwrap_or_else(|what| {
            warn!(line = line.as_str(), what, "an announcement is not shown");
            None
        });
        if known.notice.as_deref() == notice.as_ref() {
            return;
        }
        info!(
            line = line.as_str(),
            is_shown = notice.is_some(),
            "another announcement"
        );
        known.notice = notice.map(Arc::new);
        drop(all);
        self.version.send_modify(|version| *version += 1);
    }
}

struct Following {
    lines: Vec<LineName>,
    bucket: Kv,
    state: Arc<State>,
    /// That a right is missing was said.
    is_refused: bool,
}

impl Following {
    async fn run(mut self) {
        let mut events: Option<EventStream<KvEvent>> = None;
        let mut reads = interval(READ_EVERY);
        reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = reads.tick() => {
                    // Before they are read: no change falls between.
                    if events.is_none() {
                        events = self.subscribe().await;
                    }
                    if !self.read_all().await || events.is_none() {
                        reads.reset_after(RETRY);
                    }
                }
                event = next(&mut events) => match event {
                    Some(Ok(event)) => {
                        let line = self.lines.iter().position(|line| line.as_str() == event.key);
                        if let Some(at) = line && !self.read(at).await {
                            reads.reset_after(RETRY);
                        }
                    }
                    Some(Err(error)) => {
                        self.refused(&error);
                        events = None;
                    }
                    None => events = None,
                },
            }
        }
    }

    async fn subscribe(&mut self) -> Option<EventStream<KvEvent>> {
        match self.bucket.events().await {
            Ok(events) => Some(events),
            Err(error) => {
                self.refused(&error);
                None
            }
        }
    }

    /// Whether the cluster answered.
    async fn read_all(&mut self) -> bool {
        for at in 0..self.lines.len() {
            if !self.read(at).await {
                return false;
            }
        }
        true
    }

    async fn read(&mut self, at: usize) -> bool {
        let line = &self.lines[at];
        match self.bucket.get(line.as_str()).await {
            Ok(reply) => {
                let value = reply.value.as_bytes();
                self.state.take(line, Some((reply.revision, value)));
                true
            }
            Err(error) if error.code() == Some(Code::KeyNotFound) => {
                self.state.take(line, None);
                true
            }
            // What was known stays.
            Err(error) => {
                self.refused(&error);
                false
            }
        }
    }

    /// Says once that a right is missing. That the cluster is away is said elsewhere.
    fn refused(&mut self, error: &Error) {
        if error.kind() == Kind::Forbidden && !std::mem::replace(&mut self.is_refused, true) {
            let bucket = self.bucket.bucket().as_str();
            warn!(bucket, %error, "announcements cannot be read: the role `gateways` of deploy/nats may read `notices`");
        }
    }
}

/// Never, while there is no subscription.
async fn next(
    events: &mut Option<EventStream<KvEvent>>,
) -> Option<nowserving_client::Result<KvEvent>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(value: &str) -> Result<Option<Notice>, &'static str> {
        Notice::read(value.as_bytes())
    }

    #[test]
    fn a_text_is_for_all_and_texts_by_language_for_those_who_read_it() {
        let notice = read(" Gate B is closed. ").unwrap().unwrap();
        assert_eq!(
            notice.for_reader("de"),
            json!({"text": "Gate B is closed."})
        );
        let notice = read(r#"{"de": "Tor B ist zu.", "en": "Gate B is closed.", "zh": "B"}"#);
        let notice = notice.unwrap().unwrap();
        let text = |language| notice.for_reader(language);
        assert_eq!(text("de"), json!({"text": "Tor B ist zu.", "lang": "de"}));
        assert_eq!(text("zh-Hant"), json!({"text": "B", "lang": "zh"}));
        let english = json!({"text": "Gate B is closed.", "lang": "en"});
        assert_eq!(text("ja"), english);
        let notice = read(r#"{"de": "Tor B ist zu.", "en": ""}"#)
            .unwrap()
            .unwrap();
        let german = json!({"text": "Tor B ist zu.", "lang": "de"});
        assert_eq!(notice.for_reader("ja"), german);
        for nothing in ["", "  ", "{}", r#"{"en": ""}"#] {
            assert_eq!(read(nothing), Ok(None));
        }
    }

    #[test]
    fn what_is_too_long_or_no_text_is_not_shown() {
        assert!(read(&"ä".repeat(500)).is_ok());
        for bad in [
            &"ä".repeat(501),
            &format!("{{\"en\": \"{}\"}}", "x".repeat(501)),
            "{\"en\": 1}",
            "{en: 'x'}",
            "{\"\": \"x\"}",
            "{\"e n\": \"x\"}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(Notice::read(&[0xff]).is_err());
    }

    #[test]
    fn a_change_is_told_once_and_a_bad_text_takes_the_last_one_back() {
        let (state, line) = (State::default(), "sale".parse().unwrap());
        let versions = state.version.subscribe();
        let told = || *versions.borrow();
        state.take(&line, None);
        assert_eq!(told(), 0);
        state.take(&line, Some((1, b"one")));
        state.take(&line, Some((1, b"one")));
        // The same text again.
        state.take(&line, Some((2, b"one")));
        assert_eq!(told(), 1);
        state.take(&line, Some((3, &[0xff])));
        assert_eq!(told(), 2);
        assert!(lock(&state.all)[&line].notice.is_none());
        state.take(&line, Some((4, b"two")));
        state.take(&line, None);
        assert_eq!(told(), 4);
    }

    #[test]
    fn a_stream_is_told_that_there_is_none() {
        assert_eq!(event_data(None, "en"), json!({"text": null}));
    }
}
