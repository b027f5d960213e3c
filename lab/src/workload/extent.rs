//! Memory reached through plain pointers: a mapping served by the kernel or by userfaultfd.

use super::{Access, Denied, Intent, Target, Words};
use std::fmt;
use std::ptr::NonNull;

/// A stretch of mapped pages.
pub struct Extent {
    base: NonNull<Words>,
    pages: u64,
    ahead: Box<dyn Fn(u64) + Send + Sync>,
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent").field("base", &self.base).field("pages", &self.pages).finish()
    }
}

// SAFETY: all access to the pages is atomic.
unsafe impl Sync for Extent {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Extent {}

impl Extent {
    /// The extent of `pages` pages from `base`.
    ///
    /// # Safety
    /// For as long as the extent lives, `base` is page-aligned, that many pages are mapped readable
    /// and writable (a fault on them is served), and they are accessed by atomics only.
    pub unsafe fn new(base: NonNull<u8>, pages: u64) -> Extent {
        Extent { base: base.cast(), pages, ahead: Box::new(|_| {}) }
    }

    /// Sets the function that is called with each page that will be used soon.
    pub fn with_prefetch(self, ahead: impl Fn(u64) + Send + Sync + 'static) -> Extent {
        Extent { ahead: Box::new(ahead), ..self }
    }

    /// A page, below [`Target::pages`].
    fn words(&self, index: u64) -> &Words {
        assert!(index < self.pages, "page {index} of {}", self.pages);
        // SAFETY: inside the extent, by the assertion and the promise made to `new`.
        unsafe { self.base.add(index as usize).as_ref() }
    }
}

impl Target for Extent {
    type Access<'a>
        = &'a Self
    where
        Self: 'a;

    fn pages(&self) -> u64 {
        self.pages
    }

    fn enter(&self) -> &Self {
        self
    }
}

impl Access for &Extent {
    type Page<'a>
        = &'a Words
    where
        Self: 'a;

    fn page(&mut self, index: u64, _intent: Intent) -> Result<&Words, Denied> {
        Ok(self.words(index))
    }

    fn ahead(&mut self, index: u64) {
        (self.ahead)(index);
    }
}
