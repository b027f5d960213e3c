//! Writes of a kswapd thread that are in flight while it reclaims further batches.
//!
//! ```text
//! evict -> send: transfers started ... done, or the queue is full -> complete: frames free
//! batches  [ oldest | ... | newest |   |   ]   a ring of batches of up to 32 pages to one device
//! ```
//! The thread that started a batch completes it, and completes all of them before it sleeps,
//! because a fault on one of the pages waits for that. After a write error the thread waits for
//! each write, until one succeeds or the thread sleeps. Pages whose write failed are restored once
//! nothing is in flight: a thread that holds such a page's entry may wait for another page in the
//! queue. For the same reason the queue makes room before the first page of a batch is taken.

use super::destinations::{Destinations, detach, put_back};
use super::throttle;
use super::transfers::Transfers;
use crate::config::KSWAPD_WRITES_MAX;
use crate::lru::Kind;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::swap::InFlight;
use crate::write_completion::{complete_cached, restore_cached};
use highwater_platform::{Io, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList};

/// Frames of memory for each batch in flight: 16 threads have at most a quarter of it in flight.
const FRAMES_PER_BATCH: usize = 2048;

/// The writes of one kswapd thread that are in flight.
pub struct WriteQueue<P: Platform> {
    batches: Vec<Batch<P>>,
    /// Index of the oldest one.
    first: usize,
    len: usize,
    mode: Mode,
}

/// Whether the thread waits for its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It counts the frames of writes in flight as freed, and goes on.
    Async,
    /// It waits for each, since one failed.
    Sync,
}

/// A batch to one device.
struct Batch<P: Platform> {
    ios: [Io; BATCH_PAGES_MAX],
    len: usize,
    device: u8,
    /// `None`: complete.
    writing: Option<InFlight<P>>,
}

impl<P: Platform> Batch<P> {
    fn empty() -> Batch<P> {
        let none = [Io::new(0, FrameList::default()); BATCH_PAGES_MAX];
        Batch { ios: none, len: 0, device: 0, writing: None }
    }
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completion {
    /// All of it was written.
    Written,
    /// Some pages are to be restored.
    Failed,
}

/// Batches in flight, in a memory of `frames` frames.
fn depth<P: Platform>(m: &Machine<P>, frames: usize) -> usize {
    let by_frames = || (frames / FRAMES_PER_BATCH).min(KSWAPD_WRITES_MAX);
    match m.config.kswapd_writes.unwrap_or_else(by_frames) {
        0 => 0,
        depth => depth.max(m.swap.devices().count()),
    }
}

impl<P: Platform> WriteQueue<P> {
    /// An empty queue. In small memory it has no room for any batch.
    pub fn new(m: &Machine<P>) -> WriteQueue<P> {
        let depth = depth(m, m.frames.len());
        let batches = (0..depth).map(|_| Batch::empty()).collect();
        WriteQueue { batches, first: 0, len: 0, mode: Mode::Async }
    }

    /// Whether it accepts batches; if not, the thread waits for its writes.
    pub(super) fn is_open(&self) -> bool {
        !self.batches.is_empty() && self.mode == Mode::Async
    }

    /// Waits until a batch has room, whatever devices its pages go to.
    pub(super) fn make_room(&mut self, m: &Machine<P>, node: &Node<P>) {
        let devices = m.swap.devices().count();
        // The balloon may have grown since.
        let depth = depth(m, m.present()).max(devices);
        while self.len > 0 && depth < self.len + devices {
            self.complete_oldest(m, node);
        }
    }

    /// Starts transfers. The caller has made room for them.
    pub(super) fn send(&mut self, m: &Machine<P>, node: &Node<P>, transfers: &Transfers) {
        let _phase = m.enter(phase::SWAP_OUT);
        for device in transfers.devices() {
            if self.len == self.batches.len() {
                self.grow();
            }
            let at = (self.first + self.len) % self.batches.len();
            let batch = &mut self.batches[at];
            (batch.device, batch.len) = (device, 0);
            for io in transfers.to(device) {
                batch.ios[batch.len] = *io;
                batch.len += 1;
            }
            let ios = &mut batch.ios[..batch.len];
            batch.writing = Some(m.swap.start_write(&m.platform, device, ios));
            self.len += 1;
        }
        while self.oldest_is_done(m) {
            self.complete_oldest(m, node);
        }
    }

    /// Makes room for one batch more: a device was added after [`WriteQueue::make_room`].
    fn grow(&mut self) {
        self.batches.rotate_left(self.first);
        self.first = 0;
        self.batches.push(Batch::empty());
    }

    fn oldest_is_done(&self, m: &Machine<P>) -> bool {
        let oldest = self.batches.get(self.first).filter(|_| self.len > 0);
        let writing = oldest.and_then(|batch| batch.writing.as_ref());
        writing.is_some_and(|writing| writing.is_over(&m.platform))
    }

    fn complete_oldest(&mut self, m: &Machine<P>, node: &Node<P>) {
        match self.complete(m, node, self.first) {
            Completion::Written => {
                self.first = (self.first + 1) % self.batches.len();
                self.len -= 1;
            }
            Completion::Failed => {
                self.mode = Mode::Sync;
                self.complete_all(m, node);
            }
        }
    }

    /// A write that the thread waited for has succeeded: it no longer waits.
    pub(super) fn write_succeeded(&mut self) {
        self.mode = Mode::Async;
    }

    /// Completes all writes, before the thread sleeps.
    pub(super) fn close(&mut self, m: &Machine<P>, node: &Node<P>) {
        self.complete_all(m, node);
        self.mode = Mode::Async;
    }

    /// Completes all writes, and restores the pages of those that failed.
    pub(super) fn complete_all(&mut self, m: &Machine<P>, node: &Node<P>) {
        let _phase = m.enter(phase::SWAP_OUT);
        for index in 0..self.len {
            self.complete(m, node, (self.first + index) % self.batches.len());
        }
        for index in 0..self.len {
            let at = (self.first + index) % self.batches.len();
            let Batch { ios, len, device, .. } = &self.batches[at];
            let mut to = Destinations::default();
            restore_cached(m, *device, &ios[..*len], |pfn, outcome| to.push_written(pfn, outcome));
            send_on(m, node, &to);
        }
        self.len = 0;
    }

    /// Waits for a batch, unless it is complete, and frees its frames.
    fn complete(&mut self, m: &Machine<P>, node: &Node<P>, at: usize) -> Completion {
        let Batch { ios, len, device, writing } = &mut self.batches[at];
        let ios = &mut ios[..*len];
        if let Some(writing) = writing.take() {
            m.swap.finish_write(&m.platform, &m.stats, writing, ios);
            let mut to = Destinations::default();
            complete_cached(m, *device, ios, |pfn, outcome| to.push_written(pfn, outcome));
            send_on(m, node, &to);
            for counter in [Counter::PgStealKswapd, Counter::PgStealAnon] {
                m.count(counter, to.freed.len() as u64);
            }
        }
        if ios.iter().all(|io| io.result.is_ok()) {
            Completion::Written
        } else {
            Completion::Failed
        }
    }
}

/// Frees the frames of evicted pages, to the zone for all CPUs, and puts the others on their lists.
fn send_on<P: Platform>(m: &Machine<P>, node: &Node<P>, to: &Destinations) {
    detach(m, &to.freed);
    m.free_to_zone(&to.freed);
    if !to.freed.is_empty() {
        throttle::kswapd_progressed(m, node);
    }
    put_back(m, node, Kind::Anon, to);
}
