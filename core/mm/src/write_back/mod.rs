//! Writes the dirty pages of a file's space to their places: msync, fsync and, in the background,
//! the [`flusher`].
//!
//! ```text
//! each run of dirty entries: hold -> unmap -> write -> write_completion.rs: clean, or still dirty
//!                                        \- pinned by the system: a copy is written, stays dirty
//! ```
//! The entries are held until the write is over, so that no page changes meanwhile; a fault on such
//! a page waits. The system may change a pinned page at any time, so a pinned page stays dirty.
//! Reclaim also writes files' pages (`reclaim/in_place.rs`).

mod dirty;
pub mod flusher;

use crate::alloc;
use crate::error::FaultError;
use crate::frame::Owner;
use crate::machine::Machine;
use crate::phase;
use crate::range::{Large, each_held};
use crate::space::{Backing, Entry, Held, Range, Space};
use crate::write_completion::{Purpose, complete_held, resident_frame};
use highwater_platform::{Io, IoError, Platform, Progress, Stop};
use highwater_units::{FrameList, Pfn, Vpn};

/// Writes the dirty pages of a range of a file's space, and makes them durable.
///
/// # Errors
/// The first error. The other pages are written all the same; pages that were not written stay
/// dirty.
pub fn write_back<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    range: Range,
) -> Result<(), FaultError> {
    let _phase = m.enter(phase::RANGE);
    let Backing::File { device } = space.backing() else { panic!("not a file's space") };
    let mut outcome = Ok(());
    each_held(space, range, Large::Leave, Entry::is_dirty, |mut held| {
        let mut at = 0;
        while at < held.len() {
            let (pages, written) = write_stretch(m, &mut held, at, device);
            at += pages;
            outcome = outcome.and(written);
        }
    });
    outcome.and(m.platform.sync(device).map_err(FaultError::Write))
}

/// Writes pages from `at` on that are all mapped or all unmapped; returns how many, and the result.
fn write_stretch<P: Platform>(
    m: &Machine<P>,
    held: &mut Held<'_, P>,
    at: usize,
    device: u8,
) -> (usize, Result<(), FaultError>) {
    let mapped = held.entries()[at].is_mapped();
    let alike = held.entries()[at..].iter().take_while(|entry| entry.is_mapped() == mapped);
    let frames: FrameList = alike.map(|entry| resident_frame(*entry)).collect();
    let owner = held.owner(at);
    let progress = if mapped {
        m.platform.unmap(owner.space, owner.vpn, &frames)
    } else {
        Progress::all(frames.len())
    };
    let done = progress.done;
    let result = write(m, device, owner.vpn, &frames[..done]);
    for (index, pfn) in frames[..done].iter().enumerate() {
        held.change(at + index, Entry::resident(*pfn).dirty());
        complete_held(held, at + index, result, Purpose::WriteBack, |was| was);
    }
    let written = result.map_err(FaultError::Write);
    match progress.stop {
        None => (done, written),
        Some(Stop::Vanished) => {
            m.abandon(frames[done]);
            held.change(at + done, Entry::ABSENT);
            (done + 1, written)
        }
        Some(_) => {
            let copied = write_copy(m, device, held.owner(at + done), frames[done]);
            (done + 1, written.and(copied))
        }
    }
}

/// Writes a copy of a page that cannot be unmapped.
fn write_copy<P: Platform>(
    m: &Machine<P>,
    device: u8,
    owner: Owner,
    pfn: Pfn,
) -> Result<(), FaultError> {
    let copy = alloc::frames(m, 1)?;
    m.platform.copy(owner.space, owner.vpn, pfn, copy[0]);
    let written = write(m, device, owner.vpn, &copy);
    m.free(&copy);
    written.map_err(FaultError::Write)
}

/// Writes unmapped frames to the places of the pages from `first` on, in one transfer.
fn write<P: Platform>(
    m: &Machine<P>,
    device: u8,
    first: Vpn,
    frames: &[Pfn],
) -> Result<(), IoError> {
    if frames.is_empty() {
        return Ok(());
    }
    let mut io = [Io::new(first.0 as u32, frames.iter().copied().collect())];
    m.swap.write(&m.platform, &m.stats, device, &mut io);
    io[0].result
}
