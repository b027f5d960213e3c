//! One io_uring: one system call submits a batch and waits for it.
//!
//! ```text
//! Ring   queues, shared with the kernel      work[i]: vectors and progress of transfer i
//! ```
//! Locks: none, a ring has one holder at a time (`pool`). The file is registered with the ring, so
//! transfers reach it even if the program closes its descriptor.

use crate::arena::Arena;
pub(crate) use crate::queues::DEPTH;
use crate::queues::{Completion, Queues};
use crate::transfer::{NO_VECTORS, Outcome, Vectors, fill_vectors, length, offset, outcome};
use highwater_platform::{Direction, Io};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringOp, IoringSqeFlags, addr_or_splice_off_in_union, io_uring_ptr, io_uring_sqe,
    io_uring_user_data, len_union, off_or_addr2_union,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// A set of transfers of a chunk, by index.
pub(crate) type Set = u64;

/// A ring over one file.
pub(crate) struct Ring {
    queues: Queues,
    work: Box<[Work]>,
}

#[derive(Clone, Copy)]
struct Work {
    vectors: Vectors,
    done: usize,
}

// SAFETY: the vectors are used only while the one holder of the ring has a batch in flight.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring over `file`.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Ring> {
        let queues = Queues::new()?;
        queues.register(file.as_raw_fd())?;
        Ok(Ring { queues, work: vec![Work { vectors: NO_VECTORS, done: 0 }; DEPTH].into() })
    }

    /// Makes the transfers of `todo`, all in flight at once, and waits for them. If the ring fails,
    /// returns the transfers that were not made; the ring must then be abandoned.
    ///
    /// # Safety
    /// The transfers were admitted, and no other thread touches their frames meanwhile.
    pub(crate) unsafe fn transfer(
        &mut self,
        direction: Direction,
        arena: Arena,
        chunk: &mut [Io],
        todo: Set,
    ) -> Set {
        // SAFETY: as the caller promises, until `finish` has seen the completions.
        unsafe { self.queue(direction, arena, chunk, todo) };
        // SAFETY: as above.
        unsafe { self.finish(direction, arena, chunk, todo) }
    }

    /// Submits the transfers of `todo` without waiting. [`Ring::finish`] waits for them, and finds
    /// the transfers that the ring did not take.
    ///
    /// # Safety
    /// As for [`Ring::transfer`], until `finish` has returned.
    pub(crate) unsafe fn start(
        &mut self,
        direction: Direction,
        arena: Arena,
        chunk: &[Io],
        todo: Set,
    ) {
        // SAFETY: by contract of this function.
        unsafe { self.queue(direction, arena, chunk, todo) };
        // `finish` submits again and sees the error.
        let _ = self.queues.submit(0);
    }

    /// Whether all transfers of `left` have completed.
    pub(crate) fn is_over(&mut self, left: Set) -> bool {
        self.queues.completed() >= left.count_ones() as usize
    }

    /// # Safety
    /// As for [`Ring::push`].
    unsafe fn queue(&mut self, direction: Direction, arena: Arena, chunk: &[Io], todo: Set) {
        for index in members(todo) {
            self.work[index].done = 0;
            // SAFETY: by contract of this function.
            unsafe { self.push(direction, arena, &chunk[index], index) };
        }
    }

    /// Waits for the transfers of `left`; returns those that were not made, as [`Ring::transfer`].
    ///
    /// # Safety
    /// They were started, with the contents that `chunk` has.
    pub(crate) unsafe fn finish(
        &mut self,
        direction: Direction,
        arena: Arena,
        chunk: &mut [Io],
        left: Set,
    ) -> Set {
        // SAFETY: by contract of this function.
        let mut left = unsafe { self.reap(direction, arena, chunk, left) };
        while left != 0 {
            match self.queues.submit(left.count_ones() as usize) {
                Ok(()) => {}
                Err(error) if is_transient(error) => {}
                Err(_) => return self.settle(left),
            }
            // SAFETY: by contract of this function.
            left = unsafe { self.reap(direction, arena, chunk, left) };
        }
        left
    }

    /// # Safety
    /// No other thread touches the frames until the completion was seen.
    unsafe fn push(&mut self, direction: Direction, arena: Arena, io: &Io, index: usize) {
        let work = &mut self.work[index];
        let count = fill_vectors(arena, io, work.done, &mut work.vectors) as u32;
        let vectors = work.vectors.as_ptr().cast_mut().cast();
        let entry = io_uring_sqe {
            opcode: match direction {
                Direction::Read => IoringOp::Readv,
                Direction::Write => IoringOp::Writev,
            },
            // The registered file, which is number 0.
            flags: IoringSqeFlags::FIXED_FILE,
            off_or_addr2: off_or_addr2_union { off: offset(io, work.done) },
            addr_or_splice_off_in: addr_or_splice_off_in_union { addr: io_uring_ptr::new(vectors) },
            len: len_union { len: count },
            user_data: io_uring_user_data::from_u64(index as u64),
            ..Default::default()
        };
        // SAFETY: vectors and frames live until the completion.
        unsafe { self.queues.push(entry) };
    }

    /// Processes completions and submits short transfers again; returns the transfers still left.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    unsafe fn reap(
        &mut self,
        direction: Direction,
        arena: Arena,
        chunk: &mut [Io],
        mut left: Set,
    ) -> Set {
        while let Some(completion) = self.next_completion() {
            let (index, moved) = completion;
            let io = &mut chunk[index];
            match outcome(direction, self.work[index].done, length(io), moved) {
                Outcome::Finished(result) => {
                    io.result = result;
                    left &= !(1 << index);
                }
                Outcome::Again(done) => {
                    self.work[index].done = done;
                    // SAFETY: by contract of this function.
                    unsafe { self.push(direction, arena, &chunk[index], index) };
                }
            }
        }
        left
    }

    /// The index of a completed transfer, and its bytes or error number.
    fn next_completion(&mut self) -> Option<(usize, Result<usize, i32>)> {
        let Completion { user_data, result } = self.queues.pop()?;
        let moved = usize::try_from(result).map_err(|_| -result);
        Some((user_data as usize, moved))
    }

    /// For a ring to which the kernel denies further submissions: waits until no submitted transfer
    /// touches a frame any more, and returns all of `left`. Repeating a transfer does no harm.
    fn settle(&mut self, left: Set) -> Set {
        let waiting = self.queues.waiting();
        let mut in_flight = left.count_ones() as usize - waiting;
        while in_flight > 0 {
            // At the end of a system call the kernel posts completions.
            std::thread::yield_now();
            in_flight -= std::iter::from_fn(|| self.next_completion()).count();
        }
        left
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.queues.as_raw_fd()
    }
}

/// The members of a set, in order.
pub(crate) fn members(set: Set) -> impl Iterator<Item = usize> {
    let mut rest = set;
    std::iter::from_fn(move || {
        let index = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(index)
    })
}

fn is_transient(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Mapping;
    use highwater_platform::testing::skip_or_fail;
    use highwater_units::{FrameList, PAGE_SIZE, Pfn};
    use std::fs::File;
    use std::os::fd::AsFd;

    struct Setup {
        memory: Mapping,
        file: File,
        ring: Ring,
    }

    impl Setup {
        fn new() -> Option<Setup> {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            Setup::over(file)
        }

        fn over(file: File) -> Option<Setup> {
            let ring = Ring::new(file.as_fd());
            let ring = ring.inspect_err(|e| skip_or_fail(format_args!("no io_uring: {e}"))).ok()?;
            Some(Setup { memory: Mapping::new(64 * PAGE_SIZE).unwrap(), file, ring })
        }

        fn fill(&self, pfn: u32, byte: u8) {
            // SAFETY: within the mapping.
            unsafe { self.memory.at(pfn as usize * PAGE_SIZE).write_bytes(byte, PAGE_SIZE) };
        }

        fn holds(&self, pfn: u32, byte: u8) -> bool {
            let at = self.memory.at(pfn as usize * PAGE_SIZE);
            // SAFETY: within the mapping, and no thread writes meanwhile.
            unsafe { std::slice::from_raw_parts(at, PAGE_SIZE) }.iter().all(|b| *b == byte)
        }

        fn transfer(&mut self, direction: Direction, chunk: &mut [Io]) -> Set {
            // SAFETY: page-aligned, and mapped throughout.
            let arena = unsafe { Arena::new(self.memory.at(0), 64) };
            let todo = Set::MAX >> (DEPTH - chunk.len());
            // SAFETY: all within file and arena, and no other thread uses the frames.
            unsafe { self.ring.transfer(direction, arena, chunk, todo) }
        }
    }

    fn singles() -> Vec<Io> {
        (0..DEPTH as u32).map(|i| Io::new(i, FrameList::one(Pfn(i)))).collect()
    }

    #[test]
    fn a_full_queue_goes_out_at_once_and_comes_back() {
        let Some(mut setup) = Setup::new() else { return };
        for round in 1..20 {
            (0..64).for_each(|pfn| setup.fill(pfn, pfn as u8 ^ round));
            assert_eq!(setup.transfer(Direction::Write, &mut singles()), 0);
            (0..64).for_each(|pfn| setup.fill(pfn, 0xee));
            let mut chunk = singles();
            assert_eq!(setup.transfer(Direction::Read, &mut chunk), 0);
            assert!(chunk.iter().all(|io| io.result == Ok(())));
            assert!((0..64).all(|pfn| setup.holds(pfn, pfn as u8 ^ round)));
        }
    }

    #[test]
    fn a_transfer_cut_short_ends_as_an_error_and_the_others_do_not() {
        let Some(mut setup) = Setup::new() else { return };
        (0..64).for_each(|pfn| setup.fill(pfn, 9));
        // The file is truncated in the middle of a run: 6 of its 16 pages are left.
        setup.file.set_len(38 * PAGE_SIZE as u64).unwrap();
        let run = |slot: u32| Io::new(slot, (slot..slot + 16).map(Pfn).collect());
        let mut chunk = [run(0), run(16), run(32)];
        assert_eq!(setup.transfer(Direction::Read, &mut chunk), 0);
        let lost = Err(highwater_platform::IoError::Failed(libc::EIO));
        assert_eq!(chunk.map(|io| io.result), [Ok(()), Ok(()), lost]);
        assert!((0..38).all(|pfn| setup.holds(pfn, 0)), "six pages of the last run came");
        assert!((38..48).all(|pfn| setup.holds(pfn, 9)));
    }

    #[test]
    fn no_space_left_is_full() {
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let Some(mut setup) = Setup::over(full) else { return };
        let mut chunk = singles();
        assert_eq!(setup.transfer(Direction::Write, &mut chunk), 0);
        assert!(chunk.iter().all(|io| io.result == Err(highwater_platform::IoError::Full)));
    }

    #[test]
    fn the_file_is_reached_after_the_program_closed_it() {
        let Some(mut setup) = Setup::new() else { return };
        let other = File::open("/dev/null").unwrap();
        let kept = setup.file.try_clone().unwrap();
        // SAFETY: replaces a descriptor that this test owns.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), setup.file.as_raw_fd()) } >= 0);
        (0..64).for_each(|pfn| setup.fill(pfn, 5));
        assert_eq!(setup.transfer(Direction::Write, &mut singles()), 0);
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&kept, &mut byte, 7 * 4096).unwrap();
        assert_eq!(byte, [5]);
    }

    #[test]
    fn a_ring_that_was_closed_gives_its_transfers_back() {
        let Some(mut setup) = Setup::new() else { return };
        let other = File::open("/dev/null").unwrap();
        // SAFETY: replaces the descriptor of a ring that this test owns.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), setup.ring.as_raw_fd()) } >= 0);
        assert_eq!(setup.transfer(Direction::Read, &mut singles()[..3]), 0b111);
    }

    #[test]
    fn members_of_sets() {
        assert!(members(0).eq([]));
        assert!(members(1 << 63 | 0b101).eq([0, 2, 63]));
    }
}
