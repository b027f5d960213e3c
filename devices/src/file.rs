//! Swap in a file (`file:` and `dir:`), and existing files, whose pages belong to a space.
//!
//! ```text
//! FileDevice -> Arc<File>   shared with the devices of forked children
//!            -> SlotQuota   room that several processes share
//!            -> Room        which parts of a swap file have blocks
//!            -> Tail        the last page of a file that existed, if it is partial
//!            -> Pool        rings of this process; none if all transfers are plain
//! ```
//! Locks: none. Slots do not overlap, so batches of several threads run in parallel.
//!
//! A ring is faster where transfers overlap. A single transfer is a plain call: half the cost on a
//! fast device. On a file system in memory all transfers are plain: there the kernel gives every
//! transfer of a ring to a worker thread, which took 7 times as long for a batch of 32.
//!
//! If a program lowers its file-size limit (RLIMIT_FSIZE) while it runs, writes beyond the limit
//! fail with EFBIG and the kernel sends SIGXFSZ to the writing thread.

use crate::arena::Arena;
use crate::create;
use crate::device::Device;
use crate::disk::Disk;
use crate::error::Reason;
use crate::pool::{Held, Pool, Started};
use crate::quota::{Lenders, SlotQuota};
use crate::room::Room;
use crate::spec::Spec;
use crate::tail::Tail;
use crate::transfer::{admit, plain};
use crate::uring::{DEPTH, Set, members};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, FileAccess, Io, IoError, Latency};
use highwater_units::Bytes;
use rustix::fs::fdatasync;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// How transfers reach a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submission {
    /// Through io_uring where the kernel permits it and it is faster, else as `Plain`.
    #[default]
    Auto,
    /// By preadv and pwritev, one after the other.
    Plain,
}

/// Slots in a file.
pub(crate) struct FileDevice {
    info: DeviceInfo,
    file: Arc<File>,
    quota: SlotQuota,
    room: Option<Room>,
    tail: Option<Tail>,
    pool: Option<Pool>,
}

/// An open file and its length.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) pages: u32,
    pub(crate) tail: Option<Tail>,
}

impl FileDevice {
    /// Creates the file of a specification.
    pub(crate) fn open(spec: &Spec, submission: Submission) -> Result<FileDevice, Reason> {
        let file = Arc::new(create::create(spec)?);
        let disk = Disk::of(&file);
        let info = DeviceInfo {
            name: spec.to_string(),
            pages: spec.pages(),
            latency: Latency::Asynchronous,
            medium: disk.medium,
            node: disk.node,
            priority: None,
            role: DeviceRole::Swap,
            read_only: false,
        };
        let pool = match submission {
            Submission::Auto => pool_of(&file),
            Submission::Plain => None,
        };
        let (quota, room) = (SlotQuota::default(), Some(Room::none(info.pages)));
        Ok(FileDevice { info, file, quota, room, tail: None, pool })
    }

    /// A device over an existing file.
    pub(crate) fn existing(path: &Path, access: FileAccess, opened: Opened) -> FileDevice {
        let Opened { file, pages, tail } = opened;
        let disk = Disk::of(&file);
        let info = DeviceInfo {
            name: path.display().to_string(),
            pages,
            latency: Latency::Asynchronous,
            medium: disk.medium,
            node: disk.node,
            priority: None,
            role: DeviceRole::File,
            read_only: access == FileAccess::Read,
        };
        let pool = pool_of(&file);
        let (file, quota) = (Arc::new(file), SlotQuota::default());
        FileDevice { info, file, quota, room: None, tail, pool }
    }

    /// The rings, which exist because a batch was started.
    fn rings(&self) -> &Pool {
        self.pool.as_ref().expect("only a ring takes a batch that is finished later")
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn transfer(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        let pool = self.pool.as_ref().filter(|_| batch.len() > 1);
        let mut ring = pool.and_then(|pool| pool.take(self.file.as_fd()));
        for chunk in batch.chunks_mut(DEPTH) {
            // SAFETY: by contract of this function.
            let todo = unsafe { self.admit_all(direction, arena, chunk) };
            let left = match &mut ring {
                // SAFETY: admitted, and the caller vouches for the frames.
                Some(held) => unsafe { held.ring().transfer(direction, arena, chunk, todo) },
                None => todo,
            };
            if left != 0 {
                ring.take().into_iter().for_each(Held::abandon);
            }
            // SAFETY: as above.
            unsafe { self.make_plain(direction, arena, chunk, left) };
        }
    }

    /// # Safety
    /// As for [`Device::read`]; the transfers of `left` were admitted.
    unsafe fn make_plain(&self, direction: Direction, arena: Arena, chunk: &mut [Io], left: Set) {
        for index in members(left) {
            let io = &mut chunk[index];
            // SAFETY: by contract of this function.
            io.result = unsafe { plain(direction, self.file.as_fd(), arena, io) };
        }
    }

    /// Checks a transfer, and takes room for a write.
    fn admit(&self, direction: Direction, arena: Arena, io: &Io) -> Result<(), IoError> {
        admit(&self.info, direction, arena, io)?;
        match direction {
            Direction::Read => Ok(()),
            Direction::Write => self.quota.take(io),
        }
    }

    /// Checks each transfer and sets its result; returns those that can be made. Before writes,
    /// allocates blocks for them.
    ///
    /// # Safety
    /// As for [`Device::read`]: a partial last page is transferred here.
    unsafe fn admit_all(&self, direction: Direction, arena: Arena, chunk: &mut [Io]) -> Set {
        let mut admitted = 0;
        for (index, io) in chunk.iter_mut().enumerate() {
            io.result = self.admit(direction, arena, io);
            if let Some(tail) =
                self.tail.as_ref().filter(|tail| io.result.is_ok() && tail.is_in(io))
            {
                // SAFETY: admitted, and the caller vouches for the frames.
                io.result = unsafe { tail.transfer(direction, self.file.as_fd(), arena, io) };
                continue;
            }
            admitted |= Set::from(io.result.is_ok()) << index;
        }
        if let (Some(room), Direction::Write) = (&self.room, direction) {
            room.take(self.file.as_fd(), chunk.iter().filter(|io| io.result.is_ok()));
        }
        admitted
    }
}

impl Device for FileDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.transfer(Direction::Read, arena, batch) }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.transfer(Direction::Write, arena, batch) }
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        let pool = self.pool.as_ref().filter(|_| batch.len() <= DEPTH);
        let Some(mut held) = pool.and_then(|pool| pool.take(self.file.as_fd())) else {
            // SAFETY: by contract of this function.
            unsafe { self.transfer(direction, arena, batch) };
            return None;
        };
        // SAFETY: by contract of this function.
        let todo = unsafe { self.admit_all(direction, arena, batch) };
        // SAFETY: admitted, and the caller vouches for the frames until `finish`.
        unsafe { held.ring().start(direction, arena, batch, todo) };
        Some(held.leave(direction, todo))
    }

    fn is_over(&self, started: &Started) -> bool {
        let mut held = self.rings().back(started);
        let over = held.ring().is_over(started.left);
        let Started { direction, left, .. } = *started;
        // The batch is still in flight.
        let _ = held.leave(direction, left);
        over
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        let mut held = self.rings().back(&started);
        let Started { direction, left, .. } = started;
        // SAFETY: under way since `start`, and the caller vouches for batch and frames.
        let left = unsafe { held.ring().finish(direction, arena, batch, left) };
        if left != 0 {
            held.abandon();
        }
        // SAFETY: as above.
        unsafe { self.make_plain(direction, arena, batch, left) };
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.pool.iter().for_each(Pool::leave_to_parent);
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        let pool = self.pool.as_ref().map(|_| Pool::new());
        // The inherited device is read-only: it needs no room.
        let (file, tail) = (Arc::clone(&self.file), self.tail.clone());
        Box::new(FileDevice { info, file, quota: SlotQuota::default(), room: None, tail, pool })
    }

    fn discard(&self, slot: u32, pages: u32) {
        self.quota.discard(slot, pages);
    }

    fn vacate(&self) {
        self.quota.put_spare();
        let Some(room) = &self.room else { return };
        room.give_up();
        // If that fails, the blocks stay until the file is closed.
        let _ = self.file.set_len(0).and_then(|()| self.file.set_len(self.info.size().0));
    }

    fn is_scarce(&self, _slot: u32) -> bool {
        self.quota.is_scarce()
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        let shared = self.quota.share(self.info.pages, next());
        shared.map_err(|errno| Reason::from_errno("map memory", errno))
    }

    fn sync(&self) -> Result<(), IoError> {
        fdatasync(&self.file).map_err(|errno| IoError::Failed(errno.raw_os_error()))
    }

    /// 0: the few KiB of a ring and the file system's cache are not contents.
    fn resident(&self) -> Bytes {
        Bytes(0)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        vec![self.file.as_raw_fd()]
    }

    unsafe fn read_by(&self, copy: BorrowedFd<'_>, arena: Arena, batch: &mut [Io]) -> bool {
        // Several transfers are faster in a ring, which this process does not have.
        let [io] = batch else { return false };
        if admit(&self.info, Direction::Read, arena, io).is_err()
            || self.tail.as_ref().is_some_and(|tail| tail.is_in(io))
        {
            return false;
        }
        // SAFETY: admitted, and the caller vouches for the frames.
        io.result = unsafe { plain(Direction::Read, copy, arena, io) };
        io.result.is_ok()
    }
}

/// Rings for a file; `None` for one in memory.
fn pool_of(file: &File) -> Option<Pool> {
    (!create::is_in_memory(file)).then(Pool::new)
}
