//! The queues of an io_uring, through which a process and the kernel exchange transfers.
//!
//! ```text
//! entries   [ sqe | sqe | ... ]                      push ->  kernel
//! rings     head, tail, indices of entries | head, tail, [ cqe | cqe | ... ]   kernel -> pop
//! ```
//! Both lie in the manager's own addresses ([`crate::own_area`]): since Linux 6.5 in pages that
//! this process provides, on older kernels in mappings of the ring's memory.
//!
//! Locks: none, one thread uses a value at a time. In each queue, the producer stores the tail
//! after it has written an entry, and the consumer stores the head after it has read one.

use crate::sys::Mapping;
use highwater_units::PAGE_SIZE;
use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringRegisterOp, IoringSetupFlags,
    io_cqring_offsets, io_sqring_offsets, io_uring_cqe, io_uring_enter, io_uring_params,
    io_uring_ptr, io_uring_register, io_uring_setup, io_uring_sqe,
};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Entries of the submission queue. The completion queue has twice as many.
pub(crate) const DEPTH: usize = u64::BITS as usize;
const ENTRIES_BYTES: usize = DEPTH * size_of::<io_uring_sqe>();

/// The queues. If they are dropped while transfers are in flight, the kernel still completes these.
pub(crate) struct Queues {
    ring: OwnedFd,
    entries: Mapping,
    rings: Mapping,
    to_kernel: io_sqring_offsets,
    from_kernel: io_cqring_offsets,
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// The number given in the entry.
    pub(crate) user_data: u64,
    /// Bytes, or minus the error number.
    pub(crate) result: i32,
}

impl Queues {
    /// Queues whose completions do not interrupt the thread, which waits for them anyway; kernels
    /// before 5.19 do not know that flag.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new() -> rustix::io::Result<Queues> {
        let quiet = IoringSetupFlags::COOP_TASKRUN;
        let mapped =
            || Queues::mapped(quiet).or_else(|_| Queues::mapped(IoringSetupFlags::empty()));
        Queues::provided(quiet).or_else(|_| mapped())
    }

    /// In pages that this process provides.
    fn provided(flags: IoringSetupFlags) -> rustix::io::Result<Queues> {
        let memory = |len| Mapping::new(len).map_err(Errno::from_raw_os_error);
        let (entries, rings) = (memory(ENTRIES_BYTES)?, memory(PAGE_SIZE)?);
        let mut about = io_uring_params::default();
        about.flags = flags | IoringSetupFlags::NO_MMAP;
        about.sq_off.user_addr = io_uring_ptr::new(entries.at(0).cast());
        about.cq_off.user_addr = io_uring_ptr::new(rings.at(0).cast());
        // SAFETY: the kernel refuses memory that is too short, and keeps its pages.
        let ring = unsafe { io_uring_setup(DEPTH as u32, &mut about)? };
        Queues::checked(ring, entries, rings, &about)
    }

    /// In memory that the kernel provides.
    fn mapped(flags: IoringSetupFlags) -> rustix::io::Result<Queues> {
        let mut about = io_uring_params::default();
        about.flags = flags;
        // SAFETY: no address is given.
        let ring = unsafe { io_uring_setup(DEPTH as u32, &mut about)? };
        let map = |len, offset| Mapping::shared(&ring, len, offset);
        let entries = map(ENTRIES_BYTES, IORING_OFF_SQES)?;
        // One mapping has both rings, since Linux 5.4.
        let rings = map(rings_len(&about), IORING_OFF_SQ_RING)?;
        Queues::checked(ring, entries, rings, &about)
    }

    fn checked(
        ring: OwnedFd,
        entries: Mapping,
        rings: Mapping,
        about: &io_uring_params,
    ) -> rustix::io::Result<Queues> {
        let is_whole = about.sq_entries as usize == DEPTH && rings_len(about) <= rings.len();
        let queues =
            Queues { ring, entries, rings, to_kernel: about.sq_off, from_kernel: about.cq_off };
        if !is_whole {
            return Err(Errno::NOTSUP);
        }
        // An entry stays at its index.
        for index in 0..DEPTH as u32 {
            queues.word(queues.to_kernel.array + 4 * index).store(index, Relaxed);
        }
        Ok(queues)
    }

    /// Registers a file, as number 0.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn register(&self, file: RawFd) -> rustix::io::Result<()> {
        let (operation, file) = (IoringRegisterOp::RegisterFiles, &raw const file);
        // SAFETY: the kernel reads one number.
        unsafe { io_uring_register(&self.ring, operation, file.cast(), 1) }.map(|_| ())
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// The memory that it reads or writes stays in place until its completion.
    ///
    /// # Panics
    /// `DEPTH` entries wait for [`Queues::submit`].
    pub(crate) unsafe fn push(&mut self, entry: io_uring_sqe) {
        assert!(self.waiting() < DEPTH, "an index has one entry in the queue");
        let tail = self.word(self.to_kernel.tail).load(Relaxed);
        let at = self.entries.at(tail as usize % DEPTH * size_of::<io_uring_sqe>());
        // SAFETY: within the mapping, aligned, and the kernel has taken what was there.
        unsafe { at.cast::<io_uring_sqe>().write(entry) };
        self.word(self.to_kernel.tail).store(tail.wrapping_add(1), Release);
    }

    /// How many entries wait for [`Queues::submit`].
    pub(crate) fn waiting(&self) -> usize {
        let tail = self.word(self.to_kernel.tail).load(Relaxed);
        tail.wrapping_sub(self.word(self.to_kernel.head).load(Acquire)) as usize
    }

    /// Submits the entries that wait, and waits for this many completions.
    ///
    /// # Errors
    /// The system's refusal, or a signal has come.
    pub(crate) fn submit(&mut self, completions: usize) -> rustix::io::Result<()> {
        let flags = match completions {
            0 => IoringEnterFlags::empty(),
            _ => IoringEnterFlags::GETEVENTS,
        };
        let (waiting, completions) = (self.waiting() as u32, completions as u32);
        // SAFETY: the callers of `push` promised this for the entries.
        unsafe { io_uring_enter(&self.ring, waiting, completions, flags) }.map(|_| ())
    }

    /// How many completions have arrived.
    pub(crate) fn completed(&self) -> usize {
        let head = self.word(self.from_kernel.head).load(Relaxed);
        self.word(self.from_kernel.tail).load(Acquire).wrapping_sub(head) as usize
    }

    /// Takes a completion.
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        if self.completed() == 0 {
            return None;
        }
        let head = self.word(self.from_kernel.head).load(Relaxed);
        let mask = self.word(self.from_kernel.ring_mask).load(Relaxed);
        let index = (head & mask) as usize;
        let at = self.from_kernel.cqes as usize + index * size_of::<io_uring_cqe>();
        // SAFETY: within the mapping, aligned, and written before the kernel stored the tail.
        let found = unsafe { &*self.rings.at(at).cast::<io_uring_cqe>() };
        let found = Completion { user_data: found.user_data.u64_(), result: found.res };
        self.word(self.from_kernel.head).store(head.wrapping_add(1), Release);
        Some(found)
    }

    /// A word of the rings.
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and only ever used as an atomic word.
        unsafe { AtomicU32::from_ptr(self.rings.at(offset as usize).cast()) }
    }
}

impl AsRawFd for Queues {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// Bytes of the rings.
fn rings_len(about: &io_uring_params) -> usize {
    let (indices, completions) = (about.sq_off.array as usize, about.cq_off.cqes as usize);
    let indices = indices + about.sq_entries as usize * size_of::<u32>();
    indices.max(completions + about.cq_entries as usize * size_of::<io_uring_cqe>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::skip_or_fail;
    use rustix::io_uring::{IoringOp, io_uring_user_data};

    fn nothing(number: u64) -> io_uring_sqe {
        let user_data = io_uring_user_data::from_u64(number);
        io_uring_sqe { opcode: IoringOp::Nop, user_data, ..Default::default() }
    }

    /// Pushes several times as many entries as there are places, in groups of one and more.
    fn check(mut queues: Queues) {
        let mut next = 0;
        for round in 1..=3 * DEPTH {
            let count = round % DEPTH + 1;
            for _ in 0..count {
                // SAFETY: nothing is transferred.
                unsafe { queues.push(nothing(next)) };
                next += 1;
            }
            assert_eq!(queues.waiting(), count);
            queues.submit(count).expect("submitted");
            assert_eq!((queues.waiting(), queues.completed()), (0, count));
            for number in next - count as u64..next {
                assert_eq!(queues.pop(), Some(Completion { user_data: number, result: 0 }));
            }
            assert_eq!(queues.pop(), None);
        }
    }

    #[test]
    fn entries_complete_with_their_numbers() {
        let made = [
            Queues::provided(IoringSetupFlags::COOP_TASKRUN),
            Queues::mapped(IoringSetupFlags::empty()),
            Queues::new(),
        ];
        for queues in made {
            match queues {
                Ok(queues) => check(queues),
                Err(error) => skip_or_fail(format_args!("no io_uring: {error}")),
            }
        }
    }

    #[test]
    #[should_panic(expected = "one entry")]
    fn more_entries_than_places_are_refused() {
        let Ok(mut queues) = Queues::new() else {
            skip_or_fail("no io_uring");
            panic!("one entry");
        };
        // SAFETY: nothing is transferred.
        (0..=DEPTH as u64).for_each(|number| unsafe { queues.push(nothing(number)) });
    }
}
