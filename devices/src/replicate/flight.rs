//! Transfers of both replicas while a batch is in flight.

use crate::flights::Furnish;
use crate::pool::Started;
use crate::uring::DEPTH;
use highwater_platform::Io;

/// The most transfers of a batch: as many as a device takes at once.
pub(super) const IOS: usize = DEPTH;

/// A batch in flight.
#[derive(Default)]
pub(super) struct Flight {
    /// The transfers of each replica, for a write.
    pub(super) ios: [Vec<Io>; 2],
    /// Their indices in the caller's batch.
    pub(super) origins: Vec<usize>,
    pub(super) started: [Option<Started>; 2],
}

impl Flight {
    pub(super) fn push(&mut self, origin: usize, io: &Io) {
        self.ios.iter_mut().for_each(|ios| ios.push(*io));
        self.origins.push(origin);
    }
}

impl Furnish for Flight {
    const BYTES: usize = IOS * (2 * size_of::<Io>() + size_of::<usize>());

    fn furnish(&mut self) -> bool {
        let Flight { ios, origins, started } = self;
        debug_assert!(started.iter().all(Option::is_none), "all that was started is finished");
        let is_new = origins.capacity() == 0;
        origins.clear();
        origins.reserve_exact(IOS);
        for ios in ios {
            ios.clear();
            ios.reserve_exact(IOS);
        }
        is_new
    }
}
