//! Threads use a device on a simulated cluster with random faults, against a model of its contents:
//! they read what they wrote, however the cluster behaves. HIGHWATER_SEEDS runs more seeds.

mod common;

use common::check::{SIZE, SLOTS, TIME_LIMIT, use_by_threads};
use common::simulated_cluster::{Cluster, Faults};
use highwater_devices::{OpenOptions, RemoteOptions, Spec, open_with};
use std::thread;

const STEPS: u32 = 120;
const SEEDS: u64 = 6;

/// Faults per million commands, different for each seed.
fn faults(seed: u64) -> Faults {
    let calm = Faults::default();
    match seed % 6 {
        0 => Faults { moves: 20_000, ..calm },
        1 => Faults { hang_ups: 2_000, ..calm },
        2 => Faults { errors: 1_000, delays: 10_000, ..calm },
        3 => Faults { held_up: 800, stops: 500, moves: 1_000, ..calm },
        4 => Faults { hang_ups: 1_000, errors: 500, moves: 10_000, ..calm },
        _ => Faults { hang_ups: 500, held_up: 200, stops: 500, errors: 500, moves: 500, ..calm },
    }
}

fn run(seed: u64) -> [u64; 7] {
    println!("seed {seed}");
    let cluster = Cluster::start(1 + (seed as usize + 1) % 4, seed, faults(seed));
    let spec = Spec::parse(&format!("redis:{}:{}", cluster.places(), SIZE.0)).unwrap();
    let remote = RemoteOptions { patience: TIME_LIMIT, ..RemoteOptions::default() };
    let device = loop {
        // A fault may strike while the device is opened.
        let options = OpenOptions { remote: remote.clone(), ..OpenOptions::default() };
        if let Ok(device) = open_with(&spec, &options) {
            break device;
        }
    };
    let keeper = device.thread().map(thread::spawn).expect("a keeper");
    use_by_threads(&*device, STEPS, || ());
    assert!(!device.altered(), "a page came back changed");
    device.discard(0, SLOTS);
    let happened = cluster.happened();
    drop(device);
    keeper.join().unwrap();
    let names = "hung up, held up, stops, errors, redirections, killed, copies";
    println!("  {} keys are left; {names}: {happened:?}", cluster.keys());
    happened
}

#[test]
fn threads_find_what_they_wrote_whatever_the_cluster_does() {
    let seeds = std::env::var("HIGHWATER_SEEDS").ok().map(|text| text.parse().unwrap());
    let all = (0..seeds.unwrap_or(SEEDS)).map(run);
    let sums = all.fold([0; 7], |sums, found| std::array::from_fn(|at| sums[at] + found[at]));
    assert!(sums.iter().all(|sum| *sum > 0), "{sums:?}");
}
