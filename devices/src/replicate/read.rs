//! Reads of two replicas.
//!
//! ```text
//! the faster one that has all pages --+--> its answer
//!                                     |--> after a while the other one, too: the first answer
//!                                     \--> a failure: the other one, then page by page from both
//! ```
//! Of two reads into the same frames one is cancelled before the other is finished. Only reads from
//! a server can be cancelled, because the answer stays in the socket until the read is finished.

use crate::arena::Arena;
use crate::device::Device;
use crate::pool::Started;
use crate::remote::LOST;
use crate::replicate::choice::{FAILED_NANOS, choose, hedge_after};
use crate::replicate::{NOWHERE, PATIENCE, Replica, Replicated};
use crate::transfer::admit;
use highwater_platform::{Direction, Io, IoError};
use highwater_units::FrameList;
use std::slice;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often two reads in flight are polled.
const LOOK: Duration = Duration::from_micros(200);

impl Replicated {
    /// The replica to read a batch from; `None`: neither has all of it.
    pub(super) fn side(&self, arena: Arena, batch: &[Io]) -> Option<usize> {
        let valid = |io: &Io| admit(&self.info, Direction::Read, arena, io).is_ok();
        let all_valid = batch.iter().all(valid);
        let has = |replica: &Replica| all_valid && batch.iter().all(|io| replica.has(io));
        let has = self.replicas.each_ref().map(has);
        let reads = self.reads.fetch_add(1, Relaxed);
        let rested = |side: usize| has[side] && !self.replicas[side].rest.lasts(reads);
        let rested = [0, 1].map(rested);
        let paces = self.replicas.each_ref().map(|replica| replica.pace.nanos());
        choose(if rested == [false; 2] { has } else { rested }, paces, reads)
    }

    /// Reads a batch from a replica that has all of it, or from the other one if that is faster.
    ///
    /// # Safety
    /// As for [`Device::read`].
    pub(super) unsafe fn read_from(&self, side: usize, arena: Arena, batch: &mut [Io]) {
        let Replica { device, pace, .. } = &self.replicas[side];
        let began = Instant::now();
        let mut from = side;
        if device.can_cancel() {
            // SAFETY: by contract of this function.
            if let Some(started) = unsafe { device.start(arena, Direction::Read, batch) } {
                // SAFETY: as above.
                from = unsafe { self.finish_read(side, started, arena, batch) };
            }
        } else {
            // SAFETY: as above.
            unsafe { device.read(arena, batch) };
        }
        pace.note(began.elapsed().as_nanos() as u64);
        // SAFETY: as above.
        unsafe { self.mend(from, arena, batch) };
    }

    /// Waits for a read of a replica. If that takes long, the other replica is asked, too, and the
    /// first answer is taken. Returns the replica that answered.
    ///
    /// # Safety
    /// As for [`Device::finish`].
    pub(super) unsafe fn finish_read(
        &self,
        side: usize,
        started: Started,
        arena: Arena,
        batch: &mut [Io],
    ) -> usize {
        let (replica, other) = (&self.replicas[side], &self.replicas[1 - side]);
        let has = |io: &Io| io.result.is_err() || other.has(io);
        let may_hedge = replica.device.can_cancel() && batch.iter().all(has);
        if !may_hedge || replica.device.await_over(&started, hedge_after(replica.pace.nanos())) {
            // SAFETY: by contract of this function.
            unsafe { replica.device.finish(arena, started, batch) };
            return side;
        }
        self.hedged_reads.fetch_add(1, Relaxed);
        // SAFETY: as above; `started` fills no frame before it is finished.
        let second = unsafe { other.device.start(arena, Direction::Read, batch) };
        let Some(second) = second else {
            self.leave_read(replica, started);
            return 1 - side;
        };
        if other.device.can_cancel()
            && first_over(&*replica.device, &started, &*other.device, &second)
        {
            other.device.cancel(second);
            // SAFETY: as above.
            unsafe { replica.device.finish(arena, started, batch) };
            return side;
        }
        self.leave_read(replica, started);
        // SAFETY: as above.
        unsafe { other.device.finish(arena, second, batch) };
        1 - side
    }

    /// Cancels a read that the other replica answers.
    fn leave_read(&self, replica: &Replica, started: Started) {
        replica.device.cancel(started);
        replica.rest.begin(self.reads.load(Relaxed));
    }

    /// Completes a batch that was read from a replica: transfers that failed there are read from
    /// the other.
    ///
    /// # Safety
    /// As for [`Device::read`].
    pub(super) unsafe fn mend(&self, side: usize, arena: Arena, batch: &mut [Io]) {
        for io in batch.iter_mut().filter(|io| io.result.is_err()) {
            self.replicas[side].pace.note(FAILED_NANOS);
            // SAFETY: by contract of this function.
            unsafe { self.read_one(Some(side), arena, io) };
            self.second_reads.fetch_add(io.result.is_ok().into(), Relaxed);
        }
    }

    /// Reads a valid transfer, which has failed on `tried`, from a replica that has it, or page by
    /// page from both.
    ///
    /// # Safety
    /// As for [`Device::read`].
    pub(super) unsafe fn read_one(&self, tried: Option<usize>, arena: Arena, io: &mut Io) {
        for (side, replica) in self.replicas.iter().enumerate() {
            if Some(side) != tried && replica.has(io) {
                // SAFETY: by contract of this function.
                unsafe { replica.device.read(arena, slice::from_mut(io)) };
                if io.result.is_ok() {
                    return;
                }
            }
        }
        let may_differ = io.frames.len() > 1 && !self.replicas.iter().any(Replica::is_lost);
        if may_differ {
            // SAFETY: as above.
            io.result = unsafe { self.read_pages(arena, io) };
        }
        match io.result {
            Err(IoError::Failed(libc::EBADMSG)) => self.altered.store(true, Relaxed),
            Err(LOST) => io.result = Err(NOWHERE),
            _ => {}
        }
    }

    /// Reads each page from a replica that has it.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_pages(&self, arena: Arena, io: &Io) -> Result<(), IoError> {
        (io.slot..).zip(io.frames.iter()).try_for_each(|(slot, pfn)| {
            let mut page = Io::new(slot, FrameList::one(pfn));
            page.result = Err(NOWHERE);
            for replica in &self.replicas {
                if page.result.is_err() && replica.has(&page) {
                    // SAFETY: by contract of this function: a frame of the transfer.
                    unsafe { replica.device.read(arena, slice::from_mut(&mut page)) };
                }
            }
            page.result
        })
    }
}

/// Waits for the first of two reads that can be cancelled; returns whether it is the one of
/// `device`.
fn first_over(
    device: &dyn Device,
    started: &Started,
    other: &dyn Device,
    second: &Started,
) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if other.await_over(second, LOOK) {
            return false;
        }
        if device.await_over(started, LOOK) {
            return true;
        }
    }
    false
}
