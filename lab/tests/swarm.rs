//! The swarm under a fixed list of seeds. `HIGHWATER_SEED=S` runs one other seed,
//! `HIGHWATER_SEEDS=N` the first N.

use highwater_lab::swarm::{self, Summary};
use highwater_testkit::seeds_on_all_cpus as seeds;

/// Seeds of each of the tests: some 20 s on two CPUs. Without debug assertions only a few run,
/// because most defects would go unnoticed.
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

/// Other seeds. Every fifth one is run again, and must repeat exactly, event by event.
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

/// Slabs alone: more seeds, because each takes only some milliseconds.
#[test]
fn slabs_survive_the_swarm() {
    seeds(3 * SEEDS, |seed| {
        let seed = seed + (2 << 32);
        swarm::run_objects(seed).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    });
}

/// Regression: with few dirty pages allowed on 90 frames and CPUs that take turns of three
/// accesses, the flusher unmapped a file's page each time before the thread that had faulted on it
/// used it. And: a queue of all frames at a disk that seeks takes longer than the two seconds that
/// were allowed for an access.
#[test]
fn seeds_that_failed_pass() {
    for seed in [1_000_555, 1_000_055] {
        run(seed);
    }
}
