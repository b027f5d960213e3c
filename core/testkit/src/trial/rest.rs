//! Checks kswapd after the users have ended: zones must not stay below the low watermark.
//!
//! ```text
//! settle(Thread)  users may have left zones short after kswapd gave up: this thread wakes it
//! fill            uses frames until a fault finds the zones short and wakes kswapd
//! settle(Faults)  kswapd must bring every zone back to low, unless nothing in it is reclaimable
//! ```
//! If kswapd is just giving up, it misses the wake-up of that fault. So more faults follow after
//! some time.

use super::model::words;
use super::program::Program;
use super::world::World;
use highwater_mm::inspect::Level;
use highwater_mm::inspect::List;
use highwater_mm::inspect::wake_kswapd;
use highwater_mm::inspect::{Machine, Node};
use highwater_platform::Platform;
use highwater_units::{SpaceId, Vpn};

/// Waits for kswapd before the check fails; the later waits are the platform's longest.
const ATTEMPTS_MAX: u32 = 4000;

/// The wait grows up to this attempt.
const RELAX_MAX: u32 = 16;

/// The state of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// At or above the low watermark.
    Balanced,
    /// Below low, but nothing is reclaimable.
    Unreclaimable,
    /// Below low, with reclaimable pages.
    Short,
}

/// The state for the number of free frames, the low watermark, the listed pages and the free slots.
fn stand(free: u32, low: u32, listed: u32, slots: u64) -> Stand {
    match (free >= low, listed > 0 && slots > 0) {
        (true, _) => Stand::Balanced,
        (false, false) => Stand::Unreclaimable,
        (false, true) => Stand::Short,
    }
}

fn stand_of<P: Platform>(machine: &Machine<P>, node: &Node<P>) -> Stand {
    let listed = node.lru.listed();
    stand(node.zone.free_frames(), node.zone.marks().low, listed, machine.swap.room())
}

/// How the check wakes kswapd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waker {
    /// This thread wakes it, at growing intervals.
    Thread,
    /// Faults that allocate pages wake it; the first page to use.
    Faults(u64),
}

/// Checks that zones do not stay short.
pub(super) fn check<P: Platform, G: Program<P>>(world: &World<P, G>) {
    gather(world);
    settle(world, Waker::Thread);
    gather(world);
    let unused = fill(world);
    settle(world, Waker::Faults(unused));
}

/// Drains per-CPU caches: free frames to the free lists, used ones to the LRU lists.
fn gather<P: Platform, G: Program<P>>(world: &World<P, G>) {
    let machine = world.manager.inspect();
    for node in &machine.nodes {
        node.lru.drain(&machine.frames, |orphans| machine.free(orphans));
        node.zone.drain();
    }
}

/// Waits until no zone is short.
fn settle<P: Platform, G: Program<P>>(world: &World<P, G>, waker: Waker) {
    let machine = world.manager.inspect();
    let short = |node: &&Node<P>| stand_of(machine, node) == Stand::Short;
    for attempt in 0..ATTEMPTS_MAX {
        if !machine.nodes.iter().any(|node| short(&node)) {
            return;
        }
        match waker {
            Waker::Thread if attempt.is_power_of_two() => {
                machine.nodes.iter().filter(short).for_each(|node| wake_kswapd(node));
            }
            Waker::Faults(page) if attempt > RELAX_MAX && attempt.is_power_of_two() => {
                fault(world, (page + u64::from(attempt.ilog2())) % world.plan.pages);
            }
            Waker::Thread | Waker::Faults(_) => {}
        }
        (world.beat)();
        machine.platform.relax(attempt.min(RELAX_MAX));
    }
    for node in &machine.nodes {
        assert!(
            !short(&node),
            "woken by {waker:?}, kswapd leaves a zone so: {}",
            figures(machine, node)
        );
    }
}

/// The figures of a zone, for a message.
fn figures<P: Platform>(machine: &Machine<P>, node: &Node<P>) -> String {
    let (zone, lru) = (&node.zone, &node.lru);
    let lists = List::ALL.map(|list| (list, lru.len(list)));
    let (used, all) = machine.swap.usage();
    let (free, marks) = (zone.free_frames(), zone.marks());
    format!("{free} free, {marks:?}, {lists:?}, {used} of {all} slots")
}

/// Uses spare pages until a fault finds all zones at the low watermark and wakes kswapd. Returns
/// their number.
fn fill<P: Platform, G: Program<P>>(world: &World<P, G>) -> u64 {
    let nodes = &world.manager.inspect().nodes;
    for page in 0..world.plan.pages {
        let rings = !nodes.iter().any(|node| node.zone.allows(Level::Low, 1));
        fault(world, page);
        (world.beat)();
        if rings {
            return page + 1;
        }
    }
    world.plan.pages
}

/// Uses a page of a spare space.
fn fault<P: Platform, G: Program<P>>(world: &World<P, G>, page: u64) {
    let (spare, word) = (SpaceId(2 + world.plan.threads as u16), words(0)[0]);
    world.attempt("store to", 1, |m| world.program.store(m, spare, Vpn(page), word, 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_short_only_if_it_has_reclaimable_pages() {
        let table = [
            ((10, 10, 0, 0), Stand::Balanced),
            ((11, 10, 5, 5), Stand::Balanced),
            ((9, 10, 1, 1), Stand::Short),
            ((9, 10, 0, 1), Stand::Unreclaimable),
            ((9, 10, 7, 0), Stand::Unreclaimable),
        ];
        for ((free, low, listed, slots), expected) in table {
            assert_eq!(stand(free, low, listed, slots), expected, "{free} {low} {listed} {slots}");
        }
    }
}
