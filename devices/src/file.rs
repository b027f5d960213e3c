//! Swap in a file: `file:` and `dir:`.
//!
//! ```text
//! FileDevice -> Arc<File>   shared with what forked children inherit
//!            -> Room        which parts of it have blocks
//!            -> Pool        rings of this process; absent where every transfer is plain
//! ```
//! Locks: none. Slots are apart on the file, so batches of several threads run side by side.
//!
//! A ring pays where transfers overlap. One transfer alone is plain: half the cost on a fast
//! device. On a file system in memory all are: the kernel has a worker thread make every transfer
//! of a ring there, which took 7 times as long as plain calls for a batch of 32.
//!
//! A program that lowers its file-size limit (RLIMIT_FSIZE) while it runs makes writes beyond it
//! fail with EFBIG, and the kernel sends SIGXFSZ to the thread that writes.

use crate::disk::Disk;
use crate::pool::{Held, Pool, Started};
use crate::room::Room;
use crate::transfer::{admit, plain};
use crate::uring::{DEPTH, Set, members};
use crate::{Arena, Device, Reason, Spec, Submission, create};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, Latency};
use highwater_units::Bytes;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// Slots in a file.
pub(crate) struct FileDevice {
    info: DeviceInfo,
    file: Arc<File>,
    room: Room,
    pool: Option<Pool>,
}

impl FileDevice {
    /// Makes the file.
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
            Submission::Auto if !create::is_in_memory(&file) => Some(Pool::new()),
            Submission::Auto | Submission::Plain => None,
        };
        let room = Room::none(info.pages);
        Ok(FileDevice { info, file, room, pool })
    }

    /// The rings that batches were left to.
    fn rings(&self) -> &Pool {
        self.pool.as_ref().expect("only a ring is left alone with a batch")
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn transfer(&self, direction: Direction, arena: Arena, batch: &mut [Io]) {
        let pool = self.pool.as_ref().filter(|_| batch.len() > 1);
        let mut ring = pool.and_then(|pool| pool.take(self.file.as_fd()));
        for chunk in batch.chunks_mut(DEPTH) {
            let todo = self.admit_all(direction, arena, chunk);
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
            // SAFETY: as the caller promises.
            io.result = unsafe { plain(direction, self.file.as_fd(), arena, io) };
        }
    }

    /// Sets the result of each transfer; those that may be made, and have room.
    fn admit_all(&self, direction: Direction, arena: Arena, chunk: &mut [Io]) -> Set {
        let mut admitted = 0;
        for (index, io) in chunk.iter_mut().enumerate() {
            io.result = admit(&self.info, direction, arena, io);
            admitted |= Set::from(io.result.is_ok()) << index;
        }
        if direction == Direction::Write {
            self.room.take(self.file.as_fd(), chunk.iter().filter(|io| io.result.is_ok()));
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
        // SAFETY: as the caller promises.
        unsafe { self.transfer(Direction::Read, arena, batch) }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: as the caller promises.
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
            // SAFETY: as the caller promises.
            unsafe { self.transfer(direction, arena, batch) };
            return None;
        };
        let todo = self.admit_all(direction, arena, batch);
        // SAFETY: admitted, and the caller vouches for the frames until `finish`.
        unsafe { held.ring().start(direction, arena, batch, todo) };
        Some(held.leave(direction, todo))
    }

    fn is_over(&self, started: &Started) -> bool {
        let mut held = self.rings().back(started);
        let over = held.ring().is_over(started.left);
        let Started { direction, left, .. } = *started;
        // The batch goes on.
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
        // Nobody writes there.
        let room = Room::none(0);
        Box::new(FileDevice { info, file: Arc::clone(&self.file), room, pool })
    }

    /// Nothing: neither the few KiB of a ring nor what the file system caches are contents.
    fn resident(&self) -> Bytes {
        Bytes(0)
    }

    fn owns_descriptor(&self, descriptor: i32) -> bool {
        descriptor == self.file.as_raw_fd()
            || self.pool.as_ref().is_some_and(|pool| pool.owns_descriptor(descriptor))
    }
}
