//! The same seed gives the same trace, byte for byte.

use nowserving_sim::{Options, run};

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1_001, 1_002, 1_003] {
        let (first, second) = (
            run(seed, &Options::default()),
            run(seed, &Options::default()),
        );
        assert_eq!(first.tail, second.tail, "seed {seed}");
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed}");
        assert_eq!(first.steps, second.steps, "seed {seed}");
    }
}

#[test]
fn another_seed_gives_another_trace() {
    let hashes = [1_001, 1_002].map(|seed| run(seed, &Options::default()).trace_hash);
    assert_ne!(hashes[0], hashes[1]);
}
