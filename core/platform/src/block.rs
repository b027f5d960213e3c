//! Devices that store pages: swap slots, and the contents of files.

use highwater_units::{Bytes, FrameList, IoFrames, NodeId, Order, Pfn};

/// Whether a transfer takes CPU time or waiting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// The CPU copies the page at memory speed. Keeping a clean page's slot saves no time.
    Synchronous,
    /// The device transfers it, in microseconds or more, while the thread can sleep.
    Asynchronous,
}

/// The medium of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Random access is as fast as sequential access.
    SolidState,
    /// A disk with seeks: the manager places pages in sequence, and transfers neighbours together.
    Rotational,
}

/// The use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRole {
    /// Swap: the manager allocates its slots.
    Swap,
    /// One file, for one space: page `n` is slot `n`. A page that was never written reads as the
    /// device's initial contents.
    File,
    /// Files that are opened and closed ([`crate::Files`]), one at a time; page `n` is slot `n`.
    Place,
}

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The user's name for it.
    pub name: String,
    /// Its size in pages.
    pub pages: u32,
    /// Whether transfers take CPU time or waiting time.
    pub latency: Latency,
    /// Whether it has seeks.
    pub medium: Medium,
    /// The nearest memory node, if any. CPUs of that node prefer the device among those of equal
    /// priority.
    pub node: Option<NodeId>,
    /// Swap priority. The manager fills devices of a higher priority first, and takes turns among
    /// those of equal priority. Devices with `None` come last, one after the other.
    pub priority: Option<u16>,
    /// Its use.
    pub role: DeviceRole,
    /// The manager only reads it: it holds pages that this process inherited at a fork.
    pub read_only: bool,
}

impl DeviceInfo {
    /// Whether the manager allocates swap slots on it.
    pub fn gives_slots(&self) -> bool {
        self.role == DeviceRole::Swap && !self.read_only && self.pages > 0
    }

    /// Whether it is a place for a swap device that may be added while the manager runs: one
    /// without pages.
    pub fn is_vacant(&self) -> bool {
        self.role == DeviceRole::Swap && !self.read_only && self.pages == 0
    }

    /// Whether it holds pages of files.
    pub fn is_for_files(&self) -> bool {
        self.role != DeviceRole::Swap
    }

    /// Its size in bytes.
    pub fn size(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.pages))
    }
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// The device has no room (ENOSPC, EDQUOT, a memory limit). The manager writes the page to
    /// another slot.
    Full,
    /// These slots take no pages now, but other slots of the device do: one of several servers is
    /// silent. The manager writes the page to another slot.
    Busy,
    /// The device failed, with the operating system's error number.
    Failed(i32),
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IoError::Full => write!(f, "no room behind the device"),
            IoError::Busy => write!(f, "one of several servers does not answer"),
            IoError::Failed(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

/// One transfer between consecutive slots and as many frames, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// The first slot.
    pub slot: u32,
    /// The frames: 1 to 16, or a block of adjacent ones. They are populated and not mapped.
    pub frames: IoFrames,
    /// The outcome, set by the platform.
    pub result: Result<(), IoError>,
}

impl Io {
    /// A transfer of listed frames.
    pub fn new(slot: u32, frames: FrameList) -> Io {
        Io { slot, frames: IoFrames::List(frames), result: Ok(()) }
    }

    /// A transfer of 2^order adjacent frames from `first` on.
    pub fn block(slot: u32, first: Pfn, order: Order) -> Io {
        Io { slot, frames: IoFrames::Block(first, order), result: Ok(()) }
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device into frames.
    Read,
    /// From frames to the device.
    Write,
}

impl Direction {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// The devices of a platform.
///
/// Purpose: transfers between frames and slots. The manager chooses the slots, and merges adjacent
/// ones into one [`Io`].
///
/// Obligations:
/// - A batch goes to one device. Its transfers are independent and should all be in flight at once.
///   Each gets its own result; one failure does not stop the others.
/// - The frames belong to the device from the call until `read`, `write` or [`Block::finish`]
///   returns. The manager names no slot in two transfers at once if one of them is a write.
/// - A read returns what the last completed write of that slot stored, also if another thread
///   wrote it. Durability is needed only after [`Block::sync`].
/// - Transfers must not touch memory that the manager pages, and must not wait for a thread that
///   waits for memory: reclaim would then wait for itself.
///
/// Cost: the caller holds no locks. It may hold the entries of the pages, so threads that fault on
/// them wait until the transfer ends.
///
/// Used by `core/mm/src/swap/mod.rs` and `core/mm/src/swap/device.rs` (all transfers),
/// `core/mm/src/reclaim/write_queue.rs` and `core/mm/src/machine/read_batch.rs` (transfers in
/// flight), `core/mm/src/write_back/mod.rs` (`sync`).
pub trait Block {
    /// A batch in flight. Any thread may finish it, also after the thread that started it ended.
    type Transfer: Send;

    /// All devices, at most 255; a device's number is its index. Constant, except that a vacant one
    /// ([`DeviceInfo::is_vacant`]) may get its properties, before the manager adds it.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Reads a batch from slots into frames; blocks until all transfers have ended. The frames of a
    /// failed transfer have undefined contents.
    fn read(&self, device: u8, batch: &mut [Io]);

    /// Writes a batch from frames to slots; blocks until all transfers have ended. The slots of a
    /// failed transfer have undefined contents; the frames are unchanged.
    fn write(&self, device: u8, batch: &mut [Io]);

    /// Starts a batch, and returns without waiting for it if the device permits that. A synchronous
    /// device may complete the batch within the call. The caller keeps the batch for
    /// [`Block::finish`], and calls that exactly once.
    fn start(&self, device: u8, direction: Direction, batch: &mut [Io]) -> Self::Transfer;

    /// Whether [`Block::finish`] would return without blocking. Never blocks itself; `false` if the
    /// platform does not know.
    fn is_over(&self, transfer: &Self::Transfer) -> bool;

    /// Blocks until a started batch has ended, and sets every result. `batch` has the transfers
    /// that were started, in their order; the slice may have moved in memory.
    fn finish(&self, transfer: Self::Transfer, batch: &mut [Io]);

    /// Makes all completed writes to a device durable; blocks until they are. The manager calls it
    /// at the end of a write-back of a file.
    ///
    /// # Errors
    /// The device failed. Completed writes may be lost when power fails.
    fn sync(&self, _device: u8) -> Result<(), IoError> {
        Ok(())
    }

    /// Whether the room that a slot takes on a device is wanted for other pages, for reasons that
    /// the manager does not know: other managers use the device, too, or the device has the slot in
    /// memory. A clean page then gives up its slot. Called by faults.
    fn is_scarce(&self, _device: u8, _slot: u32) -> bool {
        false
    }

    /// Drops the contents of a slot: the manager will write it before it reads it again. The
    /// platform may free its storage. The caller holds the lock of the slot's cluster, so this must
    /// not block or take long.
    fn discard_slot(&self, _device: u8, _slot: u32) {}

    /// Drops all contents of a swap device that was removed: no slot is in use, and no transfer is
    /// in flight. It may be added again. May take system calls.
    fn vacate(&self, _device: u8) {}
}
