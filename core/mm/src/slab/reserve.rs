//! Free objects that a caller keeps in front of slabs, for example in per-thread bins.
//!
//! ```text
//! slabs ── reserve ─────> reserved ── hand_out ──> allocated
//!       <── return_all ──          <── take_back ──
//! ```
//! For its user a reserved object is free, for its slab it is out, like an object in a sheaf; its
//! mark has the state. So a double free is detected at once, whichever thread has reserved the
//! object; if two threads free it within some ns, the second allocation detects it (used.rs).
//! `hand_out` touches the mark only; `hand_out` and `take_back` take no lock. The other two take a
//! CPU's lock, for many objects at a time.

use super::Slabs;
use super::object::{CacheId, Object};
use super::source::SlabPages;
use super::used::Mark;
use crate::error::FreeError;
use highwater_units::PAGE_SHIFT;

/// A reserved object, of a cache with [`super::Marks::Bytes`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    object: Object,
    mark: &'a Mark,
    pub(super) slab: u32,
    pub(super) index: u16,
}

impl Place<'_> {
    /// The object.
    #[inline]
    pub fn object(&self) -> Object {
        self.object
    }

    /// Allocates the object.
    ///
    /// # Errors
    /// It is not reserved: two threads took it back at the same time, and the other one has
    /// allocated it.
    #[inline]
    pub fn hand_out(self) -> Result<Object, FreeError> {
        self.mark.hand_out().map(|()| self.object)
    }
}

impl<S: SlabPages> Slabs<S> {
    /// Reserves up to `count` objects from slabs; returns how many there was memory for. Sheaves
    /// are bypassed, because reserved objects serve the same purpose.
    pub fn reserve<'a>(
        &'a self,
        cache: CacheId,
        count: usize,
        mut each: impl FnMut(Place<'a>),
    ) -> usize {
        self.take_objects(self.cache(cache), count, |slab, index| {
            let place = self.place(slab, index);
            place.mark.reserve();
            each(place);
        })
    }

    /// A reserved object.
    pub(super) fn place(&self, id: u32, index: u16) -> Place<'_> {
        let slab = self.table.get(id);
        let object = Object(slab.address_of(index));
        Place { object, mark: slab.used.byte(index), slab: id, index }
    }

    /// Frees an object and reserves it; returns its cache, too.
    ///
    /// # Errors
    /// No object begins there, or it is not allocated; nothing changes.
    #[inline]
    pub fn take_back(&self, object: Object) -> Result<(CacheId, Place<'_>), FreeError> {
        let id = self.map.get(object.0 >> PAGE_SHIFT).ok_or(FreeError::Foreign)?;
        let slab = self.table.get(id);
        let index = slab.index_of(object.0).ok_or(FreeError::Foreign)?;
        let mark = slab.used.byte(index);
        mark.take_back()?;
        Ok((slab.cache, Place { object, mark, slab: id, index }))
    }

    /// Returns reserved objects to their slabs; cheaper if objects of a slab are adjacent.
    ///
    /// # Errors
    /// An object that is not reserved: two threads took it back at the same time. No object is
    /// returned, and those before it are lost.
    pub fn return_all(&self, places: &[Place<'_>]) -> Result<(), Object> {
        places.iter().try_for_each(|at| at.mark.put().map_err(|_| at.object))?;
        let places: Vec<(u32, u16)> = places.iter().map(|at| (at.slab, at.index)).collect();
        self.put_places(&places);
        Ok(())
    }

    /// All reserved objects. No thread may reserve or return any meanwhile. After fork, for
    /// example, these include the objects of threads that the child does not have.
    pub fn at_hand(&self) -> Vec<Place<'_>> {
        let mut found = Vec::new();
        for (id, slab) in self.live_slabs() {
            slab.used.each_reserved(|index| found.push(self.place(id, index)));
        }
        found
    }
}
