//! What a stream still has to send: bounded, whatever its reader does. A later place replaces an earlier one that was not
//! sent, and a whole visit both.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use futures::task::AtomicWaker;
use hyper::body::Frame;
use tokio::time::Instant;

/// The writing side of one stream.
pub(super) struct Outlet {
    /// Of the reader, as a catalogue is named.
    pub language: Box<str>,
    pending: Mutex<Pending>,
    reader: AtomicWaker,
}

struct Pending {
    /// The `retry` of its beginning or end.
    retry: Option<Bytes>,
    whole: Option<Bytes>,
    notice: Option<Bytes>,
    place: Option<Bytes>,
    beat: Option<Bytes>,
    /// When something was last put here.
    put_at: Instant,
    ends: bool,
    is_closed: bool,
}

impl Outlet {
    /// It begins with this `retry`.
    pub fn new(retry: Bytes, language: &str) -> Arc<Outlet> {
        Arc::new(Outlet {
            language: language.into(),
            pending: Mutex::new(Pending {
                retry: Some(retry),
                whole: None,
                notice: None,
                place: None,
                beat: None,
                put_at: Instant::now(),
                ends: false,
                is_closed: false,
            }),
            reader: AtomicWaker::new(),
        })
    }

    /// `phase`, `admitted` or `gone`, with the whole visit.
    pub fn whole(&self, event: Bytes) {
        self.put(|pending| {
            pending.place = None;
            pending.whole = Some(event);
        });
    }

    pub fn notice(&self, event: Bytes) {
        self.put(|pending| pending.notice = Some(event));
    }

    pub fn place(&self, event: Bytes) {
        self.put(|pending| pending.place = Some(event));
    }

    /// If nothing was sent since then.
    pub fn beat(&self, event: Bytes, since: Instant) {
        if self.lock().put_at <= since {
            self.put(|pending| pending.beat = Some(event));
        }
    }

    /// Ends it, once all is sent. `retry`: when the browser is to come back.
    pub fn end(&self, retry: Option<Bytes>) {
        self.put(|pending| {
            pending.retry = retry.or(pending.retry.take());
            pending.ends = true;
        });
    }

    /// Nobody reads it any more, or it ends.
    pub fn is_over(&self) -> bool {
        let pending = self.lock();
        pending.is_closed || pending.ends
    }

    fn put(&self, change: impl FnOnce(&mut Pending)) {
        {
            let mut pending = self.lock();
            if pending.ends {
                return;
            }
            change(&mut pending);
            pending.put_at = Instant::now();
        }
        self.reader.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn take(&mut self) -> Option<Bytes> {
        let all = [
            &mut self.retry,
            &mut self.whole,
            &mut self.notice,
            &mut self.place,
            &mut self.beat,
        ];
        let mut all = all.into_iter().filter_map(Option::take);
        let first = all.next()?;
        let Some(second) = all.next() else {
            return Some(first);
        };
        let mut joined = Vec::with_capacity(first.len() + second.len());
        joined.extend_from_slice(&first);
        joined.extend_from_slice(&second);
        all.for_each(|more| joined.extend_from_slice(&more));
        Some(joined.into())
    }
}

/// One of the streams that may be open at once.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// `None` if all `max` are taken.
    pub fn take(open: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < max).then_some(open + 1)
        });
        taken.is_ok().then(|| Place(Arc::clone(open)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of the answer.
pub(super) struct Events {
    pub outlet: Arc<Outlet>,
    pub _place: Place,
}

impl Drop for Events {
    fn drop(&mut self) {
        self.outlet.lock().is_closed = true;
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // Before looking: what is put meanwhile wakes it.
        self.outlet.reader.register(cx.waker());
        let mut pending = self.outlet.lock();
        match pending.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if pending.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn stream(open: &Arc<AtomicUsize>) -> (Arc<Outlet>, Events) {
        let outlet = Outlet::new(bytes("retry;"), "en");
        let place = Place::take(open, 1).unwrap();
        let events = Events {
            outlet: Arc::clone(&outlet),
            _place: place,
        };
        (outlet, events)
    }

    async fn next(events: &mut Events) -> Option<String> {
        let frame = events.frame().await?.unwrap().into_data().unwrap();
        Some(String::from_utf8(frame.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn only_the_newest_is_kept_for_a_slow_reader() {
        let (outlet, mut events) = stream(&Arc::default());
        outlet.place(bytes("place 1;"));
        outlet.whole(bytes("phase 1;"));
        outlet.whole(bytes("phase 2;"));
        for _ in 0..1_000 {
            outlet.place(bytes("place 2;"));
        }
        outlet.place(bytes("place 3;"));
        outlet.notice(bytes("notice 1;"));
        outlet.notice(bytes("notice 2;"));
        assert_eq!(
            next(&mut events).await.unwrap(),
            "retry;phase 2;notice 2;place 3;"
        );
        outlet.whole(bytes("phase 3;"));
        assert_eq!(next(&mut events).await.unwrap(), "phase 3;");
    }

    #[tokio::test]
    async fn it_ends_after_what_is_left_and_takes_nothing_then() {
        let (outlet, mut events) = stream(&Arc::default());
        outlet.whole(bytes("gone;"));
        outlet.end(None);
        outlet.place(bytes("place;"));
        assert!(outlet.is_over());
        assert_eq!(next(&mut events).await.unwrap(), "retry;gone;");
        assert_eq!(next(&mut events).await, None);
        let (outlet, mut events) = stream(&Arc::default());
        outlet.end(Some(bytes("later;")));
        assert_eq!(next(&mut events).await.unwrap(), "later;");
    }

    #[tokio::test(start_paused = true)]
    async fn it_beats_only_when_nothing_else_is_sent() {
        let (outlet, mut events) = stream(&Arc::default());
        next(&mut events).await.unwrap();
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        outlet.place(bytes("place;"));
        assert_eq!(next(&mut events).await.unwrap(), "place;");
        outlet.beat(bytes("beat;"), began);
        let woken = tokio::time::timeout(Duration::from_secs(1), next(&mut events)).await;
        assert!(woken.is_err());
        outlet.beat(bytes("beat;"), Instant::now());
        assert_eq!(next(&mut events).await.unwrap(), "beat;");
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_makes_room() {
        let open = Arc::default();
        let (outlet, events) = stream(&open);
        assert!(Place::take(&open, 1).is_none());
        assert!(!outlet.is_over());
        drop(events);
        assert!(outlet.is_over());
        assert!(Place::take(&open, 1).is_some());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let (outlet, mut events) = stream(&Arc::default());
        next(&mut events).await.unwrap();
        let reader = tokio::spawn(async move { next(&mut events).await });
        tokio::task::yield_now().await;
        outlet.place(bytes("place;"));
        assert_eq!(reader.await.unwrap().unwrap(), "place;");
    }
}
