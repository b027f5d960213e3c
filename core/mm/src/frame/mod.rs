//! One record per frame: whose page it holds, which slot still equals it, where it is.
//!
//! ```text
//! Frames[pfn] = { owner: (space, vpn)?   slot: Slot?   place: Place   flags: writeback, failed
//!                 history }
//! ```
//! Protocol: `owner` and `slot` change only under the lock of the page's entry, or while nobody
//! else knows the frame. `place` changes by compare-and-swap as [`Place`] says. Every frame is in
//! exactly one place: free in its zone, in a per-CPU batch, on a list, or in the hands of one
//! thread.

mod mobility;
mod place;
mod shadow;

pub use mobility::Mobility;
pub use place::{Kind, Place, PlaceCell};
pub use shadow::{History, Shadow};

use highwater_platform::{Atomic, Platform};
use highwater_units::{Order, Pfn, Slot, SpaceId, Vpn};
use std::sync::atomic::Ordering::*;

/// Whose page a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The space.
    pub space: SpaceId,
    /// The page in it.
    pub vpn: Vpn,
}

/// How a write of a frame to its slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writeback {
    /// None under way; slot and frame agree if the frame has a slot.
    Idle,
    /// The device may be reading the frame: it must not be mapped.
    Running,
    /// The last write failed: the slot holds anything.
    Failed,
}

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const FAILED: u8 = 2;

/// The record of one frame. 24 bytes, where words are the standard library's.
struct Frame<P: Platform> {
    /// 0: nobody's; else 1 | vpn << 1 | space << 48.
    owner: P::Atomic<u64>,
    /// 0: none; else slot bits + 1.
    slot: P::Atomic<u64>,
    place: PlaceCell<P>,
    writeback: P::Atomic<u8>,
    /// Of a file's page: 1 if it was active once. Of a run's first frame: order << 2 | mobility.
    history: P::Atomic<u8>,
}

/// The records of all frames, by [`Pfn`].
pub struct Frames<P: Platform>(Vec<Frame<P>>);

impl<P: Platform> Frames<P> {
    /// Records of `frames` frames that are nobody's.
    pub fn new(frames: usize) -> Frames<P> {
        let frame = |_| Frame {
            owner: Atomic::new(0),
            slot: Atomic::new(0),
            place: PlaceCell::new(),
            writeback: Atomic::new(IDLE),
            history: Atomic::new(0),
        };
        Frames((0..frames).map(frame).collect())
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whose page the frame holds. Stable only under the lock of that page's entry.
    pub fn owner(&self, pfn: Pfn) -> Option<Owner> {
        let bits = self.0[pfn.index()].owner.load(Acquire);
        (bits & 1 == 1).then_some(Owner {
            space: SpaceId((bits >> 48) as u16),
            vpn: Vpn((bits >> 1) & ((1 << 47) - 1)),
        })
    }

    /// Gives the frame to a page, or to nobody.
    pub fn set_owner(&self, pfn: Pfn, owner: Option<Owner>) {
        let pack = |o: Owner| 1 | o.vpn.0 << 1 | u64::from(o.space.0) << 48;
        self.0[pfn.index()].owner.store(owner.map_or(0, pack), Release);
    }

    /// The slot whose contents equal the frame's, as far as the entry's dirty bit allows.
    pub fn slot(&self, pfn: Pfn) -> Option<Slot> {
        self.0[pfn.index()].slot.load(Acquire).checked_sub(1).map(Slot::from_bits)
    }

    /// Notes or forgets that slot.
    pub fn set_slot(&self, pfn: Pfn, slot: Option<Slot>) {
        self.0[pfn.index()].slot.store(slot.map_or(0, |slot| slot.to_bits() + 1), Release);
    }

    /// Forgets the slot and says which it was.
    pub fn take_slot(&self, pfn: Pfn) -> Option<Slot> {
        self.0[pfn.index()].slot.swap(0, AcqRel).checked_sub(1).map(Slot::from_bits)
    }

    /// Where the frame is.
    pub fn place(&self, pfn: Pfn) -> &PlaceCell<P> {
        &self.0[pfn.index()].place
    }

    /// Whether the page of a file that it holds was active once.
    pub fn history(&self, pfn: Pfn) -> History {
        match self.0[pfn.index()].history.load(Relaxed) {
            0 => History::New,
            _ => History::Active,
        }
    }

    /// Notes that, by who has the page's entry or the frame isolated.
    pub fn set_history(&self, pfn: Pfn, history: History) {
        self.0[pfn.index()].history.store(u8::from(history == History::Active), Relaxed);
    }

    /// Notes that a run begins with a frame that the caller has ([`Place::Off`]).
    pub fn set_run(&self, first: Pfn, order: Order, mobility: Mobility) {
        self.0[first.index()].history.store(order.0 << 2 | mobility as u8, Relaxed);
        let changed = self.place(first).change(Place::Off, Place::Run);
        debug_assert_eq!(changed, Ok(()), "{first:?} is in the hands of this thread");
    }

    /// The run that begins with a frame, if one does.
    pub fn run(&self, first: Pfn) -> Option<(Order, Mobility)> {
        (self.place(first).get() == Place::Run).then(|| {
            let bits = self.0[first.index()].history.load(Relaxed);
            (Order(bits >> 2), Mobility::ALL[usize::from(bits & 3)])
        })
    }

    /// Ends it: the frames are the caller's.
    ///
    /// # Panics
    /// If no run begins there.
    pub fn end_run(&self, first: Pfn) -> (Order, Mobility) {
        let run = self.run(first);
        let ended = self.place(first).change(Place::Run, Place::Off);
        assert_eq!(ended, Ok(()), "no run begins with {first:?}");
        self.0[first.index()].history.store(0, Relaxed);
        run.expect("it has not ended before")
    }

    /// How its write stands.
    pub fn writeback(&self, pfn: Pfn) -> Writeback {
        match self.0[pfn.index()].writeback.load(Acquire) {
            IDLE => Writeback::Idle,
            RUNNING => Writeback::Running,
            _ => Writeback::Failed,
        }
    }

    /// Notes how its write stands. `Release`: who then sees it idle sees the write done.
    pub fn set_writeback(&self, pfn: Pfn, state: Writeback) {
        let bits = match state {
            Writeback::Idle => IDLE,
            Writeback::Running => RUNNING,
            Writeback::Failed => FAILED,
        };
        self.0[pfn.index()].writeback.store(bits, Release);
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
