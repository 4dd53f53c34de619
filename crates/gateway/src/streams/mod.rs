//! Streams of events to browsers: each visitor's own place, pushed.
//!
//! One task a line ([`line`]) feeds all its streams. A stream itself is an [`Outlet`](outlet::Outlet), which keeps one event
//! of each kind at most, and the buffers of its connection.

mod event;
mod facts;
mod line;
mod outlet;
mod visitor;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::IntoResponse as _;
use metrics::counter;
use nowserving_client::{LineName, State};
use rand::RngExt as _;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::line::{Join, LineStreams};
use self::outlet::{Events, Outlet, Place};
use crate::Shared;
use crate::address::Asked;
use crate::config::{Config, LineRule};
use crate::http::{self, Answer};
use crate::lines::{LineView, is_unavailable};
use crate::notices::Notices;

/// Streams of a line that wait to be begun.
const JOINS_MAX: usize = 1_024;
/// Questions under way for streams that begin: many come at once when another gateway has stopped.
const OPENING_MAX: usize = 128;
/// After how long a refused browser should try again: it asks for the status meanwhile.
const RETRY_AFTER_S: std::ops::RangeInclusive<u32> = 5..=15;

/// All streams of the gateway.
pub(crate) struct Streams {
    open: Arc<AtomicUsize>,
    max: usize,
    opening: Semaphore,
    lines: BTreeMap<LineName, mpsc::Sender<Join>>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Streams {
    /// None is open yet.
    pub fn new(
        config: &Config,
        lines: &BTreeMap<LineName, LineView>,
        notices: &Notices,
    ) -> Streams {
        let stop = watch::Sender::new(false);
        let mut joins = BTreeMap::new();
        let mut tasks = Vec::new();
        for (name, view) in lines {
            let (join, joined) = mpsc::channel(JOINS_MAX);
            let rule = config.rule_of(name).cloned();
            let rule = rule.unwrap_or_else(|| LineRule::new(name.clone()));
            let line = LineStreams::new(view.clone(), rule, notices.follow(name));
            tasks.push(tokio::spawn(line.run(joined, stop.subscribe())));
            joins.insert(name.clone(), join);
        }
        Streams {
            open: Arc::default(),
            max: config.streams_max,
            opening: Semaphore::new(OPENING_MAX),
            lines: joins,
            stop,
            tasks,
        }
    }

    /// Ends all streams, each with a time of its own to come back, and takes no others.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// `GET /_nowserving/v1/lines/{line}/events`.
pub(crate) async fn events(gateway: &Shared, asked: &Asked, line: &LineName) -> Answer {
    let streams = &gateway.streams;
    let (Some(view), Some(join)) = (gateway.lines.get(line), streams.lines.get(line)) else {
        return http::problem(
            StatusCode::NOT_FOUND,
            "No such line",
            "This gateway has no line of this name.",
        );
    };
    // An `EventSource` does not come back after a 204.
    let Some(ticket) = gateway.cookies.ticket(&asked.headers, line) else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let Some(place) = Place::take(&streams.open, streams.max) else {
        return busy();
    };
    let status = match timeout(view.patience(), opening(streams, view, ticket)).await {
        Ok(Ok(status)) if status.state == State::Gone => {
            return StatusCode::NO_CONTENT.into_response();
        }
        Ok(Ok(status)) => Some(status),
        Ok(Err(error)) if !is_unavailable(&error) => return StatusCode::NO_CONTENT.into_response(),
        // It is told so, and of its place once the line answers.
        Ok(Err(_)) | Err(_) => None,
    };
    let outlet = Outlet::new(event::retry(), gateway.language(&asked.headers, None));
    let joined = Join {
        ticket: ticket.to_owned(),
        status,
        outlet: Arc::clone(&outlet),
    };
    if join.send(joined).await.is_err() {
        return busy();
    }
    let mut answer = Answer::new(Body::new(Events {
        outlet,
        _place: place,
    }));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Nginx would keep events back.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    answer
}

async fn opening(
    streams: &Streams,
    view: &LineView,
    ticket: &str,
) -> nowserving_client::Result<nowserving_client::StatusReply> {
    // Never closed.
    let _permit = streams.opening.acquire().await;
    view.status(ticket, false).await
}

/// As many are open as may be, or the gateway stops. The browser asks for the status instead.
fn busy() -> Answer {
    counter!("nowserving_gateway_streams_refused_total").increment(1);
    let mut answer = http::problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "No stream",
        "As many streams are open as this gateway takes. Ask for the status.",
    );
    let after_s = rand::rng().random_range(RETRY_AFTER_S);
    answer.headers_mut().insert(RETRY_AFTER, after_s.into());
    answer
}
