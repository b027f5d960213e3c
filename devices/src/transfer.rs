//! The steps of a transfer to a file.
//!
//! ```text
//! admit -> vectors -> preadv | pwritev | a ring -> outcome -> finished, or again from some byte
//! ```

use crate::arena::Arena;
use crate::sys::{io_error, transfer};
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{PAGE_SHIFT, PAGE_SIZE, RUN_PAGES_MAX};
use libc::iovec;
use std::os::fd::BorrowedFd;

/// The memory of one transfer, for the kernel.
pub(crate) type Vectors = [iovec; RUN_PAGES_MAX];

/// Empty vectors.
pub(crate) const NO_VECTORS: Vectors =
    [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RUN_PAGES_MAX];

/// Checks that a transfer lies within the device and the arena, and is allowed.
pub(crate) fn admit(
    info: &DeviceInfo,
    direction: Direction,
    arena: Arena,
    io: &Io,
) -> Result<(), IoError> {
    let end = u64::from(io.slot) + io.frames.len() as u64;
    let fits = !io.frames.is_empty()
        && end <= u64::from(info.pages)
        && io
            .frames
            .adjacent()
            .all(|(_, first, pages)| arena.contains(first.offset(pages as u32 - 1)));
    match (fits, direction) {
        (false, _) => Err(IoError::Failed(libc::EINVAL)),
        (true, Direction::Write) if info.read_only => Err(IoError::Failed(libc::EROFS)),
        (true, _) => Ok(()),
    }
}

/// The bytes of a transfer.
pub(crate) fn length(io: &Io) -> usize {
    io.frames.len() * PAGE_SIZE
}

/// The offset in the file at which a transfer continues after `done` bytes.
pub(crate) fn offset(io: &Io, done: usize) -> u64 {
    (u64::from(io.slot) << PAGE_SHIFT) + done as u64
}

/// Fills vectors with the frames of an admitted transfer without the first `done` bytes, one for
/// each stretch of adjacent pages; returns the number of vectors. If a block has more stretches
/// than vectors, further attempts transfer the rest.
pub(crate) fn fill_vectors(arena: Arena, io: &Io, done: usize, vectors: &mut Vectors) -> usize {
    let mut count = 0;
    let mut skip = done;
    for (_, first, pages) in arena.stretches(io.frames.iter()) {
        let len = pages * PAGE_SIZE;
        if count == vectors.len() {
            break;
        }
        if skip < len {
            let address = first.wrapping_add(skip);
            vectors[count] = iovec { iov_base: address.cast(), iov_len: len - skip };
            count += 1;
        }
        skip = skip.saturating_sub(len);
    }
    count
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All bytes were transferred, or the transfer failed.
    Finished(Result<(), IoError>),
    /// The transfer continues after this many bytes in all.
    Again(usize),
}

/// The outcome of an attempt at the bytes from `done` to `length` that transferred `moved` bytes.
pub(crate) fn outcome(
    direction: Direction,
    done: usize,
    length: usize,
    moved: Result<usize, i32>,
) -> Outcome {
    match moved {
        Ok(moved) if done + moved == length => Outcome::Finished(Ok(())),
        // The file has its full length from the start: an end of file is a loss of data.
        Ok(0) => Outcome::Finished(Err(IoError::Failed(libc::EIO))),
        Ok(moved) => Outcome::Again(done + moved),
        Err(libc::EINTR | libc::EAGAIN) => Outcome::Again(done),
        Err(errno) => Outcome::Finished(Err(io_error(direction, errno))),
    }
}

/// Makes one admitted transfer by preadv or pwritev.
///
/// # Safety
/// No other thread touches the frames meanwhile.
pub(crate) unsafe fn plain(
    direction: Direction,
    file: BorrowedFd<'_>,
    arena: Arena,
    io: &Io,
) -> Result<(), IoError> {
    let mut vectors = NO_VECTORS;
    let mut done = 0;
    loop {
        let count = fill_vectors(arena, io, done, &mut vectors);
        // SAFETY: the vectors name frames of this transfer, for which the caller vouches.
        let moved = unsafe { transfer(direction, file, &mut vectors[..count], offset(io, done)) };
        match outcome(direction, done, length(io), moved) {
            Outcome::Finished(result) => return result,
            Outcome::Again(bytes) => done = bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::{DeviceRole, Latency, Medium};
    use highwater_units::{FrameList, Pfn, Prng};

    fn arena() -> Arena {
        let base = std::ptr::without_provenance_mut(1 << 20);
        // SAFETY: no frame is touched in these tests.
        unsafe { Arena::new(base, 64) }
    }

    fn random_frames(random: &mut Prng) -> FrameList {
        let len = 1 + random.below(16);
        let mut next = random.below(48);
        let mut step = || {
            next = if random.percent(60) { next + 1 } else { random.below(63) };
            Pfn(next.min(63) as u32)
        };
        (0..len).map(|_| step()).collect()
    }

    #[test]
    fn vectors_cover_exactly_what_is_left() {
        let mut random = Prng::new(1);
        for _ in 0..5_000 {
            let io = Io::new(3, random_frames(&mut random));
            let done = random.below(length(&io) as u64) as usize;
            let mut vectors = NO_VECTORS;
            let count = fill_vectors(arena(), &io, done, &mut vectors);
            let bytes = |v: &iovec| (v.iov_base.addr()..v.iov_base.addr() + v.iov_len).step_by(512);
            let covered: Vec<usize> = match done % 512 {
                0 => vectors[..count].iter().flat_map(bytes).collect(),
                _ => continue,
            };
            let address = |byte: usize| {
                arena().address(io.frames.at(byte / PAGE_SIZE)).addr() + byte % PAGE_SIZE
            };
            let expected: Vec<usize> = (done..length(&io)).step_by(512).map(address).collect();
            assert_eq!(covered, expected);
        }
    }

    #[test]
    fn outcomes() {
        use Outcome::{Again, Finished};
        let failed = |errno| Finished(Err(IoError::Failed(errno)));
        for (direction, done, moved, expected) in [
            (Direction::Read, 0, Ok(8192), Finished(Ok(()))),
            (Direction::Read, 4096, Ok(4096), Finished(Ok(()))),
            (Direction::Write, 512, Ok(512), Again(1024)),
            (Direction::Write, 512, Err(libc::EINTR), Again(512)),
            (Direction::Read, 0, Err(libc::EAGAIN), Again(0)),
            (Direction::Read, 4096, Ok(0), failed(libc::EIO)),
            (Direction::Read, 0, Err(libc::EIO), failed(libc::EIO)),
            (Direction::Write, 0, Err(libc::ENOSPC), Finished(Err(IoError::Full))),
            (Direction::Write, 0, Err(libc::EDQUOT), Finished(Err(IoError::Full))),
            (Direction::Read, 0, Err(libc::ENOMEM), failed(libc::ENOMEM)),
        ] {
            assert_eq!(outcome(direction, done, 8192, moved), expected, "{moved:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_admitted() {
        let info = |read_only| DeviceInfo {
            name: "test".to_owned(),
            pages: 100,
            latency: Latency::Asynchronous,
            medium: Medium::SolidState,
            node: None,
            priority: None,
            role: DeviceRole::Swap,
            read_only,
        };
        let io = |slot, frames: &[u32]| Io::new(slot, frames.iter().map(|f| Pfn(*f)).collect());
        let invalid = Err(IoError::Failed(libc::EINVAL));
        for (io, expected) in [
            (io(98, &[0, 63]), Ok(())),
            (io(99, &[0, 63]), invalid),
            (io(u32::MAX, &[0]), invalid),
            (io(0, &[64]), invalid),
            (io(0, &[]), invalid),
        ] {
            assert_eq!(admit(&info(false), Direction::Write, arena(), &io), expected);
        }
        let (read, write) = (Direction::Read, Direction::Write);
        assert_eq!(admit(&info(true), read, arena(), &io(0, &[0])), Ok(()));
        let refused = admit(&info(true), write, arena(), &io(0, &[0]));
        assert_eq!(refused, Err(IoError::Failed(libc::EROFS)));
    }
}
