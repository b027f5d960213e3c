//! The swarm under a fixed list of seeds, and under the commit's hash. `HIGHWATER_SEED=S` runs one
//! seed, `HIGHWATER_SEEDS=N` that many.

use highwater_lab::swarm::{self, Summary};
use highwater_testkit::seeds;
use std::process::Command;

/// Seeds of each of the tests, which run side by side: about two minutes. A few where assertions
/// are off, and much would go unseen.
const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 20 };

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

/// Other seeds, for another CPU of the host; and each of them again, now and then, to the event.
#[test]
fn the_swarm_repeats_exactly() {
    seeds(SEEDS, |seed| {
        let other = seed + (1 << 32);
        let once = run(other);
        if seed % 10 == 0 {
            assert_eq!(run(other), once);
        }
    });
}

/// A seed nobody has tried: every commit runs another.
#[test]
fn the_commit_is_a_seed() {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let hash = output.ok().filter(|output| output.status.success());
    let Some(hash) = hash.and_then(|output| String::from_utf8(output.stdout).ok()) else {
        return eprintln!("skipped: no commit to take a seed from");
    };
    let seed = u64::from_str_radix(&hash[..15], 16).expect("a commit's name is hexadecimal");
    eprintln!("HIGHWATER_SEED={seed} from commit {hash}");
    run(seed);
}

/// Slabs alone: of these seeds more, for each takes some milliseconds.
#[test]
fn slabs_survive_the_swarm() {
    seeds(3 * SEEDS, |seed| {
        let seed = seed + (2 << 32);
        swarm::run_objects(seed).unwrap_or_else(|stuck| panic!("seed {seed}: {stuck}"));
    });
}
