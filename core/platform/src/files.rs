//! Files that are opened and closed while the manager runs.

use crate::AttachError;
use highwater_units::SpaceId;

/// How a file may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Its pages are never changed.
    Read,
    /// Its pages may be changed, and changed pages are written to it.
    ReadWrite,
}

/// The properties of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its size in pages, at least 1. The last page may be partial.
    pub pages: u32,
    /// How it may be accessed.
    pub access: FileAccess,
}

/// Opens and closes files at run time. The number of devices is fixed when a platform is created;
/// a device of role [`crate::DeviceRole::Place`] backs one file at a time.
///
/// Obligations: between [`Files::open`] and [`Files::close`], [`crate::Block`] transfers of the
/// device go to its file, page `n` at slot `n`. The manager makes sure that a device has at most
/// one file, that no page of the space is mapped and no transfer is in flight at `close`, and that
/// one thread at a time opens or closes a file of a device.
///
/// Cost: both calls may take system calls. The caller holds no locks and no entries.
///
/// Used by `core/mm/src/files.rs`. A platform without such devices is never asked to open one.
pub trait Files {
    /// A file to open: a descriptor, a path, or whatever the platform needs.
    type File: Send;

    /// The size and access of a file. Constant until [`Files::open`] has returned.
    fn describe(&self, file: &Self::File) -> FileInfo;

    /// Attaches a file to a device that has none, and makes room for the pages of `space`, all
    /// unmapped. The manager does not call [`crate::Mmu::attach`] for such a space. A space whose
    /// file was closed may be opened again, for another file and another size.
    ///
    /// # Errors
    /// The operating system refuses; the device then has no file.
    fn open(&self, device: u8, space: SpaceId, file: Self::File) -> Result<(), AttachError>;

    /// Detaches the file from the device, and releases the room of the space.
    fn close(&self, device: u8, space: SpaceId);
}
