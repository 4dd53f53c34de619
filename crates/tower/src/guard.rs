//! At most a line's seats requests at once, as a layer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use metrics::{counter, gauge, histogram};
use nowserving_client::{Ask, Guard, GuardEvent, Outcome, Refused, Slot};
use tower_layer::Layer;
use tower_service::Service;
use tracing::error;

use crate::blocked::Blocked;
use crate::response::{HttpResponses, Respond};

/// Puts a [`Guard`] in front of a service.
///
/// The slot is held until the inner service has produced its response. To guard the sending of a long body as well, hold
/// a [`Slot`] of [`Guard::acquire`] in the body itself.
#[derive(Clone)]
pub struct ConcurrencyGuardLayer<R = HttpResponses, A = Anyone> {
    guard: Guard,
    responses: R,
    ask: A,
    cancel_lost: bool,
}

/// Chooses the lane, the label and the longest wait of a request. Closures implement it.
pub trait AskBy<Request>: Clone + Send + Sync + 'static {
    /// Called before the request enters the line.
    fn ask(&self, request: &Request) -> Ask;

    /// Called before the request goes to the inner service, for example to put the slot's fencing number into the
    /// request's extensions. Does nothing by default.
    fn admitted(&self, request: &mut Request, slot: &Slot) {
        let _ = (request, slot);
    }
}

impl<Request, F> AskBy<Request> for F
where
    F: Fn(&Request) -> Ask + Clone + Send + Sync + 'static,
{
    fn ask(&self, request: &Request) -> Ask {
        self(request)
    }
}

/// All requests ask for the same: the line's default lane.
#[derive(Debug, Clone, Copy, Default)]
pub struct Anyone;

impl<Request> AskBy<Request> for Anyone {
    fn ask(&self, _: &Request) -> Ask {
        Ask::default()
    }
}

impl ConcurrencyGuardLayer {
    /// With HTTP responses, all requests in the line's default lane, and handlers that are dropped when their seat is lost.
    /// Reports the guard's events as metrics, unless the guard has an [observer](Guard::observe) already.
    #[must_use]
    pub fn new(guard: Guard) -> ConcurrencyGuardLayer {
        let line = guard.line().to_owned();
        guard.observe(move |event| count(&line, event));
        ConcurrencyGuardLayer {
            guard,
            responses: HttpResponses,
            ask: Anyone,
            cancel_lost: true,
        }
    }
}

impl<R, A> ConcurrencyGuardLayer<R, A> {
    /// Answers with these responses: [`GrpcResponses`](crate::GrpcResponses) for tonic, or a closure.
    #[must_use]
    pub fn respond_with<N>(self, responses: N) -> ConcurrencyGuardLayer<N, A> {
        ConcurrencyGuardLayer {
            guard: self.guard,
            responses,
            ask: self.ask,
            cancel_lost: self.cancel_lost,
        }
    }

    /// Asks per request, for example for a lane by a header.
    #[must_use]
    pub fn ask_by<N>(self, ask: N) -> ConcurrencyGuardLayer<R, N> {
        ConcurrencyGuardLayer {
            guard: self.guard,
            responses: self.responses,
            ask,
            cancel_lost: self.cancel_lost,
        }
    }

    /// A handler whose seat is lost runs to its end, at the same time as the next holder of the seat. For handlers that
    /// must not be dropped half-way.
    #[must_use]
    pub fn keep_running_when_lost(self) -> ConcurrencyGuardLayer<R, A> {
        ConcurrencyGuardLayer {
            cancel_lost: false,
            ..self
        }
    }
}

impl<S, R: Clone, A: Clone> Layer<S> for ConcurrencyGuardLayer<R, A> {
    type Service = ConcurrencyGuard<S, R, A>;

    fn layer(&self, inner: S) -> Self::Service {
        ConcurrencyGuard {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind a guard; see [`ConcurrencyGuardLayer`].
#[derive(Clone)]
pub struct ConcurrencyGuard<S, R = HttpResponses, A = Anyone> {
    inner: S,
    layer: ConcurrencyGuardLayer<R, A>,
}

impl<S, R, A, Request> Service<Request> for ConcurrencyGuard<S, R, A>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Future: Send,
    R: Respond<S::Response>,
    A: AskBy<Request>,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    /// Always ready: a request waits in line in its own future, and takes nothing of the inner service meanwhile.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let layer = self.layer.clone();
        let mut inner = self.inner.clone();
        let ask = layer.ask.ask(&request);
        Box::pin(async move {
            let mut slot = match layer.slot(ask).await {
                Ok(slot) => slot,
                Err(refused) => return Ok(layer.blocked(Blocked::Refused(refused))),
            };
            layer.ask.admitted(&mut request, &slot);
            let work = async move {
                poll_fn(|context| inner.poll_ready(context)).await?;
                inner.call(request).await
            };
            let responses = layer.responses.clone();
            let is_done = move |done: &Result<S::Response, S::Error>| {
                done.as_ref()
                    .is_ok_and(|response| !responses.is_failure(response))
            };
            if !layer.cancel_lost {
                slot.set_outcome(Outcome::BrokenOff);
                let response = work.await;
                slot.set_outcome(match is_done(&response) {
                    true => Outcome::Done,
                    false => Outcome::Failed,
                });
                drop(slot);
                return response;
            }
            match slot.run_measured(work, is_done).await {
                Ok(response) => response,
                Err(lost) => Ok(layer.blocked(Blocked::Lost(lost))),
            }
        })
    }
}

impl<R, A> ConcurrencyGuardLayer<R, A> {
    async fn slot(&self, ask: Ask) -> Result<Slot, Refused> {
        let slot = self.guard.acquire(ask).await?;
        let line = [("line", self.guard.line().to_owned())];
        histogram!("nowserving_guard_wait_seconds", &line).record(slot.waited().as_secs_f64());
        Ok(slot)
    }

    fn blocked<Response>(&self, blocked: Blocked) -> Response
    where
        R: Respond<Response>,
    {
        let line = self.guard.line();
        if let Blocked::Refused(Refused::Failed(error)) = &blocked {
            error!(line, %error, "the guard is not set up");
        }
        let labels = [
            ("line", line.to_owned()),
            ("reason", blocked.reason().to_owned()),
        ];
        counter!("nowserving_guard_blocked", &labels).increment(1);
        self.responses.respond(&blocked)
    }
}

/// At the event itself: most of them come while no response is made.
fn count(line: &str, event: GuardEvent) {
    let name = match event {
        GuardEvent::Allowed => "nowserving_guard_allowed",
        GuardEvent::Enqueued => "nowserving_guard_enqueued",
        GuardEvent::Dequeued => "nowserving_guard_dequeued",
        GuardEvent::Left => "nowserving_guard_left",
        GuardEvent::Unavailable => "nowserving_guard_unavailable",
        GuardEvent::Lost => "nowserving_guard_lost",
        GuardEvent::Abandoned => "nowserving_guard_abandoned",
        GuardEvent::TellFailed => "nowserving_guard_tell_failed",
        GuardEvent::SeatsTold(seats) => {
            gauge!("nowserving_guard_seats", "line" => line.to_owned()).set(seats);
            return;
        }
        // `nowserving_guard_blocked` has them, by reason.
        _ => return,
    };
    counter!(name, "line" => line.to_owned()).increment(1);
}
