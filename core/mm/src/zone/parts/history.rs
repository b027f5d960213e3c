//! Isolating free frames as Linux 3.6 did: the lock is taken at the first frame of a pageblock.

use super::isolate::{Contention, FreeScan, Wanted};
use super::{Parts, Summary};
use highwater_platform::{Atomic, Platform};
use highwater_units::{Order, Pfn};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl<P: Platform> Parts<P> {
    /// [`Parts::isolate`] with the lock held throughout.
    pub(in crate::zone) fn isolate_early(
        &self,
        platform: &P,
        frames: Range<u32>,
        contention: Contention,
        mark: u32,
        mut taken: impl FnMut(Pfn, Order) -> Wanted,
    ) -> FreeScan {
        let index = self.part_of(Pfn(frames.start));
        let (part, first) = (&self.parts[index], self.first_of(index).0);
        let mut scan = FreeScan::default();
        // Takes no time; the simulator may let another CPU run here.
        platform.scans(0);
        let mut held = part.enter(contention);
        let Some(buddy) = &mut held else {
            platform.scans(0);
            return FreeScan { contended: true, ..scan };
        };
        let mut at = frames.start;
        while at < frames.end {
            scan.scanned += 1;
            let Some(order) = part.map.head(at - first) else {
                at += 1;
                continue;
            };
            if self.take_block(buddy, Pfn(at), order, mark) {
                scan.isolated += order.frames();
                if taken(Pfn(at), order) == Wanted::NoMore {
                    break;
                }
            }
            at += order.frames();
        }
        platform.scans(scan.scanned as usize);
        part.summary.store(Summary::of(buddy).0, Relaxed);
        scan
    }
}
