//! The accuracy of the forecasts that shoppers were given on entering.

use crate::report::Visit;

/// Counts of visits; as fractions, as shares are made of them.
#[derive(Debug, Default)]
pub(crate) struct Forecasts {
    /// Visits that had to wait …
    pub(crate) waited: f64,
    /// … and were given a forecast.
    pub(crate) given: f64,
    /// … and were admitted in the end: the true wait of others is unknown.
    pub(crate) known: f64,
    /// … within 15 % of their forecast.
    pub(crate) within: f64,
    /// Given a forecast, and it is known whether they would have waited longer than `eta_p90_ms`.
    pub(crate) p90_known: f64,
    /// … and did not.
    pub(crate) covered: f64,
}

impl Forecasts {
    /// Of a run that ended at `end_ms`.
    pub(crate) fn of(visits: &[Visit], end_ms: u64) -> Self {
        let mut sums = Self::default();
        for visit in visits.iter().filter(|visit| visit.had_to_wait) {
            sums.waited += 1.0;
            if let Some(eta_ms) = visit.eta_ms {
                sums.given += 1.0;
                sums.judge(visit, eta_ms, end_ms);
            }
        }
        sums
    }

    fn judge(&mut self, visit: &Visit, eta_ms: u64, end_ms: u64) {
        let within_p90 = |ms: u64| visit.eta_p90_ms.is_some_and(|p90_ms| ms <= p90_ms);
        let Some(wait_ms) = visit.wait_ms() else {
            // Never admitted: a miss if that had not come true while it was there, else unknown.
            let waited_ms = visit.left_ms.unwrap_or(end_ms) - visit.entered_ms;
            self.p90_known += one_if(!within_p90(waited_ms));
            return;
        };
        self.known += 1.0;
        self.p90_known += 1.0;
        // Of the true wait, not of the forecast: else the long forecasts look better.
        self.within += one_if(eta_ms.abs_diff(wait_ms) * 100 <= wait_ms * 15);
        self.covered += one_if(within_p90(wait_ms));
    }
}

fn one_if(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecasts_are_judged_over_all_that_were_given() {
        let visit = |eta_ms, eta_p90_ms, admitted_ms, left_ms| Visit {
            lane: 0,
            entered_ms: 1_000,
            had_to_wait: true,
            eta_ms,
            eta_p90_ms,
            admitted_ms,
            left_ms,
            completed: false,
        };
        let sums = Forecasts::of(
            &[
                visit(None, None, Some(2_000), None),
                visit(Some(1_150), Some(1_200), Some(2_000), None),
                visit(Some(1_151), Some(900), Some(2_000), None),
                // One left after its 90 %, one before, and two still wait at the end.
                visit(Some(5), Some(6), None, Some(1_007)),
                visit(Some(5), Some(6), None, Some(1_006)),
                visit(Some(5), Some(1_999), None, None),
                visit(Some(5), Some(2_000), None, None),
            ],
            3_000,
        );
        let given = [sums.waited, sums.given, sums.known, sums.within];
        assert_eq!(given, [7.0, 6.0, 2.0, 1.0]);
        assert_eq!([sums.p90_known, sums.covered], [4.0, 1.0]);
    }
}
