//! kcompactd: a thread of each node that has blocks ready before they are asked for.
//!
//! ```text
//! an allocation finds no block (ask) --> wakes: makes one of that order
//!                                    \-> and for 10 s looks twice a second how memory lies:
//!   score > 90: begins to make large blocks; goes on at every look until it is 80
//!   none was won: looks again in 32 s
//! ```
//! The score is the part of free memory that is not in large blocks (fragmentation_score_node,
//! proactive compaction, Linux 5.9, proactiveness 20). Where nobody asks for blocks the thread
//! sleeps: a program of small pages pays nothing.

use super::control::{Control, Who};
use super::evacuate::{Evacuated, evacuate};
use super::method::Method;
use crate::kthread::Kthreads;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::zone::{Level, Mobility};
use highwater_platform::{Atomic, Event, Platform};
use highwater_units::{Nanos, NodeId, Order};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Above this score it begins, at this one it ends: percent.
const SCORE_HIGH: u32 = 90;
/// See there.
const SCORE_LOW: u32 = 80;
/// From one look to the next (HPAGE_FRAG_CHECK_INTERVAL_MSEC).
const PERIOD: Nanos = Nanos(500_000_000);
/// Looks that are left out after one that won nothing (COMPACT_MAX_DEFER_SHIFT).
const LEFT_OUT: u32 = 1 << 6;
/// For so long after somebody asked it looks.
const INTEREST: Nanos = Nanos(10_000_000_000);

/// Starts a thread for each node, where the setting has them and there is memory for some blocks.
///
/// # Errors
/// The system gives no thread.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    let blocks = machine.frames.len() / Order::MAX.frames() as usize;
    let today = Method::of(&machine.config).is_some_and(|method| method.today);
    if !today || blocks < BLOCKS_MIN {
        return Ok(None);
    }
    let mut threads = Kthreads::new(machine, |m| {
        m.nodes.iter().for_each(|node| node.kcompactd.wait.notify_all());
    });
    for index in 0..machine.nodes.len() {
        threads.run(&format!("kcompactd{index}"), NodeId(index as u8), move |m, stopped| {
            run(m, &m.nodes[index], stopped);
        })?;
    }
    Ok(Some(threads))
}

/// Memory of fewer blocks of the largest order has none to spare.
const BLOCKS_MIN: usize = 4;

/// Says that an allocation found no block of `order`.
pub fn ask<P: Platform>(node: &Node<P>, order: Order) {
    node.kcompactd.order.fetch_max(order.0, AcqRel);
    node.kcompactd.wait.notify_all();
}

/// The body of a thread.
fn run<P: Platform>(m: &Machine<P>, node: &Node<P>, stopped: &P::Atomic<u8>) {
    let _phase = m.enter(phase::COMPACT);
    let (mut asked, mut left_out, mut state) = (None::<Nanos>, 0, Round::Over);
    loop {
        let ticket = node.kcompactd.wait.ticket();
        if stopped.load(Acquire) != 0 {
            return;
        }
        let now = m.platform.now();
        match Order(node.kcompactd.order.swap(0, AcqRel)) {
            Order(0) => {
                let patience = match asked {
                    Some(since) if now.since(since) < INTEREST => Some(PERIOD),
                    _ => None,
                };
                if patience.is_some() && left_out == 0 {
                    state = round(state, score(node));
                    if state == Round::UnderWay && make_ready(m, node, stopped) == 0 {
                        left_out = LEFT_OUT;
                    }
                }
                left_out = left_out.saturating_sub(1);
                node.kcompactd.wait.wait(ticket, patience);
            }
            order => {
                asked = Some(now);
                m.count(Counter::CompactDaemonWake, 1);
                if !has_room(node, order) || node.zone.has_block(order, Mobility::Movable) {
                    continue;
                }
                make(m, node, order);
            }
        }
    }
}

/// How much of free memory is not in large blocks: percent.
fn score<P: Platform>(node: &Node<P>) -> u32 {
    node.zone.blocks().unusable(Order::LARGE) / 10
}

/// Whether there is memory for a block, and for pages to move to meanwhile.
fn has_room<P: Platform>(node: &Node<P>, order: Order) -> bool {
    node.zone.allows(Level::Low, 2 * order.frames())
}

/// Whether a round is under way: from one score to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Memory lies well enough.
    Over,
    /// Blocks are being made, at this look or the next.
    UnderWay,
}

/// Decides, from what was so at the last look.
fn round(was: Round, score: u32) -> Round {
    match was {
        Round::Over if score > SCORE_HIGH => Round::UnderWay,
        Round::UnderWay if score <= SCORE_LOW => Round::Over,
        was => was,
    }
}

/// Makes large blocks until memory lies well, or one could not be made: pages may be in use just
/// then; returns how many.
fn make_ready<P: Platform>(m: &Machine<P>, node: &Node<P>, stopped: &P::Atomic<u8>) -> u32 {
    let mut made = 0;
    while stopped.load(Acquire) == 0
        && has_room(node, Order::LARGE)
        && score(node) > SCORE_LOW
        && make(m, node, Order::LARGE)
    {
        made += 1;
    }
    made
}

/// Makes a block and leaves it in the zone.
fn make<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> bool {
    let method = Method::of(&m.config).expect("it runs where memory is compacted");
    let mut cc = Control::new(node, (order, Mobility::Movable), Mode::Sync, method);
    match evacuate(m, &mut cc, Who::Daemon) {
        Evacuated::Block(first) => {
            m.release_block(node, first, order);
            true
        }
        Evacuated::Contended | Evacuated::Nothing => {
            node.zone.reset_skips(m.platform.now());
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_goes_on_to_the_lower_score() {
        let scores = [90, 91, 88, 81, 80, 85, 90, 95, 40];
        let mut state = Round::Over;
        let rounds = scores.map(|score| {
            state = round(state, score);
            state == Round::UnderWay
        });
        assert_eq!(rounds, [false, true, true, true, false, false, false, true, false]);
    }
}
