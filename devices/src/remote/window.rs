//! Parts of a batch that are sent together.
//!
//! ```text
//! batch    | run | run | block of 512 pages ... |
//! pieces   |  |  |     |   |   |   |   |   |   |    of one segment, and 16 pages at most
//! windows  |                 |                 |    of 64 pages at most
//! ```

use highwater_platform::Io;

/// Slots that are stored together: as many as in a swap cluster of the manager.
pub(super) const SEGMENT: u32 = 512;
/// The most pages of a window, and pieces.
pub(super) const PAGES: usize = 64;

/// Pages of one transfer in one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// The transfer, by its index in the batch.
    pub(super) io: usize,
    /// Its first page in the transfer.
    pub(super) offset: usize,
    /// The slot of that page.
    pub(super) slot: u32,
    pub(super) pages: usize,
}

/// Pieces of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pieces: [Piece; PAGES],
    count: usize,
}

impl Window {
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

/// A place in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    io: usize,
    offset: usize,
}

impl Cursor {
    /// Takes the next pieces that fit in a window, of at most `run_max` pages each, and moves past
    /// them. Transfers that have failed are left out. `None`: the end of the batch.
    pub(super) fn window(&mut self, batch: &[Io], run_max: usize) -> Option<Window> {
        let mut window = Window { pieces: [Piece::default(); PAGES], count: 0 };
        let mut room = PAGES;
        while let Some(io) = batch.get(self.io).filter(|_| room > 0) {
            let left = io.frames.len() - self.offset;
            if io.result.is_err() || left == 0 {
                *self = Cursor { io: self.io + 1, offset: 0 };
                continue;
            }
            let slot = io.slot + self.offset as u32;
            let in_segment = (SEGMENT - slot % SEGMENT) as usize;
            let pages = left.min(in_segment).min(run_max).min(room);
            window.pieces[window.count] = Piece { io: self.io, offset: self.offset, slot, pages };
            window.count += 1;
            room -= pages;
            self.offset += pages;
        }
        (window.count > 0).then_some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::IoError;
    use highwater_units::{FrameList, Order, Pfn, Prng, RUN_PAGES_MAX};

    #[test]
    fn windows_cover_each_page_of_each_whole_transfer_once() {
        let mut random = Prng::new(3);
        for _ in 0..500 {
            let batch: Vec<Io> = (0..random.below(20)).map(|_| random_io(&mut random)).collect();
            let run_max = 1 + random.below(RUN_PAGES_MAX as u64) as usize;
            let mut cursor = Cursor::default();
            let mut found = Vec::new();
            while let Some(window) = cursor.window(&batch, run_max) {
                assert!(window.pieces().iter().map(|piece| piece.pages).sum::<usize>() <= PAGES);
                for piece in window.pieces() {
                    assert!((1..=run_max).contains(&piece.pages));
                    let last = piece.slot + piece.pages as u32 - 1;
                    assert_eq!(piece.slot / SEGMENT, last / SEGMENT);
                    assert_eq!(piece.slot, batch[piece.io].slot + piece.offset as u32);
                    found.extend((piece.offset..piece.offset + piece.pages).map(|p| (piece.io, p)));
                }
            }
            let pages = |(at, io): (usize, &Io)| {
                let pages = if io.result.is_ok() { io.frames.len() } else { 0 };
                (0..pages).map(move |page| (at, page))
            };
            assert!(found.into_iter().eq(batch.iter().enumerate().flat_map(pages)));
        }
    }

    fn random_io(random: &mut Prng) -> Io {
        let slot = random.below(2000) as u32;
        let mut io = match random.below(9) {
            0 => Io::block(slot, Pfn(0), Order::LARGE),
            _ => Io::new(slot, (0..1 + random.below(16) as u32).map(Pfn).collect::<FrameList>()),
        };
        if random.percent(10) {
            io.result = Err(IoError::Full);
        }
        io
    }
}
