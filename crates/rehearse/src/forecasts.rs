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
    /// … or would have been, had it known the mean pace of admissions.
    pub(crate) bound: f64,
    /// Of each visit one forecast from after the first turn of seats, if it was admitted in the end.
    pub(crate) later_known: f64,
    pub(crate) later_within: f64,
    pub(crate) later_bound: f64,
    /// Entered in the first turn of seats, had to wait and were admitted …
    pub(crate) first_known: f64,
    /// … and were given a forecast on entering …
    pub(crate) first_told: f64,
    /// … within 35 % of the true wait.
    pub(crate) first_within: f64,
    /// Given a forecast, and it is known whether they would have waited longer than `eta_p90_ms`.
    pub(crate) p90_known: f64,
    /// … and did not.
    pub(crate) covered: f64,
}

impl Forecasts {
    /// Of a run that ended at `end_ms`, in which one was admitted every `each_ms` after the first turn
    /// of seats, while anybody waited.
    pub(crate) fn of(visits: &[Visit], end_ms: u64, each_ms: f64) -> Self {
        let mut sums = Self::default();
        for visit in visits.iter().filter(|visit| visit.had_to_wait) {
            sums.waited += 1.0;
            if let Some(wait_ms) = visit.wait_ms().filter(|_| visit.in_first_turn) {
                let is_right = |eta_ms| is_within(35, eta_ms, wait_ms);
                sums.first_known += 1.0;
                sums.first_told += one_if(visit.eta_ms.is_some());
                sums.first_within += one_if(visit.eta_ms.is_some_and(is_right));
            }
            if let Some(eta_ms) = visit.eta_ms {
                sums.given += 1.0;
                sums.judge(visit, eta_ms, end_ms, each_ms);
            }
            if let (Some(told), Some(admitted_ms)) = (visit.later, visit.admitted_ms) {
                let left_ms = admitted_ms - told.at_ms;
                let admissions = visit.admitted_with - told.admitted_before;
                sums.later_known += 1.0;
                sums.later_within += one_if(is_within(15, told.eta_ms, left_ms));
                sums.later_bound += one_if(is_within(15, bound_ms(admissions, each_ms), left_ms));
            }
        }
        sums
    }

    fn judge(&mut self, visit: &Visit, eta_ms: u64, end_ms: u64, each_ms: f64) {
        let within_p90 = |ms: u64| visit.eta_p90_ms.is_some_and(|p90_ms| ms <= p90_ms);
        let Some(wait_ms) = visit.wait_ms() else {
            // Never admitted: a miss if that had not come true while it was there, else unknown.
            let waited_ms = visit.left_ms.unwrap_or(end_ms) - visit.entered_ms;
            self.p90_known += one_if(!within_p90(waited_ms));
            return;
        };
        self.known += 1.0;
        self.p90_known += 1.0;
        let admissions = visit.admitted_with - visit.admitted_before;
        self.within += one_if(is_within(15, eta_ms, wait_ms));
        self.bound += one_if(is_within(15, bound_ms(admissions, each_ms), wait_ms));
        self.covered += one_if(within_p90(wait_ms));
    }
}

/// Of the true wait, not of the forecast: else the long forecasts look better.
fn is_within(percent: u64, eta_ms: u64, wait_ms: u64) -> bool {
    eta_ms.abs_diff(wait_ms) * 100 <= wait_ms * percent
}

/// The forecast for the last of so many admissions that knows their mean pace.
fn bound_ms(admissions: u64, each_ms: f64) -> u64 {
    (admissions as f64 * each_ms) as u64
}

fn one_if(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Told;

    #[test]
    fn later_forecasts_are_judged_by_the_rest_of_the_wait() {
        let visit = |eta_ms, admitted_ms| Visit {
            lane: 0,
            entered_ms: 0,
            had_to_wait: true,
            in_first_turn: false,
            is_drawn: false,
            eta_ms: None,
            eta_p90_ms: None,
            later: Some(Told {
                at_ms: 5_000,
                eta_ms,
                admitted_before: 40,
            }),
            later_count: 1,
            admitted_ms,
            admitted_before: 0,
            admitted_with: 50,
            left_ms: None,
            completed: false,
        };
        let visits = [
            visit(1_150, Some(6_000)),
            visit(1_151, Some(6_000)),
            visit(1_000, None),
        ];
        let sums = Forecasts::of(&visits, 9_000, 100.0);
        assert_eq!([sums.later_known, sums.later_within], [2.0, 1.0]);
        assert_eq!(sums.later_bound, 2.0, "ten admissions, 100 ms each");
        assert_eq!([sums.given, sums.known], [0.0, 0.0]);
    }

    #[test]
    fn forecasts_are_judged_over_all_that_were_given() {
        let visit = |eta_ms, eta_p90_ms, admitted_ms, left_ms| Visit {
            lane: 0,
            entered_ms: 1_000,
            had_to_wait: true,
            in_first_turn: eta_ms != Some(5),
            is_drawn: false,
            eta_ms,
            eta_p90_ms,
            later: None,
            later_count: 0,
            admitted_ms,
            admitted_before: 0,
            admitted_with: 10,
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
            115.0,
        );
        let given = [sums.waited, sums.given, sums.known, sums.within];
        assert_eq!(given, [7.0, 6.0, 2.0, 1.0]);
        let first = [sums.first_known, sums.first_told, sums.first_within];
        assert_eq!(first, [3.0, 2.0, 2.0]);
        assert_eq!([sums.p90_known, sums.covered], [4.0, 1.0]);
        assert_eq!(sums.bound, 2.0, "ten admissions, 115 ms each");
    }
}
