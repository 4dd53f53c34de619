//! How NATS maps plain requests, as a node finds out by requests to itself that nobody answers.

use std::collections::BTreeSet;

use nowserving_line::LineName;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::subject::{Subjects, shard_of};

use crate::routes::MAPPING_PROBE;

/// A mapping to another number of shards agrees on some lines by chance, and not on all of these.
const LINES: u32 = 16;

/// The requests of one node.
#[derive(Debug)]
pub struct MappingProbe {
    subjects: Subjects,
    shards: u32,
    op: String,
    lines: Vec<LineName>,
}

impl MappingProbe {
    /// Those of this node in a cluster of so many shards.
    #[must_use]
    pub fn new(subjects: Subjects, shards: u32, node: u64) -> Self {
        let names = (0..LINES).map(|nth| format!("mapping-probe-{nth}"));
        let lines = names.filter_map(|name| LineName::try_from(name.as_str()).ok());
        MappingProbe {
            subjects,
            shards,
            op: format!("{MAPPING_PROBE}{node}"),
            lines: lines.collect(),
        }
    }

    /// Where they arrive: unmapped ones, and mapped ones.
    #[must_use]
    pub fn arrivals(&self) -> [String; 2] {
        let (prefix, op) = (self.subjects.prefix(), &self.op);
        [
            format!("{prefix}.line.*.{op}"),
            format!("{prefix}.shard.*.*.{op}"),
        ]
    }

    /// Where they are sent.
    pub fn plain(&self) -> impl Iterator<Item = String> {
        let lines = self.lines.iter();
        lines.map(|line| self.subjects.line(line, &self.op))
    }

    /// `arrived`: the subjects on which they came.
    #[must_use]
    pub fn judge(&self, arrived: &BTreeSet<String>) -> Mapping {
        let mapped = self.lines.iter().map(|line| {
            let shard = shard_of(line.as_str(), self.shards);
            self.subjects.shard(shard, line, &self.op)
        });
        if *arrived == mapped.collect() {
            Mapping::Ok
        } else if *arrived == self.plain().collect() {
            Mapping::Missing
        } else {
            Mapping::Wrong
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shards: u32) -> MappingProbe {
        MappingProbe::new(Subjects::default(), shards, 1)
    }

    fn judged(shards: u32, arrived: impl IntoIterator<Item = String>) -> Mapping {
        of(shards).judge(&arrived.into_iter().collect())
    }

    #[test]
    fn every_other_number_of_shards_is_found_out() {
        let probe = of(1);
        assert_eq!(probe.lines.len(), LINES as usize);
        let mapped = |line: &LineName, count| {
            let shard = shard_of(line.as_str(), count);
            probe.subjects.shard(shard, line, &probe.op)
        };
        for count in 1..=300 {
            let arrived: Vec<String> = probe.lines.iter().map(|line| mapped(line, count)).collect();
            for shards in [1, 2, 3, 4, 8, 16, 17, 64, 128, 256] {
                let want = match shards == count {
                    true => Mapping::Ok,
                    false => Mapping::Wrong,
                };
                assert_eq!(judged(shards, arrived.clone()), want, "{shards} {count}");
            }
        }
    }

    #[test]
    fn none_and_half_a_mapping_are_told_apart() {
        let plain: Vec<String> = of(16).plain().collect();
        assert_eq!(judged(16, plain.clone()), Mapping::Missing);
        assert_eq!(judged(16, plain[1..].to_vec()), Mapping::Wrong);
        assert_eq!(judged(16, []), Mapping::Wrong);
    }
}
