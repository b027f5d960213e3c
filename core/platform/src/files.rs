//! Files that come and go while the manager runs.

use crate::AttachError;
use highwater_units::SpaceId;

/// What may be done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Its pages cannot be changed.
    Read,
    /// Changed pages are written to it.
    ReadWrite,
}

/// What the manager needs to know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its size in pages, the last of which may be partial; not 0.
    pub pages: u32,
    /// What may be done to it.
    pub access: FileAccess,
}

/// Devices of role [`crate::DeviceRole::Place`]: one file after the other is behind each.
pub trait Files {
    /// A file that is to be put behind a device.
    type File: Send;

    /// What it is.
    fn describe(&self, file: &Self::File) -> FileInfo;

    /// Puts a file behind a device that has none, and makes room for the pages of its space, all
    /// unmapped: as [`crate::Mmu::attach`], which is not called for this space.
    ///
    /// # Errors
    /// The operating system's refusal; the device has no file then.
    fn open(&self, device: u8, space: SpaceId, file: Self::File) -> Result<(), AttachError>;

    /// Takes the file away again, and gives the room up. No page is mapped, and no transfer is
    /// under way.
    fn close(&self, device: u8, space: SpaceId);
}
