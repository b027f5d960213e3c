//! kcompactd: a thread of each node that makes blocks before they are requested.
//!
//! ```text
//! an allocation finds no block: wake_kcompactd --> makes one block of that order,
//!                               then checks the node twice a second for 10 s:
//!   score > 90: makes large blocks, at this check and the next ones, until the score is 80
//!   no block could be made: skips the checks of the next 32 s
//! ```
//! The score is the percentage of free memory that is not in large blocks
//! (fragmentation_score_node; proactive compaction, Linux 5.9, proactiveness 20). Without requests
//! for blocks the thread sleeps: a program of small pages pays nothing.

use super::control::{Caller, Control};
use super::evacuate::{Evacuated, evacuate};
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

/// The score, in percent, above which kcompactd starts to make blocks.
const SCORE_HIGH: u32 = 90;
/// The score, in percent, at which it stops.
const SCORE_LOW: u32 = 80;
/// Time between checks (HPAGE_FRAG_CHECK_INTERVAL_MSEC).
const PERIOD: Nanos = Nanos(500_000_000);
/// One check in this many is made after a check that made no block (COMPACT_MAX_DEFER_SHIFT).
const SKIPPED_CHECKS: u32 = 1 << 6;
/// How long after a request kcompactd checks the node.
const CHECKED_FOR: Nanos = Nanos(10_000_000_000);
/// A machine with fewer blocks of the largest order gets no kcompactd.
const BLOCKS_MIN: usize = 4;

/// Starts a thread for each node, if memory is compacted and large enough.
///
/// # Errors
/// The system cannot start a thread.
pub fn start<P: Platform>(machine: &Arc<Machine<P>>) -> io::Result<Option<Kthreads<P>>> {
    #[cfg(feature = "history")]
    if machine.config.history.compact.is_some() {
        return Ok(None);
    }
    let blocks = machine.frames.len() / Order::MAX.frames() as usize;
    if !machine.config.compact || blocks < BLOCKS_MIN {
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

/// Requests a block of `order`, which an allocation did not find (wakeup_kcompactd).
pub fn wake_kcompactd<P: Platform>(node: &Node<P>, order: Order) {
    node.kcompactd.order.fetch_max(order.0, AcqRel);
    node.kcompactd.wait.notify_all();
}

/// The body of a thread.
fn run<P: Platform>(m: &Machine<P>, node: &Node<P>, stopped: &P::Atomic<u8>) {
    let _phase = m.enter(phase::COMPACT);
    let (mut last_request, mut skipped, mut state) = (None::<Nanos>, 0, State::Idle);
    loop {
        let ticket = node.kcompactd.wait.ticket();
        if stopped.load(Acquire) != 0 {
            return;
        }
        let now = m.platform.now();
        match Order(node.kcompactd.order.swap(0, AcqRel)) {
            Order(0) => {
                let is_recent = |request| now.since(request) < CHECKED_FOR;
                let timeout = last_request.is_some_and(is_recent).then_some(PERIOD);
                if timeout.is_some() && skipped == 0 {
                    state = next_state(state, score(node));
                    let goes_on = || stopped.load(Acquire) == 0;
                    if state == State::MakingBlocks && make_blocks(m, node, SCORE_LOW, goes_on) == 0
                    {
                        skipped = SKIPPED_CHECKS;
                    }
                }
                skipped = skipped.saturating_sub(1);
                node.kcompactd.wait.wait(ticket, timeout);
            }
            order => {
                last_request = Some(now);
                m.count(Counter::CompactDaemonWake, 1);
                if has_room(node, order) && !node.zone.has_block(order, Mobility::Movable) {
                    make_block(m, node, order);
                }
            }
        }
    }
}

/// The percentage of free memory that is not in large blocks.
fn score<P: Platform>(node: &Node<P>) -> u32 {
    node.zone.blocks().unusable(Order::LARGE) / 10
}

/// Whether memory is free for a block, and for pages that move out of it.
fn has_room<P: Platform>(node: &Node<P>, order: Order) -> bool {
    node.zone.allows(Level::Low, 2 * order.frames())
}

/// The action of kcompactd at a periodic check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing: the score is low enough.
    Idle,
    /// It makes blocks, until the score is [`SCORE_LOW`].
    MakingBlocks,
}

fn next_state(state: State, score: u32) -> State {
    match state {
        State::Idle if score > SCORE_HIGH => State::MakingBlocks,
        State::MakingBlocks if score <= SCORE_LOW => State::Idle,
        unchanged => unchanged,
    }
}

/// Makes large blocks of all nodes' free memory at once; returns how many.
pub fn all<P: Platform>(m: &Machine<P>) -> u32 {
    if !m.config.compact {
        return 0;
    }
    let _phase = m.enter(phase::COMPACT);
    m.nodes.iter().map(|node| make_blocks(m, node, 0, || true)).sum()
}

/// Makes large blocks until the score is `wanted`, or one cannot be made because its pages are in
/// use; returns how many, at most as many as the node has.
fn make_blocks<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    wanted: u32,
    goes_on: impl Fn() -> bool,
) -> u32 {
    let most = node.zone.range().frames / Order::LARGE.frames();
    let mut made = 0;
    while made < most
        && goes_on()
        && has_room(node, Order::LARGE)
        && score(node) > wanted
        && make_block(m, node, Order::LARGE)
    {
        made += 1;
    }
    made
}

/// Makes a block and leaves it free in the zone; returns whether it could.
fn make_block<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> bool {
    let mut cc = Control::new(node, (order, Mobility::Movable), Mode::Sync);
    match evacuate(m, &mut cc, Caller::Kcompactd) {
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
    fn kcompactd_makes_blocks_until_the_lower_score() {
        let scores = [90, 91, 88, 81, 80, 85, 90, 95, 40];
        let mut state = State::Idle;
        let made = scores.map(|score| {
            state = next_state(state, score);
            state == State::MakingBlocks
        });
        assert_eq!(made, [false, true, true, true, false, false, false, true, false]);
    }
}
