//! Readahead by pointers: the pages that an array of pointers names are read before their use.
//!
//! ```text
//! a load continues a stream: from_stream, a cursor at the start of its page --\
//! a lead is used: from_named, its cursor                                     --|- step
//!
//! step: words of the cursor's page -- Mmu::addresses: pages -- those that are swapped, on a device
//!   that is not memory, and likely to be used (swap/pointers.rs) -> a readahead thread
//! ```
//! Pages are requested in the direction of the stream, which is the order of their use. The first
//! page of a step and the one in its middle become leads: pages whose use starts the next step,
//! from the cursor behind this one. So readahead stays one step ahead of the program, even in an
//! array that stays in memory.
//!
//! Locking: the entry of the cursor's page is held while its words are read. The entries of the
//! pages that the words name are only read, not held.

use super::access::{Window, window_max};
use super::request;
use crate::machine::Machine;
use crate::space::{Held, Page, Pinned, Space};
use crate::stats::Counter;
use crate::swap::{Ahead, Cursor, Landing, ReadaheadRequest, Trust, WATCHED_IN};
use highwater_platform::{Latency, Platform, WORDS_PER_FRAME};
use highwater_units::{PAGE_SIZE, Pfn, Vpn};
use std::ops::Range;

/// Most pages that a step requests.
const STEP_MAX: usize = 128;
/// An array is not followed further after this many consecutive pages that name no swapped page.
const BARREN_MAX: usize = 4;

/// The words of a page.
type Words = [u64; WORDS_PER_FRAME];

/// A load has faulted on the page at `vpn`, which is in frame `pfn`, held, and not mapped yet. If
/// the load continues a stream, requests the pages that its words name.
pub(super) fn from_stream<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    (vpn, pfn): (Vpn, Pfn),
    window: Window,
) {
    if window.pages == 1 || !request::is_on(m) {
        return;
    }
    if let Some(addresses) = m.platform.addresses(space.id()) {
        let at = Cursor { vpn, word: 0, direction: window.direction };
        step(m, space, &addresses, &in_frame(m, pfn), at);
    }
}

/// Called when a page is used that was on a device or read ahead. If the page is a lead, requests
/// the pages that the words from its cursor on name. The caller holds no entry.
pub(super) fn from_named<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    let Some(addresses) = m.platform.addresses(space.id()) else { return };
    let mut cursor = m.swap.pointers.cursor_of(space.id(), vpn);
    for _ in 0..BARREN_MAX {
        let Some(at) = cursor else { return };
        let Some(words) = read(m, space, at.vpn) else {
            return m.swap.pointers.lead(space.id(), at.vpn, at);
        };
        match step(m, space, &addresses, &words, at) {
            Step::Barren(next) => cursor = next,
            Step::Done => return,
        }
    }
}

/// A page that was read ahead is used: counts the use for the region, if pointers can name its
/// pages.
pub(super) fn note_use<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) {
    if m.platform.addresses(space.id()).is_some() {
        m.swap.pointers.used(space.id(), vpn);
    }
}

/// The words of a page that is in memory.
fn read<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> Option<Words> {
    if vpn.0 >= space.pages() {
        return None;
    }
    let held = Held::lock(space, vpn, Pinned::Accept)?;
    let entry = held.entries()[0];
    let Page::Resident(pfn) = entry.page() else { return None };
    if !entry.is_mapped() {
        return Some(in_frame(m, pfn));
    }
    let mut words = [0; WORDS_PER_FRAME];
    m.platform.peek(space.id(), vpn, &mut words).then_some(words)
}

/// The words of a frame whose page is not mapped.
fn in_frame<P: Platform>(m: &Machine<P>, pfn: Pfn) -> Words {
    std::array::from_fn(|word| m.platform.load(pfn, word))
}

/// The result of a step.
enum Step {
    /// Pages were requested.
    Done,
    /// The rest of the page names no page to read. Holds the cursor behind the page.
    Barren(Option<Cursor>),
}

/// Requests swapped pages that the words from the cursor on name.
fn step<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    addresses: &Range<u64>,
    words: &Words,
    cursor: Cursor,
) -> Step {
    let most = window_max(m).min(STEP_MAX);
    let mut named = [Vpn(0); STEP_MAX];
    let (mut len, mut next) = (0, Some(cursor));
    while let Some(here) = next.filter(|here| here.vpn == cursor.vpn && len < most) {
        let word = words[here.index()];
        let vpn = Vpn(word.wrapping_sub(addresses.start) / PAGE_SIZE as u64);
        if addresses.contains(&word) && !named[..len].contains(&vpn) && is_wanted(m, space, vpn) {
            named[len] = vpn;
            len += 1;
        }
        next = here.next();
    }
    if len == 0 {
        return Step::Barren(next);
    }
    for (index, vpn) in named[..len].iter().enumerate() {
        request_one(m, space, *vpn, index);
    }
    if let Some(next) = next {
        // Both leads are watched pages: their uses are seen.
        for lead in [0, len / 2 / WATCHED_IN * WATCHED_IN] {
            m.swap.pointers.lead(space.id(), named[lead], next);
        }
    }
    m.count(Counter::SwapRaPointers, len as u64);
    Step::Done
}

/// Requests the page that is number `index` of a step.
fn request_one<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn, index: usize) {
    let landing = match m.swap.pointers.trust(space.id(), vpn) {
        Trust::Full if !index.is_multiple_of(WATCHED_IN) => Landing::Named,
        Trust::Full | Trust::Limited => Landing::Watched,
    };
    let (first, end) = (vpn, vpn.offset(1));
    m.request_readahead(ReadaheadRequest { space: space.id(), first, end, landing });
}

/// Whether a page that a word names is to be read.
fn is_wanted<P: Platform>(m: &Machine<P>, space: &Space<P>, vpn: Vpn) -> bool {
    let entry = space.entry(vpn);
    let Page::Swapped(slot) = entry.page() else { return false };
    !entry.is_locked()
        && m.swap.latency(slot) == Latency::Asynchronous
        && m.swap.ahead(slot) == Ahead::Virtual
        && m.swap.pointers.admit(space.id(), vpn)
}
