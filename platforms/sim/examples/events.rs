//! How many events the simulator gets through in a second of real time: locks, shared words and
//! transfers on 4 to 224 CPUs. `cargo run --release -p highwater-sim --example events`

use highwater_platform::{Atomic, Block, Guard, Io, Lock, LockClass, Locks, Recency};
use highwater_sim::{
    InjectedFaults, Limits, Machine, Policy, Setup, Sim, SimAtomic, SimConfig, Traced, Vm, simulate,
};
use highwater_units::{FrameList, Nanos, Pfn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const MACHINE: &str = include_str!("../../../lab/machines/spr-112c-224t.toml");
const DISKS: &str = include_str!("../../../lab/machines/xeon-48c-2-optane.toml");

/// A load: many threads cause one kind of event repeatedly.
type Load = fn(&Vm, &Sim, usize);

/// Every four threads share a lock; every tenth time all of them use one common lock.
fn locks(vm: &Vm, sim: &Sim, threads: usize) {
    let lock = || sim.new_lock(LockClass::TEST, 0u64);
    let (common, own): (_, Vec<_>) = (lock(), (0..threads.div_ceil(4)).map(|_| lock()).collect());
    vm.scope(threads, "user", &|thread| {
        for round in 0..400_000 / threads {
            let lock = if round % 10 == 0 { &common } else { &own[thread / 4] };
            let mut held = lock.lock();
            held.visits(1);
            *held += 1;
            drop(held);
            vm.work(Nanos(300));
        }
    });
}

fn words(vm: &Vm, _: &Sim, threads: usize) {
    let words: Vec<_> = (0..threads.div_ceil(4)).map(|_| SimAtomic::<u64>::new(0)).collect();
    vm.scope(threads, "user", &|thread| {
        for _ in 0..1_000_000 / threads {
            words[thread / 4].fetch_add(1, Relaxed);
            vm.work(Nanos(200));
        }
    });
}

fn transfers(vm: &Vm, sim: &Sim, threads: usize) {
    let io = |thread: usize| Io::new(thread as u32, FrameList::one(Pfn(thread as u32)));
    sim.write(0, &mut (0..threads).map(io).collect::<Vec<_>>());
    vm.scope(threads, "reader", &|thread| {
        (0..200_000 / threads).for_each(|_| sim.read(0, &mut [io(thread)]));
    });
}

fn measure(name: &str, threads: usize, load: Load) {
    let machine = Machine::load(MACHINE).expect("a sound file");
    let devices = Machine::load(DISKS).expect("a sound file").devices;
    let limits = Limits { idle_time: Nanos(u64::MAX), idle_steps: u64::MAX };
    let (policy, traced) = (Policy::SmallestClock, Traced::Off);
    let setup = Setup { machine, seed: 1, policy, limits, holdups: 0, traced };
    let began = Instant::now();
    let finished = simulate(setup, move |vm| {
        let devices = devices.into_iter().map(|spec| (spec, 4096)).collect();
        let (frames, recency) = (vec![1024, 1024], Recency::AccessedBit);
        let injected_faults = Arc::new(InjectedFaults::default());
        load(vm, &Sim::new(vm, SimConfig { frames, devices, recency, injected_faults }), threads);
    });
    let report = finished.expect("it ends").report;
    let (events, steps) = (report.events as f64, report.steps as f64);
    let seconds = began.elapsed().as_secs_f64();
    let (rate, switches) = (events / seconds / 1e6, steps / seconds / 1e6);
    println!("{name:10}{threads:5} threads{rate:8.2} M events/s{switches:8.2} M switches/s");
}

fn main() {
    for threads in [4, 48, 224] {
        measure("locks", threads, locks);
        measure("words", threads, words);
        measure("transfers", threads, transfers);
    }
}
