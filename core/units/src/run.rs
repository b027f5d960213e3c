//! Lists of frames: runs of up to 64 KiB, the unit of reading, writing, mapping and unmapping
//! pages, and blocks of up to 4 MiB, which are transferred whole.

use crate::page::{Order, Pfn};

/// Pages in the longest run: 64 KiB, one transfer and one TLB flush.
pub const RUN_PAGES_MAX: usize = 16;

/// Most pages that reclaim isolates at a time (SWAP_CLUSTER_MAX).
pub const BATCH_PAGES_MAX: usize = 32;

/// The frames of a run of contiguous pages, in page order. They need not be adjacent.
pub type FrameList = FrameArray<RUN_PAGES_MAX>;

/// A batch of isolated frames.
pub type FrameBatch = FrameArray<BATCH_PAGES_MAX>;

/// Up to `N` frames, without heap memory: the fault path allocates none.
#[derive(Clone, Copy, Debug)]
pub struct FrameArray<const N: usize> {
    frames: [Pfn; N],
    len: u8,
}

impl<const N: usize> Default for FrameArray<N> {
    fn default() -> FrameArray<N> {
        const { assert!(N <= u8::MAX as usize) };
        FrameArray { frames: [Pfn(0); N], len: 0 }
    }
}

impl<const N: usize> FrameArray<N> {
    /// A list of one frame.
    pub fn one(pfn: Pfn) -> FrameArray<N> {
        let mut list = FrameArray::default();
        list.push(pfn);
        list
    }

    /// Appends a frame. The list must not be full.
    pub fn push(&mut self, pfn: Pfn) {
        self.frames[usize::from(self.len)] = pfn;
        self.len += 1;
    }

    /// Whether another frame would not fit.
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == N
    }

    /// Keeps the first `len` frames.
    pub fn truncate(&mut self, len: usize) {
        self.len = len.min(usize::from(self.len)) as u8;
    }
}

impl<const N: usize> std::ops::Deref for FrameArray<N> {
    type Target = [Pfn];

    fn deref(&self) -> &[Pfn] {
        &self.frames[..usize::from(self.len)]
    }
}

impl<const N: usize> std::ops::DerefMut for FrameArray<N> {
    fn deref_mut(&mut self) -> &mut [Pfn] {
        &mut self.frames[..usize::from(self.len)]
    }
}

impl<const N: usize> FromIterator<Pfn> for FrameArray<N> {
    fn from_iter<I: IntoIterator<Item = Pfn>>(frames: I) -> FrameArray<N> {
        let mut list = FrameArray::default();
        frames.into_iter().for_each(|pfn| list.push(pfn));
        list
    }
}

/// The frames of one transfer, in page order.
#[derive(Clone, Copy, Debug)]
pub enum IoFrames {
    /// Up to 16 frames, adjacent or not.
    List(FrameList),
    /// A block: 2^order adjacent frames from this one on.
    Block(Pfn, Order),
}

impl IoFrames {
    /// Number of frames.
    pub fn len(&self) -> usize {
        match self {
            IoFrames::List(list) => list.len(),
            IoFrames::Block(_, order) => order.frames() as usize,
        }
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frame of page `index`, which is below [`IoFrames::len`].
    pub fn at(&self, index: usize) -> Pfn {
        match self {
            IoFrames::List(list) => list[index],
            IoFrames::Block(first, _) => first.offset(index as u32),
        }
    }

    /// The frames in page order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pfn> + '_ {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Ranges of adjacent frames: `(offset, first frame, length)`.
    pub fn adjacent(&self) -> impl Iterator<Item = (usize, Pfn, usize)> + '_ {
        let (list, block) = match self {
            IoFrames::List(list) => (&list[..], None),
            IoFrames::Block(first, _) => (&[][..], Some((0, *first, self.len()))),
        };
        adjacent(list).chain(block)
    }

    /// Splits the frames into lists of up to 16: `(offset, list)`.
    pub fn lists(&self) -> impl Iterator<Item = (usize, FrameList)> + '_ {
        (0..self.len()).step_by(RUN_PAGES_MAX).map(|at| {
            let end = self.len().min(at + RUN_PAGES_MAX);
            (at, (at..end).map(|index| self.at(index)).collect())
        })
    }
}

/// Splits `frames` into ranges of adjacent frames: `(offset in the list, first frame, length)`.
pub fn adjacent(frames: &[Pfn]) -> impl Iterator<Item = (usize, Pfn, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = *frames.get(at)?;
        let same = |(i, pfn): &(usize, &Pfn)| pfn.0 == first.0 + *i as u32;
        let len = frames[at..].iter().enumerate().take_while(same).count();
        at += len;
        Some((at - len, first, len))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_frames_form_ranges() {
        let list: FrameList = [4, 5, 6, 9, 2, 3].map(Pfn).into_iter().collect();
        let found: Vec<_> = adjacent(&list).collect();
        assert_eq!(found, [(0, Pfn(4), 3), (3, Pfn(9), 1), (4, Pfn(2), 2)]);
        assert_eq!(IoFrames::List(list).adjacent().collect::<Vec<_>>(), found);
    }

    #[test]
    fn a_block_is_one_range_and_many_lists() {
        for order in (0..=Order::LARGE.0).map(Order) {
            let (block, frames) = (IoFrames::Block(Pfn(1024), order), 1 << order.0);
            assert_eq!(block.adjacent().collect::<Vec<_>>(), [(0, Pfn(1024), frames)]);
            let lists: Vec<Pfn> = block.lists().flat_map(|(_, list)| list.to_vec()).collect();
            assert!(lists.iter().copied().eq(block.iter()));
            assert_eq!(lists.len(), frames);
        }
        let few: FrameList = [7, 3].map(Pfn).into_iter().collect();
        let lists: Vec<_> =
            IoFrames::List(few).lists().map(|(at, list)| (at, list.len())).collect();
        assert_eq!(lists, [(0, 2)]);
    }
}
