//! kswapd threads on a virtual machine: their number and their effect.

use crate::common::{device, machine, platform, setup};
use highwater_mm::config::KswapdThreads;
use highwater_mm::config::history::{History, ReclaimHistory};
use highwater_mm::inspect::Level;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{Sim, Vm, simulate};
use highwater_units::{CpuId, Nanos, SpaceId, Vpn};

const FRAMES: u32 = 4096;
const PAGES: u64 = 4 * FRAMES as u64;
const SPACE: SpaceId = SpaceId(0);

/// A manager with one space and a synchronous swap device.
fn manager(vm: &Vm, nodes: usize, config: Config) -> Manager<Sim> {
    let swap = device(Answer::Synchronous);
    let frames = vec![FRAMES / nodes as u32; nodes];
    let sim = platform(vm, frames, &[swap], 4 * PAGES as u32, Recency::AccessedBit);
    let manager = Manager::start(sim, config).expect("threads");
    assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
    manager
}

/// Each of `tasks` tasks writes `pages` pages of its own in order.
fn write(vm: &Vm, manager: &Manager<Sim>, tasks: u64, pages: u64) {
    vm.scope(tasks as usize, "task", &|task| {
        for index in 0..pages {
            let page = (task as u64 * PAGES / tasks + index) % PAGES;
            let pin = manager.pin(SPACE, Vpn(page), Access::Write).expect("room for all");
            manager.platform().store(pin.pfn(), 3, page + 1);
        }
    });
}

#[test]
fn the_number_of_threads_changes_while_they_run() {
    let whole = |vm: &Vm| {
        let set = |manager: &Manager<Sim>, threads| {
            manager.set_kswapd_threads(KswapdThreads::Fixed(threads))
        };
        let mut manager = manager(vm, 2, Config::default());
        let count = |counter| manager.statistics().get(counter);
        for threads in [1, 16, 3, 4, 1] {
            let before = count(Counter::PgStealKswapd);
            // Concurrently: some threads are working while their number changes.
            vm.scope(2, "either", &|which| match which {
                0 => set(&manager, threads).expect("threads"),
                _ => write(vm, &manager, 3, PAGES / 3),
            });
            assert_eq!(manager.kswapd_threads(), [threads; 2]);
            assert!(count(Counter::PgStealKswapd) > before, "they work");
        }
        assert!(set(&manager, 0).is_err() && set(&manager, 17).is_err());
        manager.stop_kswapd();
        assert_eq!(manager.kswapd_threads(), [0; 2]);
        manager.verify(&[]);
    };
    let report = simulate(setup(machine(2, 4), 1), whole).expect("it ends").report;
    let named = |name: &str| report.roles.iter().find(|role| role.name == name).map(|r| r.threads);
    // The steps to 16 and to 4 both start thread 3 of a node; the others start once.
    assert_eq!(["kswapd0:0", "kswapd1:3", "kswapd0:15"].map(named), [Some(1), Some(2), Some(1)]);
    assert_eq!(named("kswapd0:16"), None);
}

/// Tasks write pages of their own repeatedly for a time.
fn write_for(vm: &Vm, manager: &Manager<Sim>, tasks: u64, time: Nanos) {
    let end = Nanos(vm.now().0 + time.0);
    vm.scope(tasks as usize, "task", &|task| {
        for index in 0.. {
            if vm.now() >= end {
                break;
            }
            let page = (task as u64 * PAGES / tasks) + index % (PAGES / tasks);
            let pin = manager.pin(SPACE, Vpn(page), Access::Write).expect("room for all");
            manager.platform().store(pin.pfn(), 3, page + 1);
        }
    });
}

/// Runs tasks on one node for the two given times, then rests for 10 s. Returns the most kswapd
/// threads, the number added, the threads at the end of the work and after the rest, and the number
/// of direct reclaims in the second time.
fn fare(cores: u16, tasks: u64, kswapd_threads: KswapdThreads, millis: [u64; 2]) -> [u64; 5] {
    let whole = move |vm: &Vm| {
        // Watermarks far apart, as on a large machine: kswapd has time to act.
        let config = Config { kswapd_threads, watermark_scale: Some(1000), ..Config::default() };
        let mut manager = manager(vm, 1, config);
        let threads = || manager.kswapd_threads()[0] as u64;
        let [_, stalls] = millis.map(|millis| {
            let before = manager.statistics().get(Counter::AllocStall);
            write_for(vm, &manager, tasks, Nanos(millis * 1_000_000));
            manager.statistics().get(Counter::AllocStall) - before
        });
        let working = threads();
        vm.sleep(Nanos(10_000_000_000));
        let (rested, now) = (threads(), manager.statistics());
        let counters = [Counter::KswapdPeak, Counter::KswapdGrown, Counter::KswapdShrunk];
        let [peak, grown, shrunk] = counters.map(|counter| now.get(counter));
        if kswapd_threads == KswapdThreads::Auto {
            assert_eq!(1 + grown - shrunk, rested, "{grown} added, {shrunk} taken away");
        }
        manager.stop_kswapd();
        manager.verify(&[]);
        [peak, grown, working, rested, stalls]
    };
    simulate(setup(machine(1, cores), 1), whole).expect("it ends").result
}

#[test]
fn threads_are_added_under_pressure_and_removed_after_it() {
    let [peak, grown, working, rested, stalls] = fare(8, 3, KswapdThreads::Auto, [200, 20]);
    assert!(peak >= 3 && grown + 1 >= peak, "{grown} were added, {peak} at most");
    assert!(working >= 3, "{working}");
    assert_eq!(rested, 1);
    let one = fare(8, 3, KswapdThreads::Fixed(1), [20, 20]);
    assert_eq!(one[..4], [1, 0, 1, 1]);
    assert!(stalls * 4 < one[4], "{stalls} direct reclaims, {} with one thread", one[4]);
}

#[test]
fn threads_are_not_added_on_busy_cpus() {
    for (cores, tasks) in [(2, 2), (4, 9)] {
        let [peak, grown, ..] = fare(cores, tasks, KswapdThreads::Auto, [60, 60]);
        assert_eq!((peak, grown), (1, 0), "{tasks} tasks on {cores} CPUs");
    }
}

/// Runs tasks for half a second. Returns how often kswapd yielded, the pages that kswapd freed in
/// the second half of that time, and all pages that were freed then.
fn steals(cores: u16, tasks: u64, answer: Answer, kswapd_yields: bool) -> [u64; 3] {
    let whole = move |vm: &Vm| {
        let reclaim = ReclaimHistory { kswapd_yields, ..ReclaimHistory::default() };
        let history = History { reclaim, ..History::default() };
        let sim =
            platform(vm, vec![FRAMES], &[device(answer)], 4 * PAGES as u32, Recency::AccessedBit);
        let config = Config { history, ..Config::default() };
        let mut manager = Manager::start(sim, config).expect("threads");
        assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
        write_for(vm, &manager, tasks, Nanos(250_000_000));
        let before = manager.statistics();
        write_for(vm, &manager, tasks, Nanos(250_000_000));
        manager.stop_kswapd();
        manager.verify(&[]);
        let now = manager.statistics();
        let [kswapd, direct] = [Counter::PgStealKswapd, Counter::PgStealDirect]
            .map(|counter| now.get(counter) - before.get(counter));
        [now.get(Counter::KswapdYields), kswapd, kswapd + direct]
    };
    simulate(setup(machine(1, cores), 1), whole).expect("it ends").result
}

#[test]
fn tasks_evict_while_no_cpu_idles_and_swap_is_in_memory() {
    use Answer::{Asynchronous, Synchronous};
    let [yields, kswapd, all] = steals(2, 2, Synchronous, true);
    assert!(yields == 1 && kswapd * 10 < all, "{yields} times, {kswapd} of {all} by kswapd");
    for (cores, answer, kswapd_yields) in
        [(2, Synchronous, false), (4, Synchronous, true), (2, Asynchronous, true)]
    {
        let [yields, kswapd, all] = steals(cores, 2, answer, kswapd_yields);
        assert_eq!(yields, 0, "{cores} CPUs, {answer:?}, {kswapd} of {all} by kswapd");
        assert!(kswapd > 0, "{cores} CPUs, {answer:?}");
    }
}

#[test]
fn concurrent_direct_reclaims_are_throttled() {
    let counted = |cores, tasks| {
        let whole = move |vm: &Vm| {
            let mut manager = manager(vm, 1, Config::default());
            write(vm, &manager, tasks, PAGES / tasks);
            let now = manager.statistics();
            let stalls = now.get(Counter::AllocStall);
            assert_eq!(now.reclaims.count(), stalls, "each was timed");
            manager.stop_kswapd();
            manager.verify(&[]);
            (stalls, now.get(Counter::ThrottleIsolated))
        };
        simulate(setup(machine(1, cores), 1), whole).expect("it ends").result
    };
    let (stalls, waits) = counted(2, 1);
    assert!(stalls > 0 && waits == 0, "{stalls} direct reclaims, {waits} waits");
    let (_, waits) = counted(16, 48);
    assert!(waits > 0);
}

#[test]
fn direct_reclaim_waits_for_kswapd_below_half_of_min() {
    let whole = |vm: &Vm| {
        let mut manager = manager(vm, 1, Config::default());
        write(vm, &manager, 1, PAGES);
        let zone = &manager.inspect().nodes[0].zone;
        // Allocate all but a few frames.
        let take_most = || {
            let mut taken = Vec::new();
            loop {
                // Per-CPU lists are empty.
                zone.drain();
                if zone.free_frames() <= zone.marks().min / 2 {
                    return taken;
                }
                taken.extend_from_slice(&zone.alloc(CpuId(0), 1, Level::Nothing));
            }
        };
        let need_one = |vpn| drop(manager.pin(SPACE, Vpn(vpn), Access::Write).expect("room"));
        let counts = || {
            let now = manager.statistics();
            [Counter::AllocStall, Counter::ThrottleDirect].map(|counter| now.get(counter))
        };
        let before = counts();
        let taken = take_most();
        need_one(1);
        assert_eq!(counts(), [before[0] + 1, before[1] + 1], "kswapd had its turn");
        zone.free_to_zone(&taken);
        let now = counts();
        manager.stop_kswapd();
        // Without kswapd threads, direct reclaim does not wait.
        (0..PAGES).for_each(|vpn| {
            drop(manager.pin(SPACE, Vpn(vpn), Access::Write).expect("room"));
        });
        let last = manager.statistics();
        assert!(last.get(Counter::AllocStall) > now[0]);
        assert_eq!(last.get(Counter::ThrottleDirect), now[1]);
        manager.verify(&[]);
    };
    simulate(setup(machine(1, 4), 1), whole).expect("it ends");
}

#[test]
fn pressure_measures_the_time_of_stalls() {
    let whole = |vm: &Vm| {
        let slow = device(Answer::Asynchronous);
        let sim = platform(vm, vec![512], &[slow], 1 << 14, Recency::AccessedBit);
        let mut manager = Manager::start(sim, Config::default()).expect("threads");
        manager.add_space(4096).expect("a space");
        let percents = |counters: [Counter; 2]| {
            let now = manager.statistics();
            counters.map(|counter| now.get(counter) / 100)
        };
        let averages = || percents([Counter::PsiSome10, Counter::PsiFull10]);
        assert_eq!(averages(), [0, 0]);
        // Nearly every access waits for the device, and nothing else runs.
        let end = Nanos(vm.now().0 + 4_100_000_000);
        for turn in 0u64.. {
            if vm.now() >= end {
                break;
            }
            let page = Vpn(turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52);
            drop(manager.pin(SPACE, page, Access::Write).expect("room for all"));
        }
        let [some, full] = averages();
        assert!((24..=33).contains(&some) && full <= some && full >= 20, "{some} {full}");
        let totals = [Counter::PsiSomeMicros, Counter::PsiFullMicros];
        let [some, full] = totals.map(|counter| manager.statistics().get(counter));
        assert!(some <= 4_200_000 && some > 3_000_000 && full > 2_500_000, "{some} {full}");
        vm.sleep(Nanos(50_000_000_000));
        assert_eq!(averages(), [0, 0]);
        manager.stop_kswapd();
    };
    simulate(setup(machine(1, 4), 1), whole).expect("it ends");
}

#[test]
fn a_direct_reclaim_frees_the_configured_number_of_pages() {
    for (direct_reclaim, within) in [(32, 32.0..40.0), (512, 500.0..560.0)] {
        let whole = move |vm: &Vm| {
            let reclaim = ReclaimHistory { direct_reclaim, ..ReclaimHistory::default() };
            let history = History { reclaim, ..History::default() };
            let mut manager = manager(vm, 1, Config { history, ..Config::default() });
            manager.stop_kswapd();
            write(vm, &manager, 1, PAGES);
            let count = |counter| manager.statistics().get(counter) as f64;
            let each = count(Counter::PgStealDirect) / count(Counter::AllocStall);
            assert!(within.contains(&each), "{each} pages instead of {direct_reclaim}");
            manager.verify(&[]);
        };
        simulate(setup(machine(1, 2), 1), whole).expect("it ends");
    }
}
