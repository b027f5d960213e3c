//! Checks the use of frames: which page maps a frame, and which device transfers it. Independent of
//! the manager; panics when the platform contract is violated.
//!
//! A frame is unmapped or mapped at one page; a device may read it (a write to swap) or fill it (a
//! read). A mapped frame takes part in no transfer, and only the device touches a frame that it
//! fills.

use highwater_units::{IoFrames, Pfn, SpaceId, Vpn};

/// The use of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    mapped: Option<(SpaceId, Vpn)>,
    transfer: Transfer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    None,
    /// A device reads the frame.
    Out,
    /// A device fills the frame.
    In,
}

/// The use of every frame.
pub(crate) struct Watch(Vec<Usage>);

impl Watch {
    pub(crate) fn new(frames: usize) -> Watch {
        Watch(vec![Usage { mapped: None, transfer: Transfer::None }; frames])
    }

    #[track_caller]
    fn idle(&mut self, pfn: Pfn, what: &str) -> &mut Usage {
        let usage = &mut self.0[pfn.index()];
        assert_eq!(usage.mapped, None, "{pfn:?} is {what} while it is mapped");
        assert_eq!(usage.transfer, Transfer::None, "{pfn:?} is {what} during a transfer");
        usage
    }

    /// Called before the contents of a frame are replaced.
    pub(crate) fn touch(&mut self, pfn: Pfn, what: &str) {
        self.idle(pfn, what);
    }

    /// Called when a frame is mapped.
    pub(crate) fn map(&mut self, pfn: Pfn, space: SpaceId, vpn: Vpn) {
        self.idle(pfn, "mapped").mapped = Some((space, vpn));
    }

    /// Called when a frame is unmapped.
    pub(crate) fn unmap(&mut self, pfn: Pfn, space: SpaceId, vpn: Vpn) {
        let usage = &mut self.0[pfn.index()];
        assert_eq!(usage.mapped, Some((space, vpn)), "{pfn:?} is unmapped from where it is not");
        usage.mapped = None;
    }

    /// Called when a device starts to read frames.
    pub(crate) fn write_out(&mut self, frames: &IoFrames) {
        frames.iter().for_each(|pfn| self.idle(pfn, "written").transfer = Transfer::Out);
    }

    /// Called when a device starts to fill frames.
    pub(crate) fn read_in(&mut self, frames: &IoFrames) {
        frames.iter().for_each(|pfn| self.idle(pfn, "read into").transfer = Transfer::In);
    }

    /// Called when a transfer has completed.
    pub(crate) fn end(&mut self, frames: &IoFrames) {
        frames.iter().for_each(|pfn| self.0[pfn.index()].transfer = Transfer::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pfns: &[u32]) -> IoFrames {
        IoFrames::List(pfns.iter().map(|pfn| Pfn(*pfn)).collect())
    }

    const PAGE: (SpaceId, Vpn) = (SpaceId(0), Vpn(7));

    #[test]
    fn a_life_of_a_frame_passes() {
        let mut watch = Watch::new(2);
        watch.touch(Pfn(0), "zeroed");
        watch.map(Pfn(0), PAGE.0, PAGE.1);
        watch.unmap(Pfn(0), PAGE.0, PAGE.1);
        watch.write_out(&list(&[0]));
        watch.end(&list(&[0]));
        watch.read_in(&list(&[0, 1]));
        watch.end(&list(&[0, 1]));
    }

    #[test]
    #[should_panic(expected = "Pfn(1) is written while it is mapped")]
    fn a_mapped_frame_is_not_written() {
        let mut watch = Watch::new(2);
        watch.map(Pfn(1), PAGE.0, PAGE.1);
        watch.write_out(&list(&[0, 1]));
    }

    #[test]
    #[should_panic(expected = "Pfn(0) is mapped during a transfer")]
    fn a_frame_that_is_filled_is_not_mapped() {
        let mut watch = Watch::new(1);
        watch.read_in(&list(&[0]));
        watch.map(Pfn(0), PAGE.0, PAGE.1);
    }

    #[test]
    #[should_panic(expected = "is unmapped from where it is not")]
    fn a_frame_is_unmapped_where_it_is() {
        let mut watch = Watch::new(1);
        watch.map(Pfn(0), PAGE.0, PAGE.1);
        watch.unmap(Pfn(0), PAGE.0, Vpn(8));
    }
}
