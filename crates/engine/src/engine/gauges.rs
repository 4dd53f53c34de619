//! Metrics that are set periodically.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::gauge;
use nowserving_line::Totals;

use nowserving_shard::clock::Micros;

use super::Engine;

/// Nothing longer is shown: a node that has never been reached would show the age of its machine.
const UNREACHABLE_SHOWN_MAX: Duration = Duration::from_secs(3_600);

/// What the gauges say of the shards of one loop, or of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gauges {
    led: usize,
    leaderless: usize,
    /// Of the shard that lacks most.
    apply_lag: u64,
    log_entries: u64,
    memory_bytes: u64,
    /// Of all shards.
    pub lines_held: u64,
    /// Of those that this node leads, as the sums over all their lines: not one series a line, as there may be a hundred
    /// thousand.
    lines: usize,
    totals: Totals,
    /// How long the oldest change of a counter is not saved.
    limit_unsaved_us: Micros,
    kv_bytes: BTreeMap<u32, u64>,
    /// How long requests have not come by the connection.
    unreachable_us: Micros,
}

impl Gauges {
    /// Adds those of another loop.
    fn add(&mut self, other: &Gauges) {
        self.led += other.led;
        self.leaderless += other.leaderless;
        self.apply_lag = self.apply_lag.max(other.apply_lag);
        self.log_entries += other.log_entries;
        self.memory_bytes += other.memory_bytes;
        self.lines_held += other.lines_held;
        self.lines += other.lines;
        self.totals.add(&other.totals);
        self.limit_unsaved_us = self.limit_unsaved_us.max(other.limit_unsaved_us);
        self.kv_bytes.extend(&other.kv_bytes);
        self.unreachable_us = self.unreachable_us.max(other.unreachable_us);
    }
}

impl Engine {
    /// Of this engine's shards.
    pub(super) fn own_gauges(&self, now: Micros) -> Gauges {
        let (mut lines, mut totals) = (0, Totals::default());
        for shard in self.shards.values().filter(|s| s.leader_state.is_some()) {
            lines += shard.state.lines().len();
            totals.add(shard.state.lines().totals());
        }
        let known = self.shards.values().map(|s| &s.replica);
        let apply_lag = known
            .clone()
            .map(|it| it.committed().saturating_sub(it.applied()));
        let leading = self.shards.values().filter_map(|s| s.leader_state.as_ref());
        let oldest = leading.filter_map(|leading| leading.limits.oldest_change());
        let kv_bytes = self.shards.values();
        let reachability = &self.ctx.reachability;
        let unreachable_for = reachability.unreachable_for(now).min(UNREACHABLE_SHOWN_MAX);
        Gauges {
            led: self.shards.values().filter(|s| s.leads()).count(),
            leaderless: known.clone().filter(|it| it.leader().is_none()).count(),
            apply_lag: apply_lag.max().unwrap_or(0),
            log_entries: known.clone().map(|it| it.log_entries()).sum(),
            memory_bytes: known.map(|it| it.memory_bytes()).sum(),
            lines_held: self
                .shards
                .values()
                .map(|it| it.state.lines().len() as u64)
                .sum(),
            lines,
            totals,
            limit_unsaved_us: oldest.min().map_or(0, |at| now.saturating_sub(at)),
            kv_bytes: kv_bytes.map(|it| (it.id, it.state.kv().bytes())).collect(),
            unreachable_us: unreachable_for.as_micros() as Micros,
        }
    }

    /// What NATS takes in one message, on the connections of all loops; 0: not known yet.
    pub(super) fn max_payload_of_all(&self) -> usize {
        let of_others = self.role.reports().map(|it| it.max_payload);
        let known = of_others.chain([self.ctx.payload.max]).filter(|it| *it > 0);
        known.min().unwrap_or(0)
    }

    /// Sets the gauges of the node.
    pub(super) fn gauges(&mut self, now: Micros) {
        let mut all = self.own_gauges(now);
        self.role.reports().for_each(|it| all.add(&it.gauges));
        gauge!("nowserving_shards_led").set(all.led as f64);
        let unreachable_for = Duration::from_micros(all.unreachable_us);
        gauge!("nowserving_service_unreachable_seconds").set(unreachable_for.as_secs_f64());
        gauge!("nowserving_disk_full").set(f64::from(u8::from(self.ctx.disk_full)));
        gauge!("nowserving_max_payload_bytes").set(self.max_payload_of_all() as f64);
        gauge!("nowserving_shards_without_leader").set(all.leaderless as f64);
        gauge!("nowserving_apply_lag_entries").set(all.apply_lag as f64);
        gauge!("nowserving_log_entries").set(all.log_entries as f64);
        gauge!("nowserving_log_memory_bytes").set(all.memory_bytes as f64);
        let held = all.totals.admitted + all.totals.in_checkout;
        gauge!("nowserving_lines_led").set(all.lines as f64);
        gauge!("nowserving_tokens_waiting").set(all.totals.waiting as f64);
        gauge!("nowserving_seats_held").set(held as f64);
        let unsaved_for = Duration::from_micros(all.limit_unsaved_us);
        gauge!("nowserving_limit_unsaved_seconds").set(unsaved_for.as_secs_f64());
        for (shard, bytes) in all.kv_bytes {
            // On every node, so that a series does not end with its node's lead.
            gauge!("nowserving_kv_bytes", "shard" => shard.to_string()).set(bytes as f64);
        }
    }
}
