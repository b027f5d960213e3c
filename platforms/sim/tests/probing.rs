//! How often pages are unmapped to find out whether they are in use: seldom if they always were.

use crate::common::{device, machine, platform, setup};
use highwater_mm::config::Readahead;
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Config, Fault, Manager, Range, Served};
use highwater_platform::{Memory, Recency};
use highwater_sim::machine::Answer;
use highwater_sim::{Vm, simulate};
use highwater_units::{Prng, Vpn};
use std::collections::BTreeMap;

const FRAMES: u32 = 2048;
const PAGES: u64 = 8192;
const STEPS: u64 = 200_000;

/// Accesses around the middle of a space; returns how many pages were read from swap, and how often
/// a page was mapped again.
fn run(answer: Answer) -> (u64, u64) {
    let whole = move |vm: &Vm| {
        let sim =
            platform(vm, vec![FRAMES], &[device(answer)], 2 * PAGES as u32, Recency::Unmapping);
        let config = Config { readahead: Readahead::Off, ..Config::default() };
        let mut manager = Manager::start(sim, config).expect("threads");
        let space = manager.add_space(PAGES).expect("a space");
        let mut random = Prng::new(1);
        let mut middle = || (0..12).map(|_| random.below(PAGES)).sum::<u64>() / 12;
        let mut before = manager.statistics();
        for step in 0..STEPS {
            if step == STEPS / 2 {
                before = manager.statistics();
            }
            let page = middle();
            let pin = manager.pin(space, Vpn(page), Access::Write).expect("room for all");
            manager.platform().store(pin.pfn(), 0, page);
        }
        let after = manager.statistics();
        manager.stop_kswapd();
        manager.verify(&[]);
        let counted = |counter| after.get(counter) - before.get(counter);
        (counted(Counter::PswpIn), counted(Counter::PgRefault))
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends").result
}

/// The reads, for the accesses of [`run`], of an LRU list of `frames` pages that sees every access.
fn reads_of_exact_lru(frames: usize) -> u64 {
    let mut random = Prng::new(1);
    let (mut pages, mut ages) = (BTreeMap::new(), BTreeMap::new());
    let mut reads = 0;
    for step in 0..STEPS {
        let page = (0..12).map(|_| random.below(PAGES)).sum::<u64>() / 12;
        match ages.insert(page, step) {
            Some(age) => drop(pages.remove(&age)),
            None => reads += u64::from(step >= STEPS / 2),
        }
        pages.insert(step, page);
        if pages.len() > frames {
            let (_, oldest) = pages.pop_first().expect("there are more than one");
            ages.remove(&oldest);
        }
    }
    reads
}

/// Pages that were in use at each probe are spared, and few of them are evicted: hardly more pages
/// are read than by an exact LRU, and few are mapped again for each read. Every page that is read
/// joins the active list, which costs a few reads more.
#[test]
fn pages_that_are_always_in_use_stay() {
    let exact = reads_of_exact_lru(FRAMES as usize);
    for (answer, percent) in [(Answer::Asynchronous, 112), (Answer::Synchronous, 115)] {
        let (reads, mapped) = run(answer);
        println!("{answer:?}: {reads} reads, {mapped} mapped again; exact: {exact} reads");
        assert!(reads * 100 <= exact * percent, "{answer:?}: {reads}, {exact}");
        assert!(mapped * 2 <= reads, "{answer:?}: {mapped} mapped again, {reads} reads");
    }
}

/// Regression (deadlock): a thread stored to a page that it had pinned. The store faulted, because
/// the block around the page had just been protected; the fault waited for the pin, and the pin for
/// the fault.
#[test]
fn a_store_to_a_pinned_page_that_was_protected_goes_on() {
    let whole = |vm: &Vm| {
        let swap = [device(Answer::Asynchronous)];
        let sim = platform(vm, vec![FRAMES], &swap, FRAMES, Recency::Unmapping);
        let mut manager = Manager::start(sim, Config::default()).expect("threads");
        let space = manager.add_space(16).expect("a space");
        let pin = manager.pin(space, Vpn(3), Access::Write).expect("room");
        let within = Range { first: Vpn(0), end: Vpn(16) };
        let fault = Fault { vpn: Vpn(3), access: Access::Write, within };
        assert_eq!(manager.fault(space, fault), Ok(Served::Again));
        drop(pin);
        manager.stop_kswapd();
        manager.verify(&[]);
    };
    simulate(setup(machine(1, 2), 1), whole).expect("it ends");
}
