//! The parts of a caller's batch that go to the slow level, until they are done.

use crate::flights::Furnish;
use crate::pool::Started;
use highwater_platform::{Io, IoError};
use highwater_units::{IoFrames, Pfn};

/// The most parts of a batch in flight together.
const PARTS: usize = 32;

/// The slots of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The transfer of the caller's batch.
    pub(super) io: usize,
    /// The slot of its first page.
    pub(super) slot: u32,
}

impl Origin {
    /// The origin of the page `pages` pages later.
    pub(super) fn after(self, pages: usize) -> Origin {
        Origin { slot: self.slot + pages as u32, ..self }
    }
}

/// Parts for the slow level.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) ios: Vec<Io>,
    pub(super) origins: Vec<Origin>,
    /// The batch of `ios`, once it is started.
    pub(super) started: Option<Started>,
}

impl Parts {
    pub(super) fn is_full(&self) -> bool {
        self.ios.len() == PARTS
    }

    pub(super) fn push(&mut self, origin: Origin, io: Io) {
        self.ios.push(io);
        self.origins.push(origin);
    }

    /// Adds a page to the last part if it is adjacent; returns whether it was.
    pub(super) fn extend(&mut self, io: usize, block: u32, pfn: Pfn) -> bool {
        let Some((Io { slot, frames: IoFrames::List(list), .. }, from)) =
            self.ios.last_mut().zip(self.origins.last())
        else {
            return false;
        };
        let follows = from.io == io && *slot + list.len() as u32 == block && !list.is_full();
        if follows {
            list.push(pfn);
        }
        follows
    }

    /// Calls `each` with the origin, the first block, the number of pages and the result of each
    /// part, and forgets them.
    pub(super) fn settle(&mut self, mut each: impl FnMut(Origin, u32, u32, Result<(), IoError>)) {
        for (origin, io) in self.origins.drain(..).zip(self.ios.drain(..)) {
            each(origin, io.slot, io.frames.len() as u32, io.result);
        }
    }
}

impl Furnish for Parts {
    const BYTES: usize = PARTS * (size_of::<Io>() + size_of::<Origin>());

    fn furnish(&mut self) -> bool {
        assert!(self.ios.is_empty() && self.started.is_none(), "all parts were settled");
        let is_new = self.ios.capacity() == 0;
        self.ios.reserve_exact(PARTS);
        self.origins.reserve_exact(PARTS);
        is_new
    }
}
