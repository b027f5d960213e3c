//! Objects for who keeps some at hand in front of the slabs: arrays of a thread, say.
//!
//! ```text
//! slabs ── reserve ─────> at hand ── hand_out ──> in use
//!       <── return_all ──         <── take_back ──
//! ```
//! An object at hand counts as free to its user and as out to its slab, as one in a sheaf does:
//! its mark says so. So what is freed twice is found at once, whoever has the object at hand
//! meanwhile; by two threads within some ns, when it would be handed out twice (used.rs).
//! `hand_out` touches nothing but the mark, which a place leads to; it and `take_back` lock
//! nothing. The others take a CPU's lock, for many objects at a time.

use super::cache::CacheId;
use super::source::SlabPages;
use super::used::Mark;
use super::{Object, Slabs};
use crate::error::FreeError;
use highwater_units::PAGE_SHIFT;

/// An object at hand, of a cache with [`super::Marks::Bytes`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    object: Object,
    mark: &'a Mark,
    pub(super) slab: u32,
    pub(super) index: u16,
}

impl Place<'_> {
    /// The object; those of a slab follow each other.
    #[inline]
    pub fn object(&self) -> Object {
        self.object
    }

    /// Hands the object out.
    ///
    /// # Errors
    /// It is not at hand: two threads took it back at once, and the other has handed it out.
    #[inline]
    pub fn hand_out(self) -> Result<Object, FreeError> {
        self.mark.hand_out().map(|()| self.object)
    }
}

impl<S: SlabPages> Slabs<S> {
    /// Takes up to `count` objects from slabs, to have at hand; returns how many there were memory
    /// for. Sheaves are passed by: what is at hand does their work.
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

    /// An object that is at hand.
    pub(super) fn place(&self, id: u32, index: u16) -> Place<'_> {
        let slab = self.table.get(id);
        let object = Object(slab.address_of(index));
        Place { object, mark: slab.used.byte(index), slab: id, index }
    }

    /// Takes an object back from its user, to have at hand; says of which cache it is.
    ///
    /// # Errors
    /// It is none, or not in use: nothing has changed.
    #[inline]
    pub fn take_back(&self, object: Object) -> Result<(CacheId, Place<'_>), FreeError> {
        let id = self.map.get(object.0 >> PAGE_SHIFT).ok_or(FreeError::Foreign)?;
        let slab = self.table.get(id);
        let index = slab.index_of(object.0).ok_or(FreeError::Foreign)?;
        let mark = slab.used.byte(index);
        mark.take_back()?;
        Ok((slab.cache, Place { object, mark, slab: id, index }))
    }

    /// Returns objects that are at hand to their slabs; cheaper where those of a slab follow each
    /// other.
    ///
    /// # Errors
    /// One that is not at hand: two threads took it back at once. None has been returned; those
    /// before it are nobody's.
    pub fn return_all(&self, places: &[Place<'_>]) -> Result<(), Object> {
        places.iter().try_for_each(|at| at.mark.put().map_err(|_| at.object))?;
        let places: Vec<(u32, u16)> = places.iter().map(|at| (at.slab, at.index)).collect();
        self.put_places(&places);
        Ok(())
    }

    /// All objects that are at hand, of whomever, while nobody reserves or returns any: in a
    /// process whose other threads are gone, say, what they had.
    pub fn at_hand(&self) -> Vec<Place<'_>> {
        let mut found = Vec::new();
        for (id, slab) in self.live_slabs() {
            slab.used.each_at_hand(|index| found.push(self.place(id, index)));
        }
        found
    }
}
