//! HTTP/2: browsers that reach the gateway without a proxy speak it.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{Request, Response};
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Bounds, STOPS_WITHIN};
use crate::metrics;

/// A connection without requests and streams ends after this, at the latest after twice as long, and so does one that takes
/// nothing of its answers: a stream has something for it every 15 s. Pings do not count.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// The other side must answer a ping within this.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Of a body that nobody has read yet. Forms are shorter.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 128 * 1024;

/// Answers the requests of one connection until it ends, is idle, or the server stops.
pub(super) async fn serve<F>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    answer: impl Fn(Request<Incoming>) -> F + Clone,
    bounds: &Bounds,
    mut stopping: watch::Receiver<()>,
) where
    F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let open = Open::default();
    let counted = open.clone();
    let service = service_fn(move |request| {
        let answering = counted.begin();
        let answered = answer(request);
        async move {
            let answer = answered.await?;
            Ok::<_, Infallible>(answer.map(|body| AnsweredBody::new(body, answering)))
        }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(bounds.http2_streams)
        .max_header_list_size(bounds.buffer_bytes)
        .max_send_buf_size(bounds.buffer_bytes as usize)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // It fails when the other side breaks it off, which is its right.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = open.idle() => metrics::connection_closed("idle"),
        _ = stopping.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    // Also one that has never become HTTP/2, and will not say good-bye.
    let _ = timeout(STOPS_WITHIN, connection).await;
}

/// Counts the requests of one connection.
#[derive(Clone, Default)]
struct Open(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// Requests for which the other side has to wait for the gateway.
    ours: AtomicUsize,
    /// Requests, and parts of answers that were taken.
    steps: AtomicUsize,
}

/// A request that is being answered, with its body.
struct Answering {
    counts: Arc<Counts>,
    is_ours: bool,
}

impl Open {
    fn begin(&self) -> Answering {
        let counts = self.0.clone();
        let is_ours = false;
        let mut answering = Answering { counts, is_ours };
        answering.step(true);
        answering
    }

    /// Ends when nothing was asked, nothing is being answered, and nothing was taken of what is answered.
    async fn idle(&self) {
        let mut before = 0;
        loop {
            sleep(IDLE_MAX).await;
            let steps = self.0.steps.load(Ordering::Relaxed);
            if steps == before && self.0.ours.load(Ordering::Relaxed) == 0 {
                return;
            }
            before = steps;
        }
    }
}

impl Answering {
    /// `is_ours`: the other side waits for the gateway now. Otherwise it has to take something.
    fn step(&mut self, is_ours: bool) {
        self.counts.steps.fetch_add(1, Ordering::Relaxed);
        match (self.is_ours, is_ours) {
            (false, true) => self.counts.ours.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.counts.ours.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        self.is_ours = is_ours;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.step(false);
    }
}

/// A body that is sent: a stream lasts as long as it.
struct AnsweredBody {
    body: Body,
    answering: Answering,
}

impl AnsweredBody {
    fn new(body: Body, mut answering: Answering) -> AnsweredBody {
        answering.step(false);
        AnsweredBody { body, answering }
    }
}

impl HttpBody for AnsweredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // It is asked for the next part when the one before is on its way.
        let part = Pin::new(&mut self.body).poll_frame(cx);
        self.answering.step(part.is_pending());
        part
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "../../tests/gateway/frames.rs"]
mod frames;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::StreamExt as _;
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::super::OF_BROWSERS;
    use super::frames::{
        DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING, PREFACE, frame, greeting, next,
    };
    use super::*;

    const ACK: u8 = 1;

    /// `GET https://a/`, by HPACK's static table.
    fn get() -> Vec<u8> {
        let fields = [0x82, 0x87, 0x84, 0x41, 1, b'a'];
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &fields)
    }

    /// A client that answers pings. Returns the kinds of all frames that it got, when the connection has ended.
    fn client(mut stream: DuplexStream, begins: Vec<u8>) -> JoinHandle<Vec<u8>> {
        tokio::spawn(async move {
            stream.write_all(&begins).await.unwrap();
            let mut kinds = Vec::new();
            while let Some((kind, flags, _, payload)) = next(&mut stream).await {
                kinds.push(kind);
                if kind == PING && flags & ACK == 0 {
                    let _ = stream.write_all(&frame(PING, ACK, 0, &payload)).await;
                }
            }
            kinds
        })
    }

    /// Answers each request with a body that lasts until the sender is dropped.
    fn server(stream: DuplexStream, lasts: Option<oneshot::Receiver<()>>) -> JoinHandle<()> {
        server_of(stream, b"", lasts)
    }

    /// The same with a body that begins with this.
    fn server_of(
        stream: DuplexStream,
        begins: &'static [u8],
        lasts: Option<oneshot::Receiver<()>>,
    ) -> JoinHandle<()> {
        let lasts = futures::FutureExt::shared(async move {
            if let Some(lasts) = lasts {
                let _ = lasts.await;
            }
        });
        let (stops, stopping) = watch::channel(());
        tokio::spawn(async move {
            let answer = move |_: Request<Incoming>| {
                let lasts = lasts.clone();
                let begins = futures::stream::iter([Bytes::from_static(begins)]);
                let ends = futures::stream::once(lasts).map(|()| Bytes::new());
                let parts = begins.chain(ends).map(Ok::<_, Infallible>);
                std::future::ready(Ok(Response::new(Body::from_stream(parts))))
            };
            serve(stream, answer, &OF_BROWSERS, stopping).await;
            drop(stops);
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_ends_although_it_answers_pings() {
        let (theirs, ours) = duplex(64 * 1024);
        let began = Instant::now();
        let client = client(theirs, greeting(&[]));
        server(ours, None).await.unwrap();
        assert!(began.elapsed() >= IDLE_MAX);
        let kinds = client.await.unwrap();
        assert!(
            kinds.contains(&PING) && kinds.contains(&GO_AWAY),
            "{kinds:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_speaks_http2_ends() {
        let (theirs, ours) = duplex(64 * 1024);
        let client = client(theirs, PREFACE[..10].to_vec());
        server(ours, None).await.unwrap();
        assert!(!client.await.unwrap().contains(&HEADERS));
    }

    /// Its window is 0, and it answers pings.
    #[tokio::test(start_paused = true)]
    async fn one_that_takes_nothing_of_an_answer_ends() {
        let (theirs, ours) = duplex(64 * 1024);
        let (_lasts, until) = oneshot::channel::<()>();
        let window_of_0 = greeting(&[0, 4, 0, 0, 0, 0]);
        let client = client(theirs, [window_of_0, get()].concat());
        let server = server_of(ours, b"a page", Some(until));
        timeout(3 * IDLE_MAX, server).await.unwrap().unwrap();
        let kinds = client.await.unwrap();
        assert!(
            kinds.contains(&HEADERS) && kinds.contains(&PING) && !kinds.contains(&DATA),
            "{kinds:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_keeps_its_connection_until_it_ends() {
        let (theirs, ours) = duplex(64 * 1024);
        let (lasts, until) = oneshot::channel::<()>();
        let client = client(theirs, [greeting(&[]), get()].concat());
        let mut server = server(ours, Some(until));
        let early = timeout(10 * IDLE_MAX, &mut server).await;
        assert!(early.is_err(), "it ended with an open stream");
        drop(lasts);
        server.await.unwrap();
        let kinds = client.await.unwrap();
        assert!(
            kinds.contains(&HEADERS) && kinds.contains(&GO_AWAY),
            "{kinds:?}"
        );
    }
}
