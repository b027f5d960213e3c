//! Unmaps code and constants of the program while memory is short.
//!
//! ```text
//! library loaded      learn: segments of the program and its libraries that are not written to
//! "report" thread     Unmapping: memory is short, and code may have come back --> unmap
//!                     unmapped code counts for one more second: code in use comes back
//! mprotect, mmap, ... note_change: the program is about to change its code, and it stays mapped
//! ```
//! Programs use most of their code once: node has 42 MiB mapped after its start, and uses 5. The
//! kernel would unmap the rest under pressure. Libraries that are opened later stay mapped: they
//! may be unloaded, and other memory mapped there, at any moment.
//!
//! Locking: pages are checked and unmapped while no fork is under way ([`forking`]), and changes
//! of code wait for that. A program that changes its code by raw system calls while other threads
//! run may lose a change made between the check and the unmapping, some microseconds.

use crate::forking;
use crate::signals::Blocked;
use highwater_session::Code;
use highwater_units::{Bytes, PAGE_SIZE};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Memory is short if less than this is left. Code is unmapped only if at least this much was
/// mapped since the last time.
const MANY: u64 = 1 << 20;

/// Pause after code was unmapped. A fault maps 16 pages of code again in a microsecond or two, so
/// 40 MiB that are all in use cost a thousandth of a CPU.
const PAUSE: Duration = Duration::from_secs(1);

static CODE: OnceLock<Code> = OnceLock::new();

/// Whether the program changes its code.
static IS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Remembers the code of the program and of the libraries loaded with it.
pub(crate) fn learn() {
    CODE.get_or_init(Code::loaded);
}

/// The program is about to change mappings, or to write to pages that are not writable.
pub(crate) fn note_change(address: usize, len: usize) {
    let is_code = || CODE.get().is_some_and(|code| code.contains(address, len));
    if !IS_CHANGED.load(Relaxed) && is_code() {
        // A handler of a signal may fork.
        let _blocked = Blocked::now();
        forking::begin();
        IS_CHANGED.store(true, Relaxed);
        forking::end();
    }
}

/// Unmaps the code; returns how many bytes that were.
pub(crate) fn unmap() -> Bytes {
    let Some(code) = CODE.get() else { return Bytes(0) };
    forking::begin();
    let unmapped = if IS_CHANGED.load(Relaxed) { Bytes(0) } else { code.unmap() };
    forking::end();
    unmapped
}

/// Decides when to unmap code.
#[derive(Debug, Default)]
pub(crate) struct Unmapping {
    /// Time for which code stays as it is.
    pause: Duration,
    /// Bytes that are counted nowhere else, before code was last unmapped, and after it.
    before: i64,
    after: i64,
}

impl Unmapping {
    /// Whether unmapping is due, `passed` after the last call. `resident`: bytes that nothing else
    /// accounts for. `left`: pages of the run's memory that no process uses.
    pub(crate) fn is_due(&mut self, passed: Duration, resident: i64, left: u64) -> bool {
        self.pause = self.pause.saturating_sub(passed);
        let is_short = left < MANY / PAGE_SIZE as u64;
        self.pause.is_zero() && is_short && resident - self.after >= MANY.cast_signed()
    }

    /// Bytes that the last look, which found `resident` bytes, misses because they were unmapped.
    /// They count until the pause ends: code in use is mapped again by then, and needs its memory.
    pub(crate) fn returning(&self, resident: i64) -> u64 {
        // Pages shared by a fork may be missing, too, if they were evicted since.
        let gone = (self.before - resident).clamp(0, self.before - self.after);
        if self.pause.is_zero() { 0 } else { gone.cast_unsigned() }
    }

    /// Bytes that were last unmapped, and that may come back.
    pub(crate) fn unmapped(&self) -> u64 {
        (self.before - self.after).cast_unsigned()
    }

    /// Of the `resident` bytes, `unmapped` are gone.
    pub(crate) fn note(&mut self, resident: i64, unmapped: Bytes) {
        let after = resident - unmapped.0.cast_signed();
        *self = Unmapping { pause: PAUSE, before: resident, after };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;
    const TICK: Duration = Duration::from_millis(100);

    #[test]
    fn code_goes_once_a_second_while_memory_is_short_and_it_comes_back() {
        let mut unmapping = Unmapping::default();
        assert!(!unmapping.is_due(TICK, 40 * MIB, 256), "memory is left");
        assert!(unmapping.is_due(TICK, 40 * MIB, 255));
        assert_eq!(unmapping.unmapped(), 0);
        unmapping.note(40 * MIB, Bytes(37 << 20));
        assert_eq!(unmapping.unmapped(), 37 << 20);
        assert_eq!([3, 40, 50].map(|now| unmapping.returning(now * MIB)), [37 << 20, 0, 0]);
        assert_eq!(unmapping.returning(MIB), 37 << 20, "other memory has gone, too");
        assert_eq!(ticks(&mut unmapping, 3 * MIB + MIB / 2), None, "little came back");
        assert_eq!(unmapping.returning(3 * MIB), 0, "after the pause");
        assert_eq!(ticks(&mut unmapping, 4 * MIB), Some(1));
        unmapping.note(4 * MIB, Bytes(1 << 20));
        assert_eq!(ticks(&mut unmapping, 40 * MIB), Some(10), "a second after the last time");
    }

    /// The tick at which unmapping is due, if memory is short and this much stays resident.
    fn ticks(unmapping: &mut Unmapping, resident: i64) -> Option<u32> {
        (1..100).find(|_| unmapping.is_due(TICK, resident, 0))
    }

    #[test]
    fn code_that_the_program_changes_stays_mapped() {
        learn();
        let code = CODE.get().expect("learned");
        let own = note_change as *const () as usize;
        assert!(code.contains(own, 1));
        note_change(0, PAGE_SIZE);
        assert!(unmap() > Bytes(0));
        note_change(own, PAGE_SIZE);
        assert_eq!(unmap(), Bytes(0));
    }
}
