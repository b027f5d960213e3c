//! A file's reader reads its windows itself, and goes on meanwhile.
//!
//! ```text
//! want -- gather: entries locked, frames taken -> sent -> machine/underway.rs      and goes on
//! fault on a locked page -- land: waited for, mapped       mostly the same reader
//! sweep: a thread of the manager                           what nobody has come for
//! ```
//! So nothing is handed from thread to thread while the reader goes on. It takes frames as for
//! itself, but once: below min one round of direct reclaim, and what then finds no frame is not
//! read (the kernel's __GFP_NORETRY).

use super::{hold, landing};
use crate::alloc;
use crate::machine::{Machine, ReadBatch, ReadRun, WINDOW_EXPIRY};
use crate::stats::Counter;
use crate::swap::ReadaheadRequest;
use highwater_platform::Platform;
use highwater_units::{Nanos, SpaceId, Vpn};

/// Begins to read what is wanted.
pub(super) fn begin<P: Platform>(m: &Machine<P>, wish: ReadaheadRequest) {
    let mut left = Some(wish);
    while let Some(wish) = left {
        if make_room(m) == Room::None {
            return;
        }
        let mut flight = ReadBatch::default();
        left = gather(m, &mut flight, wish);
        if flight.runs() == 0 {
            return;
        }
        flight.start(&m.platform, &m.swap);
        m.inflight.put(&m.platform, m.space(wish.space), flight);
    }
}

/// Whether one more batch may be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Some,
    None,
}

/// Lands what the devices are done with, as long as there is too much.
fn make_room<P: Platform>(m: &Machine<P>) -> Room {
    while !m.inflight.admits(m.frames.len() as u32) {
        let Some(mut flight) = m.inflight.take_done(&m.platform) else { return Room::None };
        landing::land(m, &mut flight);
    }
    Room::Some
}

/// Takes runs of pages from a wish until the batch is full; returns what is left to be read.
fn gather<P: Platform>(
    m: &Machine<P>,
    flight: &mut ReadBatch<P>,
    wish: ReadaheadRequest,
) -> Option<ReadaheadRequest> {
    let (mut left, mut pages) = (Some(wish), 0);
    while let Some(wish) = left
        && pages < flight.pages_max(&m.swap, m.frames.len())
        && flight.has_room()
    {
        let Some((mut held, slots)) = hold(m, &wish) else {
            left = wish.without(1);
            continue;
        };
        let frames = alloc::frames_noretry(m, held.len())?;
        held.truncate(frames.len());
        (left, pages) = (wish.without(frames.len() as u64), pages + frames.len());
        flight.add(ReadRun { left: held.leave(), slots, frames, marker: wish.marker });
    }
    left
}

/// What came of looking for a page that somebody has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fault) enum Landed {
    /// It was read ahead, and is there now, if it could be read.
    Yes,
    /// It is not that.
    NotUnderway,
}

/// If a page is of a batch that nobody has in hand: waits for the device, and makes it present.
pub(in crate::fault) fn land<P: Platform>(m: &Machine<P>, space: SpaceId, vpn: Vpn) -> Landed {
    let Some(mut flight) = m.inflight.take(space, vpn) else { return Landed::NotUnderway };
    if !flight.is_over(&m.platform) {
        m.count(Counter::FaultWait, 1);
    }
    landing::land(m, &mut flight);
    Landed::Yes
}

/// The body of the thread that lands what nobody has come for.
pub(super) fn sweep<P: Platform>(m: &Machine<P>) {
    loop {
        let ticket = m.inflight.ticket();
        let open = m.inflight.is_open();
        let old = match open {
            true => m.platform.now().since(WINDOW_EXPIRY),
            false => Nanos(u64::MAX),
        };
        while let Some(mut flight) = m.inflight.take_old(old) {
            landing::land(m, &mut flight);
        }
        match open {
            true => m.inflight.watch(ticket),
            false => return,
        }
    }
}
