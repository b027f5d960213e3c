//! The reclaim loop: chooses batches of inactive pages and evicts them until enough frames are
//! free.
//!
//! ```text
//! shrink: priority 12 .. 0    each round scans 1/2^priority of the lists
//!   next_batch                which pages go next: a kind by balance.rs, then its 32 oldest
//!   evict                     each page's fate: fate.rs
//! ```
//! A reclaim ends as soon as it has freed enough. A direct reclaim frees at least a batch in its
//! first round, even for one frame.

use super::aging::refill_inactive;
use super::balance::{Figures, Plan};
use super::evict::evict;
#[cfg(feature = "history")]
use super::history::direct_goal;
use super::reclaimer::Reclaimer;
use super::settle::settle;
use super::throttle::{self, IsolatedPages, Isolation};
use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, FrameBatch};

/// The first round's priority: it scans 1/4096 of the lists (DEF_PRIORITY).
const PRIORITY_MAX: u32 = 12;

/// Frees at least `target` frames of a node if it can. Returns how many it freed, including those
/// of writes still in flight.
pub fn shrink<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    reclaimer: &mut Reclaimer<'_, P>,
    target: u32,
) -> u32 {
    let _phase = m.enter(phase::RECLAIM);
    let mut freed = 0;
    for priority in (0..=PRIORITY_MAX).rev() {
        let mut plan = Plan::new(&Figures::of(m, node), priority);
        let enough = match (&reclaimer, priority) {
            (Reclaimer::Direct, PRIORITY_MAX) => direct_goal(m, target, &mut plan),
            _ => target,
        };
        while plan.left > 0 && freed < enough {
            let Some((kind, batch)) = next_batch(m, node, &mut plan, reclaimer) else { break };
            let scanned = batch.len() as u32;
            freed += evict_batch(m, node, kind, batch, reclaimer);
            plan.left = plan.left.saturating_sub(scanned);
        }
        if freed >= target {
            break;
        }
    }
    node.lru.workingset().acknowledge_refaults();
    freed
}

/// Frames that a direct reclaim frees in its first round, if it can.
#[cfg(not(feature = "history"))]
fn direct_goal<P: Platform>(_: &Machine<P>, target: u32, _: &mut Plan) -> u32 {
    target.max(BATCH_PAGES_MAX as u32)
}

/// Which pages go next: isolates the oldest inactive pages of the kind that is due, after refilling
/// its inactive list. `None`: no page of any kind in the plan can be isolated.
fn next_batch<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    plan: &mut Plan,
    reclaimer: &Reclaimer<'_, P>,
) -> Option<(Kind, FrameBatch)> {
    while let Some(kind) = plan.next(|share| node.lru.workingset().next_turn(share)) {
        refill_inactive(m, node, kind);
        let direct = matches!(reclaimer, Reclaimer::Direct);
        if !direct || throttle::may_isolate(m, node, kind) == Isolation::Allowed {
            let list = List::inactive(kind);
            let batch = node.lru.isolate(&m.frames, m.cpu(), list, BATCH_PAGES_MAX);
            if !batch.is_empty() {
                return Some((kind, batch));
            }
        }
        plan.exhaust(kind);
    }
    None
}

/// Evicts as many pages of a batch as it can, and updates counters. Returns how many frames it
/// freed: with those of writes in flight, less those that the batch's own contents take on a device
/// in memory.
fn evict_batch<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    batch: FrameBatch,
    reclaimer: &mut Reclaimer<'_, P>,
) -> u32 {
    let scanned = batch.len() as u32;
    let isolated = IsolatedPages::add(node, kind, scanned);
    let evicted = evict(m, node, kind, batch, reclaimer);
    drop(isolated);
    let settled = settle(m);
    let (scan, steal) = reclaimer.counters();
    let (scan_kind, steal_kind) = match kind {
        Kind::Anon => (Counter::PgScanAnon, Counter::PgStealAnon),
        Kind::File => (Counter::PgScanFile, Counter::PgStealFile),
    };
    [scan, scan_kind].into_iter().for_each(|counter| m.count(counter, u64::from(scanned)));
    [steal, steal_kind].into_iter().for_each(|counter| m.count(counter, evicted.freed.into()));
    // A large page is scanned as one page and frees many.
    let freed = evicted.freed + evicted.in_flight;
    m.swap.count_evicted(freed);
    // Pages that are in use; a probe tells nothing yet.
    let rotated = scanned.saturating_sub(freed + evicted.probed);
    node.lru.workingset().note_cost(kind, evicted.written, rotated, node.lru.listed());
    freed.saturating_sub(settled)
}
