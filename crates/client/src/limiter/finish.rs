//! Calls that end though nobody waits for them any more.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that is given to the runtime if it is dropped before its end. Without that a caller that gives up sooner than
/// the cluster is given up would hide that the cluster is away, and lose the slice that it has asked for.
pub(super) struct Finish<F: Future + Send + 'static>(Option<Pin<Box<F>>>)
where
    F::Output: Send;

impl<F> Finish<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    pub(super) fn new(call: F) -> Finish<F> {
        Finish(Some(Box::pin(call)))
    }
}

impl<F> Future for Finish<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(call) = &mut self.0 else {
            return Poll::Pending;
        };
        let polled = call.as_mut().poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<F> Drop for Finish<F>
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn drop(&mut self) {
        // A panic of the call must not be polled again. Without a runtime nothing is left to wait for.
        if let Some(call) = self.0.take()
            && !std::thread::panicking()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(call);
        }
    }
}
