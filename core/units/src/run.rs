//! Runs of up to 64 KiB: the unit in which pages are read, written, mapped and unmapped.

use crate::Pfn;

/// Pages in the longest run that travels as one: 64 KiB, one I/O and one TLB flush.
pub const RUN_PAGES_MAX: usize = 16;

/// Frames that reclaim takes from a list at a time (SWAP_CLUSTER_MAX).
pub const BATCH_PAGES_MAX: usize = 32;

/// The frames behind a virtually contiguous run, in page order. They need not be adjacent.
pub type FrameList = FrameArray<RUN_PAGES_MAX>;

/// A batch of frames in the hands of reclaim.
pub type FrameBatch = FrameArray<BATCH_PAGES_MAX>;

/// Up to `N` frames, on the stack: the fault path allocates no memory.
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

/// Groups `frames` into stretches of adjacent frames: `(offset in the list, first frame, length)`.
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
    fn adjacent_frames_form_stretches() {
        let list: FrameList = [4, 5, 6, 9, 2, 3].map(Pfn).into_iter().collect();
        let found: Vec<_> = adjacent(&list).collect();
        assert_eq!(found, [(0, Pfn(4), 3), (3, Pfn(9), 1), (4, Pfn(2), 2)]);
    }
}
