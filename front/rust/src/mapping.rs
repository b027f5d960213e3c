//! A stretch of paged memory: plain pointers, checked copies, page guards.

use crate::advice::Advice;
use crate::engine::{Engine, Pinned};
use crate::error::Error;
use crate::fetch::{Fetch, Gate};
use crate::page::{PageMut, PageRef};
use crate::regions::SPACE;
use highwater_mm::{Access, Range};
use highwater_units::{Bytes, PAGE_SIZE, SpaceId, Vpn};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// Paged memory of some length, whose pages are brought in and evicted as they are used. Dropping
/// the mapping frees its pages.
///
/// It dereferences to a slice of bytes. An access through the slice cannot return an error: if a
/// page cannot be brought in, because a device has failed, the process writes a one-line message
/// and ends. [`Mapping::read_at`], [`Mapping::write_at`], [`Mapping::page`] and
/// [`Mapping::page_mut`] return an error instead. Where there are no handler threads, a fault uses
/// up to 32 KiB of the stack of the faulting thread.
///
/// ```
/// # fn main() -> Result<(), highwater::Error> {
/// let memory = highwater::Memory::builder().memory("16M").swap("ram:64M").build()?;
/// let mut mapping = memory.map(40 << 20)?;
/// mapping[39 << 20] = 7;
/// let mut found = [0; 2];
/// mapping.read_at(39 << 20, &mut found)?;
/// assert_eq!(found, [7, 0]);
/// # Ok(())
/// # }
/// ```
pub struct Mapping {
    engine: Arc<Engine>,
    /// The space of its contents: each file has its own space, in which its pages are numbered from
    /// 0.
    space: SpaceId,
    /// Where it lies; empty if the length is 0.
    range: Range,
    address: NonNull<u8>,
    len: usize,
    /// Closed before the mapping frees or moves pages.
    gate: Mutex<Option<Arc<Gate>>>,
}

// SAFETY: memory that all threads may use, borrowed as the slice that it dereferences to.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(engine: Arc<Engine>, len: usize) -> Result<Mapping, Error> {
        let mut mapping = Mapping::of_nothing(engine);
        mapping.resize(len)?;
        Ok(mapping)
    }

    /// A mapping of length 0.
    pub(crate) fn of_nothing(engine: Arc<Engine>) -> Mapping {
        let gate = Mutex::default();
        Mapping { engine, space: SPACE, range: NOTHING, address: nowhere(), len: 0, gate }
    }

    /// Makes this the mapping of a file that is open at `range`. The owner of the mapping closes
    /// the file.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn set_file(
        &mut self,
        space: SpaceId,
        range: Range,
        len: usize,
    ) -> Result<(), Error> {
        let address = self.engine.file_address(range.first)?;
        (self.space, self.range, self.address, self.len) = (space, range, address, len);
        Ok(())
    }

    /// Makes the mapping of a file empty; returns its space and range. The owner of the mapping
    /// closes the file.
    pub(crate) fn take_file(&mut self) -> Option<(SpaceId, Range)> {
        let (space, range) = (self.space, self.range);
        (self.space, self.range, self.address, self.len) = (SPACE, NOTHING, nowhere(), 0);
        (space != SPACE).then_some((space, range))
    }

    /// The space and the range of the mapped file, if this is the mapping of a file.
    pub(crate) fn file(&self) -> Option<(SpaceId, Range)> {
        (self.space != SPACE).then_some((self.space, self.range))
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// A page, by its number in the mapping.
    fn vpn(&self, index: usize) -> Vpn {
        let first = if self.space == SPACE { self.range.first } else { Vpn(0) };
        first.offset(index as u64)
    }

    fn pin(&self, index: usize, access: Access) -> Result<Pinned<'_>, Error> {
        self.engine.pin(self.space, self.vpn(index), access)
    }

    /// The address of the first byte. It is valid for the whole length until the mapping is resized
    /// or dropped.
    pub fn as_ptr(&self) -> *const u8 {
        self.address.as_ptr()
    }

    /// The address of the first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Changes the length. Added bytes read as zeros; pages beyond the end are freed. The address
    /// may change, but nothing is copied.
    ///
    /// # Errors
    /// Those of [`Memory::map`](crate::Memory::map); the mapping is unchanged.
    pub fn resize(&mut self, len: usize) -> Result<(), Error> {
        self.engine.manager()?;
        self.end_fetches();
        let (old, new) = (self.range.end.0 - self.range.first.0, pages(len));
        if len > self.len {
            // The last page may still have bytes from when the mapping was longer.
            let end = len.min(old as usize * PAGE_SIZE);
            self.fill_zeros(self.len..end)?;
        }
        self.range = match (old, new) {
            (0, 0) => self.range,
            (0, _) => self.engine.add(new)?,
            (_, 0) => {
                self.engine.remove(self.range);
                NOTHING
            }
            (old, new) if old == new => self.range,
            _ => self.engine.resize(self.range, new)?,
        };
        self.address = match new {
            0 => nowhere(),
            _ => self.engine.address(self.range.first),
        };
        self.len = len;
        Ok(())
    }

    /// Copies bytes out. Unlike an access through the slice it returns an error if a page cannot be
    /// brought in.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::OutOfMemory`], [`Error::Range`], [`Error::Pinned`],
    /// [`Error::Forked`]. Bytes before the failing page are copied.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the slice is borrowed for writing.
        unsafe { self.copy_out(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in. Unlike an access through the slice it returns an error if a page cannot be
    /// brought in.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        // SAFETY: the slice is borrowed for reading.
        unsafe { self.copy_in(offset, from.as_ptr(), from.len()) }
    }

    /// Sets the bytes of a range to zero, and frees the whole pages among them.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    pub fn discard(&mut self, range: std::ops::Range<usize>) -> Result<(), Error> {
        self.expect_inside(range.end)?;
        let whole = range.start.next_multiple_of(PAGE_SIZE)..range.end / PAGE_SIZE * PAGE_SIZE;
        if whole.is_empty() {
            return self.fill_zeros(range);
        }
        self.engine.manager()?;
        self.engine.discard(Range {
            first: self.range.first.offset((whole.start / PAGE_SIZE) as u64),
            end: self.range.first.offset((whole.end / PAGE_SIZE) as u64),
        });
        self.fill_zeros(range.start..whole.start)?;
        self.fill_zeros(whole.end..range.end)
    }

    /// Requests pages that will be used soon: a readahead thread reads the pages that are on
    /// devices that make faults wait. This is a hint, which neither waits nor fails.
    pub fn prefetch(&self, range: std::ops::Range<usize>) {
        let end = pages(range.end.min(self.len));
        let first = self.vpn(range.start / PAGE_SIZE);
        self.engine.prefetch(self.space, Range { first, end: self.vpn(end as usize) });
    }

    /// Requests pages that a task awaits: threads of the library read the pages, and the future is
    /// ready when all of them have been read. It works with every executor. Pages may be evicted
    /// again before they are used, and an access then waits: a range should be much smaller than
    /// the budget.
    ///
    /// ```
    /// # fn main() -> Result<(), highwater::Error> {
    /// # let memory = highwater::Memory::builder().memory("16M").swap("ram:64M").build()?;
    /// # let mapping = memory.map(40 << 20)?;
    /// let sum = async {
    ///     mapping.fetch(8192..20_000)?.await?;
    ///     Ok(mapping[8192..20_000].iter().map(|byte| u64::from(*byte)).sum::<u64>())
    /// };
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// # let (mut sum, mut context) = (pin!(sum), Context::from_waker(Waker::noop()));
    /// # let found: Result<u64, highwater::Error> = loop {
    /// #     if let Poll::Ready(found) = sum.as_mut().poll(&mut context) { break found }
    /// # };
    /// # assert_eq!(found?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`], [`Error::System`]: no thread can be started. The future
    /// returns those of [`Mapping::read_at`].
    pub fn fetch(&self, range: std::ops::Range<usize>) -> Result<Fetch<'_>, Error> {
        self.expect_inside(range.end)?;
        let fetchers = self.engine.fetchers()?;
        let pages = match range.is_empty() {
            true => 0..0,
            false => range.start / PAGE_SIZE..range.end.div_ceil(PAGE_SIZE),
        };
        self.prefetch(range);
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Gate::new(&*self.engine, self.space, self.vpn(0)));
        Ok(fetchers.fetch(gate.get_or_insert_with(new).clone(), pages))
    }

    /// Ends all fetches of the mapping, and waits for the page that is being fetched. Callers that
    /// free or move pages call this first.
    pub(crate) fn end_fetches(&mut self) {
        let gate = self.gate.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gate.take() {
            gate.close();
        }
    }

    /// Says how the mapping is going to be used.
    pub fn advise(&self, advice: Advice) {
        if self.len > 0 {
            self.engine.advise(self.space, self.range, advice);
        }
    }

    /// Pins the page that contains a byte, for reading. The guard dereferences to the part of the
    /// page that belongs to the mapping; an access to it does not fault. At most half of the budget
    /// may be pinned.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    pub fn page(&self, offset: usize) -> Result<PageRef<'_>, Error> {
        let (index, len) = self.page_of(offset)?;
        Ok(PageRef::new(self.pin(index, Access::Read)?, len))
    }

    /// Pins the page that contains a byte, for writing.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    pub fn page_mut(&mut self, offset: usize) -> Result<PageMut<'_>, Error> {
        // SAFETY: the guard borrows the whole mapping for writing.
        unsafe { self.page_shared(offset) }
    }

    /// [`Mapping::page_mut`] for a mapping that several threads use.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    ///
    /// # Safety
    /// While the guard is dereferenced, no other thread uses the page, and no other reference to it
    /// exists.
    pub unsafe fn page_shared(&self, offset: usize) -> Result<PageMut<'_>, Error> {
        let (index, len) = self.page_of(offset)?;
        let pinned = self.pin(index, Access::Write)?;
        self.engine.open_to_calls(self.space, self.vpn(index))?;
        Ok(PageMut::new(pinned, len))
    }

    fn fill_zeros(&mut self, range: std::ops::Range<usize>) -> Result<(), Error> {
        // Within pages of the mapping, perhaps beyond its end.
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(PAGE_SIZE - at % PAGE_SIZE);
            let page = self.pin(at / PAGE_SIZE, Access::Write)?;
            // SAFETY: inside the page, which is pinned and borrowed for writing.
            unsafe { page.address.add(at % PAGE_SIZE).write_bytes(0, len) };
            at += len;
        }
        Ok(())
    }

    /// [`Mapping::read_at`] to a pointer.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    ///
    /// # Safety
    /// The caller may write `len` bytes at `to`, which lie outside the range that is read. No
    /// thread writes to that range meanwhile.
    pub unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) -> Result<(), Error> {
        // SAFETY: the parts follow one another, in the mapping and at `to`.
        self.each_page(offset, len, Access::Read, |from, at, len| unsafe {
            ptr::copy_nonoverlapping(from, to.add(at), len);
        })
    }

    /// [`Mapping::write_at`] from a pointer: threads may write to different parts at the same time.
    ///
    /// # Errors
    /// Those of [`Mapping::read_at`].
    ///
    /// # Safety
    /// The caller may read `len` bytes at `from`, which lie outside the range that is written. No
    /// other thread uses that range meanwhile, and no reference to it exists.
    pub unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) -> Result<(), Error> {
        // SAFETY: the parts follow one another, in the mapping, where the caller may write, and at
        // `from`.
        self.each_page(offset, len, Access::Write, |to, at, len| unsafe {
            ptr::copy_nonoverlapping(from.add(at), to, len);
        })
    }

    /// Calls `act` for the part of the range in each page, with its address, its offset from
    /// `offset`, and its length.
    fn each_page(
        &self,
        offset: usize,
        len: usize,
        access: Access,
        mut act: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), Error> {
        self.expect_inside(offset.saturating_add(len))?;
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let part = (len - done).min(PAGE_SIZE - at % PAGE_SIZE);
            let page = self.pin(at / PAGE_SIZE, access)?;
            // SAFETY: inside the page.
            act(unsafe { page.address.add(at % PAGE_SIZE) }.as_ptr(), done, part);
            done += part;
        }
        Ok(())
    }

    fn expect_inside(&self, end: usize) -> Result<(), Error> {
        let (end, len) = (end as u64, self.len as u64);
        if end <= len { Ok(()) } else { Err(Error::Range { end, len }) }
    }

    /// The number of the page that contains a byte, and how many bytes of the page belong to the
    /// mapping.
    fn page_of(&self, offset: usize) -> Result<(usize, usize), Error> {
        self.expect_inside(offset.saturating_add(1))?;
        let index = offset / PAGE_SIZE;
        Ok((index, PAGE_SIZE.min(self.len - index * PAGE_SIZE)))
    }
}

/// The range of a mapping without pages.
const NOTHING: Range = Range { first: Vpn(0), end: Vpn(0) };

/// The address of a mapping without pages: aligned for everything.
fn nowhere() -> NonNull<u8> {
    NonNull::new(ptr::without_provenance_mut(PAGE_SIZE)).expect("not 0")
}

fn pages(len: usize) -> u64 {
    len.div_ceil(PAGE_SIZE) as u64
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping's own memory; any bytes are valid, and those of new pages are zeros.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            // Nothing is left of the mapping, and a thread of the parent may have held the gate at
            // the fork.
            return;
        }
        self.end_fetches();
        if self.range != NOTHING && self.space == SPACE {
            self.engine.remove(self.range);
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping of {} at {:?}", Bytes(self.len as u64), self.address)
    }
}
