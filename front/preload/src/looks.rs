//! Decides when the memory that cannot be paged is measured, and what has come since.
//!
//! ```text
//! tick --- Looks::are_due? --- look --- Looks::note
//! between two looks: Looks::grown
//! ```
//! Unmapped code that comes back (`code.rs`) is growth, too. Most of it is mapped by other
//! processes and counts for this one in part: it counts as code did at the last look. When each of
//! five processes counted it in full, all their pages were squeezed by 10 MiB of 60 for half a
//! second, and again after the next unmapping.
//!
//! The share of a process in memory that others map, too, changes without a sign in this process.
//! Chromium's processes map its code one after the other. The figures of the first ones stayed at
//! up to four times their share, and with a limit of 600 MiB, of which 330 MiB were in use, each
//! process had 4 MiB for its pages.
//!
//! Locking: none; pure.

use crate::smaps::Part;
use highwater_units::Bytes;
use std::time::Duration;

/// Pause after a look, as a multiple of its CPU time.
const REST: u32 = 128;
/// A change of the resident set by this much calls for a look.
const MOVED: i64 = 1 << 20;

/// With at least this much shared memory, ...
const SHARED_MIN: Bytes = Bytes(1 << 20);
/// ... or this much of files in memory (most programs map less), ...
const FILES_MIN: Bytes = Bytes(16 << 20);
/// ... this many ticks pass between two looks at most: when other processes map it, too, or no
/// longer do, the share of this process changes without a sign.
const SHARED_TICKS: u64 = 10;

/// The tick of the first look, ...
pub(crate) const FIRST: u64 = 1;
/// ... and the tick of a child's first look: most of its memory is its parent's, and a child that
/// ends soon needs no look.
pub(crate) const FIRST_OF_CHILD: u64 = 2;

/// The signs that a look is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs {
    /// Bytes of the resident set that nothing else accounts for.
    pub(crate) unexplained: i64,
    /// Whether pages may be shared with a parent or a child: writes make them part.
    pub(crate) shares: bool,
    pub(crate) maps: Maps,
}

/// Mappings of large files: growth of other files and of shared memory counts as theirs until the
/// next look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maps {
    /// A number that changes with the mappings.
    pub(crate) changes: usize,
    /// Bytes that are mapped now, and those that have been unmapped.
    pub(crate) mapped: u64,
    /// Whether fewer pages were found than seemed to be mapped.
    pub(crate) is_doubtful: bool,
}

impl Maps {
    fn have_moved(self, before: Maps) -> bool {
        let have_grown = self.mapped >= before.mapped + MOVED.cast_unsigned();
        self.is_doubtful || self.changes != before.changes || have_grown
    }
}

/// Decides when to look.
#[derive(Debug)]
pub(crate) struct Looks {
    ticks: u64,
    /// A look is due at this tick, whatever has changed.
    next: u64,
    /// CPU time of the last look, times [`REST`], that has not passed yet.
    owed: Duration,
    /// [`Signs::unexplained`] at the last look; `None`: there was none.
    pub(crate) unexplained: Option<i64>,
    /// [`Signs::maps`] at the last look.
    maps: Maps,
    pub(crate) code: CodeSeen,
}

/// Code and other pages of files at a look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CodeSeen {
    /// RssFile, in bytes.
    pub(crate) files: u64,
    /// How code counted.
    pub(crate) part: Part,
    /// How mapped pages of large files counted.
    pub(crate) mapped: Part,
}

impl Looks {
    /// The first look is due at tick `first`.
    pub(crate) fn from(first: u64) -> Looks {
        Looks {
            ticks: 0,
            next: first,
            owed: Duration::ZERO,
            unexplained: None,
            maps: Maps::default(),
            code: CodeSeen::default(),
        }
    }

    /// Whether a look is due, `passed` after the last call.
    pub(crate) fn are_due(&mut self, passed: Duration, signs: Signs) -> bool {
        self.ticks += 1;
        self.owed = self.owed.saturating_sub(passed);
        let Some(before) = self.unexplained else { return self.ticks >= self.next };
        let moved = (signs.unexplained - before).abs() >= MOVED;
        let moved = moved || signs.maps.have_moved(self.maps);
        self.owed.is_zero() && (self.ticks >= self.next || moved || signs.shares)
    }

    /// A look has found `shared` memory of several processes, and code.
    pub(crate) fn note(&mut self, took: Duration, signs: Signs, shared: Bytes, code: CodeSeen) {
        self.owed = took * REST;
        self.unexplained = Some(signs.unexplained);
        self.maps = signs.maps;
        self.code = code;
        let rest = self.ticks.max(1);
        let others_may_map = shared >= SHARED_MIN || code.files >= FILES_MIN.0;
        let rest = if others_may_map { rest.min(SHARED_TICKS) } else { rest };
        self.next = self.ticks + rest;
    }

    /// Bytes that have become resident since the last look, if they are many: the next look may be
    /// some time off. Before the first look nothing is known: pages that a fork has shared are
    /// resident in the child before they have frames.
    ///
    /// `returning`: bytes of code that were unmapped and may be among them. `files`: RssFile.
    pub(crate) fn grown(
        &self,
        unexplained: i64,
        returning: u64,
        files: impl FnOnce() -> u64,
    ) -> u64 {
        let grown = self.unexplained.map_or(0, |before| unexplained - before);
        if grown < MOVED {
            return 0;
        }
        let grown = grown.cast_unsigned();
        let of_files = if returning == 0 { 0 } else { files().saturating_sub(self.code.files) };
        let code = grown.min(returning).min(of_files);
        grown - code + self.code.part.of(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    fn signs(unexplained: i64, shares: bool) -> Signs {
        Signs { unexplained, shares, maps: Maps::default() }
    }

    /// The ticks, among the first `count`, at which a process measures, if each measurement takes
    /// `took`.
    fn ticks(count: u64, took: Duration, signs: impl Fn(u64) -> Signs) -> Vec<u64> {
        ticks_with((Bytes(0), 0), count, took, signs)
    }

    /// The ticks, with shared memory and files.
    fn ticks_with(
        (shared, files): (Bytes, u64),
        count: u64,
        took: Duration,
        signs: impl Fn(u64) -> Signs,
    ) -> Vec<u64> {
        let mut looks = Looks::from(FIRST);
        let looks_at = |tick: &u64| {
            let due = looks.are_due(PERIOD, signs(*tick));
            if due {
                let code = CodeSeen { files, ..CodeSeen::default() };
                looks.note(took, signs(*tick), shared, code);
            }
            due
        };
        (1..=count).filter(looks_at).collect()
    }

    #[test]
    fn a_process_that_does_not_change_is_seldom_looked_at() {
        let quiet = |_| signs(5 << 20, false);
        assert_eq!(ticks(100, Duration::from_micros(100), quiet), [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_process_with_shared_memory_is_looked_at_every_second() {
        let quiet = |_| signs(5 << 20, false);
        let found = ticks_with((SHARED_MIN, 0), 50, Duration::from_micros(100), quiet);
        assert_eq!(found, [1, 2, 4, 8, 16, 26, 36, 46]);
    }

    #[test]
    fn a_process_with_large_files_in_memory_is_looked_at_every_second() {
        let quiet = |_| signs(5 << 20, false);
        let with = |files| ticks_with((Bytes(0), files), 50, Duration::from_micros(100), quiet);
        assert_eq!(with(FILES_MIN.0), [1, 2, 4, 8, 16, 26, 36, 46]);
        assert_eq!(with(FILES_MIN.0 - 1), [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn a_change_calls_for_a_look() {
        let grows_at_20 = |tick: u64| signs(MOVED * (tick / 20).cast_signed(), false);
        let found = ticks(39, Duration::from_micros(100), grows_at_20);
        assert_eq!(found, [1, 2, 4, 8, 16, 20]);
    }

    /// Regression: shared memory that grew counted as large files, and no look set this right.
    #[test]
    fn changes_of_large_files_call_for_a_look() {
        let maps: [fn(bool) -> Maps; 4] = [
            |is_due| Maps { is_doubtful: is_due, ..Maps::default() },
            |is_due| Maps { changes: is_due.into(), ..Maps::default() },
            |is_due| Maps { mapped: if is_due { 1 << 20 } else { 0 }, ..Maps::default() },
            |is_due| Maps { mapped: if is_due { (1 << 20) - 1 } else { 0 }, ..Maps::default() },
        ];
        let found = maps.map(|maps| {
            let signs = |tick| Signs { maps: maps(tick == 20), ..signs(0, false) };
            ticks(20, Duration::from_micros(100), signs).last().copied()
        });
        assert_eq!(found, [Some(20), Some(20), Some(20), Some(16)]);
    }

    #[test]
    fn growth_counts_before_the_next_look() {
        let mut looks = Looks::from(FIRST);
        let grown = |looks: &Looks, now| looks.grown(now, 0, || panic!("no code was unmapped"));
        assert_eq!(grown(&looks, 9 * MOVED), 0, "there was no look");
        let signs = signs(-MOVED, false);
        looks.note(Duration::ZERO, signs, Bytes(0), CodeSeen::default());
        let grown = [-2 * MOVED, -MOVED, -1, 0, 4 * MOVED].map(|now| grown(&looks, now));
        assert_eq!(grown, [0, 0, 0, 1 << 20, 5 << 20]);
    }

    #[test]
    fn code_that_comes_back_counts_as_it_did() {
        const MIB: u64 = 1 << 20;
        let mut looks = Looks::from(FIRST);
        let part = Part { resident: 10 * MIB, counted: 2 * MIB };
        let (signs, code) = (signs(0, false), CodeSeen { files: 3 * MIB, part, mapped: part });
        looks.note(Duration::ZERO, signs, Bytes(0), code);
        // Resident growth, code that was unmapped, growth of files.
        for (grown, unmapped, files, expected) in [
            (5, 5, 5, 1),
            // Other files, or files that are new.
            (10, 5, 10, 6),
            // Not files.
            (10, 5, 0, 10),
            (10, 10, 5, 6),
            // Other memory has gone meanwhile.
            (5, 10, 10, 1),
            (0, 10, 10, 0),
        ] {
            let found =
                looks.grown(grown * MIB.cast_signed(), unmapped * MIB, || (3 + files) * MIB);
            assert_eq!(found, expected * MIB, "{grown} {unmapped} {files}");
        }
    }

    #[test]
    fn a_child_that_ends_soon_looks_at_nothing() {
        let (mut looks, shares) = (Looks::from(FIRST_OF_CHILD), true);
        let mut is_due = || looks.are_due(PERIOD, signs(100 * MOVED, shares));
        assert_eq!([is_due(), is_due()], [false, true]);
    }

    #[test]
    fn looks_that_take_long_are_rare() {
        let shares = |_| signs(0, true);
        assert_eq!(ticks(5, Duration::from_micros(700), shares), [1, 2, 3, 4, 5]);
        // A pause of 512 ms follows each.
        assert_eq!(ticks(14, Duration::from_millis(4), shares), [1, 7, 13]);
    }
}
