//! Keeps the mapped pages of large files within the memory that is left for them.
//!
//! ```text
//! mmap of a file -- Process::note_file --> file_maps.rs; the first one starts the thread "files"
//! "files": statm --> decide -- Rest: memory is left; looks again before that much can be mapped
//!                          \-- Drop: unmaps pages in the order of their addresses, around the end
//! ```
//! A program maps pages of the page cache at the speed of memory: 1 GiB in 60 ms by random reads of
//! one thread, because a fault maps 16 pages and more. A measurement ten times a second is useless
//! then. So this thread looks several times in a millisecond while pages are being mapped, and the
//! budget keeps [`Slack`] for those that are mapped meanwhile. A look is one read of
//! /proc/self/statm, 1 us.
//!
//! Unmapping costs little: a page that is used again is mapped from the page cache, with its
//! neighbours, in about a microsecond. So pages of files leave before any page is swapped, down to
//! [`floor`].
//!
//! Locking: none of its own.

use crate::file_maps::{self, Kind, Step};
use crate::files::file_system_of;
use crate::forking;
use crate::pagemap::Pagemap;
use crate::process::Process;
use crate::program::program;
use crate::unpaged::Statm;
use highwater_os::{process_cpu_time, spawn, sys};
use highwater_session::Share;
use highwater_units::{Bytes, Nanos, PAGE_SIZE};
use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Pages of the limit for each page that is kept for those that are mapped before the next look:
/// at least, ...
const SLACK_SHARE: u64 = 16;
/// ... and at most: with several threads that map, and where other threads use the CPUs.
const SLACK_SHARE_MAX: u64 = 4;
/// The time in which it is forgotten how many pages were mapped between two looks.
const FORGETS: Duration = Duration::from_secs(2);
/// After this time in which nothing was mapped no page is kept: many processes may map files, and
/// few of them read at once. ...
const KEEPS: Duration = Duration::from_secs(1);
/// ... Then at most so many for each page that is mapped: a program that reads a page now and then
/// is not to take the memory of others each time.
const RECENT_FACTOR: u64 = 16;

/// Pages of the limit for each page of files that stays mapped however short memory is.
const FLOOR_SHARE: u64 = 16;

/// Pages that a thread maps in a microsecond, at most: 46 GiB/s. 36 GiB/s were measured, by random
/// reads.
const PAGES_PER_MICROSECOND: u64 = 12;

/// Time between two looks.
const SHORTEST: Duration = Duration::from_micros(100);
/// While nothing is mapped: a program that computes on what it has read, ...
const QUIET: Duration = Duration::from_micros(500);
/// ... and one that sleeps.
const ASLEEP: Duration = Duration::from_millis(10);
/// A program sleeps if it ran for less than one in this many of its time.
const ASLEEP_SHARE: u64 = 50;

/// How long the thread stays without mappings: a program may map one file after the other.
const LINGERS: Duration = Duration::from_millis(100);

/// Time between two requests that all processes give pages back, ...
const TELLS: Duration = Duration::from_millis(5);
/// ... and once requests have been of no use: the balancers look as often by themselves.
const TELLS_MAX: Duration = Duration::from_millis(40);

/// Filesystems whose pages are memory: unmapping them frees nothing.
const IN_MEMORY: [u32; 4] = [
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x9584_58f6, // hugetlbfs
    0x5345_434d, // secretmem
];

/// Pages that the budget keeps for files that are mapped before the next look.
#[derive(Clone, Copy, Debug, Default)]
struct Slack {
    pages: u64,
    /// Time for which no page has been forgotten yet.
    passed: Duration,
    /// Pages that were mapped since the program began to map any.
    recent: u64,
}

impl Slack {
    /// Twice as many as were mapped between two looks, as far as was seen lately. `grown`: since
    /// the last look. `passed`: since then. `quiet`: how long nothing was mapped. `unmapped`: pages
    /// of the mappings that are not mapped.
    fn look(&mut self, grown: u64, passed: Duration, quiet: Duration, limit: u64, unmapped: u64) {
        if quiet > KEEPS && grown == 0 {
            *self = Slack::default();
            return;
        }
        self.recent += grown;
        self.passed += passed;
        let forgotten = u128::from(self.pages) * self.passed.as_nanos() / FORGETS.as_nanos();
        if forgotten > 0 {
            self.passed = Duration::ZERO;
        }
        let now = self.pages.saturating_sub(forgotten as u64).max(2 * grown);
        let least = (limit / SLACK_SHARE).min(RECENT_FACTOR * self.recent);
        self.pages = now.max(least).min((limit / SLACK_SHARE_MAX).min(unmapped));
    }
}

/// Pages of files that stay mapped while other memory is short.
fn floor(limit: u64) -> u64 {
    limit / FLOOR_SHARE
}

/// The result of a look, in pages.
#[derive(Clone, Copy, Debug)]
struct Seen {
    limit: u64,
    slack: u64,
    /// Mapped pages of large files.
    mapped: u64,
    /// Pages of the run that no process uses, besides the slack; negative: it uses too many.
    left: i64,
    /// How long nothing was mapped.
    quiet: Duration,
    is_asleep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Looks again after this time.
    Rest(Duration),
    /// Unmaps so many pages.
    Drop(u64),
}

fn decide(seen: Seen) -> Outcome {
    let Seen { limit, slack, mapped, left, .. } = seen;
    let spare = mapped.saturating_sub(floor(limit));
    // Other memory must find some left, too.
    let wanted = slack.cast_signed() / 4 - left;
    if wanted <= 0 || spare == 0 {
        return Outcome::Rest(rest(seen));
    }
    // More than that: the next pages need room, too.
    Outcome::Drop((wanted.cast_unsigned() + slack).min(spare))
}

/// The time in which one thread cannot map more than is left, and half of the slack: this thread
/// may wake late. Other threads and processes may map more.
fn rest(seen: Seen) -> Duration {
    let room = seen.left.max(0).cast_unsigned() + seen.slack / 2;
    let certain = Duration::from_micros(room / PAGES_PER_MICROSECOND).max(SHORTEST);
    let longest = if seen.is_asleep { ASLEEP } else { QUIET };
    certain.max((seen.quiet / 8).min(longest))
}

/// Decides when the balancers of all processes are woken because they use too much.
#[derive(Clone, Copy, Debug)]
struct Tell {
    /// Since the last time, and until the next if nothing gets worse.
    passed: Duration,
    interval: Duration,
    /// [`Seen::left`] and [`Seen::mapped`] at the last time.
    left: i64,
    mapped: u64,
}

impl Tell {
    const NEVER: Tell = Tell { passed: TELLS_MAX, interval: TELLS, left: 0, mapped: 0 };

    /// `passed`: since the last call.
    fn is_due(&mut self, passed: Duration, left: i64, mapped: u64) -> bool {
        self.passed += passed;
        let is_worse = left < self.left || mapped > self.mapped;
        let interval = if is_worse { TELLS } else { self.interval };
        if left >= 0 || self.passed < interval {
            return false;
        }
        let next = if is_worse { TELLS } else { (2 * interval).min(TELLS_MAX) };
        *self = Tell { passed: Duration::ZERO, interval: next, left, mapped };
        true
    }
}

/// The rest after a pass that was to unmap `wanted` pages, and found `dropped`; `before`: after the
/// last pass. If it found few, the others are locked, or in other mappings, which have grown since
/// they were measured.
fn pause(before: Duration, dropped: u64, wanted: u64) -> Duration {
    if dropped < wanted.div_ceil(2) { (2 * before).clamp(QUIET, ASLEEP) } else { Duration::ZERO }
}

impl Process {
    /// The program has mapped a file at an address.
    pub(crate) fn note_file(&'static self, address: usize, len: usize, kind: Kind) {
        file_maps::add(address, len, kind);
        self.trim_files();
    }

    /// Whether a file's pages are in the page cache, and not memory of their own.
    pub(crate) fn has_in_page_cache(&self, fd: RawFd) -> bool {
        self.in_helper(|| is_in_page_cache(self.files.in_proc, fd))
    }

    /// Whether mapped pages of files are kept within the limit.
    pub(crate) fn limits_files(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.counts_everything())
    }

    /// Starts the thread, if there is none and there are mappings. If there is no memory for a
    /// thread, the next mapping tries again.
    pub(crate) fn trim_files(&'static self) {
        let Some(share) = self.share.as_ref().filter(|_| self.limits_files()) else { return };
        if file_maps::bytes() > 0 && !self.reporter.unpaged.trims.swap(true, SeqCst) {
            let run = move || spawn("files", Box::new(move || run(self, share)));
            if self.in_helper(run).is_err() {
                self.reporter.unpaged.trims.store(false, SeqCst);
            }
        }
    }
}

/// Whether pages of the program's file are pages of the page cache, which unmapping leaves there.
fn is_in_page_cache(in_proc: i32, fd: RawFd) -> bool {
    let path = format!("/proc/{in_proc}/fd/{fd}");
    let is_file = || std::fs::metadata(&path).is_ok_and(|found| found.is_file());
    let open = || openat(rustix::fs::CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let found = || file_system_of(open().ok()?);
    is_file() && found().is_some_and(|found| !IN_MEMORY.contains(&found))
}

/// The body of the thread: runs until there have been no such mappings for a while.
fn run(process: &'static Process, share: &'static Share) {
    hurry();
    let trims = &process.reporter.unpaged.trims;
    let (Ok(pagemap), Ok(mut trim)) = (Pagemap::open(), Trim::new(process, share)) else {
        // Without descriptors or /proc; the next mapping tries again.
        trims.store(false, SeqCst);
        return;
    };
    loop {
        while file_maps::bytes() > 0 || file_maps::await_one(LINGERS) {
            trim.step(&pagemap);
        }
        // A swap, so that the bytes are loaded after it: a mapping may have begun meanwhile.
        trims.swap(false, SeqCst);
        if file_maps::bytes() == 0 || trims.swap(true, SeqCst) {
            return;
        }
    }
}

struct Trim {
    process: &'static Process,
    share: &'static Share,
    statm: File,
    /// The address from which pages are unmapped next.
    hand: usize,
    /// Mapped pages at the last look, when that was, and how many were unmapped since.
    mapped: u64,
    looked: Instant,
    dropped: u64,
    slack: Slack,
    /// How long nothing was mapped, and the CPU time of the program when this began.
    quiet: Duration,
    ran: Nanos,
    tell: Tell,
    /// How long the thread rests after a pass that found few pages.
    pause: Duration,
}

impl Trim {
    fn new(process: &'static Process, share: &'static Share) -> io::Result<Trim> {
        let statm = File::open("/proc/self/statm")?;
        let now = Instant::now();
        Ok(Trim {
            process,
            share,
            statm,
            hand: 0,
            mapped: 0,
            looked: now,
            dropped: 0,
            slack: Slack::default(),
            quiet: Duration::ZERO,
            ran: ran(),
            tell: Tell::NEVER,
            pause: Duration::ZERO,
        })
    }

    fn step(&mut self, pagemap: &Pagemap) {
        let seen = self.look();
        match decide(seen) {
            Outcome::Rest(time) => {
                // All processes are to give pages back.
                if self.tell.is_due(time, seen.left, seen.mapped) {
                    self.process.reporter.unpaged.publish();
                }
                self.quiet += time;
                sys::sleep(time);
            }
            Outcome::Drop(pages) => self.drop(pagemap, pages),
        }
    }

    fn look(&mut self) -> Seen {
        let unpaged = &self.process.reporter.unpaged;
        let statm = Statm::of(&self.statm);
        let mapped = unpaged.mapped(statm);
        let limit = self.share.limit();
        let grown = (mapped + self.dropped).saturating_sub(self.mapped);
        let passed = self.looked.elapsed();
        (self.dropped, self.looked) = (0, Instant::now());
        let unmapped = ((file_maps::bytes() / PAGE_SIZE) as u64).saturating_sub(mapped);
        self.slack.look(grown, passed, self.quiet, limit, unmapped);
        unpaged.publish_mapped(statm, self.slack.pages);
        if mapped != self.mapped {
            (self.mapped, self.quiet, self.ran) = (mapped, Duration::ZERO, ran());
        }
        Seen {
            limit,
            slack: self.slack.pages,
            mapped,
            left: self.share.balance(),
            quiet: self.quiet,
            is_asleep: self.quiet > QUIET && self.is_asleep(),
        }
    }

    fn is_asleep(&self) -> bool {
        let ran = ran().0.saturating_sub(self.ran.0);
        ran < self.quiet.as_nanos() as u64 / ASLEEP_SHARE
    }

    /// Unmaps so many pages, or all, or as many as it can in a time in which it need not look.
    fn drop(&mut self, pagemap: &Pagemap, wanted: u64) {
        let (mut dropped, mut turns, start) = (0, 0, Instant::now());
        while dropped < wanted && turns < 2 && start.elapsed() < ASLEEP {
            forking::yield_to_others();
            match file_maps::drop_some(pagemap, &mut self.hand, wanted - dropped) {
                Step::Dropped(pages) => dropped += pages,
                Step::Wrapped => turns += 1,
            }
        }
        self.dropped = dropped;
        let unpaged = &self.process.reporter.unpaged;
        unpaged.note_trimmed(Bytes::of_pages(dropped));
        if turns == 0 && dropped < wanted {
            // The time was up. Most of a large file that is used here and there is not mapped.
            if dropped < file_maps::BATCH_MAX {
                sys::sleep(start.elapsed());
            }
            return;
        }
        self.pause = pause(self.pause, dropped, wanted);
        if !self.pause.is_zero() {
            unpaged.ask_for_look();
            sys::sleep(self.pause.max(start.elapsed()));
        }
    }
}

/// CPU time of the program.
fn ran() -> Nanos {
    program().map_or(Nanos(0), |program| process_cpu_time(program.pid))
}

/// The thread runs for some microseconds at a time, and is to run at once when its sleep ends: with
/// a short slice (Linux 6.12) it need not wait until the program has used up its own. Root's thread
/// may also have more weight than the threads that it must keep up with.
fn hurry() {
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: a structure of this size, that lives for the calls.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0 {
            attributes.runtime = 100_000;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
            attributes.nice = -20;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen {
        limit: 16000,
        slack: 1000,
        mapped: 5000,
        left: 3000,
        quiet: Duration::ZERO,
        is_asleep: false,
    };

    #[test]
    fn pages_of_files_leave_once_less_than_a_quarter_of_the_slack_is_left() {
        for (mapped, left, expected) in [
            (5000, 250, None),
            (5000, 249, Some(1001)),
            (5000, 0, Some(1250)),
            (5000, -1000, Some(2250)),
            (5000, -9000, Some(4000)),
            (1001, -9000, Some(1)),
            (1000, -9000, None),
        ] {
            let found = match decide(Seen { mapped, left, ..SEEN }) {
                Outcome::Drop(pages) => Some(pages),
                Outcome::Rest(_) => None,
            };
            assert_eq!(found, expected, "{mapped} {left}");
        }
    }

    /// The slack after a look.
    fn slack(pages: u64, grown: u64, passed: Duration, unmapped: u64) -> u64 {
        let mut slack = Slack { pages, recent: 9999, ..Slack::default() };
        slack.look(grown, passed, Duration::ZERO, 16000, unmapped);
        slack.pages
    }

    #[test]
    fn the_slack_follows_what_is_mapped_between_two_looks() {
        let look = Duration::from_millis(1);
        for (before, grown, passed, unmapped, expected) in [
            (0, 0, look, 99999, 1000),
            (0, 500, look, 99999, 1000),
            (0, 900, look, 99999, 1800),
            (1800, 0, look, 99999, 1800),
            (1800, 0, 2 * look, 99999, 1799),
            (1800, 0, Duration::from_secs(1), 99999, 1000),
            (3000, 0, Duration::from_secs(1), 99999, 1500),
            (0, 9000, look, 99999, 4000),
            (0, 9000, look, 300, 300),
            (0, 9000, look, 0, 0),
        ] {
            let found = slack(before, grown, passed, unmapped);
            assert_eq!(found, expected, "{before} {grown} {passed:?}");
        }
    }

    /// Regression: at least one page was forgotten at each look, ten thousand times a second.
    #[test]
    fn pages_are_forgotten_as_slowly_with_many_looks() {
        let mut slack = Slack { pages: 2000, recent: 9999, ..Slack::default() };
        let look = Duration::from_micros(100);
        (0..5000).for_each(|_| slack.look(0, look, Duration::ZERO, 16000, 99999));
        // A quarter of the time, and a little less because whole looks pass.
        assert!((1556..1600).contains(&slack.pages), "{}", slack.pages);
    }

    /// Regression: each of 16 processes kept a sixteenth of the limit while they slept.
    #[test]
    fn nothing_is_kept_for_a_program_that_maps_nothing() {
        let mut slack = Slack { pages: 3000, recent: 9999, ..Slack::default() };
        let look = Duration::from_millis(1);
        let mut pages = |grown, quiet| {
            slack.look(grown, look, quiet, 16000, 99999);
            slack.pages
        };
        let short = KEEPS;
        let long = KEEPS + look;
        assert_eq!([pages(0, short), pages(0, long), pages(0, long)], [2999, 0, 0]);
        assert_eq!([pages(16, long), pages(16, short), pages(50, short)], [256, 512, 1000]);
    }

    #[test]
    fn a_look_comes_before_the_room_can_be_used_up() {
        for (left, expected) in [(250, 100), (3000, 291), (39000, 3291)] {
            assert_eq!(rest(Seen { left, ..SEEN }), Duration::from_micros(expected), "{left}");
        }
        assert_eq!(rest(Seen { left: -5000, ..SEEN }), SHORTEST);
    }

    /// Regression: the balancers of all processes woke up all the time while some process could not
    /// give its pages back.
    #[test]
    fn requests_that_are_of_no_use_are_rare() {
        let mut tell = Tell::NEVER;
        let look = Duration::from_millis(1);
        let mut times = |count: u32, left: i64, mapped: u64| {
            (0..count).filter(|_| tell.is_due(look, left, mapped)).collect::<Vec<_>>()
        };
        assert_eq!(times(9, 0, 10), []);
        assert_eq!(times(120, -5, 10), [0, 5, 15, 35, 75, 115]);
        assert_eq!(times(12, -6, 10), [0, 5]);
        assert_eq!(times(9, -6, 11), [0, 5]);
    }

    /// Regression: the thread scanned all the time for pages that were elsewhere.
    #[test]
    fn passes_that_find_few_pages_are_rare() {
        let mut last = Duration::ZERO;
        let found = [49, 50, 0, 0, 0, 0, 0, 0].map(|dropped| {
            last = pause(last, dropped, 100);
            last.as_micros()
        });
        assert_eq!(found, [500, 0, 500, 1000, 2000, 4000, 8000, 10000]);
        assert_eq!(
            [0, 1].map(|dropped| pause(Duration::ZERO, dropped, 1).is_zero()),
            [false, true]
        );
    }

    #[test]
    fn looks_are_rare_while_nothing_is_mapped() {
        let quiet = Seen { left: -1000, quiet: Duration::from_millis(8), ..SEEN };
        assert_eq!(rest(quiet), QUIET);
        let short = Seen { quiet: Duration::from_millis(2), ..quiet };
        assert_eq!(rest(short), Duration::from_micros(250));
        let long = Seen { quiet: Duration::from_secs(9), ..quiet };
        assert_eq!([rest(long), rest(Seen { is_asleep: true, ..long })], [QUIET, ASLEEP]);
    }
}
