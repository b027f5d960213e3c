//! A lock that is cheap to take for reading: it has a part for each CPU, on cache lines of its own.
//!
//! ```text
//! reader -- its CPU's part: read
//! writer -- all parts: written; or, to wait for readers only, one after the other
//! ```

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock.
pub(crate) struct CpuLock(Box<[Part]>);

#[repr(align(128))]
#[derive(Default)]
struct Part(RwLock<()>);

impl CpuLock {
    /// A lock for so many CPUs.
    pub(crate) fn new(cpus: usize) -> CpuLock {
        CpuLock((0..cpus).map(|_| Part::default()).collect())
    }

    /// Number of parts.
    pub(crate) fn cpus(&self) -> usize {
        self.0.len()
    }

    /// The part of this thread's CPU. The part of another CPU would do as well.
    #[inline]
    pub(crate) fn part(&self) -> &RwLock<()> {
        // SAFETY: a plain call. -1 if the system does not say it: then all share a part.
        let cpu = unsafe { libc::sched_getcpu() } as usize;
        &self.0[cpu % self.0.len()].0
    }

    /// Locks for reading.
    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.part().read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads that read now have ended. Others may begin meanwhile.
    pub(crate) fn pass(&self) {
        self.written().for_each(drop);
    }

    /// Waits until no thread reads, and keeps all others out.
    pub(crate) fn write(&self) -> Vec<RwLockWriteGuard<'_, ()>> {
        self.written().collect()
    }

    /// Locks one part after the other for writing.
    fn written(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, ()>> {
        self.0.iter().map(|part| part.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
