//! Direct compaction: an allocation compacts for its block, nearest node first
//! (try_to_compact_pages).

use super::control::Outcome;
use super::defer::{self, Verdict};
#[cfg(feature = "history")]
use super::history;
use super::pass;
use crate::config::Config;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::Order;

/// Compacts until a node has a block of `order` above its low watermark; returns the outcome of the
/// last pass. The caller may hold entries, and no other lock.
pub fn direct<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    mode: Mode,
) -> Outcome {
    if !m.config.compact || order == Order(0) {
        return Outcome::Skipped;
    }
    let mut nodes = m.nodes_from(m.cpu()).map(|(_, node)| node).peekable();
    let first = nodes.peek().expect("a machine has nodes");
    let verdict = consider(m, first, order);
    if verdict == Verdict::Deferred {
        return Outcome::Deferred;
    }
    let _phase = m.enter(phase::COMPACT);
    m.count(Counter::CompactStall, 1);
    let mut last = Outcome::Skipped;
    for node in nodes {
        let outcome = compact(m, node, (order, mobility), mode, verdict);
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

/// Compacts one node, synchronously, for a block of movable pages. The caller holds no lock.
pub fn on_node<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> Outcome {
    if !m.config.compact {
        return Outcome::Skipped;
    }
    let verdict = consider(m, node, order);
    if verdict == Verdict::Deferred {
        return Outcome::Deferred;
    }
    let _phase = m.enter(phase::COMPACT);
    m.count(Counter::CompactStall, 1);
    compact(m, node, (order, Mobility::Movable), Mode::Sync, verdict)
}

fn compact<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    wanted: (Order, Mobility),
    mode: Mode,
    verdict: Verdict,
) -> Outcome {
    #[cfg(feature = "history")]
    if let Some(kernel) = m.config.history.compact {
        return history::compact(m, node, wanted, (mode, kernel), verdict);
    }
    pass::compact(m, node, wanted, mode, verdict)
}

/// Whether failures defer later attempts. A failed attempt for a large block costs little.
fn defers(config: &Config, order: Order) -> bool {
    #[cfg(feature = "history")]
    if config.history.compact.is_some() {
        return true;
    }
    config.compact && order < Order::LARGE
}

/// Whether to attempt compaction now.
fn consider<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> Verdict {
    if defers(&m.config, order) {
        defer::consider::<P>(&node.zone.scanners().deferral, order)
    } else {
        Verdict::Go
    }
}

/// The result of compaction for the allocation that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The allocation got its block.
    Succeeded,
    /// No block was free afterwards.
    Failed,
}

/// Records the result of an attempt that began with the nearest node, for [`consider`].
pub fn record<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mode: Mode,
    outcome: Outcome,
    attempt: Attempt,
) {
    let (_, node) = m.nodes_from(m.cpu()).next().expect("a machine has nodes");
    record_on(m, node, order, (mode, outcome), attempt);
}

/// Records the result of an attempt on one node.
pub fn record_on<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    (mode, outcome): (Mode, Outcome),
    attempt: Attempt,
) {
    let deferral = &node.zone.scanners().deferral;
    match (outcome, attempt) {
        (Outcome::Skipped | Outcome::Deferred, _) => {}
        (_, Attempt::Succeeded) => {
            m.count(Counter::CompactSuccess, 1);
            defer::succeed::<P>(deferral, order);
        }
        (_, Attempt::Failed) => {
            m.count(Counter::CompactFail, 1);
            // An asynchronous pass fails for many transient reasons.
            if mode == Mode::Sync {
                defer::fail::<P>(deferral, order);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_defer_attempts_for_small_blocks_only() {
        let config = Config::default();
        assert!(defers(&config, Order(Order::LARGE.0 - 1)));
        assert!(!defers(&config, Order::LARGE));
    }
}
