//! Pages that a forked child does not simply inherit: MADV_DONTFORK, MADV_WIPEONFORK.
//!
//! The manager's fork copies every page of the range. So the advice is recorded by page range,
//! moves with the pages, ends when they are unmapped, and is followed in the child once the child
//! is served: `Process::heed_inheritance`.

use highwater_mm::Range;
use highwater_units::Vpn;
use std::collections::BTreeMap;

/// How a forked child gets pages that are not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inheritance {
    /// Not mapped in the child (MADV_DONTFORK).
    Absent,
    /// Zeros in the child (MADV_WIPEONFORK), and in its children.
    Zeros,
    /// Both advices were given: not mapped, and zeros once MADV_DOFORK takes the first back.
    AbsentZeros,
}

impl Inheritance {
    /// The state of pages in state `before` after an advice of madvise(2).
    fn advised(before: Option<Inheritance>, advice: libc::c_int) -> Option<Inheritance> {
        let absent = matches!(before, Some(Inheritance::Absent | Inheritance::AbsentZeros));
        let zeros = matches!(before, Some(Inheritance::Zeros | Inheritance::AbsentZeros));
        let (absent, zeros) = match advice {
            libc::MADV_DONTFORK => (true, zeros),
            libc::MADV_DOFORK => (false, zeros),
            libc::MADV_WIPEONFORK => (absent, true),
            libc::MADV_KEEPONFORK => (absent, false),
            _ => (absent, zeros),
        };
        match (absent, zeros) {
            (true, true) => Some(Inheritance::AbsentZeros),
            (true, false) => Some(Inheritance::Absent),
            (false, true) => Some(Inheritance::Zeros),
            (false, false) => None,
        }
    }
}

impl Inheritance {
    /// The advice of madvise(2) by which pages get into this state.
    pub(crate) fn advice(self) -> &'static [libc::c_int] {
        match self {
            Inheritance::Absent => &[libc::MADV_DONTFORK],
            Inheritance::Zeros => &[libc::MADV_WIPEONFORK],
            Inheritance::AbsentZeros => &[libc::MADV_DONTFORK, libc::MADV_WIPEONFORK],
        }
    }
}

/// The advice by page range: first page -> (page after the last, state). Other pages are copied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inherited(BTreeMap<u64, (u64, Inheritance)>);

impl Inherited {
    /// Records an advice for a range.
    pub(crate) fn advise(&mut self, range: Range, advice: libc::c_int) {
        let mut at = range.first;
        for (part, before) in self.cut(range) {
            self.set(Range { first: at, end: part.first }, Inheritance::advised(None, advice));
            self.set(part, Inheritance::advised(Some(before), advice));
            at = part.end;
        }
        self.set(Range { first: at, end: range.end }, Inheritance::advised(None, advice));
    }

    /// Removes the advice for a range that is unmapped, or mapped anew.
    pub(crate) fn forget(&mut self, range: Range) {
        if !self.0.is_empty() {
            self.cut(range);
        }
    }

    /// Copies the advice for a range to the pages from `to` on, where its pages move.
    pub(crate) fn carry(&mut self, range: Range, to: Vpn) {
        let moved = |vpn: Vpn| Vpn(vpn.0 - range.first.0 + to.0);
        for (part, what) in self.within(range) {
            self.set(Range { first: moved(part.first), end: moved(part.end) }, Some(what));
        }
    }

    /// Whether a child gets all pages.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges with advice.
    pub(crate) fn in_child(&self) -> Vec<(Range, Inheritance)> {
        self.within(Range { first: Vpn(0), end: Vpn(u64::MAX) })
    }

    /// The parts of a range with advice, in ascending order.
    pub(crate) fn within(&self, range: Range) -> Vec<(Range, Inheritance)> {
        let (from, to) = (range.first.0, range.end.0);
        let overlapping = self.0.range(..to).rev().take_while(|(_, (end, _))| *end > from);
        let part = |(first, (end, what)): (&u64, &(u64, Inheritance))| {
            (Range { first: Vpn(*first.max(&from)), end: Vpn(*end.min(&to)) }, *what)
        };
        let mut parts: Vec<_> = overlapping.map(part).collect();
        parts.reverse();
        parts
    }

    fn set(&mut self, range: Range, what: Option<Inheritance>) {
        if let Some(what) = what.filter(|_| range.first < range.end) {
            self.0.insert(range.first.0, (range.end.0, what));
        }
    }

    /// Removes a range, and returns its parts in ascending order.
    fn cut(&mut self, range: Range) -> Vec<(Range, Inheritance)> {
        let parts = self.within(range);
        for (part, what) in &parts {
            let before = self.0.range(..=part.first.0).next_back();
            let Some((first, (end, _))) = before.map(|(first, entry)| (*first, *entry)) else {
                continue;
            };
            self.0.remove(&first);
            self.set(Range { first: Vpn(first), end: part.first }, Some(*what));
            self.set(Range { first: part.end, end: Vpn(end) }, Some(*what));
        }
        parts
    }
}

#[cfg(test)]
#[path = "inherit_fuzz.rs"]
mod fuzz;
