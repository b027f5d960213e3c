//! kswapd: threads that keep a node's free frames above its watermarks.
//!
//! All threads of a node wait for one alarm and run the same loop over the same lists, as in the
//! multiple-kswapd patch. An allocation that finds the zone below low rings; kswapd works until the
//! zone is at high. A node where it can free nothing is hopeless until the next alarm.

use super::balance::{Reclaimer, shrink};
use super::crew::Crew;
use super::outbox::Outbox;
use super::throttle;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::zone::Level;
use highwater_platform::{Atomic, Event, Platform, Ticket};
use highwater_units::{BATCH_PAGES_MAX, Nanos};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Fruitless rounds after which kswapd leaves it to direct reclaim (MAX_RECLAIM_RETRIES).
const FAILURES_MAX: u32 = 16;

/// What a kswapd thread is told, and what others see of it.
pub(super) struct Duty<P: Platform> {
    ended: P::Atomic<u8>,
    /// Time it has slept, without the present sleep.
    slept: AtomicU64,
    /// When the present sleep began; 0: it is awake.
    asleep_since: AtomicU64,
}

impl<P: Platform> Duty<P> {
    /// It goes on.
    pub(super) fn new() -> Duty<P> {
        Duty { ended: Atomic::new(0), slept: AtomicU64::new(0), asleep_since: AtomicU64::new(0) }
    }

    /// The thread returns, once its node's alarm is rung.
    pub(super) fn end(&self) {
        self.ended.store(1, Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Acquire) != 0
    }

    /// How long it had slept, about `now`.
    pub(super) fn slept(&self, now: Nanos) -> Nanos {
        let asleep = match self.asleep_since.load(Relaxed) {
            0 => 0,
            since => now.0.saturating_sub(since),
        };
        Nanos(self.slept.load(Relaxed) + asleep)
    }

    /// Sleeps by `wait`.
    fn sleep(&self, platform: &P, wait: impl FnOnce()) {
        let from = platform.now();
        self.asleep_since.store(from.0.max(1), Relaxed);
        wait();
        self.asleep_since.store(0, Relaxed);
        self.slept.fetch_add(platform.now().since(from).0, Relaxed);
    }
}

/// The body of a kswapd thread of node `index`; returns after its duty was ended and the alarm
/// rung.
pub(super) fn run<P: Platform>(crew: &Arc<Crew<P>>, index: usize, seat: usize, duty: &Duty<P>) {
    let m = &*crew.machine;
    let _phase = m.enter(phase::RECLAIM);
    let node = &m.nodes[index];
    let sleep = |ticket| {
        let patience = crew.patience(index);
        duty.sleep(&m.platform, || node.kswapd_wait.wait(ticket, patience));
        crew.review(index);
    };
    let mut outbox = Outbox::new(m);
    loop {
        let ticket = node.kswapd_wait.ticket();
        if duty.has_ended() {
            return;
        }
        if node.zone.allows(Level::Low, 1) {
            sleep(ticket);
            continue;
        }
        let before = m.platform.thread_cpu_time();
        m.shrink_caches();
        let outcome = balance(m, node, duty, &mut outbox, || crew.review(index));
        outbox.close(m, node);
        let used = m.platform.thread_cpu_time().since(before);
        m.count(Counter::PageOutRun, 1);
        m.count(Counter::KswapdNanos, used.0);
        crew.used(index, seat, used);
        match outcome {
            Balance::Done => {}
            Balance::GaveUp(ticket) => sleep(ticket),
        }
    }
}

/// What came of balancing a node.
enum Balance {
    /// The zone is at its high mark, or the thread is to end.
    Done,
    /// Nothing could be freed. The ticket is from before the last attempt, and before the last look
    /// at the duty: who has rung since then is heard.
    GaveUp(Ticket),
}

/// Frees until the zone is at its high mark.
fn balance<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    duty: &Duty<P>,
    outbox: &mut Outbox<P>,
    review: impl Fn(),
) -> Balance {
    let mut failures = 0;
    loop {
        let ticket = node.kswapd_wait.ticket();
        if node.zone.allows(Level::High, 0) || duty.has_ended() {
            return Balance::Done;
        }
        let missing = node.zone.marks().high.saturating_sub(node.zone.free_frames());
        let target = missing.clamp(1, BATCH_PAGES_MAX as u32);
        match shrink(m, node, &mut Reclaimer::Kswapd(outbox), target) {
            0 if failures == FAILURES_MAX => {
                m.count(Counter::KswapdHopeless, 1);
                throttle::give_up(m, node);
                return Balance::GaveUp(ticket);
            }
            0 => {
                m.platform.relax(failures);
                failures += 1;
            }
            _ => {
                failures = 0;
                throttle::relieve(m, node);
            }
        }
        review();
    }
}
