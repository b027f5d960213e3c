//! Ranges to which the program gave a protection other than read and write.
//!
//! UFFDIO_MOVE needs both sides writable, so pages of such ranges are copied. A read-only range
//! needs no write protection during the copy, but it must not become writable meanwhile.
//!
//! Locking: a copy holds the lock shared, a change of protection holds it exclusively.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The access that the program has to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing (PROT_NONE).
    None,
    /// Read, and perhaps execute.
    Read,
    /// Read and write: the default, which is not recorded.
    Write,
    /// Read, write and execute.
    WriteExecute,
}

impl Access {
    /// The access that PROT_ bits give.
    pub(crate) fn of_bits(bits: i32) -> Access {
        let has = |bit| bits & bit != 0;
        match (has(libc::PROT_READ), has(libc::PROT_WRITE), has(libc::PROT_EXEC)) {
            (_, true, true) => Access::WriteExecute,
            (_, true, false) => Access::Write,
            (true, false, _) | (false, false, true) => Access::Read,
            (false, false, false) => Access::None,
        }
    }
}

/// The ranges by first address: (end address, PROT_ bits).
type Ranges = BTreeMap<u64, (u64, i32)>;

/// The protections of a space.
#[derive(Default)]
pub(crate) struct Protections {
    ranges: RwLock<Ranges>,
    /// How often they changed. It grows under the lock, before the change.
    changes: AtomicU64,
}

/// The protections, unchanged while this lives.
pub(crate) struct Fixed<'a>(RwLockReadGuard<'a, Ranges>);

impl Protections {
    /// Prevents changes of protections while the result lives.
    pub(crate) fn fix(&self) -> Fixed<'_> {
        Fixed(self.ranges.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all copies that began before have ended.
    pub(crate) fn exclude(&self) -> impl Drop + '_ {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often protections changed: protections read earlier are valid as long as this is
    /// unchanged.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    /// Changes a range by `act`, and records that, under the exclusive lock.
    pub(crate) fn change<E>(
        &self,
        from: u64,
        to: u64,
        bits: i32,
        act: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        self.changes.fetch_add(1, AcqRel);
        act()?;
        record(&mut ranges, from, to, bits);
        Ok(())
    }

    /// As [`Protections::change`], with `protect`, which sets the PROT_ bits of a part. If that
    /// fails, the parts already changed are restored.
    pub(crate) fn set<E>(
        &self,
        from: u64,
        to: u64,
        bits: i32,
        protect: impl Fn(u64, u64, i32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        self.changes.fetch_add(1, AcqRel);
        if let Err(error) = protect(from, to, bits) {
            for (from, to, bits) in parts(&ranges, from, to) {
                let _ = protect(from, to, bits);
            }
            return Err(error);
        }
        record(&mut ranges, from, to, bits);
        Ok(())
    }

    /// The recorded parts of a range, with their PROT_ bits.
    pub(crate) fn within(&self, from: u64, to: u64) -> Vec<(u64, u64, i32)> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        protected(&ranges, from, to).collect()
    }

    /// Whether any part of a range has a protection other than read and write.
    pub(crate) fn any(&self, from: u64, to: u64) -> bool {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..to).next_back().is_some_and(|(_, (end, _))| *end > from)
    }
}

/// The recorded parts of a range, the last one first.
fn protected(ranges: &Ranges, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, i32)> {
    let overlapping = ranges.range(..to).rev().take_while(move |(_, (end, _))| *end > from);
    overlapping.map(move |(start, (end, bits))| (*start.max(&from), *end.min(&to), *bits))
}

/// All parts of a range, the last one first; unrecorded parts have read and write.
fn parts(ranges: &Ranges, from: u64, to: u64) -> Vec<(u64, u64, i32)> {
    let ordinary = libc::PROT_READ | libc::PROT_WRITE;
    let (mut parts, mut end) = (Vec::new(), to);
    for (start, stop, bits) in protected(ranges, from, to) {
        parts.push((stop, end, ordinary));
        parts.push((start, stop, bits));
        end = start;
    }
    parts.push((from, end, ordinary));
    parts.retain(|(start, end, _)| start < end);
    parts
}

/// Records the protection of a range.
fn record(ranges: &mut Ranges, from: u64, to: u64, bits: i32) {
    cut(ranges, from, to);
    if Access::of_bits(bits) != Access::Write {
        ranges.insert(from, (to, bits));
    }
}

/// Removes `from..to` from all ranges.
fn cut(ranges: &mut Ranges, from: u64, to: u64) {
    let overlapping: Vec<_> = ranges
        .range(..to)
        .rev()
        .take_while(|(_, (end, _))| *end > from)
        .map(|(start, (end, bits))| (*start, *end, *bits))
        .collect();
    for (start, end, bits) in overlapping {
        ranges.remove(&start);
        if start < from {
            ranges.insert(start, (from, bits));
        }
        if end > to {
            ranges.insert(to, (end, bits));
        }
    }
}

impl Fixed<'_> {
    /// The program's access at an address.
    pub(crate) fn at(&self, address: u64) -> Access {
        let before = self.0.range(..=address).next_back();
        let covers = before.filter(|(_, (end, _))| *end > address);
        covers.map_or(Access::Write, |(_, (_, bits))| Access::of_bits(*bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;
    use std::cell::RefCell;

    #[test]
    fn random_changes_match_an_array() {
        let mut random = Prng::new(7);
        let protections = Protections::default();
        let mut model = [Access::Write; 64];
        for _ in 0..5000 {
            let from = random.below(64);
            let to = from + 1 + random.below(64 - from);
            let bits = random.below(8) as i32;
            let done: Result<(), ()> = protections.set(from, to, bits, |_, _, _| Ok(()));
            assert_eq!(done, Ok(()));
            model[from as usize..to as usize].fill(Access::of_bits(bits));
            let fixed = protections.fix();
            for (at, expected) in model.iter().enumerate() {
                assert_eq!(fixed.at(at as u64), *expected);
            }
            let odd = model[from as usize..].iter().any(|access| *access != Access::Write);
            assert_eq!(protections.any(from, 64), odd);
            let inside: u64 = protections.within(from, to).iter().map(|(a, b, _)| b - a).sum();
            let marks = &model[from as usize..to as usize];
            let expected = marks.iter().filter(|access| **access != Access::Write).count();
            assert_eq!(inside as usize, expected);
        }
    }

    /// The kernel may change the first part of the range before it refuses the rest.
    #[test]
    fn a_change_that_is_refused_leaves_all_as_it_was() {
        let protections = Protections::default();
        let accept = |_, _, _| Ok::<(), ()>(());
        assert_eq!(protections.set(10, 20, libc::PROT_READ, accept), Ok(()));
        assert_eq!(protections.set(30, 40, libc::PROT_NONE, accept), Ok(()));
        let model = RefCell::new([libc::PROT_READ | libc::PROT_WRITE; 64]);
        model.borrow_mut()[10..20].fill(libc::PROT_READ);
        model.borrow_mut()[30..40].fill(libc::PROT_NONE);
        let before = *model.borrow();
        let refuse = |from: u64, to: u64, bits| {
            let done = if (from, to) == (5, 35) { 25 } else { to };
            model.borrow_mut()[from as usize..done as usize].fill(bits);
            if done == to { Ok(()) } else { Err(()) }
        };
        assert_eq!(protections.set(5, 35, libc::PROT_NONE, refuse), Err(()));
        assert_eq!(*model.borrow(), before);
        assert_eq!(protections.change(5, 35, libc::PROT_NONE, || Err(())), Err(()));
        for (at, bits) in before.into_iter().enumerate() {
            assert_eq!(protections.fix().at(at as u64), Access::of_bits(bits), "{at}");
        }
    }
}
