//! Readahead of files by the reader itself, as kernels do it (page_cache_ra_unbounded). Today's
//! manager leaves this readahead to threads ([`super::readahead`]).
//!
//! ```text
//! read -- gather: entries locked, frames taken -- submit -- machine/inflight.rs
//! fault on a locked page -- complete: wait, map         mostly by the same reader
//! expire: a thread of the manager                       batches that no fault came for
//! ```
//! The reader allocates frames as for its own page, but retries only once: below the min watermark
//! it does one round of direct reclaim, and skips the window if no frame became free
//! (__GFP_NORETRY).

use super::batch;
use super::gather::hold;
use crate::alloc;
use crate::config::history::ReadaheadBy;
use crate::machine::{Machine, ReadBatch, ReadRun, WINDOW_EXPIRY};
use crate::stats::Counter;
use crate::swap::ReadaheadRequest;
use highwater_platform::Platform;
use highwater_units::{Nanos, SpaceId, Vpn};

/// Whether readers read their windows themselves.
pub(super) fn is_by_reader<P: Platform>(m: &Machine<P>) -> bool {
    m.config.history.readahead_by == ReadaheadBy::Reader
}

/// Submits the reads of a request and returns without waiting for them.
pub(super) fn read<P: Platform>(m: &Machine<P>, request: ReadaheadRequest) {
    let mut left = Some(request);
    while let Some(request) = left {
        if make_room(m) == Room::None {
            return;
        }
        let mut next = ReadBatch::default();
        left = gather(m, &mut next, request);
        if next.runs() == 0 {
            return;
        }
        batch::submit(m, &mut next);
        m.inflight.put(&m.platform, m.space(request.space), next);
    }
}

/// Whether one more batch may be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Some,
    None,
}

/// Completes batches that devices have finished, while too many pages are in flight.
fn make_room<P: Platform>(m: &Machine<P>) -> Room {
    while !m.inflight.admits(m.frames.len()) {
        let Some(mut done) = m.inflight.take_done(&m.platform) else { return Room::None };
        batch::complete(m, &mut done);
    }
    Room::Some
}

/// Moves runs of pages from a request to a batch until it is full; returns the rest of the request.
fn gather<P: Platform>(
    m: &Machine<P>,
    batch: &mut ReadBatch<P>,
    request: ReadaheadRequest,
) -> Option<ReadaheadRequest> {
    let (mut left, mut pages) = (Some(request), 0);
    while let Some(request) = left
        && pages < batch.pages_max(&m.swap, m.frames.len())
        && batch.has_room()
    {
        let Some((mut held, slots)) = hold(m, &request) else {
            left = request.skip(1);
            continue;
        };
        let frames = alloc::frames_noretry(m, held.len())?;
        held.truncate(frames.len());
        (left, pages) = (request.skip(frames.len() as u64), pages + frames.len());
        batch.add(ReadRun { left: held.leave(), slots, frames, landing: request.landing });
    }
    left
}

/// Whether a locked page is in a batch that readers have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was in a batch, which is complete now.
    Completed,
    /// It is in no batch.
    NotInflight,
}

/// If a page is in an in-flight batch: waits for the device and completes the batch.
pub(super) fn complete<P: Platform>(m: &Machine<P>, space: SpaceId, vpn: Vpn) -> Found {
    let Some(mut found) = m.inflight.take(space, vpn) else { return Found::NotInflight };
    if !found.is_done(&m.platform) {
        m.count(Counter::FaultWait, 1);
    }
    batch::complete(m, &mut found);
    Found::Completed
}

/// The body of the thread that completes expired batches.
pub(super) fn expire<P: Platform>(m: &Machine<P>) {
    loop {
        let ticket = m.inflight.ticket();
        let open = m.inflight.is_open();
        let before = if open { m.platform.now().since(WINDOW_EXPIRY) } else { Nanos(u64::MAX) };
        while let Some(mut expired) = m.inflight.take_old(before) {
            batch::complete(m, &mut expired);
        }
        if !open {
            return;
        }
        m.inflight.wait(ticket);
    }
}
