//! The arena: one anonymous mapping, which the kernel populates as frames are first used.

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
    /// Address and length of the whole mapping, which may be larger than the arena.
    mapped: (*mut u8, usize),
}

// SAFETY: only `drop` uses the address, and then nothing else uses the mapping.
unsafe impl Send for ArenaMapping {}
// SAFETY: as above. The frames are shared by the contract of Memory.
unsafe impl Sync for ArenaMapping {}

impl ArenaMapping {
    /// An arena of `frames` frames in pages of 4 KiB, so that the resident memory is the memory
    /// used.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn new(frames: u32) -> io::Result<ArenaMapping> {
        ArenaMapping::backed_by(frames, HugePages::Off)
    }

    /// An arena in huge pages, if they are wanted and the kernel offers them.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub fn backed_by(frames: u32, wanted: HugePages) -> io::Result<ArenaMapping> {
        let len = frames as usize * PAGE_SIZE;
        let backing = huge::decide(wanted, len, huge::offer().as_deref());
        let slack = match backing {
            Backing::Small => 0,
            // Slack on both sides, so that the kernel does not merge the advised part with a
            // neighbour.
            Backing::Huge => 2 * huge::SIZE,
        };
        let mapped = sys::map_anonymous(len + slack)?;
        // Kernels without huge pages refuse the advice, and do not need it.
        // SAFETY: the mapping was just made, and the advice keeps contents.
        let _ = unsafe { sys::advise(mapped, len + slack, Advice::LinuxNoHugepage) };
        let base = match backing {
            Backing::Small => mapped,
            Backing::Huge => mapped.map_addr(|at| (at + 1).next_multiple_of(huge::SIZE)),
        };
        if backing == Backing::Huge {
            // If it is refused, the arena stays in small pages.
            // SAFETY: within the mapping, which is two huge pages larger; as above.
            let _ = unsafe { sys::advise(base, len, Advice::LinuxHugepage) };
        }
        // SAFETY: the mapping holds all frames and lives as long as `self`.
        let arena = unsafe { Arena::new(base, frames) };
        Ok(ArenaMapping { arena, frames, mapped: (mapped, len + slack) })
    }

    /// How much of the arena is in huge pages now.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn huge_bytes(&self) -> io::Result<Bytes> {
        let start = self.arena.address(Pfn(0)).addr();
        huge::backed(&(start..start + self.bytes()))
    }

    /// The addresses of the frames.
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Its length in bytes.
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
            // SAFETY: a frame of the arena that only the caller uses now (contract of Memory).
            unsafe { self.arena.address(*pfn).write_bytes(0, PAGE_SIZE) };
        }
    }

    /// Copies one frame to another.
    pub fn copy(&self, from: Pfn, to: Pfn) {
        assert_ne!(from, to, "a frame is copied to another");
        // SAFETY: two frames of the arena that only the caller uses now (contract of Memory).
        unsafe {
            let (from, to) = (self.arena.address(from), self.arena.address(to));
            to.copy_from_nonoverlapping(from, PAGE_SIZE);
        }
    }

    /// Asks the kernel to collapse the 2 MiB from a frame on into one huge page.
    pub fn coalesce(&self, head: Pfn) {
        let block = self.arena.address(head);
        let inside = head.index() + huge::SIZE / PAGE_SIZE <= self.frames as usize;
        if inside && block.addr().is_multiple_of(huge::SIZE) {
            // SAFETY: frames of the arena; the kernel keeps their contents, or refuses.
            let _ = unsafe { huge::collapse(block) };
        }
    }

    /// Whether a frame holds only zeros. Most other frames differ in their first words.
    pub fn is_zero(&self, pfn: Pfn) -> bool {
        // SAFETY: a frame of the arena, aligned to 8, that only the caller uses now (contract of
        // Memory).
        let words = unsafe {
            slice::from_raw_parts(self.arena.address(pfn).cast::<u64>(), WORDS_PER_FRAME)
        };
        words.iter().all(|word| *word == 0)
    }

    /// A word of a frame, as an atomic, so that a test may read the word while another thread
    /// writes it.
    pub fn word(&self, pfn: Pfn, word: usize) -> &AtomicU64 {
        assert!(word < WORDS_PER_FRAME, "a frame has {WORDS_PER_FRAME} words");
        // SAFETY: inside the arena, aligned to 8, and alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.arena.address(pfn).cast::<u64>().add(word)) }
    }
}

impl Drop for ArenaMapping {
    fn drop(&mut self) {
        // SAFETY: the owner of the frames ends; devices and pins that borrowed them have ended.
        unsafe { sys::unmap(self.mapped.0, self.mapped.1) };
    }
}
