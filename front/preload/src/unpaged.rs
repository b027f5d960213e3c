//! Measures the memory of the process that cannot be paged, for a limit on all memory.
//!
//! ```text
//! "report" thread: tick --- Looks: is a look due? --- smaps ---> elsewhere, common
//! both: besides ---> Share: elsewhere + own memory + RAM devices + pages in excess of the budget
//!                           common pages that have not parted since                   common.rs
//! begin_guard: they are write-protected, so that each counts before it parts
//! ```
//! Code, libraries, stacks and shared memory change seldom, and measuring them (a look) takes
//! milliseconds, so looks may use 1 % of a CPU. Between two looks, growth of the resident set that
//! nothing else explains is attributed to them. All other memory has counters, which the balancer
//! reads at every tick. Mapped pages of large files (file_maps.rs) come and go within a
//! millisecond. /proc/self/statm has the sum of all pages of files: what exceeds that of the other
//! files at the last look counts as theirs, up to the size of their mappings.
//!
//! A page parts when it stops being shared ([`crate::common`]). The pages that a process parts by
//! writes are counted by its minor faults, all of them, or under guard by the manager's faults.
//!
//! Locking: `of_files` first; then `looks`, `common`, `most`, `peak` and `code`, each taken alone;
//! `forked` after `common`, so that a look that ends a guard excludes a fork that begins one;
//! `since` after `common`.

use crate::code::{self, Unmapping};
use crate::common::{Common, SinceMeasured, minor_faults};
use crate::file_maps;
use crate::looks::{CodeSeen, FIRST, FIRST_OF_CHILD, Looks, Maps, Signs};
use crate::memory;
use crate::smaps::{self, Elsewhere, Paged, Seen};
use highwater_mm::Manager;
use highwater_mm::stats::Counter;
use highwater_session::{Besides, Share};
use highwater_uffd::Uffd;
use highwater_units::{Bytes, SpaceId, Vpn};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// At most this many pages part between two ticks of the balancer: 1.6 GB/s.
const UNSEEN_MAX: u64 = 16384;

/// This many pages may part unseen (uncounted) in any case. Most processes of a shell script share
/// fewer, and their children write to some: under guard such a write takes a manager, and 5 ms.
const UNSEEN_MIN: u64 = 256;

/// Under guard, one page in this many is kept free for pages that part, until all have parted:
/// several threads may store before one of them has freed a batch.
const RESERVE_SHARE: u64 = 32;

/// How long a forked child's memory may be counted nowhere: after this time the child has an entry
/// of the budget, or `highwater run` counts it, or it has ended.
const JOINS: Duration = Duration::from_millis(500);

/// The peak of the process's memory as the limit counts it. The kernel's peak counts each mapping
/// of a page in full.
#[derive(Debug, Default)]
struct Peak {
    /// The kernel's peak at the last look.
    high_water: Bytes,
    /// The part of the resident set, at the last look, that counts for other processes, or counts
    /// for this one already.
    again: Bytes,
    counted: Bytes,
}

impl Peak {
    /// A new `high_water` was reached since the last look, so about as much counted twice then as
    /// now.
    fn look(&mut self, high_water: Bytes, resident: Bytes, again: Bytes) {
        let reached = if high_water > self.high_water { high_water } else { resident };
        let counted = Bytes(reached.0.saturating_sub(again.0)).max(self.counted);
        *self = Peak { high_water, again, counted };
    }

    /// The peak so far; before the first look it includes all mappings of each page.
    fn counted(&self, high_water: Bytes) -> Bytes {
        let grown = (high_water > self.high_water).then_some(high_water);
        let grown = grown.map_or(0, |reached| reached.0.saturating_sub(self.again.0));
        self.counted.max(Bytes(grown))
    }
}

/// Memory that cannot be paged.
pub(crate) struct Unpaged {
    manager: Arc<Manager<Uffd>>,
    paged: Paged,
    looks: Mutex<Looks>,
    /// Bytes that counted for this process at the last look, less all of the manager's memory.
    /// Negative where others map pages of the manager, too: these count for the others in part.
    elsewhere: AtomicI64,
    common: Mutex<Common>,
    since: Mutex<SinceMeasured>,
    /// Minor faults of the program's process, until a guard began.
    faults: AtomicU64,
    forked: Mutex<Option<Instant>>,
    share: Option<Arc<Share>>,
    /// The program's number in /proc.
    in_proc: i32,
    /// The manager's own memory, at its maximum.
    own_peak: AtomicU64,
    most: Mutex<Elsewhere>,
    peak: Mutex<Peak>,
    code: Mutex<Unmapping>,
    /// Bytes of code that were unmapped.
    code_unmapped: AtomicU64,
    /// Bytes of large files that were unmapped.
    files_unmapped: AtomicU64,
    /// Resident bytes of files and shared memory, at the last look, besides those of large files.
    files_besides: AtomicU64,
    /// Pages for large files that are published. The lock is held while anything is published.
    of_files: Mutex<u64>,
    /// Pages kept for large files that are mapped before the next look at them.
    slack: AtomicU64,
    /// Whether fewer pages of large files were found than seemed to be mapped.
    is_doubtful: AtomicBool,
    /// Whether a thread keeps large files within the limit (file_trim.rs).
    pub(crate) trims: AtomicBool,
}

/// The figures from which the signs of a look are calculated.
#[derive(Clone, Copy, Debug)]
struct Now {
    statm: Statm,
    /// Resident bytes that are paged, or the manager's.
    known: u64,
    /// Bytes of large files that were unmapped.
    trimmed: u64,
    changes: usize,
    is_doubtful: bool,
}

/// Part of /proc/self/statm, in bytes; 0 if /proc does not tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Statm {
    resident: u64,
    /// The part that are pages of files, or of shared memory.
    files: u64,
}

impl Statm {
    /// Reads it: opens the file.
    fn now() -> Statm {
        Statm::parse(&std::fs::read("/proc/self/statm").unwrap_or_default())
    }

    /// Reads the open file.
    pub(crate) fn of(file: &File) -> Statm {
        let mut text = [0; 128];
        let len = file.read_at(&mut text, 0).unwrap_or(0);
        Statm::parse(&text[..len])
    }

    fn parse(text: &[u8]) -> Statm {
        let mut words = text.split(u8::is_ascii_whitespace).skip(1);
        let mut bytes = || {
            let word = words.next().and_then(|word| std::str::from_utf8(word).ok());
            Bytes::of_pages(word.and_then(|word| word.parse().ok()).unwrap_or(0)).0
        };
        Statm { resident: bytes(), files: bytes() }
    }
}

impl Unpaged {
    /// `range`: first address of the paged range, and the address after its last. `common`: pages
    /// that counted for the parent when the process began.
    pub(crate) fn new(
        manager: Arc<Manager<Uffd>>,
        share: Option<Arc<Share>>,
        range: (u64, u64),
        common: u64,
        in_proc: i32,
    ) -> Unpaged {
        let (stage, stage_len) = manager.platform().stage_range();
        Unpaged {
            manager,
            paged: Paged { range, stage: (stage, stage + stage_len as u64) },
            looks: Mutex::new(Looks::from(if common == 0 { FIRST } else { FIRST_OF_CHILD })),
            elsewhere: AtomicI64::new(0),
            common: Mutex::new(Common::new(common, 0)),
            since: Mutex::default(),
            faults: AtomicU64::new(0),
            forked: Mutex::new(None),
            share,
            in_proc,
            own_peak: AtomicU64::new(0),
            most: Mutex::default(),
            peak: Mutex::default(),
            code: Mutex::default(),
            code_unmapped: AtomicU64::new(0),
            files_unmapped: AtomicU64::new(0),
            files_besides: AtomicU64::new(0),
            of_files: Mutex::default(),
            slack: AtomicU64::new(0),
            is_doubtful: AtomicBool::new(false),
            trims: AtomicBool::new(false),
        }
    }

    /// Looks if that is due, `passed` after the last call.
    pub(crate) fn tick(&self, passed: Duration, shares: bool) {
        let now = self.now();
        let mut signs = self.signs(now, shares);
        // Before the look, which counts these pages.
        self.take_lent();
        if lock(&self.looks).are_due(passed, signs) {
            self.is_doubtful.store(false, Relaxed);
            let start = clock_gettime(ClockId::ThreadCPUTime);
            let (shared, code) = self.measure();
            let took = clock_gettime(ClockId::ThreadCPUTime) - start;
            // With what the look has found: its corrections are no growth.
            signs = self.signs(now, shares);
            lock(&self.looks).note(took.try_into().unwrap_or_default(), signs, shared, code);
        }
        self.unmap_code(passed, signs.unexplained);
    }

    fn now(&self) -> Now {
        let paged = Bytes::of_pages(self.manager.platform().pages_in_use());
        Now {
            statm: Statm::now(),
            known: paged.0 + self.managers(),
            trimmed: self.files_unmapped.load(Relaxed),
            changes: file_maps::changes(),
            is_doubtful: self.is_doubtful.load(Relaxed),
        }
    }

    fn signs(&self, now: Now, shares: bool) -> Signs {
        let Now { statm, known, trimmed, changes, is_doubtful } = now;
        let mapped = self.mapped_of(statm);
        let known = known + mapped;
        let maps = Maps { changes, mapped: mapped + trimmed, is_doubtful };
        Signs { unexplained: statm.resident.cast_signed() - known.cast_signed(), shares, maps }
    }

    /// Unmaps code if that is due.
    fn unmap_code(&self, passed: Duration, resident: i64) {
        let Some(share) = self.share.as_ref().filter(|share| share.counts_everything()) else {
            return;
        };
        if lock(&self.code).is_due(passed, resident, share.left()) {
            // Without the lock: the unmapping may wait for a fork, and the balancer must not wait.
            let unmapped = code::unmap();
            self.code_unmapped.fetch_add(unmapped.0, Relaxed);
            // Code that comes back counts as large files until a look, which is due then.
            let less = |files: u64| Some(files.saturating_sub(unmapped.0));
            let _ = self.files_besides.fetch_update(Relaxed, Relaxed, less);
            lock(&self.code).note(resident, unmapped);
        }
    }

    /// Measures the memory that is counted nowhere else.
    pub(crate) fn look(&self) {
        self.measure();
    }

    /// Measures it; returns the part of it in mappings that other processes may share, and code.
    fn measure(&self) -> (Bytes, CodeSeen) {
        let (parted, files) = (self.parted(), resident_files());
        let Ok(seen) = smaps::read(&self.paged) else { return Default::default() };
        let Seen { elsewhere, elsewhere_again, elsewhere_shared, shared, code, mapped, .. } = seen;
        lock(&self.peak).look(
            high_water(),
            Bytes(Statm::now().resident),
            Bytes(elsewhere_again + shared),
        );
        // After reading smaps, which takes long with many mappings: devices may have grown.
        let managers = self.managers();
        let alone = elsewhere.total().saturating_sub(mapped.counted);
        let elsewhere_alone = alone.cast_signed() - managers.cast_signed();
        self.files_besides.store(seen.files_besides, Relaxed);
        self.elsewhere.store(elsewhere_alone, Relaxed);
        self.note_common(Bytes(shared).pages(), parted);
        let found = elsewhere.less_own(managers);
        let mut most = lock(&self.most);
        if found.total() > most.total() {
            *most = found;
        }
        let shared = elsewhere_shared.0 + mapped.resident;
        (Bytes(shared), CodeSeen { files, part: code, mapped })
    }

    /// `pages` of this process were found to count for others.
    fn note_common(&self, pages: u64, parted: i64) {
        let platform = self.manager.platform();
        let kin = self.share.as_ref().filter(|share| share.has_kin());
        let mut common = lock(&self.common);
        let has_forked = self.has_forked();
        let more = pages.cast_signed() - common.left(parted);
        *common = match kin {
            None if has_forked => common.at_most(pages, parted),
            _ => Common::new(pages, parted),
        };
        if kin.is_none() && !has_forked {
            lock(&self.since).look(parted);
        }
        // Under guard, every page that parts is counted, by the process that parts it.
        if let Some(share) = kin.filter(|_| platform.is_guarded()) {
            share.exchange(more);
        }
        if pages == 0 && !has_forked {
            platform.end_guard();
        }
    }

    /// Whether there may be a forked child whose memory is counted nowhere.
    fn has_forked(&self) -> bool {
        lock(&self.forked).is_some_and(|at| at.elapsed() < JOINS)
    }

    /// A fork is about to share `pages`.
    pub(crate) fn note_fork(&self, pages: u64) {
        let mut common = lock(&self.common);
        *lock(&self.forked) = Some(Instant::now());
        *common = common.forked(pages);
    }

    /// Takes over the shared pages of this process that forked children hold for it.
    fn take_lent(&self) {
        let pages = self.share.as_ref().map_or(0, |share| share.take_lent());
        if pages > 0 {
            let parted = self.parted();
            let mut common = lock(&self.common);
            *common = common.lent(pages, parted);
        }
    }

    /// Pages that may have parted so far.
    fn parted(&self) -> i64 {
        let platform = self.manager.platform();
        if !platform.is_guarded() {
            self.faults.store(minor_faults(self.in_proc), Relaxed);
        }
        let taken = self.share.as_ref().map_or(0, |share| share.taken());
        (platform.pages_parted() + self.faults.load(Relaxed)).cast_signed() + taken
    }

    /// From now on each page of `parts` is counted before it parts.
    pub(crate) fn begin_guard(&self, space: SpaceId, parts: &[(Vpn, Vpn)]) {
        let parted = self.parted();
        if let Some(share) = self.measured().filter(|_| !self.manager.platform().is_guarded()) {
            *lock(&self.since) = SinceMeasured::new(share.measures(), parted);
        }
        // If the system refuses, some pages part unseen, until the next look.
        let _ = self.manager.platform().guard(space, parts);
    }

    /// Whether enough pages could part unseen to exceed the limit.
    pub(crate) fn needs_guard(&self) -> bool {
        let common = *lock(&self.common);
        if common.others() == 0 || self.manager.platform().is_guarded() {
            return false;
        }
        let can_part = common.can_part(self.parted());
        self.share.as_ref().is_some_and(|share| is_tight(can_part, || share.left()))
    }

    /// Bytes that the manager takes besides paged memory: its tables, those of devices, and RAM
    /// devices.
    fn managers(&self) -> u64 {
        let devices = self.manager.platform().devices();
        let own = memory::resident() as u64 + devices.tables().0;
        self.own_peak.fetch_max(own, Relaxed);
        own + devices.resident().0
    }

    /// The part of the resident set that is neither paged nor the manager's; it includes pages
    /// shared with others. Negative for moments: the counters change one after the other.
    fn unexplained_of(&self, statm: Statm) -> i64 {
        let paged = Bytes::of_pages(self.manager.platform().pages_in_use());
        let known = paged.0 + self.managers() + self.mapped_of(statm);
        statm.resident.cast_signed() - known.cast_signed()
    }

    /// Mapped bytes of large files, and other files and shared memory that have become resident
    /// since the last look, as far as they cannot be told apart.
    fn mapped_of(&self, statm: Statm) -> u64 {
        let files = statm.files.saturating_sub(self.files_besides.load(Relaxed));
        files.min(file_maps::bytes() as u64)
    }

    /// Mapped pages of large files.
    pub(crate) fn mapped(&self, statm: Statm) -> u64 {
        Bytes(self.mapped_of(statm)).pages()
    }

    /// Pages of large files were unmapped.
    pub(crate) fn note_trimmed(&self, bytes: Bytes) {
        self.files_unmapped.fetch_add(bytes.0, Relaxed);
    }

    /// Fewer of them were found than there seem to be.
    pub(crate) fn ask_for_look(&self) {
        self.is_doubtful.store(true, Relaxed);
    }

    /// Pages for large files, those that may be mapped before the next look included.
    fn pages_of_files(&self, statm: Statm) -> u64 {
        if self.measured().is_none() || file_maps::bytes() == 0 {
            return 0;
        }
        let counted = lock(&self.looks).code.mapped.of(self.mapped_of(statm));
        Bytes(counted).pages() + self.slack.load(Relaxed)
    }

    /// Publishes how many pages of large files are mapped, and nothing else: this is done at each
    /// look at them. Keeps `slack` pages for those that are mapped before the next one. Leaves it
    /// to the next look if anything is being published.
    pub(crate) fn publish_mapped(&self, statm: Statm, slack: u64) {
        self.slack.store(slack, Relaxed);
        let (Some(share), Ok(mut published)) = (&self.share, self.of_files.try_lock()) else {
            return;
        };
        let now = self.pages_of_files(statm);
        share.add_unpaged(now.cast_signed() - published.cast_signed());
        *published = now;
    }

    /// Publishes the memory in use besides frames; returns it.
    pub(crate) fn publish(&self) -> Besides {
        self.take_lent();
        let mut published = lock(&self.of_files);
        let statm = Statm::now();
        *published = self.pages_of_files(statm);
        let besides = self.besides(statm, *published);
        if let Some(share) = &self.share {
            share.set_besides(besides);
        }
        besides
    }

    /// `files`: pages for large files.
    fn besides(&self, statm: Statm, files: u64) -> Besides {
        let platform = self.manager.platform();
        let excess = platform.pages_in_use().saturating_sub(self.manager.frames());
        let devices = platform.devices().resident();
        let known = self.since_look(statm) + self.managers();
        let unpaged = Bytes(known.saturating_add_signed(self.elsewhere.load(Relaxed)));
        // A child that is counted nowhere keeps a copy of the manager's memory as of the fork.
        let of_child = if self.has_forked() { Bytes(memory::resident() as u64) } else { Bytes(0) };
        let (common, parted) = (*lock(&self.common), platform.pages_parted());
        let unmeasured = self.unmeasured();
        let shared = if common.others() == 0 { 0 } else { common.left(self.parted()) };
        let reserve = if platform.is_guarded() { self.manager.frames() / RESERVE_SHARE } else { 0 };
        let reserve = reserve.min(common.others().saturating_add_signed(shared));
        Besides {
            unpaged: unpaged.pages() + of_child.pages() + unmeasured + reserve + excess + files,
            devices: devices.pages(),
            shared,
            common: common.others(),
            parted,
        }
    }

    /// Bytes that the last look does not include.
    fn since_look(&self, statm: Statm) -> u64 {
        let unexplained = self.unexplained_of(statm);
        let at_look = lock(&self.looks).unexplained;
        let (returning, unmapped) = {
            let code = lock(&self.code);
            (at_look.map_or(0, |resident| code.returning(resident)), code.unmapped())
        };
        let looks = lock(&self.looks);
        let grown = looks.grown(unexplained, unmapped, resident_files);
        grown.max(looks.code.part.of(returning))
    }

    /// Pages that have parted and that no measurement has counted for a child without a manager.
    fn unmeasured(&self) -> u64 {
        let is_guarded = self.manager.platform().is_guarded();
        let Some(share) = self.measured().filter(|_| is_guarded) else { return 0 };
        let mut since = lock(&self.since);
        since.note(share.measures(), self.parted());
        since.pages()
    }

    /// The share, if `highwater run` measures processes without a manager.
    fn measured(&self) -> Option<&Arc<Share>> {
        self.share.as_ref().filter(|share| share.counts_everything())
    }

    /// The counters that publish it.
    pub(crate) fn gauges(&self) -> impl Iterator<Item = (Counter, u64)> {
        let own = (Counter::MetaBytes, self.own_peak.load(Relaxed));
        let code = (Counter::CodeUnmapped, self.code_unmapped.load(Relaxed));
        let files = (Counter::FilesUnmapped, self.files_unmapped.load(Relaxed));
        let high_water = high_water();
        let peaks = [
            (Counter::HighWaterBytes, high_water.0),
            (Counter::CountedPeak, lock(&self.peak).counted(high_water).0),
        ];
        lock(&self.most).gauges().into_iter().chain([own, code, files]).chain(peaks)
    }
}

/// Whether the pages that may part unseen exceed the memory that is left.
fn is_tight(can_part: u64, left: impl FnOnce() -> u64) -> bool {
    can_part > UNSEEN_MIN && left() < can_part.min(UNSEEN_MAX)
}

/// VmHWM: the peak of the resident set; 0 if /proc does not tell.
pub(crate) fn high_water() -> Bytes {
    Bytes(of_status("VmHWM:"))
}

/// RssFile: resident pages of files, in bytes; 0 if /proc does not tell.
fn resident_files() -> u64 {
    of_status("RssFile:")
}

fn of_status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_tight_once_pages_that_part_unseen_may_exceed_it() {
        let cases =
            [(100, 0), (256, 0), (257, 256), (257, 257), (1 << 20, 16383), (1 << 20, 16384)];
        let found = cases.map(|(can_part, left)| is_tight(can_part, || left));
        assert_eq!(found, [false, false, true, false, true, false]);
    }

    #[test]
    fn a_page_that_is_mapped_twice_counts_once_in_the_peak() {
        let mut peak = Peak::default();
        let counted = |peak: &Peak, high_water| peak.counted(Bytes(high_water)).0;
        assert_eq!(counted(&peak, 30), 30, "there was no look");
        // 100 are mapped twice.
        peak.look(Bytes(220), Bytes(220), Bytes(100));
        assert_eq!([counted(&peak, 220), counted(&peak, 250)], [120, 150]);
        // Without them, other memory grows below the high water.
        peak.look(Bytes(220), Bytes(180), Bytes(0));
        assert_eq!(counted(&peak, 220), 180);
        peak.look(Bytes(220), Bytes(40), Bytes(0));
        assert_eq!(counted(&peak, 220), 180);
    }
}
