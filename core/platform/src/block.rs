//! Where pages go that are in no frame: slots of swap devices, places in files.

use highwater_units::{Bytes, FrameList, IoFrames, NodeId, Order, Pfn};

/// Whether a device answers within the call that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Memory speed: a copy. A clean copy of a page on it saves no time.
    Synchronous,
    /// A queue with microseconds or more behind it.
    Asynchronous,
}

/// What is behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Any place is reached as fast as the next one.
    SolidState,
    /// Disks that turn: what lies together is read and written together.
    Rotational,
}

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRole {
    /// Slots for any pages, given out as pages are swapped.
    Swap,
    /// The pages of one space, each at the slot of its number. A page never written reads as what
    /// the device began with.
    File,
    /// A place for files that are opened and closed ([`crate::Files`]), one at a time.
    Place,
}

/// What the manager needs to know of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// As the user named it.
    pub name: String,
    /// Its size in pages.
    pub pages: u32,
    /// Memory or queue.
    pub latency: Latency,
    /// Whether it turns.
    pub medium: Medium,
    /// The memory node it is nearest to, where one is: preferred by the CPUs of that node among
    /// devices of equal priority.
    pub node: Option<NodeId>,
    /// Devices of a higher priority are full before others are used; equal ones take turns. `None`:
    /// after all that have one, one after the other.
    pub priority: Option<u16>,
    /// What it is for.
    pub role: DeviceRole,
    /// Never allocate from it: it holds pages inherited at a fork, to be read only.
    pub read_only: bool,
}

impl DeviceInfo {
    /// Whether pages that are swapped out may go there.
    pub fn gives_slots(&self) -> bool {
        self.role == DeviceRole::Swap && !self.read_only
    }

    /// Whether it holds pages of a file, each at the slot of its number.
    pub fn is_for_files(&self) -> bool {
        self.role != DeviceRole::Swap
    }

    /// Its size in bytes.
    pub fn size(&self) -> Bytes {
        Bytes::of_pages(u64::from(self.pages))
    }
}

/// A transfer that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// No room behind the device (ENOSPC, EDQUOT, a memory limit).
    Full,
    /// The device failed; the operating system's error number.
    Failed(i32),
}

impl std::fmt::Display for IoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IoError::Full => write!(f, "no room behind the device"),
            IoError::Failed(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
        }
    }
}

/// One transfer: consecutive slots, frames in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// The first slot.
    pub slot: u32,
    /// Its frame and those of the slots after it: 1 to 16, or a block; populated, not mapped.
    pub frames: IoFrames,
    /// Filled in by the device.
    pub result: Result<(), IoError>,
}

impl Io {
    /// A transfer yet to be made.
    pub fn new(slot: u32, frames: FrameList) -> Io {
        Io { slot, frames: IoFrames::List(frames), result: Ok(()) }
    }

    /// A transfer of a block of 2^order frames, of which `first` is the first.
    pub fn block(slot: u32, first: Pfn, order: Order) -> Io {
        Io { slot, frames: IoFrames::Block(first, order), result: Ok(()) }
    }
}

/// Which way pages go.
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
pub trait Block {
    /// A batch that a device is at. To be finished, by any thread: also after the one that started
    /// it has ended.
    type Transfer: Send;

    /// All devices. Constant; at most 255.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Reads every transfer of the batch, all in flight at once, and waits for them. After an
    /// error the frames of that transfer hold anything. No lock is held by the caller.
    fn read(&self, device: u8, batch: &mut [Io]);

    /// Writes every transfer of the batch, all in flight at once, and waits for them. After an
    /// error the slots of that transfer hold anything.
    fn write(&self, device: u8, batch: &mut [Io]);

    /// Begins every transfer of the batch, all in flight at once, and goes on without them where
    /// the device allows that. Until [`Block::finish`] the frames belong to the device.
    fn start(&self, device: u8, direction: Direction, batch: &mut [Io]) -> Self::Transfer;

    /// Whether finishing would not wait. Where that is unknown: no.
    fn is_over(&self, transfer: &Self::Transfer) -> bool;

    /// Waits for what was started. `batch` is what it was then, wherever it is now; every result is
    /// filled in.
    fn finish(&self, transfer: Self::Transfer, batch: &mut [Io]);

    /// Makes what was written to a device durable.
    ///
    /// # Errors
    /// What was written before may be lost with the next loss of power.
    fn sync(&self, _device: u8) -> Result<(), IoError> {
        Ok(())
    }

    /// The slot is not read before it is written again: the device may free its storage. Called
    /// under a cluster's lock, so it must not wait.
    fn discard_slot(&self, _device: u8, _slot: u32) {}
}
