//! One record per frame: the page it holds, the slot with the same contents, its place.
//!
//! ```text
//! Frames[pfn] = { owner: (space, vpn)?   slot: Slot?   place: Place   flags: writeback, failed
//!                 history }
//! ```
//! Protocol: `owner` and `slot` change only under the lock of the page's entry, or while no other
//! thread refers to the frame. `place` changes by compare-and-swap, as [`Place`] describes. Every
//! frame is in exactly one place: free in its zone, in a per-CPU batch, on a list, or held by one
//! thread.

mod mobility;
mod place;
mod probes;
mod shadow;

pub use mobility::Mobility;
pub use place::{Kind, Place, PlaceCell};
pub use probes::Probes;
pub use shadow::{History, Shadow};

use highwater_platform::{Atomic, Platform};
use highwater_units::{Order, Pfn, Slot, SpaceId, Vpn};
use std::sync::atomic::Ordering::*;

/// The owner of a frame: the page that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The space.
    pub space: SpaceId,
    /// The page in it.
    pub vpn: Vpn,
}

/// The state of the write of a frame to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writeback {
    /// No write is in flight; if the frame has a slot, their contents are equal.
    Idle,
    /// A write is in flight: the frame must not be mapped.
    Running,
    /// The last write failed: the contents of the slot are undefined.
    Failed,
}

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const FAILED: u8 = 2;

/// The records of all frames, by [`Pfn`]: 19 bytes each with the standard library's atomics. A
/// record costs no memory until it is used ([`Atomics::zeros`]).
pub struct Frames<P: Platform> {
    /// Each frame's owner (0: none; else 1 | vpn << 1 | space << 48) and slot (0: none; else slot
    /// bits + 1).
    contents: Vec<P::Atomic<u64>>,
    /// Each frame's place, the state of its write, and its history. The latter is, of a file page,
    /// 1 if it has been active; of an anonymous page, its [`Probes`]; of the first frame of a run,
    /// order << 2 | mobility.
    states: Vec<P::Atomic<u8>>,
}

impl<P: Platform> Frames<P> {
    /// Records of `frames` frames without owners.
    pub fn new(frames: usize) -> Frames<P> {
        Frames { contents: P::zeros(2 * frames), states: P::zeros(3 * frames) }
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.contents.len() / 2
    }

    #[inline(always)]
    fn owner_word(&self, pfn: Pfn) -> &P::Atomic<u64> {
        &self.contents[2 * pfn.index()]
    }

    #[inline(always)]
    fn slot_word(&self, pfn: Pfn) -> &P::Atomic<u64> {
        &self.contents[2 * pfn.index() + 1]
    }

    #[inline(always)]
    fn writeback_byte(&self, pfn: Pfn) -> &P::Atomic<u8> {
        &self.states[3 * pfn.index() + 1]
    }

    #[inline(always)]
    fn history_byte(&self, pfn: Pfn) -> &P::Atomic<u8> {
        &self.states[3 * pfn.index() + 2]
    }

    /// The page that the frame holds. Stable only under the lock of that page's entry.
    pub fn owner(&self, pfn: Pfn) -> Option<Owner> {
        let bits = self.owner_word(pfn).load(Acquire);
        (bits & 1 == 1).then_some(Owner {
            space: SpaceId((bits >> 48) as u16),
            vpn: Vpn((bits >> 1) & ((1 << 47) - 1)),
        })
    }

    /// Sets the page that the frame holds.
    pub fn set_owner(&self, pfn: Pfn, owner: Option<Owner>) {
        let pack = |o: Owner| 1 | o.vpn.0 << 1 | u64::from(o.space.0) << 48;
        self.owner_word(pfn).store(owner.map_or(0, pack), Release);
    }

    /// The slot with the frame's contents, unless the entry's dirty bit is set.
    pub fn slot(&self, pfn: Pfn) -> Option<Slot> {
        self.slot_word(pfn).load(Acquire).checked_sub(1).map(Slot::from_bits)
    }

    /// Sets the slot with the frame's contents.
    pub fn set_slot(&self, pfn: Pfn, slot: Option<Slot>) {
        self.slot_word(pfn).store(slot.map_or(0, |slot| slot.to_bits() + 1), Release);
    }

    /// Clears the slot with the frame's contents, and returns it.
    pub fn take_slot(&self, pfn: Pfn) -> Option<Slot> {
        self.slot_word(pfn).swap(0, AcqRel).checked_sub(1).map(Slot::from_bits)
    }

    /// The place of the frame.
    pub fn place(&self, pfn: Pfn) -> PlaceCell<'_, P> {
        PlaceCell::new(&self.states[3 * pfn.index()])
    }

    /// Whether the file page in the frame has been active.
    pub fn history(&self, pfn: Pfn) -> History {
        match self.history_byte(pfn).load(Relaxed) {
            0 => History::New,
            _ => History::Active,
        }
    }

    /// Sets whether the file page in the frame has been active. The caller has locked its entry, or
    /// isolated the frame.
    pub fn set_history(&self, pfn: Pfn, history: History) {
        self.history_byte(pfn).store(u8::from(history == History::Active), Relaxed);
    }

    /// The results of probing the anonymous page in the frame. A hint: if a page was dropped, not
    /// evicted, the next page in its frame inherits them.
    pub fn probes(&self, pfn: Pfn) -> Probes {
        Probes::from_bits(self.history_byte(pfn).load(Relaxed))
    }

    /// Sets what probes have found. The caller has isolated the frame.
    pub fn set_probes(&self, pfn: Pfn, probes: Probes) {
        self.history_byte(pfn).store(probes.to_bits(), Relaxed);
    }

    /// Copies the history of a page to the frame that it moves to.
    pub fn copy_history(&self, from: Pfn, to: Pfn) {
        self.history_byte(to).store(self.history_byte(from).load(Relaxed), Relaxed);
    }

    /// Records a run that starts at a frame which the caller has allocated ([`Place::Off`]).
    pub fn set_run(&self, first: Pfn, order: Order, mobility: Mobility) {
        self.history_byte(first).store(order.0 << 2 | mobility as u8, Relaxed);
        let changed = self.place(first).change(Place::Off, Place::Run);
        debug_assert_eq!(changed, Ok(()), "{first:?} is held by this thread");
    }

    /// The run that starts at a frame, if one does.
    pub fn run(&self, first: Pfn) -> Option<(Order, Mobility)> {
        (self.place(first).get() == Place::Run).then(|| {
            let bits = self.history_byte(first).load(Relaxed);
            (Order(bits >> 2), Mobility::ALL[usize::from(bits & 3)])
        })
    }

    /// Ends the run that starts at a frame: the caller gets its frames.
    ///
    /// # Panics
    /// If no run starts there.
    pub fn end_run(&self, first: Pfn) -> (Order, Mobility) {
        let run = self.run(first);
        let ended = self.place(first).change(Place::Run, Place::Off);
        assert_eq!(ended, Ok(()), "no run starts at {first:?}");
        self.history_byte(first).store(0, Relaxed);
        run.expect("the run had not ended")
    }

    /// The state of the frame's write.
    pub fn writeback(&self, pfn: Pfn) -> Writeback {
        match self.writeback_byte(pfn).load(Acquire) {
            IDLE => Writeback::Idle,
            RUNNING => Writeback::Running,
            _ => Writeback::Failed,
        }
    }

    /// Sets the state of the frame's write. A thread that reads `Idle` sees the write completed.
    pub fn set_writeback(&self, pfn: Pfn, state: Writeback) {
        let bits = match state {
            Writeback::Idle => IDLE,
            Writeback::Running => RUNNING,
            Writeback::Failed => FAILED,
        };
        self.writeback_byte(pfn).store(bits, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;

    #[test]
    fn owner_and_slot_keep_their_extremes() {
        let frames: Frames<TestPlatform> = Frames::new(1);
        let (pfn, top) = (Pfn(0), Vpn((1 << 47) - 1));
        assert_eq!((frames.owner(pfn), frames.slot(pfn)), (None, None));
        for owner in [(0, Vpn(0)), (u16::MAX, top)].map(|(s, vpn)| Owner { space: SpaceId(s), vpn })
        {
            frames.set_owner(pfn, Some(owner));
            assert_eq!(frames.owner(pfn), Some(owner));
        }
        let slot = Slot { device: 255, index: u32::MAX };
        frames.set_slot(pfn, Some(slot));
        assert_eq!((frames.take_slot(pfn), frames.slot(pfn)), (Some(slot), None));
    }
}
