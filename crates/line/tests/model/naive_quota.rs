//! The quota: what is used of it, and what is reserved.

use nowserving_line::State;

use crate::naive::NaiveLine;

impl NaiveLine {
    pub fn used_lately(&self) -> u64 {
        self.used - self.used_in_past
    }

    pub fn reserved(&self) -> u64 {
        let held = self
            .tokens
            .values()
            .filter(|tok| matches!(tok.state, State::Admitted | State::InCheckout));
        held.map(|tok| u64::from(tok.units)).sum()
    }

    pub fn per_visit(&self) -> u64 {
        self.settings.quota.map_or(1, |q| q.per_visit.into())
    }

    pub fn units(&self) -> u64 {
        let taken = self.used_lately() + self.reserved();
        let quota = self.settings.quota;
        quota.map_or(u64::MAX, |q| q.total.saturating_sub(taken))
    }

    pub fn sold_out(&self) -> bool {
        let quota = self.settings.quota.filter(|_| self.holds_back());
        quota.is_some_and(|q| self.used_lately() >= q.total)
    }

    /// Units that are used, reserved, or would be reserved by those who wait.
    pub fn in_all(&self) -> u64 {
        let wanted = self.count(State::Waiting) * self.per_visit();
        self.used_lately() + self.reserved() + wanted
    }

    /// So many more visits use up all units, if each uses all it may.
    pub fn visits(&self) -> u64 {
        self.units().div_ceil(self.per_visit())
    }

    pub fn hopeless(&self) -> bool {
        let in_all = self.in_all();
        let most = |q: nowserving_line::Quota| q.total * u64::from(100 + q.standby_percent) / 100;
        let quota = self.settings.quota;
        let quota = quota.filter(|_| self.holds_back() && !self.awaits_draw());
        self.sold_out() || quota.is_some_and(|q| in_all >= most(q))
    }
}
