//! What lines have to do by the leader's wall clock, and what only a leader can give them for that: the time of a
//! quota's next renewal, as nodes of different releases may know time zones differently, and the seed of a draw.

use nowserving_line::{Line, LineName, Op, Renew, Secret};
use nowserving_protocol::time;

/// What the line has to do at this time. `draw_secret`: the seed of its draw follows from it.
pub(crate) fn due(
    line: &Line,
    incarnation: u64,
    wall_ms: u64,
    draw_secret: Secret,
) -> impl Iterator<Item = Op> + use<> {
    let name = line.name();
    let renewal = line.renewal_due(wall_ms).map(|renew| Op::RenewQuota {
        line: name.clone(),
        incarnation,
        next_ms: next_ms(renew, wall_ms),
    });
    let seal = line.needs_seed().then(|| Op::SealDraw {
        line: name.clone(),
        incarnation,
        seed: seed_of(line, draw_secret),
    });
    let scheduled = line.schedule_due(wall_ms);
    let scheduled = scheduled.then(|| run_background(name, incarnation));
    renewal.into_iter().chain(seal).chain(scheduled)
}

pub(crate) fn run_background(line: &LineName, incarnation: u64) -> Op {
    Op::RunBackground {
        line: line.clone(),
        incarnation,
    }
}

/// Another one after the line was put back from a backup, as its version is another.
fn seed_of(line: &Line, draw_secret: Secret) -> Secret {
    let mut hasher = blake3::Hasher::new_keyed(&draw_secret.0);
    hasher.update(&line.incarnation().to_be_bytes());
    hasher.update(&line.version().to_be_bytes());
    hasher.update(line.name().as_str().as_bytes());
    Secret(hasher.finalize().into())
}

/// The first renewal after this time of the wall clock.
fn next_ms(renew: Renew, wall_ms: u64) -> u64 {
    match renew {
        Renew::Every { ms } => (wall_ms / ms.max(1)).saturating_add(1).saturating_mul(ms),
        Renew::Daily { minute, zone } => time::next_daily(minute, zone.as_str(), wall_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_at_multiples() {
        for (wall_ms, next) in [
            (0, 5_000),
            (4_999, 5_000),
            (5_000, 10_000),
            (12_345, 15_000),
        ] {
            assert_eq!(next_ms(Renew::Every { ms: 5_000 }, wall_ms), next);
        }
    }
}
