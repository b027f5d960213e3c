//! Runs of up to 64 KiB: the unit in which pages are read, written, mapped and unmapped.

use crate::Pfn;

/// Pages in the longest run that travels as one: 64 KiB, one I/O and one TLB flush.
pub const RUN_PAGES_MAX: usize = 16;

/// The frames behind a virtually contiguous run, in page order. They need not be adjacent.
#[derive(Clone, Copy, Debug)]
pub struct FrameList {
    frames: [Pfn; RUN_PAGES_MAX],
    len: u8,
}

impl Default for FrameList {
    fn default() -> FrameList {
        FrameList { frames: [Pfn(0); RUN_PAGES_MAX], len: 0 }
    }
}

impl FrameList {
    /// A list of one frame.
    pub fn one(pfn: Pfn) -> FrameList {
        let mut list = FrameList::default();
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
        usize::from(self.len) == RUN_PAGES_MAX
    }

    /// Keeps the first `len` frames.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }
}

impl std::ops::Deref for FrameList {
    type Target = [Pfn];

    fn deref(&self) -> &[Pfn] {
        &self.frames[..usize::from(self.len)]
    }
}

impl FromIterator<Pfn> for FrameList {
    fn from_iter<I: IntoIterator<Item = Pfn>>(frames: I) -> FrameList {
        let mut list = FrameList::default();
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
