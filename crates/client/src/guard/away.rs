//! What a guard does when the cluster does not answer: it asks whether it is away, and then until it is back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::calls::Calls;
use super::health::Verdict;
use super::options::Ask;
use super::visit::{leave, leave_by_key};
use super::{Shared, is_away, is_unanswered, up_to};
use crate::error::{Error, Kind, Result};

/// While the cluster is away, it is asked this often whether it is back, and up to half as long later.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Makes a call that changes the line, and notes whether it is answered.
pub(super) async fn noted<C: Calls, T>(
    calls: &C,
    shared: &Arc<Shared>,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let sent = Instant::now();
    let done = call.await;
    match &done {
        Ok(_) => answered(shared),
        // The leader decided: it has a quorum, or had one a moment ago.
        Err(error) if matches!(error.kind(), Kind::Refused(_)) => answered(shared),
        Err(error) => note_failed(calls, shared, sent, error),
    }
    done
}

/// A call that began at `sent` has failed.
pub(super) fn note_failed<C: Calls>(calls: &C, shared: &Arc<Shared>, sent: Instant, error: &Error) {
    if !is_away(error) {
        return;
    }
    match shared.health.failed(sent) {
        Verdict::Nothing => {}
        Verdict::Ask => {
            let (calls, shared, error) = (calls.clone(), shared.clone(), error.clone());
            tokio::spawn(async move {
                if !calls.answers().await {
                    go_away(&calls, &shared, &error);
                }
            });
        }
        Verdict::Away => go_away(calls, shared, error),
    }
}

fn answered(shared: &Shared) {
    if shared.health.answered() {
        info!(line = shared.line, "the cluster is back");
    }
}

fn go_away<C: Calls>(calls: &C, shared: &Arc<Shared>, error: &Error) {
    if !shared.health.set_away() {
        return;
    }
    warn!(line = shared.line, %error, decides = ?shared.options.on_unavailable, "the cluster is away");
    let probe = Probe(Arc::downgrade(shared));
    tokio::spawn(probe.run(calls.clone()));
}

/// Asks until the cluster is back. One that ends early, with its runtime, leaves the question to the next call.
struct Probe(Weak<Shared>);

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.health.forget();
        }
    }
}

impl Probe {
    /// Enters the line and leaves it again, with the same key each time: only a write shows that writes are served. A
    /// caller's own visit would show it as well, but that caller would wait.
    async fn run<C: Calls>(mut self, calls: C) {
        let Ok(key) = Ask::default().label("guard-probe").key() else {
            return;
        };
        let mut may_be_in_line = false;
        loop {
            tokio::time::sleep(PROBE_EVERY + up_to(PROBE_EVERY / 2)).await;
            let Some(shared) = self.0.upgrade() else {
                return;
            };
            let entered = match shared.is_away() {
                // Another call was answered.
                false => None,
                true => Some(calls.enter(key.clone(), None).await),
            };
            let place = match entered {
                Some(Err(error)) if is_unanswered(&error) => {
                    may_be_in_line |= error.may_have_happened();
                    continue;
                }
                Some(entered) => {
                    // Also after an error that repeating does not mend: callers are to see it.
                    answered(&shared);
                    entered.ok()
                }
                None => None,
            };
            // From here on another probe may run.
            self.0 = Weak::new();
            if let Some(ticket) = place.and_then(|status| status.ticket) {
                leave(&calls, &shared, &ticket).await;
            }
            if may_be_in_line {
                leave_by_key(&calls, &shared, key).await;
            }
            return;
        }
    }
}
