//! Where swapped pages go: memory, plain or compressed, a file that nobody else can see, or both.
//!
//! ```text
//! Area: Spec, priority
//! Spec --open--> Box<dyn Device>      Arena: where frames lie
//!                 |- Ram              mapping of slots, plain copies
//!                 |- Zram             compressed objects in blocks of one size class
//!                 |- FileDevice       unlinked sparse file (create)
//!                 |   |- Disk         what the system says of the disk below it
//!                 |   |- Pool         rings of this process (uring), one per batch in flight
//!                 |   |- Tail         of a file that existed: its last page, if partial (existing)
//!                 |   |- Room         blocks of the file system, taken before they are written
//!                 |   '- plain        preadv and pwritev, where there is no ring (transfer)
//!                 |- Part             pages of another, from one on
//!                 '- Tier             one of the first two over one of the third, and a thread
//! ```
//! Locks: those of Zram's shards and of Tier's free blocks. A device is used by any number of
//! threads at once; else the only thing they share is the mask of rings or codecs in use, one
//! atomic word. A batch allocates nothing once its ring exists.
//!
//! The crate is also linked into a library that replaces mmap, munmap, madvise and malloc of the
//! program it serves, so its own memory comes from raw system calls (`sys`).

mod area;
mod arena;
mod array;
mod compression;
mod create;
mod disk;
mod error;
mod existing;
mod file;
mod part;
mod pool;
mod ram;
mod room;
mod spec;
mod sys;
mod tier;
mod tiering;
mod transfer;
mod uring;
mod zram;

pub use area::Area;
pub use arena::Arena;
pub use compression::Compression;
pub use error::{OpenError, Reason};
pub use existing::{FileError, open_file};
pub use highwater_platform::FileAccess;
pub use pool::Started;
pub use spec::{Algorithm, SIZE_MAX, SIZE_MIN, Spec};
pub use tiering::Tiering;

use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, PAGE_SIZE};
use std::os::fd::RawFd;
use std::sync::Arc;

/// How transfers reach a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submission {
    /// Through io_uring where it is granted and wins something, else as `Plain`.
    #[default]
    Auto,
    /// One preadv or pwritev after the other.
    Plain,
}

/// A swap device of this process.
///
/// A transfer that names slots outside the device or frames outside the arena fails with EINVAL,
/// a write to a read-only device with EROFS; both are defects of the caller.
pub trait Device: Send + Sync {
    /// What the manager needs to know of it. Constant.
    fn info(&self) -> DeviceInfo;

    /// The same, for what the user knows better, before the device is used.
    fn info_mut(&mut self) -> &mut DeviceInfo;

    /// Reads every transfer of the batch and waits for them; sets every `result`. After an error
    /// the frames of that transfer hold anything. A slot never written reads as zeros.
    ///
    /// # Safety
    /// The frames named are populated memory of `arena`, and nobody else touches them meanwhile.
    unsafe fn read(&self, arena: Arena, batch: &mut [Io]);

    /// Writes likewise. After an error the slots of that transfer hold anything.
    ///
    /// # Safety
    /// As for [`Device::read`].
    unsafe fn write(&self, arena: Arena, batch: &mut [Io]);

    /// Begins every transfer of the batch, and goes on without them where a queue takes them.
    /// `None`: they were made at once, and every `result` is set.
    ///
    /// # Safety
    /// As for [`Device::read`], until [`Device::finish`] has returned.
    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        match direction {
            // SAFETY: as the caller promises.
            Direction::Read => unsafe { self.read(arena, batch) },
            // SAFETY: as the caller promises.
            Direction::Write => unsafe { self.write(arena, batch) },
        }
        None
    }

    /// Whether finishing would not wait.
    fn is_over(&self, _started: &Started) -> bool {
        true
    }

    /// Waits for what this thread started here; sets every `result`. Every batch that was started
    /// is to be finished: its queue is in use until then.
    ///
    /// # Safety
    /// `batch` is what it was then, wherever it is now.
    unsafe fn finish(&self, _arena: Arena, _started: Started, _batch: &mut [Io]) {
        unreachable!("this device makes all transfers at once");
    }

    /// The slots hold nothing any more: what they took may be used for others. Until they are
    /// written again they read as anything. Nobody else uses them meanwhile.
    fn discard(&self, _slot: u32, _pages: u32) {}

    /// Bytes that discarding a slot would free.
    fn footprint(&self, _slot: u32) -> usize {
        PAGE_SIZE
    }

    /// Makes what was written durable: it is there after a loss of power. Nothing for a device
    /// whose contents end with the process.
    ///
    /// # Errors
    /// The system's; what was written before may be lost.
    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }

    /// What a thread is to do that moves contents of the device's own accord, the first time this
    /// is asked; the caller makes the thread, which ends when the device is dropped.
    fn thread(&self) -> Option<Box<dyn FnOnce() + Send>> {
        None
    }

    /// From now on the device moves no contents of its own accord, until [`Device::resume`]. To be
    /// called before a fork, with nothing else held that a transfer needs, and taken back in the
    /// parent.
    fn pause(&self) {}

    /// Takes one [`Device::pause`] back.
    fn resume(&self) {}

    /// The same content for a forked child, read-only. To be called in the child before anything
    /// else is done with a device of its parent; of the parent's device only dropping is left then.
    /// The parent promises not to overwrite slots that the child still needs.
    fn inherit(&self) -> Box<dyn Device>;

    /// Memory that the contents take. Whoever keeps within a budget counts it.
    fn resident(&self) -> Bytes;

    /// What it holds compressed, and what that takes; `None` if it does not compress.
    fn compression(&self) -> Option<Compression> {
        None
    }

    /// What it has at which level; `None` if it has one level, or is inherited.
    fn tiering(&self) -> Option<Tiering> {
        None
    }

    /// The descriptors that [`Device::inherit`] needs. A child that has not inherited them is given
    /// copies under the same numbers.
    fn descriptors(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// Opens a device. It starts empty, and nothing of it is left behind by any end of the process.
///
/// # Errors
/// Why there can be no such device, in one line.
pub fn open(spec: &Spec) -> Result<Box<dyn Device>, OpenError> {
    open_with(spec, Submission::Auto)
}

/// As [`open`], with a choice of how files are reached.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &Spec, submission: Submission) -> Result<Box<dyn Device>, OpenError> {
    let device = match spec {
        Spec::Ram { .. } => ram::Ram::open(spec).map(boxed),
        Spec::Zram { size, algorithm } => zram::Zram::open(spec, *size, *algorithm).map(boxed),
        Spec::File { .. } | Spec::Dir { .. } => file::FileDevice::open(spec, submission).map(boxed),
        Spec::Tier { fast, slow } => {
            let [fast, slow] = [fast, slow].map(|level| open_with(level, submission));
            tier(spec.to_string(), fast?, slow?)
        }
    };
    device.map_err(|reason| OpenError { spec: spec.clone(), reason })
}

/// Two devices, both empty, as one: pages go to `fast`, and cold ones from there to `slow`. It
/// has as many slots as both.
///
/// # Errors
/// The system has no memory to give.
pub fn tier(
    name: String,
    fast: Box<dyn Device>,
    slow: Box<dyn Device>,
) -> Result<Box<dyn Device>, Reason> {
    tier::Tier::new(name, fast, slow).map(boxed)
}

/// `pages` pages of a device, from `first` on, as a device of its own.
///
/// # Panics
/// If it does not have them.
pub fn part(whole: Arc<dyn Device>, first: u32, pages: u32) -> Box<dyn Device> {
    boxed(part::Part::new(whole, first, pages))
}

fn boxed(device: impl Device + 'static) -> Box<dyn Device> {
    Box::new(device)
}
