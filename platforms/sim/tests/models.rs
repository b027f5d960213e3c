//! The cost model against closed forms: locks, hand-overs, queues, cores.

use crate::common::{device, machine, platform, setup};
use highwater_mm::phase;
use highwater_platform::{
    Atomic, Block, Clock, Cpu, Io, Lock, LockClass, Locks, Mmu, Platform, Protection, Recency,
};
use highwater_sim::machine::{Answer, Machine};
use highwater_sim::{SimAtomic, simulate};
use highwater_units::{FrameList, Nanos, Pfn, Prng, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The virtual time of a run.
fn time_of(machine: Machine, main: impl FnOnce(&highwater_sim::Vm) + 'static) -> f64 {
    let finished = simulate(setup(machine, 1), main).expect("it ends");
    finished.report.time.0 as f64
}

#[track_caller]
fn assert_near(found: f64, expected: f64, percent: f64) {
    let off = (found / expected - 1.0).abs() * 100.0;
    assert!(off <= percent, "{found} instead of {expected}: {off:.2}% off");
}

/// Every CPU contends for the lock: an acquisition takes the hold time plus the hand-over.
fn saturated(machine: Machine, threads: usize, between: u64) {
    const ROUNDS: u64 = 2000;
    let costs = machine.costs.clone();
    let far = machine.sockets > 1;
    let hold = costs.sections.of("test").base + 3 * costs.sections.of("test").item;
    let time = time_of(machine, move |vm| {
        let sim = platform(vm, vec![64], &[], 0, Recency::AccessedBit);
        let lock = sim.new_lock(LockClass::TEST, 0u64);
        vm.scope(threads, "user", &|_| {
            for _ in 0..ROUNDS {
                let mut count = lock.lock();
                highwater_platform::Guard::visits(&count, 3);
                *count += 1;
                drop(count);
                vm.work(Nanos(between));
            }
        });
        assert_eq!(*lock.lock(), ROUNDS * threads as u64);
        let record = sim.lock_statistics().class(LockClass::TEST);
        assert!(record.contended * 100 > record.acquisitions * 95, "{record:?}");
        assert_near(record.hold.0 as f64, (record.acquisitions * hold) as f64, 0.5);
    });
    let rounds = (ROUNDS * threads as u64) as f64;
    if far {
        // Hand-overs are near or far: the mean lies between.
        let each = time / rounds;
        let (low, high) = (hold + costs.handover_near, hold + costs.handover_far);
        assert!(each > low as f64 * 1.05 && each < high as f64, "{each}: {low} to {high}");
    } else {
        assert_near(time / rounds, (hold + costs.handover_near) as f64, 2.0);
    }
}

#[test]
fn the_throughput_of_a_contended_lock_is_one_per_hold_and_hand_over() {
    saturated(machine(1, 8), 8, 100);
    saturated(machine(1, 48), 48, 1000);
    saturated(machine(2, 4), 8, 100);
}

/// An uncontended lock costs `lock`, plus a line if another CPU held it last.
#[test]
fn an_uncontended_lock_is_cheap() {
    let time = |threads| {
        time_of(machine(1, 2), move |vm| {
            let sim = platform(vm, vec![64], &[], 0, Recency::AccessedBit);
            let lock = sim.new_lock(LockClass::TEST, ());
            vm.scope(threads, "user", &|_| {
                (0..10_000).for_each(|_| {
                    drop(lock.lock());
                    vm.work(Nanos(10));
                });
            });
        })
    };
    // Lock 10, section 200, work 10.
    assert_near(time(1) / 10_000.0, 220.0, 1.0);
}

/// Waiting for locks is CPU time, and the statistics account for all of it.
#[test]
fn spinning_is_cpu_time() {
    let finished = simulate(setup(machine(1, 4), 1), |vm| {
        let sim = platform(vm, vec![64], &[], 0, Recency::AccessedBit);
        let lock = sim.new_lock(LockClass::TEST, ());
        vm.scope(4, "user", &|_| {
            sim.enter(phase::ALLOC);
            (0..1000).for_each(|_| drop(lock.lock()));
            sim.enter(phase::PROGRAM);
        });
    })
    .expect("it ends");
    let report = finished.report;
    let users = report.roles.iter().find(|role| role.name == "user").expect("they ran");
    let record = report.locks.get(LockClass::TEST, phase::ALLOC);
    assert_eq!((users.threads, record.acquisitions), (4, 4000));
    // Four busy CPUs: one holds the lock, three wait.
    assert_near(users.busy.0 as f64, 4.0 * report.time.0 as f64, 2.0);
    assert_near((record.wait.0 + record.hold.0) as f64, users.busy.0 as f64, 3.0);
}

/// Writing a word costs one line transfer if the CPUs of a socket alternate, and little if one CPU
/// writes alone.
#[test]
fn a_shared_word_moves_its_line() {
    const ROUNDS: u64 = 100_000;
    let time = |machine: Machine, threads: usize| {
        let time = time_of(machine, move |vm| {
            let word = SimAtomic::<u64>::new(0);
            vm.scope(threads, "user", &|_| {
                (0..ROUNDS).for_each(|_| assert!(word.fetch_add(1, Relaxed) < 4 * ROUNDS));
            });
            assert_eq!(word.load(Relaxed), ROUNDS * threads as u64);
        });
        time / ROUNDS as f64
    };
    assert_near(time(machine(1, 4), 1), 5.0, 3.0);
    let each = time(machine(1, 4), 4);
    assert!((45.0..70.0).contains(&each), "{each}");
    let far = time(machine(4, 1), 4);
    assert!((120.0..170.0).contains(&far), "{far}");
}

/// One channel, constant service, Poisson arrivals: the mean wait of M/D/1.
#[test]
fn a_device_queues_like_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let finished = simulate(setup(machine(1, 64), 7), move |vm| queue(vm, load));
        let Waits { found, exact, service } = finished.expect("it ends").result;
        assert_near(found, exact, 0.5);
        assert_near(found, load / (2.0 * (1.0 - load)) * service, 10.0);
    }
}

/// Mean waiting times for a device, ns.
struct Waits {
    /// In the simulation.
    found: f64,
    /// By Lindley's recursion for the same arrivals.
    exact: f64,
    service: f64,
}

/// The mean waiting time at a server with constant `service` time.
fn lindley(arrivals: &[u64], service: f64) -> f64 {
    let (mut wait, mut sum) = (0.0f64, 0.0);
    for pair in arrivals.windows(2) {
        wait = (wait + service - (pair[1] - pair[0]) as f64).max(0.0);
        sum += wait;
    }
    sum / arrivals.len() as f64
}

/// Sends 40,000 reads at a rate of `load` times the device's capacity.
fn queue(vm: &highwater_sim::Vm, load: f64) -> Waits {
    const READS: usize = 40_000;
    const THREADS: usize = 64;
    let spec = device(Answer::Asynchronous);
    let service = spec.read_latency as f64;
    let sim = platform(vm, vec![THREADS as u32], &[spec], 64, Recency::AccessedBit);
    let mut random = Prng::new(3);
    // One arrival stream, distributed round robin: each thread's read ends long before its next.
    let mut at = 10_000_000.0;
    let arrivals: Vec<u64> = (0..READS)
        .map(|_| {
            let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            at += -(1.0 - uniform).ln() * service / load;
            at as u64
        })
        .collect();
    let mut fill: Vec<Io> =
        (0..THREADS as u32).map(|slot| Io::new(slot, FrameList::one(Pfn(slot)))).collect();
    sim.write(0, &mut fill);
    let (submit, complete, wake_latency) = (2000.0, 1000.0, 2000.0);
    let sojourns = vm.scope(THREADS, "reader", &|thread| {
        let mut sum = 0;
        for at in arrivals.iter().skip(thread).step_by(THREADS) {
            let now = sim.now().0;
            vm.sleep(Nanos((at - 2000).saturating_sub(now)));
            let begin = sim.now().0;
            sim.read(0, &mut [Io::new(thread as u32, FrameList::one(Pfn(thread as u32)))]);
            sum += sim.now().0 - begin;
        }
        sum
    });
    let mean = sojourns.iter().sum::<u64>() as f64 / READS as f64;
    let found = mean - service - submit - complete - wake_latency;
    Waits { found, exact: lindley(&arrivals, service), service }
}

/// Channels work in parallel; the bus is shared.
#[test]
fn throughput_is_limited_by_depth_then_channels_then_the_bus() {
    let iops = |channels: u16, mb_per_s: u64, threads: usize| {
        const READS: usize = 2000;
        let mut spec = device(Answer::Asynchronous);
        (spec.channels, spec.read_mb_per_s) = (channels, mb_per_s);
        let time = time_of(machine(1, 64), move |vm| {
            let sim = platform(vm, vec![64], &[spec], 64, Recency::AccessedBit);
            let io = |thread| Io::new(thread as u32, FrameList::one(Pfn(thread as u32)));
            sim.write(0, &mut (0..threads).map(io).collect::<Vec<_>>());
            vm.scope(threads, "reader", &|thread| {
                (0..READS).for_each(|_| sim.read(0, &mut [io(thread)]));
            });
        });
        (READS * threads) as f64 / time * 1e9
    };
    // Latency 80 us plus submit, complete and wake-up.
    assert_near(iops(16, 100_000, 1), 1e9 / 85_000.0, 1.0);
    assert_near(iops(16, 100_000, 16), 16e9 / 85_000.0, 1.0);
    // More threads than channels: limited by the channels.
    assert_near(iops(16, 100_000, 64), 16e9 / 80_000.0, 2.0);
    // 400 MB/s: 4 KiB take 10.24 us.
    assert_near(iops(64, 400, 64), 1e9 / 10_240.0, 2.0);
}

/// Two threads on one core do 1.25 times the work of one thread; on two cores, twice the work.
#[test]
fn sibling_threads_share_a_core() {
    let time = |cores: u16, threads_per_core: u16| {
        let mut machine = machine(1, cores);
        machine.threads_per_core = threads_per_core;
        time_of(machine, |vm| {
            vm.scope(2, "worker", &|_| (0..10_000).for_each(|_| vm.work(Nanos(1000))));
        })
    };
    assert_near(time(1, 2), 1.6 * time(2, 1), 1.0);
}

/// Reclaim pays for one TLB flush per batch with accessed bits, and for one per call if unmapping
/// detects accesses.
#[test]
fn a_batch_is_flushed_once() {
    const BATCH: u64 = 32;
    let flushes = |recency: Recency| {
        let finished = simulate(setup(machine(1, 2), 1), move |vm| {
            let sim = platform(vm, vec![64], &[], 0, recency);
            let frames: Vec<Pfn> = (0..64).map(Pfn).collect();
            sim.attach(SpaceId(0), 64).expect("room");
            frames.chunks(16).enumerate().for_each(|(run, frames)| {
                sim.map(SpaceId(0), Vpn(16 * run as u64), frames, Protection::ReadWrite);
            });
            let times = vm.scope(2, "thread", &|thread| match thread {
                0 => unmap_one_by_one(vm, &sim, BATCH),
                // Uses another page of the space all the time.
                _ => (0..2000).fold(0, |_, _| {
                    vm.work(Nanos(100));
                    sim.program_load(SpaceId(0), Vpn(40), 0).map_or(0, |_| 0)
                }),
            });
            times[0]
        });
        // Unmapping costs 150, a flush of one other CPU 1000.
        (finished.expect("it ends").result as f64 - (BATCH * 150) as f64) / 1000.0
    };
    assert_near(flushes(Recency::AccessedBit), 1.0, 1.0);
    assert_near(flushes(Recency::Unmapping), BATCH as f64, 1.0);
}

/// The time that the batch takes in reclaim.
fn unmap_one_by_one(vm: &highwater_sim::Vm, sim: &highwater_sim::Sim, pages: u64) -> u64 {
    vm.work(Nanos(10_000));
    sim.enter(phase::RECLAIM);
    let begin = sim.now().0;
    for page in 0..pages {
        sim.unmap(SpaceId(0), Vpn(page), &[Pfn(page as u32)]);
    }
    sim.enter(phase::PROGRAM);
    sim.now().0 - begin
}

/// More threads than CPUs: time slices give fair shares.
#[test]
fn threads_share_cpus_fairly() {
    let finished = simulate(setup(machine(1, 2), 1), |vm| {
        let ends = vm.scope(6, "worker", &|_| {
            (0..60_000).for_each(|_| vm.work(Nanos(1000)));
            vm.now().0
        });
        (ends.iter().min().copied(), ends.iter().max().copied())
    });
    let finished = finished.expect("it ends");
    let (Some(first), Some(last)) = finished.result else { panic!("six threads ended") };
    // 6 x 60 ms over 2 CPUs; the first one ends at most two rounds of slices early.
    assert_near(last as f64, 180e6, 2.0);
    assert!(last - first < 20_000_000, "{first} to {last}");
}

/// A woken thread soon gets a CPU of a fully loaded machine, like kswapd beside busy tasks.
#[test]
fn a_woken_thread_is_not_starved() {
    let finished = simulate(setup(machine(1, 2), 1), |vm| {
        let sim = Arc::new(platform(vm, vec![64], &[], 0, Recency::AccessedBit));
        let late = vm.scope(5, "mixed", &|thread| match thread {
            0 => (0..100).map(|_| nap(vm)).max().expect("a hundred naps"),
            _ => {
                (0..400_000).for_each(|_| vm.work(Nanos(1000)));
                0
            }
        });
        drop(sim);
        late[0]
    });
    let late = finished.expect("it ends").result;
    assert!(late < 10_000_000, "a sleeper came {late} ns late");
}

/// Sleeps a millisecond. Returns the excess.
fn nap(vm: &highwater_sim::Vm) -> u64 {
    let begin = vm.now().0;
    vm.sleep(Nanos(1_000_000));
    vm.work(Nanos(10_000));
    vm.now().0 - begin - 1_010_000
}

/// Checks at compile time that `Sim` implements `Platform`.
fn _is_platform<P: Platform>() {}
const _: fn() = _is_platform::<highwater_sim::Sim>;
