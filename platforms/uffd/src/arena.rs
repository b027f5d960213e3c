//! The arena: the memory of all frames.
//!
//! With MOVE, the address of a frame in the arena is a hole while its page is mapped in the
//! program: the memory itself moves. So each address is backed once, and after that the kernel
//! neither allocates nor frees; [`UffdArena::populate`] does it in chunks, when frames are first
//! used. With COPY the arena is ordinary memory, and a frame whose page is mapped in the program is
//! dropped from it.

use crate::api::{Mapping, Source, Userfaultfd, Wake, Writes, feature};
use highwater_devices::Arena;
use highwater_os::ArenaMapping;
use highwater_os::sys::{self, Advice};
use highwater_platform::OutOfHostMemory;
use highwater_units::{Bytes, PAGE_SIZE, Pfn};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

/// Frames backed at a time: 256 KiB, about 80 us.
const CHUNK: u32 = 64;

/// Whether a chunk of the arena has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Populated {
    /// Never used.
    Not,
    /// A thread is populating it.
    InProgress,
    /// All its frames have memory, in the arena or in the program.
    Fully,
}

/// The arena.
pub(crate) struct UffdArena {
    pub(crate) mapping: ArenaMapping,
    /// With MOVE: the descriptor that it is registered with.
    uffd: Option<Userfaultfd>,
    /// Zeros to copy from: a mapping that is only read, so that the zero page backs it.
    zeros: *mut u8,
    chunks: Vec<AtomicU8>,
    used: AtomicU64,
}

// SAFETY: `zeros` is read only and lives as long as the arena.
unsafe impl Send for UffdArena {}
// SAFETY: as for Send; the rest is Sync.
unsafe impl Sync for UffdArena {}

impl UffdArena {
    pub(crate) fn new(frames: u32, how: Mapping, source: &Source) -> io::Result<UffdArena> {
        let mapping = ArenaMapping::new(frames)?;
        let base = mapping.arena().address(Pfn(0));
        // A forked child has an arena of its own, and pages that both share could not be moved.
        // SAFETY: the arena was just made.
        unsafe { sys::advise(base, mapping.bytes(), Advice::LinuxDontFork)? };
        let uffd = match how {
            Mapping::Copy => None,
            Mapping::Move => {
                let uffd = source.open(feature::MOVE | feature::PAGEFAULT_FLAG_WP)?;
                uffd.register(base as u64, mapping.bytes())?;
                Some(uffd)
            }
        };
        let chunk = |_| AtomicU8::new(Populated::Not as u8);
        Ok(UffdArena {
            mapping,
            uffd,
            zeros: sys::map_anonymous(CHUNK as usize * PAGE_SIZE)?,
            chunks: (0..frames.div_ceil(CHUNK)).map(chunk).collect(),
            used: AtomicU64::new(0),
        })
    }

    pub(crate) fn arena(&self) -> Arena {
        self.mapping.arena()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Memory populated so far.
    pub(crate) fn used(&self) -> Bytes {
        Bytes::of_pages(self.used.load(Relaxed))
    }

    /// The arena's descriptor, with MOVE only.
    pub(crate) fn uffd(&self) -> &Userfaultfd {
        self.uffd.as_ref().expect("pages are moved only with MOVE")
    }

    pub(crate) fn populate(&self, pfn: Pfn) -> Result<(), OutOfHostMemory> {
        let index = pfn.0 / CHUNK;
        let chunk = &self.chunks[index as usize];
        let (not, in_progress, fully) =
            (Populated::Not as u8, Populated::InProgress as u8, Populated::Fully as u8);
        loop {
            match chunk.compare_exchange(not, in_progress, AcqRel, Acquire) {
                Err(state) if state == fully => return Ok(()),
                Err(_) => std::thread::yield_now(),
                Ok(_) => {
                    let backed = self.back(Pfn(index * CHUNK));
                    chunk.store(if backed.is_ok() { fully } else { not }, Release);
                    return backed;
                }
            }
        }
    }

    fn back(&self, first: Pfn) -> Result<(), OutOfHostMemory> {
        let frames = CHUNK.min((self.bytes() / PAGE_SIZE) as u32 - first.0);
        if let Some(uffd) = &self.uffd {
            let to = self.arena().address(first) as u64;
            let (from, len) = (self.zeros as u64, frames as usize * PAGE_SIZE);
            let mut at = 0;
            while at < len {
                let to = to + at as u64;
                // SAFETY: holes of the arena, and zeros as long as a chunk.
                match unsafe { uffd.copy(to, from, len - at, Writes::Allowed, Wake::Later) } {
                    Ok(()) => break,
                    // Backed by an earlier attempt, which ran out of memory later.
                    Err((done, libc::EEXIST)) => at += done + PAGE_SIZE,
                    Err(_) => return Err(OutOfHostMemory),
                }
            }
        }
        self.used.fetch_add(u64::from(frames), Relaxed);
        Ok(())
    }

    /// Backs the hole of a frame again, after its memory was dropped in the program.
    pub(crate) fn refill(&self, pfn: Pfn) {
        let to = self.arena().address(pfn) as u64;
        // SAFETY: a hole of the arena, and a page of zeros.
        let filled = unsafe {
            self.uffd().copy(to, self.zeros as u64, PAGE_SIZE, Writes::Allowed, Wake::Later)
        };
        assert!(matches!(filled, Ok(()) | Err((_, libc::EEXIST))), "a dropped page is replaced");
    }

    /// Drops the memory of frames whose pages were copied into the program: without MOVE, or where
    /// MOVE is refused.
    pub(crate) fn release(&self, first: Pfn, frames: usize) {
        let (address, len) = (self.arena().address(first), frames * PAGE_SIZE);
        // SAFETY: frames of the arena that the caller holds; their contents are in the program.
        let _ = unsafe { sys::advise(address, len, Advice::LinuxDontNeed) };
    }
}

impl Drop for UffdArena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` and used by `self` only.
        unsafe { sys::unmap(self.zeros, CHUNK as usize * PAGE_SIZE) };
    }
}
