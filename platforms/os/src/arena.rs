//! The arena: one anonymous mapping, backed by the kernel as frames are first used.

use crate::huge::{self, Backing, HugePages};
use crate::sys;
use crate::sys::Advice;
use highwater_devices::Arena;
use highwater_platform::{FrameRange, WORDS_PER_FRAME};
use highwater_units::{Bytes, NodeId, PAGE_SIZE, Pfn};
use std::io;
use std::slice;
use std::sync::atomic::AtomicU64;

/// The frames' memory.
pub struct ArenaMapping {
    arena: Arena,
    frames: u32,
    /// All that was mapped for it: where that begins, and its length.
    mapped: (*mut u8, usize),
}

// SAFETY: an address that only `drop` uses, which has the mapping to itself.
unsafe impl Send for ArenaMapping {}
// SAFETY: as above; what is shared are the frames, by contract of Memory.
unsafe impl Sync for ArenaMapping {}

impl ArenaMapping {
    /// Address space for `frames` frames, in pages of 4 KiB: what is counted as used is what is
    /// resident.
    ///
    /// # Errors
    /// There is none.
    pub fn new(frames: u32) -> io::Result<ArenaMapping> {
        ArenaMapping::backed_by(frames, HugePages::Off)
    }

    /// The same, in huge pages where these are wanted and to be had.
    ///
    /// # Errors
    /// There is none.
    pub fn backed_by(frames: u32, wanted: HugePages) -> io::Result<ArenaMapping> {
        let len = frames as usize * PAGE_SIZE;
        let backing = huge::decide(wanted, len, huge::offer().as_deref());
        let slack = match backing {
            Backing::Small => 0,
            // On both sides, so that the kernel does not merge what is advised with a neighbour.
            Backing::Huge => 2 * huge::SIZE,
        };
        let mapped = sys::map_anonymous(len + slack)?;
        // Refused only by kernels without huge pages, where it is not needed.
        // SAFETY: the mapping is ours, and the advice keeps contents.
        let _ = unsafe { sys::advise(mapped, len + slack, Advice::LinuxNoHugepage) };
        let base = match backing {
            Backing::Small => mapped,
            Backing::Huge => mapped.map_addr(|at| (at + 1).next_multiple_of(huge::SIZE)),
        };
        if backing == Backing::Huge {
            // A refusal leaves small pages.
            // SAFETY: within the mapping, which has two huge pages more than this; as above.
            let _ = unsafe { sys::advise(base, len, Advice::LinuxHugepage) };
        }
        // SAFETY: the mapping holds all frames and lives as long as `self`.
        let arena = unsafe { Arena::new(base, frames) };
        Ok(ArenaMapping { arena, frames, mapped: (mapped, len + slack) })
    }

    /// How much of it is in huge pages, now.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn huge_bytes(&self) -> io::Result<Bytes> {
        let start = self.arena.address(Pfn(0)).addr();
        huge::backed(&(start..start + self.bytes()))
    }

    /// The frames' addresses.
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.frames as usize * PAGE_SIZE
    }

    /// All frames, on one node.
    pub fn ranges(&self) -> Vec<FrameRange> {
        vec![FrameRange { node: NodeId(0), first: Pfn(0), frames: self.frames }]
    }

    /// Fills frames with zeros.
    pub fn zero(&self, frames: &[Pfn]) {
        for pfn in frames {
            // SAFETY: a frame of the arena, the caller's alone for the call (contract of Memory).
            unsafe { self.arena.address(*pfn).write_bytes(0, PAGE_SIZE) };
        }
    }

    /// Copies one frame to another.
    pub fn copy(&self, from: Pfn, to: Pfn) {
        assert_ne!(from, to, "a frame is copied to another");
        // SAFETY: two frames of the arena, the caller's for the call (contract of Memory).
        unsafe {
            let (from, to) = (self.arena.address(from), self.arena.address(to));
            to.copy_from_nonoverlapping(from, PAGE_SIZE);
        }
    }

    /// Has the block of 2 MiB that begins with a frame in one huge page, if that can be.
    pub fn coalesce(&self, head: Pfn) {
        let block = self.arena.address(head);
        let inside = head.index() + huge::SIZE / PAGE_SIZE <= self.frames as usize;
        if inside && block.addr().is_multiple_of(huge::SIZE) {
            // SAFETY: frames of the arena; the kernel keeps their contents, or refuses.
            let _ = unsafe { huge::collapse(block) };
        }
    }

    /// Whether a frame holds zeros only. Most that do not show it in their first words.
    pub fn is_zero(&self, pfn: Pfn) -> bool {
        // SAFETY: a frame of the arena, the caller's alone for the call (contract of Memory), and
        // aligned to 8.
        let words = unsafe {
            slice::from_raw_parts(self.arena.address(pfn).cast::<u64>(), WORDS_PER_FRAME)
        };
        words.iter().all(|word| *word == 0)
    }

    /// The word of a frame, as an atomic: a test may read what another thread writes.
    pub fn word(&self, pfn: Pfn, word: usize) -> &AtomicU64 {
        assert!(word < WORDS_PER_FRAME, "a frame has {WORDS_PER_FRAME} words");
        // SAFETY: inside the arena, aligned to 8, and alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.arena.address(pfn).cast::<u64>().add(word)) }
    }
}

impl Drop for ArenaMapping {
    fn drop(&mut self) {
        // SAFETY: the owner of the frames goes; devices and pins borrowed from it are gone.
        unsafe { sys::unmap(self.mapped.0, self.mapped.1) };
    }
}
