//! Names of objects and of caches.

/// An object: the offset in its source, in bytes, at which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object(pub u64);

/// A cache of a [`super::Slabs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheId(pub(super) u16);

impl CacheId {
    /// The number of caches that were created before it.
    #[inline]
    pub fn index(self) -> usize {
        self.0.into()
    }
}
