//! Batches that a kswapd thread has under write, so that the device need not wait for it.
//!
//! ```text
//! evict -> send: started ... over, or no room for more -> land: frames free
//! flights  [ oldest | ... | newest |   |   ]   a ring of `depth` batches of up to 32 pages
//! ```
//! The thread that started a batch finishes it, and finishes all before it sleeps: a fault that
//! wants one of the pages waits for that. A write that failed is taken back only when nothing is
//! under way any more, nor about to be, because its page's entry may be held by who waits for
//! another page here: so room for a batch is made before the first of its pages is taken.

use super::evict::{Piles, Writes, disown, put_back, settle, take_back};
use super::throttle;
use crate::config::KSWAPD_WRITES_MAX;
use crate::lru::Kind;
use crate::machine::{Machine, Node};
use crate::phase;
use crate::stats::Counter;
use crate::swap::InFlight;
use highwater_platform::{Io, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList};

/// Frames of a budget for each batch: even 16 threads have a quarter of it under way at most.
const FRAMES_PER_BATCH: usize = 2048;

/// What a thread has under write.
pub struct Outbox<P: Platform> {
    flights: Box<[Flight<P>]>,
    /// The oldest one.
    first: usize,
    len: usize,
    trust: Trust,
}

/// Whether a batch under way counts as frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// Yes.
    Yes,
    /// A write failed: each is waited for, until one succeeds or the thread has slept.
    No,
}

/// A batch to one device.
struct Flight<P: Platform> {
    ios: [Io; BATCH_PAGES_MAX],
    len: usize,
    device: u8,
    /// `None`: it is over.
    writing: Option<InFlight<P>>,
}

impl<P: Platform> Outbox<P> {
    /// An empty one. That of a small budget stays so.
    pub fn new(m: &Machine<P>) -> Outbox<P> {
        let by_frames = || (m.frames.len() / FRAMES_PER_BATCH).min(KSWAPD_WRITES_MAX);
        let depth = match m.config.kswapd_writes.unwrap_or_else(by_frames) {
            0 => 0,
            depth => depth.max(m.swap.devices().len()),
        };
        let none = [Io::new(0, FrameList::default()); BATCH_PAGES_MAX];
        let flight = |_| Flight { ios: none, len: 0, device: 0, writing: None };
        Outbox { flights: (0..depth).map(flight).collect(), first: 0, len: 0, trust: Trust::Yes }
    }

    /// Whether it may be sent to; else writes are to be waited for.
    pub(super) fn is_open(&self) -> bool {
        !self.flights.is_empty() && self.trust == Trust::Yes
    }

    /// Waits until a batch has room, whatever devices its pages go to.
    pub(super) fn make_room(&mut self, m: &Machine<P>, node: &Node<P>) {
        let devices = m.swap.devices().len();
        while self.len > 0 && self.flights.len() - self.len < devices {
            self.finish_oldest(m, node);
        }
    }

    /// Begins to write a batch. There is room for it.
    pub(super) fn send(&mut self, m: &Machine<P>, node: &Node<P>, writes: &Writes) {
        let _phase = m.enter(phase::SWAP_OUT);
        for device in writes.devices() {
            let at = (self.first + self.len) % self.flights.len();
            let flight = &mut self.flights[at];
            (flight.device, flight.len) = (device, 0);
            for io in writes.to(device) {
                flight.ios[flight.len] = *io;
                flight.len += 1;
            }
            let batch = &mut flight.ios[..flight.len];
            flight.writing = Some(m.swap.start_write(&m.platform, device, batch));
            self.len += 1;
        }
        while self.oldest_is_over(m) {
            self.finish_oldest(m, node);
        }
    }

    fn oldest_is_over(&self, m: &Machine<P>) -> bool {
        let oldest = self.flights.get(self.first).filter(|_| self.len > 0);
        let writing = oldest.and_then(|flight| flight.writing.as_ref());
        writing.is_some_and(|writing| writing.is_over(&m.platform))
    }

    fn finish_oldest(&mut self, m: &Machine<P>, node: &Node<P>) {
        match self.land(m, node, self.first) {
            Landed::Whole => {
                self.first = (self.first + 1) % self.flights.len();
                self.len -= 1;
            }
            Landed::Failed => {
                self.trust = Trust::No;
                self.finish_all(m, node);
            }
        }
    }

    /// A batch that was waited for was written, all of it: the next ones need not be waited for.
    pub(super) fn trust(&mut self) {
        self.trust = Trust::Yes;
    }

    /// Waits for all that is under way: the thread is going to sleep.
    pub(super) fn close(&mut self, m: &Machine<P>, node: &Node<P>) {
        self.finish_all(m, node);
        self.trust = Trust::Yes;
    }

    /// Waits for all that is under way.
    pub(super) fn finish_all(&mut self, m: &Machine<P>, node: &Node<P>) {
        let _phase = m.enter(phase::SWAP_OUT);
        for index in 0..self.len {
            let _ = self.land(m, node, (self.first + index) % self.flights.len());
        }
        for index in 0..self.len {
            let at = (self.first + index) % self.flights.len();
            let Flight { ios, len, device, .. } = &self.flights[at];
            let mut piles = Piles::default();
            take_back(m, *device, &ios[..*len], &mut piles);
            give_out(m, node, &piles);
        }
        self.len = 0;
    }

    /// Waits for a batch, unless it is over, and frees its frames.
    fn land(&mut self, m: &Machine<P>, node: &Node<P>, at: usize) -> Landed {
        let Flight { ios, len, device, writing } = &mut self.flights[at];
        let batch = &mut ios[..*len];
        if let Some(writing) = writing.take() {
            m.swap.finish_write(&m.platform, &m.stats, writing, batch);
            let mut piles = Piles::default();
            settle(m, *device, batch, &mut piles);
            give_out(m, node, &piles);
            for counter in [Counter::PgStealKswapd, Counter::PgStealAnon] {
                m.count(counter, piles.freed.len() as u64);
            }
        }
        match batch.iter().all(|io| io.result.is_ok()) {
            true => Landed::Whole,
            false => Landed::Failed,
        }
    }
}

/// The frames of pages that are gone are for all, the others go back to their lists.
fn give_out<P: Platform>(m: &Machine<P>, node: &Node<P>, piles: &Piles) {
    disown(m, &piles.freed);
    m.free_to_zone(&piles.freed);
    if !piles.freed.is_empty() {
        throttle::relieve(m, node);
    }
    put_back(m, node, Kind::Anon, piles);
}

/// How the write of a batch went.
enum Landed {
    /// All of it was written.
    Whole,
    /// Some is to be taken back.
    Failed,
}
