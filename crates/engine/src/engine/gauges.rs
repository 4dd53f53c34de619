//! Metrics that are set periodically.

use std::time::Duration;

use metrics::gauge;
use nowserving_line::Totals;

use nowserving_shard::clock::Micros;

use super::Engine;

impl Engine {
    pub(super) fn gauges(&mut self, now: Micros) {
        let led = self.shards.values().filter(|s| s.leads());
        gauge!("nowserving_shards_led").set(led.count() as f64);
        let unreachable_for = self
            .ctx
            .reachability
            .unreachable_for(now)
            .min(Duration::from_secs(3_600));
        gauge!("nowserving_service_unreachable_seconds").set(unreachable_for.as_secs_f64());
        gauge!("nowserving_disk_full").set(f64::from(u8::from(self.ctx.disk_full)));
        gauge!("nowserving_max_payload_bytes").set(self.ctx.payload.max as f64);
        let known = self.shards.values().map(|s| &s.replica);
        let leaderless = known.clone().filter(|it| it.leader().is_none()).count();
        gauge!("nowserving_shards_without_leader").set(leaderless as f64);
        let apply_lag = known.map(|it| it.committed().saturating_sub(it.applied()));
        gauge!("nowserving_apply_lag_entries").set(apply_lag.max().unwrap_or(0) as f64);
        let entries: u64 = self.shards.values().map(|s| s.replica.log_entries()).sum();
        gauge!("nowserving_log_entries").set(entries as f64);
        let memory: u64 = self.shards.values().map(|s| s.replica.memory_bytes()).sum();
        gauge!("nowserving_log_memory_bytes").set(memory as f64);
        let (mut lines, mut totals) = (0, Totals::default());
        for shard in self.shards.values().filter(|s| s.leader_state.is_some()) {
            lines += shard.state.lines().len();
            totals.add(shard.state.lines().totals());
        }
        publish(lines, &totals);
        let leading = self.shards.values().filter_map(|s| s.leader_state.as_ref());
        let oldest = leading.filter_map(|leading| leading.limits.oldest_change());
        let age_us = oldest.min().map_or(0, |at| now.saturating_sub(at));
        gauge!("nowserving_limit_unsaved_seconds").set(Duration::from_micros(age_us).as_secs_f64());
        for shard in self.shards.values() {
            // On every node, so that a series does not end with its node's lead.
            gauge!("nowserving_kv_bytes", "shard" => shard.id.to_string())
                .set(shard.state.kv().bytes() as f64);
        }
    }
}

/// Sums over all lines that this node leads. Not one series a line: there may be a hundred thousand.
fn publish(lines: usize, totals: &Totals) {
    let held = totals.admitted + totals.in_checkout;
    gauge!("nowserving_lines_led").set(lines as f64);
    gauge!("nowserving_tokens_waiting").set(totals.waiting as f64);
    gauge!("nowserving_seats_held").set(held as f64);
}
