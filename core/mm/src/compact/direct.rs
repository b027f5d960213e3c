//! Compaction by who needs a block, over the nodes, nearest first (try_to_compact_pages).

use super::control::Outcome;
use super::defer::{self, Verdict};
use super::method::Method;
use super::pass;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::Order;

/// Compacts until a node has a block of `order` above its low mark; says how the last run ended.
/// The caller may hold entries, and no other lock.
pub fn direct<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    mode: Mode,
) -> Outcome {
    let Some(method) = Method::of(&m.config).filter(|_| order.0 > 0) else {
        return Outcome::Skipped;
    };
    let mut nodes = m.nodes_from(m.cpu()).map(|(_, node)| node).peekable();
    let first = nodes.peek().expect("a machine has nodes");
    let verdict = consider(method, first, order);
    if verdict == Verdict::Deferred {
        return Outcome::Deferred;
    }
    let _phase = m.enter(phase::COMPACT);
    m.count(Counter::CompactStall, 1);
    let mut last = Outcome::Skipped;
    for node in nodes {
        let outcome = pass::compact(m, node, (order, mobility), mode, method, verdict);
        if let Outcome::Captured(_) = outcome {
            return outcome;
        }
        if outcome != Outcome::Skipped {
            last = outcome;
        }
        if node.zone.allows_block(Level::Low, order) {
            break;
        }
    }
    last
}

/// Compacts one node for a block of pages that are on it already; says how that ended. The caller
/// waits, and holds no lock.
pub fn on_node<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> Outcome {
    let Some(method) = Method::of(&m.config) else { return Outcome::Skipped };
    let verdict = consider(method, node, order);
    if verdict == Verdict::Deferred {
        return Outcome::Deferred;
    }
    let _phase = m.enter(phase::COMPACT);
    m.count(Counter::CompactStall, 1);
    pass::compact(m, node, (order, Mobility::Movable), Mode::Sync, method, verdict)
}

/// What earlier failures mean for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failures {
    /// Some attempts after them are not made.
    Defer,
    /// Nothing: one costs little.
    Pass,
}

/// Decides, for whoever compacts for a block.
fn failures(method: Method, order: Order) -> Failures {
    match method.today {
        true if order >= Order::LARGE => Failures::Pass,
        _ => Failures::Defer,
    }
}

/// Whether to try on a node, now.
fn consider<P: Platform>(method: Method, node: &Node<P>, order: Order) -> Verdict {
    match failures(method, order) {
        Failures::Pass => Verdict::Go,
        Failures::Defer => defer::consider::<P>(&node.zone.scanners().deferral, order),
    }
}

/// Notes whether an allocation had its block after a run.
pub fn settle<P: Platform>(m: &Machine<P>, order: Order, mode: Mode, outcome: Outcome, had: Had) {
    let (_, node) = m.nodes_from(m.cpu()).next().expect("a machine has nodes");
    settle_on(m, node, order, mode, outcome, had);
}

/// The same after a run on one node.
pub fn settle_on<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    mode: Mode,
    outcome: Outcome,
    had: Had,
) {
    let deferral = &node.zone.scanners().deferral;
    match (outcome, had) {
        (Outcome::Skipped | Outcome::Deferred, _) => {}
        (_, Had::Block) => {
            m.count(Counter::CompactSuccess, 1);
            defer::succeed::<P>(deferral, order);
        }
        (_, Had::Nothing) => {
            m.count(Counter::CompactFail, 1);
            // What does not wait fails for many reasons that pass.
            if mode == Mode::Sync {
                defer::fail::<P>(deferral, order);
            }
        }
    }
}

/// What the allocation that compacted had of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Had {
    /// Its block.
    Block,
    /// Nothing.
    Nothing,
}
