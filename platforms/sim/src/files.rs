//! Files that come and go: their contents move to a device when they are opened, and back when they
//! are closed.

use crate::Sim;
use crate::memory::Words;
use highwater_platform::{AttachError, FileAccess, FileInfo, Files, Mmu};
use highwater_units::SpaceId;
use std::sync::{Arc, Mutex, MutexGuard};

/// A file that is on no device: anybody may look at it while it is not open.
#[derive(Clone)]
pub struct SimFile {
    access: FileAccess,
    pages: Arc<Mutex<Vec<Arc<Words>>>>,
}

impl SimFile {
    /// A file of these pages.
    pub fn new(access: FileAccess, pages: Vec<Arc<Words>>) -> SimFile {
        SimFile { access, pages: Arc::new(Mutex::new(pages)) }
    }

    /// Its pages, as they were when it was closed last.
    pub fn pages(&self) -> MutexGuard<'_, Vec<Arc<Words>>> {
        self.pages.lock().expect("no panic")
    }
}

impl Files for Sim {
    type File = SimFile;

    fn describe(&self, file: &SimFile) -> FileInfo {
        FileInfo { pages: file.pages().len() as u32, access: file.access }
    }

    fn open(&self, device: u8, space: SpaceId, file: SimFile) -> Result<(), AttachError> {
        let pages = file.pages().len() as u64;
        self.devices()[usize::from(device)].with(|device| device.insert(file));
        self.attach(space, pages)
    }

    fn close(&self, device: u8, space: SpaceId) {
        self.devices()[usize::from(device)].with(|device| device.eject());
        self.detach(space);
    }
}
