//! Readahead requests: a fault of a sequential stream asks for the pages that come next.
//!
//! A stream that reads full windows requests the pages after its window. The first of these is
//! left unmapped, as a marker (the kernel's PG_readahead): its use requests the stretch after the
//! next, while the pages in between are in memory or in flight.

use super::access::Fault;
use crate::config::Readahead;
use crate::machine::Machine;
use crate::stats::Counter;
use crate::swap::{Landing, ReadaheadRequest};
use highwater_platform::{Platform, Recency};
use highwater_units::{RUN_PAGES_MAX, SpaceId, Vpn};

/// Most pages of a request: 1 MiB, with as much in flight when the stream requests more. One stream
/// then keeps a disk as busy as 64 transfers do; with half that size, three quarters as busy.
const STRETCH_MAX: u64 = 256;

/// Whether swapped pages are read ahead.
pub(super) fn is_on<P: Platform>(m: &Machine<P>) -> bool {
    m.config.prefetch && m.swap.reads_ahead()
}

/// Requests the swapped pages from `first` on, for a stream that reads full windows.
pub(super) fn continue_stream<P: Platform>(
    m: &Machine<P>,
    space: SpaceId,
    fault: Fault,
    first: Vpn,
) {
    let readahead = matches!(m.config.readahead, Readahead::Virtual | Readahead::Auto);
    let end = Vpn((first.0 + stretch(m)).min(fault.within.end.0));
    if readahead && is_on(m) && first < end {
        let landing = Landing::Stream(Some(first));
        m.request_readahead(ReadaheadRequest { space, first, end, landing });
    }
}

/// The marker of a stream was used: requests the stretch after the next.
pub(super) fn continue_from_marker<P: Platform>(m: &Machine<P>, space: SpaceId, fault: Fault) {
    let stretch = stretch(m);
    if m.platform.recency() == Recency::Unmapping {
        // Uses of mapped pages cannot be observed here, but the stream's continuation can.
        let space = m.space(space);
        let end = space.pages().min(fault.vpn.0 + stretch);
        let pages = (fault.vpn.0 + 1..end).map(|vpn| space.entry(Vpn(vpn)));
        // Locked pages are in flight.
        let ahead = pages.filter(|entry| entry.is_ahead() || entry.is_locked()).count();
        m.count(Counter::SwapRaHit, ahead as u64);
    }
    continue_stream(m, space, fault, fault.vpn.offset(stretch));
}

/// Pages of a request; 0 if the budget is too small.
fn stretch<P: Platform>(m: &Machine<P>) -> u64 {
    let pages = (m.present() as u64 / 128).min(STRETCH_MAX);
    if pages < RUN_PAGES_MAX as u64 { 0 } else { pages }
}

/// Requests a window of a file.
pub(super) fn submit<P: Platform>(m: &Machine<P>, request: ReadaheadRequest) {
    #[cfg(feature = "history")]
    if super::history::is_by_reader(m) {
        return super::history::read(m, request);
    }
    m.request_readahead(request);
}
