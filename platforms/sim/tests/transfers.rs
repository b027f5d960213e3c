//! Keeping a device's queue busy: kswapd continues while its writes are in flight, readahead runs
//! ahead of streams, and threads prefetch. In virtual time, with one seed.

use crate::common::{device, machine, platform, setup};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager, Range};
use highwater_platform::{Clock, Recency};
use highwater_sim::machine::{Answer, DeviceSpec};
use highwater_sim::{Sim, Vm, simulate};
use highwater_units::{Nanos, Prng, SpaceId, Vpn};

/// Frames of the machine, and pages in use.
const FRAMES: u32 = 16_384;
const PAGES: u64 = 4 * FRAMES as u64;
const SPACE: SpaceId = SpaceId(0);

/// A disk with high latency and high throughput: 64 channels of 0.2 ms.
fn disk() -> DeviceSpec {
    DeviceSpec {
        read_latency: 200_000,
        write_latency: 200_000,
        channels: 64,
        ..device(Answer::Asynchronous)
    }
}

fn start(vm: &Vm, recency: Recency, config: Config) -> Manager<Sim> {
    let sim = platform(vm, vec![FRAMES], &[disk()], 8 * FRAMES, recency);
    let manager = Manager::start(sim, config).expect("virtual threads abound");
    assert_eq!(manager.add_space(PAGES).expect("a space"), SPACE);
    manager
}

/// The time that `work` takes.
fn timed(manager: &Manager<Sim>, work: impl FnOnce()) -> Nanos {
    let start = manager.platform().now();
    work();
    manager.platform().now().since(start)
}

/// Writes every page; its first word is its number plus one.
fn fill(manager: &Manager<Sim>, beat: &dyn Fn()) {
    for page in 0..PAGES {
        let pin = manager.pin(SPACE, Vpn(page), Access::Write).expect("room for all");
        manager.platform().words_mut(pin.pfn())[0]
            .store(page + 1, std::sync::atomic::Ordering::Relaxed);
        drop(pin);
        beat();
    }
}

fn check(manager: &Manager<Sim>, page: u64) {
    let pin = manager.pin(SPACE, Vpn(page), Access::Read).expect("it is somewhere");
    let word = manager.platform().words(pin.pfn())[0].load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(word, page + 1, "page {page}");
}

/// Pages swapped out per millisecond, with one writer and one kswapd thread.
fn pages_out_per_ms(writes: usize) -> u64 {
    let main = move |vm: &Vm| {
        let config = Config { kswapd_writes: Some(writes), ..Config::default() };
        let mut manager = start(vm, Recency::AccessedBit, config);
        let beat = vm.beat();
        let took = timed(&manager, || fill(&manager, &*beat));
        let out = manager.statistics().get(Counter::PswpOut);
        manager.stop_kswapd();
        manager.verify(&[]);
        out * 1_000_000 / took.0
    };
    simulate(setup(machine(1, 4), 3), main).expect("comes to its end").result
}

#[test]
fn kswapd_continues_while_it_writes() {
    let [waiting, going_on] = [0, 8].map(pages_out_per_ms);
    assert!(going_on >= 2 * waiting, "{going_on} against {waiting} pages/ms");
}

/// Reads pages in this order and prefetches each page `ahead` accesses before its read. Returns the
/// pages per millisecond, and the number of faults that waited for the disk.
fn pages_in_per_ms(
    recency: Recency,
    order: fn() -> Vec<u64>,
    ahead: usize,
    prefetch: bool,
) -> (u64, u64) {
    let main = move |vm: &Vm| {
        let mut manager = start(vm, recency, Config { prefetch, ..Config::default() });
        let beat = vm.beat();
        fill(&manager, &*beat);
        let (order, before) = (order(), manager.statistics());
        let prefetch = |page: &u64| {
            manager.prefetch(SPACE, Range { first: Vpn(*page), end: Vpn(page + 1) });
        };
        let took = timed(&manager, || {
            order.iter().take(ahead).for_each(prefetch);
            for (index, page) in order.iter().enumerate() {
                order.get(index + ahead).filter(|_| ahead > 0).into_iter().for_each(prefetch);
                check(&manager, *page);
                beat();
            }
        });
        let after = manager.statistics();
        manager.stop_kswapd();
        manager.verify(&[]);
        let major = after.get(Counter::PgMajFault) - before.get(Counter::PgMajFault);
        (order.len() as u64 * 1_000_000 / took.0, major)
    };
    simulate(setup(machine(1, 4), 3), main).expect("comes to its end").result
}

fn anywhere() -> Vec<u64> {
    let mut random = Prng::new(7);
    (0..8000).map(|_| random.below(PAGES)).collect()
}

#[test]
fn a_thread_that_prefetches_rarely_waits() {
    for recency in [Recency::AccessedBit, Recency::Unmapping] {
        let (alone, major) = pages_in_per_ms(recency, anywhere, 0, true);
        let (prefetched, left) = pages_in_per_ms(recency, anywhere, 48, true);
        assert!(prefetched >= 10 * alone, "{recency:?}: {prefetched} against {alone} pages/ms");
        assert!(left * 20 <= major, "{recency:?}: {left} of {major} faults left");
    }
}

#[test]
fn readahead_runs_ahead_of_a_stream() {
    let in_order = || (0..PAGES).collect();
    for recency in [Recency::AccessedBit, Recency::Unmapping] {
        let (window, _) = pages_in_per_ms(recency, in_order, 0, false);
        let (ahead, major) = pages_in_per_ms(recency, in_order, 0, true);
        assert!(ahead >= 3 * window, "{recency:?}: {ahead} against {window} pages/ms");
        assert!(major * 100 <= PAGES, "{recency:?}: {major} faults waited for the disk");
    }
}
