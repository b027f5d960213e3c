//! Opens files at addresses of an engine, and closes them.

use crate::engine::Engine;
use crate::error::Error;
use crate::files::{OUTER, PAGES};
use crate::serving::{Addresses, Attempt};
use highwater_devices::Device;
use highwater_mm::Range;
use highwater_uffd::{FileAt, Placement, Site};
use highwater_units::{Bytes, PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::ptr::NonNull;
use std::sync::PoisonError;

impl Engine {
    /// The addresses of files. The first call makes them.
    fn file_addresses(&self) -> Result<&Addresses, Error> {
        let live = self.live()?;
        let mut attempt = live.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = live.files.get() {
            return Ok(made);
        }
        if let Attempt::Refused(error) = *attempt {
            return Err(Error::System(io::Error::from_raw_os_error(error)));
        }
        let delivery = self.delivery();
        live.manager.platform().place(OUTER, Placement { site: Site::Anywhere, delivery });
        let added = live.manager.add_space(PAGES).map_err(Error::from).and_then(|space| {
            assert_eq!(space, OUTER, "files are opened after their addresses are made");
            let base = live.manager.platform().address(space, Vpn(0));
            let base = NonNull::new(base).expect("spaces do not lie at 0");
            self.serve_files(base).map_err(Error::System)
        });
        match added {
            Ok(made) => Ok(live.files.get_or_init(|| made)),
            Err(error) => {
                *attempt = Attempt::Refused(refusal(&error));
                Err(error)
            }
        }
    }

    /// The address of a page of the outer space.
    pub(crate) fn file_address(&self, vpn: Vpn) -> Result<NonNull<u8>, Error> {
        // SAFETY: a page of the range, whose addresses are those of one mapping.
        Ok(unsafe { self.file_addresses()?.base.add(vpn.0 as usize * PAGE_SIZE) })
    }

    /// Takes addresses for a file.
    ///
    /// # Errors
    /// [`Error::Full`]: anonymous mappings leave no memory for the file. [`Error::Addresses`].
    pub(crate) fn add_file(&self, pages: u64) -> Result<Range, Error> {
        self.file_addresses()?;
        self.keep_for_file()?;
        let added = self.files().regions().add(pages, self.align());
        added.ok_or_else(|| {
            self.end_keeping();
            no_addresses(pages)
        })
    }

    /// Changes the number of pages of a range in which no file is open; returns the new range.
    ///
    /// # Errors
    /// [`Error::Addresses`]; the range is as it was.
    pub(crate) fn resize_file(&self, range: Range, pages: u64) -> Result<Range, Error> {
        let resized = Range { first: range.first, end: range.first.offset(pages) };
        let mut regions = self.files().regions();
        if resized.end < range.end {
            regions.cut(range, resized.end);
            return Ok(resized);
        }
        if resized.end == range.end || regions.extend(range, resized.end) {
            return Ok(resized);
        }
        let advice = regions.find(range.first).map(|region| region.advice);
        let moved = regions.add(pages, self.align()).ok_or_else(|| no_addresses(pages))?;
        regions.advise(moved, advice.unwrap_or_default());
        regions.remove(range);
        Ok(moved)
    }

    /// Gives back the addresses of a range in which no file is open.
    pub(crate) fn remove_file(&self, range: Range) {
        self.files().regions().remove(range);
        self.end_keeping();
    }

    /// Opens a file at the addresses of a range, which must have as many pages as the file.
    ///
    /// # Errors
    /// [`Error::Files`], [`Error::System`].
    pub(crate) fn open_file(
        &self,
        device: Box<dyn Device>,
        range: Range,
    ) -> Result<SpaceId, Error> {
        let address = Some(self.file_address(range.first)?.addr().get() as u64);
        let space = self.manager()?.open_file(FileAt { device, address })?;
        self.files().regions().set_file(range, Some(space));
        Ok(space)
    }

    /// Writes a file's changes and closes it.
    ///
    /// # Errors
    /// [`Error::Write`]; the file stays open.
    pub(crate) fn close_file(&self, range: Range, space: SpaceId) -> Result<(), Error> {
        let manager = self.manager()?;
        let files = self.files();
        let _alone = files.gate(space).write().unwrap_or_else(PoisonError::into_inner);
        manager.close_file(space)?;
        files.regions().set_file(range, None);
        Ok(())
    }

    /// Closes a file, and drops its unwritten changes.
    pub(crate) fn abandon_file(&self, range: Range, space: SpaceId) {
        let Ok(manager) = self.manager() else { return };
        manager.discard(space, manager.whole(space));
        let closed = self.close_file(range, space);
        debug_assert!(closed.is_ok(), "nothing is left to write: {closed:?}");
    }
}

fn no_addresses(pages: u64) -> Error {
    Error::Addresses { wanted: Bytes::of_pages(pages) }
}

fn refusal(error: &Error) -> i32 {
    match error {
        Error::System(error) => error.raw_os_error().unwrap_or(libc::ENOMEM),
        _ => libc::ENOMEM,
    }
}
