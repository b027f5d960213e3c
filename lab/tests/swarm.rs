//! The swarm under a fixed list of seeds. `HIGHWATER_SEED=S` runs one other seed,
//! `HIGHWATER_SEEDS=N` the first N.

use highwater_lab::swarm::{self, Summary};
use highwater_testkit::seeds_on_all_cpus as seeds;

/// Seeds of each of the tests: some 20 s on two CPUs. A few where assertions are off, and
/// much would go unseen.
const SEEDS: u64 = if cfg!(debug_assertions) { 20 } else { 10 };

#[track_caller]
fn run(seed: u64) -> Summary {
    swarm::run(seed).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"))
}

#[test]
fn the_manager_survives_the_swarm() {
    seeds(SEEDS, |seed| {
        run(seed);
    });
}

/// Other seeds; and each of them again, now and then, to the event.
#[test]
fn the_swarm_repeats_exactly() {
    seeds(SEEDS / 2, |seed| {
        let other = seed + (1 << 32);
        let once = run(other);
        if seed.is_multiple_of(5) {
            assert_eq!(run(other), once);
        }
    });
}

/// Slabs alone: of these seeds more, for each takes some milliseconds.
#[test]
fn slabs_survive_the_swarm() {
    seeds(3 * SEEDS, |seed| {
        let seed = seed + (2 << 32);
        swarm::run_objects(seed).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    });
}
