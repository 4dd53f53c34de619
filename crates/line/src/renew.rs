//! Quotas that are renewed: what counts against `total` starts at 0 again, once for each window.
//!
//! The line keeps when that is next due on the leader's wall clock. The leader computes the time after that, as it knows
//! time zones, and it is in the log: so all replicas have the same, whatever they know of time zones, and whichever node
//! leads then.

use crate::line::Line;
use crate::transitions::ApplyCtx;
use crate::{Journaled, LineChange, Renew};

impl Line {
    /// The renewal that is due at this time of the leader's wall clock, which then proposes [`crate::Op::RenewQuota`]. The
    /// first one only finds out when the next one is.
    pub fn renewal_due(&self, wall_ms: u64) -> Option<Renew> {
        let due_ms = self.next_renewal_ms()?;
        let renew = self.settings.quota.as_ref()?.renew;
        renew.filter(|_| due_ms <= wall_ms)
    }

    /// When the quota is renewed next (the leader's wall clock); `None` while that is not known, or if it is not.
    pub fn renews_at_ms(&self) -> Option<u64> {
        self.next_renewal_ms().and(self.renews_at_ms)
    }

    pub(crate) fn next_renewal_ms(&self) -> Option<u64> {
        let renew = self.settings.quota.as_ref().and_then(|quota| quota.renew);
        renew.map(|_| self.renews_at_ms.unwrap_or(0))
    }

    /// A proposal that comes too early, or twice, does nothing. Nor does one that was made in an earlier window than its entry:
    /// else the line would renew twice in this one. The leader makes it anew.
    pub(crate) fn renew_quota(&mut self, next_ms: u64, ctx: &mut ApplyCtx<'_>) {
        let Some(due_ms) = self
            .next_renewal_ms()
            .filter(|due_ms| *due_ms <= ctx.wall_ms)
        else {
            return;
        };
        if next_ms <= ctx.wall_ms {
            return;
        }
        let is_known = self.renews_at_ms.is_some();
        let next_ms = next_ms.max(due_ms);
        self.renews_at_ms = Some(next_ms.min(crate::NUMBER_MAX));
        if is_known {
            self.used_in_past = self.used;
            self.line_event(
                LineChange::QuotaRenewed,
                ctx.wall_ms,
                ctx.events.as_deref_mut(),
            );
            self.journal_entry(Journaled::QuotaRenewed, ctx.wall_ms);
            self.run_background(ctx);
        }
    }
}
