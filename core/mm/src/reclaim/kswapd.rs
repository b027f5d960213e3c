//! kswapd: threads that keep a node's free frames above its watermarks.
//!
//! ```text
//! allocation below low -> wake_kswapd -> run: balance_node until free frames reach high -> sleep
//! ```
//! All threads of a node wait for the same event and run the same loop over the same lists, as in
//! the multiple-kswapd patch. After 17 rounds that free nothing, kswapd gives up on the node until
//! the next wake-up.

use super::reclaimer::Reclaimer;
use super::shrink::shrink;
use super::throttle;
use super::write_queue::WriteQueue;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::zone::Level;
use highwater_platform::{Atomic, Event, Platform, Ticket};
use highwater_units::{BATCH_PAGES_MAX, Nanos};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Rounds without a freed frame after which kswapd gives up (MAX_RECLAIM_RETRIES).
const FAILURES_MAX: u32 = 16;

/// Wakes a node's kswapd threads: an allocation found the node below its low watermark, or a thread
/// is to end. No other function wakes them.
pub fn wake_kswapd<P: Platform>(node: &Node<P>) {
    node.kswapd_wait.notify_all();
}

/// Whether kswapd has work when it wakes: the node is below its low watermark.
fn is_below_low<P: Platform>(node: &Node<P>) -> bool {
    !node.zone.allows(Level::Low, 1)
}

/// State shared by a kswapd thread and the pool that started it.
pub(super) struct Control<P: Platform> {
    stopped: P::Atomic<u8>,
    /// Time slept, without the present sleep.
    slept: AtomicU64,
    /// When the present sleep began; 0: awake.
    asleep_since: AtomicU64,
}

impl<P: Platform> Control<P> {
    pub(super) fn new() -> Control<P> {
        Control {
            stopped: Atomic::new(0),
            slept: AtomicU64::new(0),
            asleep_since: AtomicU64::new(0),
        }
    }

    /// Stops the thread; it returns after the next [`wake_kswapd`].
    pub(super) fn stop(&self) {
        self.stopped.store(1, Release);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Acquire) != 0
    }

    /// Time slept until `now`.
    pub(super) fn slept(&self, now: Nanos) -> Nanos {
        let asleep = match self.asleep_since.load(Relaxed) {
            0 => 0,
            since => now.0.saturating_sub(since),
        };
        Nanos(self.slept.load(Relaxed) + asleep)
    }

    /// Runs `wait` and counts its time as slept.
    fn sleep(&self, platform: &P, wait: impl FnOnce()) {
        let from = platform.now();
        self.asleep_since.store(from.0.max(1), Relaxed);
        wait();
        self.asleep_since.store(0, Relaxed);
        self.slept.fetch_add(platform.now().since(from).0, Relaxed);
    }
}

/// The pool as a kswapd thread uses it.
pub(super) trait Pool {
    /// How long the thread sleeps if nothing wakes it.
    fn sleep_max(&self) -> Option<Nanos>;
    /// Adapts the number of threads, if that is due.
    fn review(&self);
    /// Counts CPU time of the thread.
    fn add_cpu_time(&self, time: Nanos);
}

/// The body of a kswapd thread; returns once it is stopped and woken.
pub(super) fn run<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    control: &Control<P>,
    pool: &impl Pool,
) {
    let _phase = m.enter(phase::RECLAIM);
    let sleep = |ticket| {
        let max = pool.sleep_max();
        control.sleep(&m.platform, || node.kswapd_wait.wait(ticket, max));
        pool.review();
    };
    let mut queue = WriteQueue::new(m);
    loop {
        let ticket = node.kswapd_wait.ticket();
        if control.is_stopped() {
            return;
        }
        if !is_below_low(node) {
            sleep(ticket);
            continue;
        }
        let before = m.platform.thread_cpu_time();
        m.shrink_caches();
        let outcome = balance_node(m, node, control, &mut queue, pool);
        queue.close(m, node);
        let used = m.platform.thread_cpu_time().since(before);
        m.count(Counter::PageOutRun, 1);
        m.count(Counter::KswapdNanos, used.0);
        pool.add_cpu_time(used);
        match outcome {
            Outcome::Balanced => {}
            Outcome::GaveUp(ticket) => sleep(ticket),
        }
    }
}

/// The result of balancing a node.
enum Outcome {
    /// The node is at its high watermark, or the thread is stopped.
    Balanced,
    /// No frame could be freed. The ticket is older than the last attempt and the last check of
    /// `stopped`, so no wake-up since then is lost.
    GaveUp(Ticket),
}

/// Frees frames until the node is at its high watermark (balance_pgdat).
fn balance_node<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    control: &Control<P>,
    queue: &mut WriteQueue<P>,
    pool: &impl Pool,
) -> Outcome {
    let mut failures = 0;
    loop {
        let ticket = node.kswapd_wait.ticket();
        if node.zone.allows(Level::High, 0) || control.is_stopped() {
            return Outcome::Balanced;
        }
        let missing = node.zone.marks().high.saturating_sub(node.zone.free_frames());
        let target = missing.clamp(1, BATCH_PAGES_MAX as u32);
        match shrink(m, node, &mut Reclaimer::Kswapd(queue), target) {
            0 if failures == FAILURES_MAX => {
                m.count(Counter::KswapdHopeless, 1);
                throttle::kswapd_gave_up(m, node);
                return Outcome::GaveUp(ticket);
            }
            0 => {
                m.platform.relax(failures);
                failures += 1;
            }
            _ => {
                failures = 0;
                throttle::kswapd_progressed(m, node);
            }
        }
        pool.review();
    }
}
