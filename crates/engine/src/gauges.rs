//! What is measured now and then rather than counted as it happens.

use std::time::Duration;

use metrics::gauge;
use nowserving_line::{Counts, ForecastRecord, Line, OFF_BY_PERCENT};

use nowserving_shard::clock::Micros;

use crate::engine::Engine;

/// Gauges that cost a look at every line.
const LINE_GAUGES_INTERVAL_US: Micros = 2_000_000;

impl Engine {
    pub(crate) fn gauges(&mut self, now: Micros) {
        let led = self.shards.values().filter(|s| s.leads());
        gauge!("nowserving_shards_led").set(led.count() as f64);
        let unreachable_for = self
            .reachability
            .unreachable_for(now)
            .min(Duration::from_secs(3_600));
        gauge!("nowserving_service_deaf_seconds").set(unreachable_for.as_secs_f64());
        let entries: u64 = self.shards.values().map(|s| s.replica.log_entries()).sum();
        gauge!("nowserving_log_entries").set(entries as f64);
        let memory: u64 = self.shards.values().map(|s| s.replica.memory_bytes()).sum();
        gauge!("nowserving_log_memory_bytes").set(memory as f64);
        if now >= self.next_line_gauges {
            self.next_line_gauges = now + LINE_GAUGES_INTERVAL_US;
            let led = self.shards.values().filter(|s| s.leader_state.is_some());
            let mut sum = Sum::default();
            led.flat_map(|s| s.state.lines().iter())
                .for_each(|line| sum.add(line));
            sum.publish();
        }
    }
}

/// Over all lines that this node leads. Not by line: there may be a hundred thousand, and every
/// name would be a time series for ever.
#[derive(Default)]
struct Sum {
    lines: u64,
    counts: Counts,
    forecasts: ForecastRecord,
}

impl Sum {
    fn add(&mut self, line: &Line) {
        let (counts, record) = (line.counts(), line.forecast_record());
        self.lines += 1;
        self.counts.waiting += counts.waiting;
        self.counts.admitted += counts.admitted;
        self.counts.in_checkout += counts.in_checkout;
        self.forecasts.told += record.told;
        self.forecasts.untold += record.untold;
        self.forecasts.judged += record.judged;
        self.forecasts.covered += record.covered;
        for (sum, count) in self.forecasts.off_by.iter_mut().zip(record.off_by) {
            *sum += count;
        }
    }

    fn publish(&self) {
        let held = self.counts.admitted + self.counts.in_checkout;
        gauge!("nowserving_lines_led").set(self.lines as f64);
        gauge!("nowserving_tokens_waiting").set(self.counts.waiting as f64);
        gauge!("nowserving_seats_held").set(held as f64);
        let record = &self.forecasts;
        for (what, count) in [
            ("told", record.told),
            ("untold", record.untold),
            ("judged", record.judged),
            ("p90_covered", record.covered),
        ] {
            gauge!("nowserving_forecasts", "what" => what).set(count as f64);
        }
        let ends = OFF_BY_PERCENT.iter().map(u64::to_string);
        let classes = ends.chain(["more".to_owned()]).zip(record.off_by);
        for (percent, count) in classes {
            gauge!("nowserving_forecasts_off_by", "percent" => percent).set(count as f64);
        }
    }
}
