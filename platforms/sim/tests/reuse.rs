//! Reuse distances: how much more memory would have avoided reads. Each estimate is checked by a
//! run with that much memory.

use crate::common::{device, machine, platform, setup};
use highwater_mm::config::Readahead;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Manager};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{Vm, simulate};
use highwater_units::{Prng, Vpn};

const FRAMES: u32 = 2048;
const PAGES: u64 = 6144;
const STEPS: u64 = 60_000;

/// The page of a step.
type Pattern = fn(&mut Prng, u64) -> u64;

/// One page after the other, again and again.
fn cycle(_: &mut Prng, step: u64) -> u64 {
    step % PAGES
}

/// Any page.
fn uniform(random: &mut Prng, _: u64) -> u64 {
    random.below(PAGES)
}

/// Four of five accesses go to one page in five.
fn skewed(random: &mut Prng, _: u64) -> u64 {
    let pages = if random.percent(80) { PAGES / 5 } else { PAGES };
    random.below(pages)
}

/// Writes pages; returns the pages read after all pages were touched once, and the frames that
/// would have avoided nine of ten reads.
fn run(frames: u32, recency: Recency, pattern: Pattern) -> (u64, u64) {
    let whole = move |vm: &Vm| {
        let swap = device(Answer::Asynchronous);
        let sim = platform(vm, vec![frames], &[swap], 2 * PAGES as u32, recency);
        let config = Config { readahead: Readahead::Off, ..Config::default() };
        let mut manager = Manager::start(sim, config).expect("threads");
        let space = manager.add_space(PAGES).expect("a space");
        let touch = |page: u64| {
            let pin = manager.pin(space, Vpn(page), Access::Write).expect("room for all");
            manager.platform().store(pin.pfn(), 0, page);
        };
        (0..PAGES).for_each(touch);
        let before = manager.statistics();
        let mut random = Prng::new(1);
        (0..STEPS).for_each(|step| touch(pattern(&mut random, step)));
        let after = manager.statistics();
        manager.stop_kswapd();
        manager.verify(&[]);
        let reads = after.get(Counter::PswpIn) - before.get(Counter::PswpIn);
        (reads, after.frames_to_avoid(0.9).unwrap_or(0))
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends").result
}

#[test]
fn as_much_memory_as_is_estimated_avoids_the_reads() {
    let patterns = [("cycle", cycle as Pattern), ("uniform", uniform), ("skewed", skewed)];
    for (name, pattern) in patterns {
        for recency in [Recency::AccessedBit, Recency::Unmapping] {
            let (reads, more) = run(FRAMES, recency, pattern);
            let (left, _) = run(FRAMES + more as u32, recency, pattern);
            println!("{name}, {recency:?}: {reads} reads, {more} frames more: {left}");
            assert!(reads > STEPS / 10, "{name}: {reads}");
            assert!(left * 100 <= reads * 20, "{name}, {recency:?}: {left} of {reads}");
            assert!(u64::from(FRAMES) + more <= PAGES * 5 / 4, "{name}: {more} frames more");
        }
    }
}
