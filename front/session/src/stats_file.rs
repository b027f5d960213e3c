//! The statistics of one process of a run, published where `highwater run` can read them.
//!
//! ```text
//! run_dir/<pid>.<n>:  layout | sequence | name | Snapshot | Parts, or 0 | MallocStats, or 0
//!                     n counts the images (exec) of the pid
//! ```
//! `layout` identifies the format. It is a hash of the counters' names and of the sizes of the
//! parts, so a library and a `highwater` of different builds cannot misread each other's figures:
//! [`read_published`] reports [`OtherBuild`].
//!
//! The file is written by its mapping alone: programs close and reuse descriptors as they like, and
//! a write through a reused descriptor would corrupt the program's own file. It is locked as long
//! as its process lives, in a descriptor of the helper: that shows the end of a process that was
//! killed, too.
//!
//! Locking: writers of one process take a mutex. Readers are in another process and take no lock:
//! the sequence is odd while the words change, and a reader that sees it odd or changed retries.

use crate::swap_dir::free_in;
use crate::{MallocStats, Parts};
use highwater_devices::{file_size_limit, map_own};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::Bytes;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::{CStr, c_void};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};
use std::sync::{Mutex, PoisonError};

const WORD: usize = size_of::<u64>();
/// Words before the snapshot: layout, sequence, and the name of the process.
const HEADER_WORDS: usize = NAME + NAME_WORDS;
const SEQUENCE: usize = 1;
const NAME: usize = 2;
/// The kernel's names (comm) have up to 15 bytes; zeros follow.
const NAME_WORDS: usize = 2;
const WORDS: usize = HEADER_WORDS + Snapshot::WORDS + Parts::WORDS + MallocStats::WORDS;

/// The word that says whether the figures are final.
const ENDED: usize = HEADER_WORDS + Snapshot::word_of(Counter::ProcessEnded);

/// A file takes at most one part in this many of the room that is left.
const ROOM: u64 = 16;

/// Retry limit of a reader that finds a write in progress; a write takes microseconds.
const READ_ATTEMPTS: u32 = 8;

/// Identifies the layout of the file: the counters' names, and the sizes of the parts.
const LAYOUT: u64 = layout(Counter::NAMES_HASH, [WORDS, Snapshot::WORDS]);

const fn layout(names: u64, [all, snapshot]: [usize; 2]) -> u64 {
    // An odd factor: neither the sizes nor the names alone cancel out.
    const FACTOR: u64 = 0x0100_0000_01b3;
    let hash = (names ^ all as u64).wrapping_mul(FACTOR);
    let hash = (hash ^ snapshot as u64).wrapping_mul(FACTOR);
    // Zero is the layout of a file that is still being created.
    if hash == 0 { 1 } else { hash }
}

/// An image of a process of a run, and the name of its file: exec keeps the pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// The process, as it sees itself.
    pub pid: u32,
    /// How many files of that pid are older.
    pub number: u32,
}

impl Image {
    /// Both in a word, which is not 0.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.pid)
    }

    pub(crate) fn from_bits(bits: u64) -> Image {
        Image { pid: bits as u32, number: (bits >> 32) as u32 }
    }

    /// The name of its file.
    pub(crate) fn name(self) -> String {
        format!("{}.{}", self.pid, self.number)
    }

    fn path(self, run_dir: &Path) -> PathBuf {
        run_dir.join(self.name())
    }
}

/// The statistics file of this process. A forked child must create its own.
pub struct StatsFile {
    words: Mutex<SharedWords>,
    image: Image,
    /// Locked (flock) until the end of all processes that have this descriptor.
    lock: OwnedFd,
}

impl StatsFile {
    /// Creates the file of process `pid`. All users that can open the directory may read it: where
    /// root's run executes processes as another user, these see when others have ended. Earlier
    /// files of the same pid stay: exec keeps the pid, and the kernel may give it out again.
    ///
    /// # Errors
    /// The directory cannot be written to; its file system has little room, which the program may
    /// need; or files may not be this large (RLIMIT_FSIZE). An empty file then shows that there was
    /// a process.
    pub fn create(run_dir: &Path, pid: u32, name: Name) -> io::Result<StatsFile> {
        let (image, fd) = create_new(run_dir, pid)?;
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        fchmod(&fd, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
        let bytes = (WORDS * WORD) as u64;
        if rustix::fs::fstatfs(&fd).is_ok_and(|status| free_in(&status).0 < ROOM * bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if file_size_limit() < Bytes(bytes) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Allocated now, so that a full file system is an error here and not a later SIGBUS.
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        let words = SharedWords::map(&fd)?;
        for (word, value) in words.words()[NAME..].iter().zip(name.to_words()) {
            word.store(value.to_le(), Relaxed);
        }
        words.words()[0].store(LAYOUT.to_le(), Relaxed);
        Ok(StatsFile { words: Mutex::new(words), image, lock: fd })
    }

    /// Shows that the process has ended.
    pub(crate) fn unlock(&self) {
        // Fails on no file that was locked; the end of the helper unlocks it, too.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    /// Its name.
    pub fn image(&self) -> Image {
        self.image
    }

    /// Replaces the file's contents. Makes no system call.
    pub fn publish(
        &self,
        snapshot: &Snapshot,
        parts: Option<&Parts>,
        malloc: Option<&MallocStats>,
    ) {
        let mut words = snapshot.to_words();
        words.extend(parts.map_or_else(|| vec![0; Parts::WORDS], Parts::to_words));
        words.extend(malloc.iter().flat_map(|malloc| malloc.to_words()));
        self.words.lock().unwrap_or_else(PoisonError::into_inner).store(&words);
    }
}

/// A process's name (comm); zeros behind its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Name([u8; NAME_WORDS * WORD]);

impl Name {
    /// The present name of the process that is `entry` in /proc: a number, or "self". Empty if
    /// /proc does not tell.
    pub fn in_proc(entry: &str) -> Name {
        let comm = std::fs::read(format!("/proc/{entry}/comm")).unwrap_or_default();
        let mut name = Name::default();
        name.0.iter_mut().zip(comm.trim_ascii_end()).for_each(|(byte, of_name)| *byte = *of_name);
        name
    }

    fn to_words(self) -> [u64; NAME_WORDS] {
        let (words, _) = self.0.as_chunks();
        std::array::from_fn(|word| u64::from_le_bytes(words[word]))
    }
}

fn name(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    // A program may give itself any name, and it goes to terminals.
    String::from_utf8_lossy(&bytes[..len]).replace(|c: char| c.is_control(), "?")
}

fn create_new(run_dir: &Path, pid: u32) -> io::Result<(Image, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut image = Image { pid, number: 0 };
    loop {
        match rustix::fs::open(image.path(run_dir), flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((image, fd)),
            Err(rustix::io::Errno::EXIST) => image.number += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a process that published statistics has ended: its file is removed, or no process holds
/// the lock. Where `highwater run` has ended before its processes, the directory is removed, and no
/// process counts as ended.
pub(crate) fn is_ended(run_dir: &Path, image: Image) -> bool {
    match open(&image.path(run_dir)) {
        Ok(file) => flock(file, FlockOperation::NonBlockingLockShared).is_ok(),
        Err(error) => error == rustix::io::Errno::NOENT && run_dir.exists(),
    }
}

/// Opens a file for reading. It never waits, whatever another process has put there.
fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Whether the process lives whose statistics have this name in a directory.
pub(crate) fn is_locked(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty());
    let shared = FlockOperation::NonBlockingLockShared;
    file.is_ok_and(|file| flock(file, shared) == Err(rustix::io::Errno::WOULDBLOCK))
}

/// Maps the first `len` bytes of a file shared and writable, in this process only: a forked child
/// maps its own.
pub(crate) fn map_shared(file: &OwnedFd, len: usize) -> rustix::io::Result<NonNull<c_void>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping replaces nothing.
    let map = |at, more| unsafe { rustix::mm::mmap(at, len, access, flags | more, file, 0) };
    let address = map_own(len, map)?;
    // SAFETY: mapped above; the advice keeps its contents.
    unsafe { rustix::mm::madvise(address, len, rustix::mm::Advice::LinuxDontFork)? };
    NonNull::new(address).ok_or(rustix::io::Errno::NOMEM)
}

/// The file's words, mapped shared and writable.
struct SharedWords(NonNull<AtomicU64>);

// SAFETY: a mapping belongs to the process, not to a thread, and its words are atomics.
unsafe impl Send for SharedWords {}

impl SharedWords {
    /// Maps a file that has all its words.
    fn map(fd: &OwnedFd) -> rustix::io::Result<SharedWords> {
        map_shared(fd, WORDS * WORD).map(|address| SharedWords(address.cast()))
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has WORDS aligned words and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), WORDS) }
    }

    /// The writer's half of the sequence protocol.
    fn store(&mut self, values: &[u64]) {
        let (header, words) = self.words().split_at(HEADER_WORDS);
        let sequence = &header[SEQUENCE];
        let odd = sequence.load(Relaxed) | 1;
        sequence.store(odd, Relaxed);
        fence(Release);
        for (word, value) in words.iter().zip(values) {
            word.store(value.to_le(), Relaxed);
        }
        sequence.store(odd.wrapping_add(1), Release);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; `words` borrows from `self`, which ends here.
        // An error would leave the mapping in place, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast::<c_void>(), WORDS * WORD) };
    }
}

/// What a process published last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its name (comm) when its manager started, without control characters; empty if unknown.
    pub name: String,
    /// Its manager's statistics.
    pub snapshot: Snapshot,
    /// What the parts of its manager hold; `None`: it has none.
    pub parts: Option<Parts>,
    /// What its malloc holds; `None` if the C library's malloc serves the process.
    pub malloc: Option<MallocStats>,
}

/// A process of the run published statistics in the layout of another build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherBuild {
    /// The process.
    pub pid: u32,
}

impl fmt::Display for OtherBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the preload library in process {} is of another build", self.pid)?;
        write!(f, ": its statistics cannot be read; install highwater and its library together")
    }
}

/// The snapshots that the processes of a run published last, as [`read_published`] finds them;
/// none from libraries of another build.
pub fn read_all(run_dir: &Path) -> Vec<(u32, Snapshot)> {
    let published = read_published(run_dir).unwrap_or_default();
    published.into_iter().map(|(pid, published)| (pid, published.snapshot)).collect()
}

/// What the processes of a run published last, by pid and then by age. A pid occurs once per
/// image. Files that are torn or are not statistics are left out.
///
/// # Errors
/// The first process whose library is of another build.
pub fn read_published(run_dir: &Path) -> Result<Vec<(u32, Published)>, OtherBuild> {
    let mut found = Vec::new();
    for (pid, _, path) in files(run_dir) {
        match read(&path) {
            Content::Published(published) => found.push((pid, *published)),
            Content::Nothing => {}
            Content::OtherLayout => return Err(OtherBuild { pid }),
        }
    }
    Ok(found)
}

/// Takes the final statistics of ended processes, by pid and then by age, and removes their files.
pub fn take_ended(run_dir: &Path) -> Vec<(u32, Published)> {
    let take = |(pid, _, path): (u32, u32, PathBuf)| {
        let file = File::from(open(&path).ok()?);
        let mut ended = [0; WORD];
        file.read_exact_at(&mut ended, (ENDED * WORD) as u64).ok()?;
        if u64::from_le_bytes(ended) == 0 {
            return None;
        }
        let Content::Published(published) = read(&path) else { return None };
        // A file that stays is taken again, so its figures would count twice.
        std::fs::remove_file(&path).ok()?;
        Some((pid, *published))
    };
    files(run_dir).into_iter().filter_map(take).collect()
}

/// How many processes found no room for their statistics.
pub fn unpublished(run_dir: &Path) -> usize {
    let is_empty = |path: &Path| path.metadata().is_ok_and(|file| file.len() == 0);
    files(run_dir).iter().filter(|(_, _, path)| is_empty(path)).count()
}

/// The files of processes: pid, number of the image, path.
fn files(run_dir: &Path) -> Vec<(u32, u32, PathBuf)> {
    let entries = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let (pid, image) = parse_name(entry.file_name().to_str()?)?;
        Some((pid, image, entry.path()))
    });
    let mut files: Vec<_> = named.collect();
    files.sort();
    files
}

fn parse_name(name: &str) -> Option<(u32, u32)> {
    let (pid, image) = name.split_once('.')?;
    Some((pid.parse().ok()?, image.parse().ok()?))
}

/// What a file holds.
enum Content {
    Published(Box<Published>),
    /// No statistics: not yet, or not at all.
    Nothing,
    OtherLayout,
}

fn read(path: &Path) -> Content {
    let Ok(file) = open(path).map(File::from) else { return Content::Nothing };
    match read_words(&file, 1).as_deref() {
        Some([found]) if *found == LAYOUT => {}
        Some([0]) | None => return Content::Nothing,
        Some(_) => return Content::OtherLayout,
    }
    read_consistent(&file).map_or(Content::Nothing, |it| Content::Published(Box::new(it)))
}

/// The reader's half of the sequence protocol.
fn read_consistent(file: &File) -> Option<Published> {
    (0..READ_ATTEMPTS).find_map(|_| {
        let before = read_words(file, HEADER_WORDS)?[SEQUENCE];
        let words = read_words(file, WORDS)?;
        let after = read_words(file, HEADER_WORDS)?[SEQUENCE];
        let is_consistent = before == after && before.is_multiple_of(2);
        let (snapshot, rest) = words[HEADER_WORDS..].split_at(Snapshot::WORDS);
        let (parts, malloc) = rest.split_at(Parts::WORDS);
        let snapshot = Snapshot::from_words(snapshot).filter(|_| is_consistent)?;
        let name = name(&words[NAME..HEADER_WORDS]);
        let (parts, malloc) = (Parts::from_words(parts), MallocStats::from_words(malloc));
        Some(Published { name, snapshot, parts, malloc })
    })
}

/// The first `count` words of a file.
fn read_words(file: &File, count: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; count * WORD];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let word = |chunk: &[u8]| chunk.try_into().map(u64::from_le_bytes).ok();
    bytes.chunks_exact(WORD).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::malloc_stats::tests::holding;
    use crate::parts::tests::parts;
    use highwater_mm::stats::Stats;
    use highwater_units::CpuId;
    use std::os::unix::fs::PermissionsExt;

    fn malloc(used: u64) -> MallocStats {
        MallocStats { now: holding(used), at_most: holding(used + 1) }
    }

    fn snapshot(faults: u64) -> Snapshot {
        let stats = Stats::new(1);
        stats.add(CpuId(0), Counter::PgFault, faults);
        stats.add(CpuId(0), Counter::PswpIn, faults);
        stats.snapshot()
    }

    fn nameless(dir: &tempfile::TempDir, pid: u32) -> StatsFile {
        StatsFile::create(dir.path(), pid, Name::default()).unwrap()
    }

    #[test]
    fn images_of_one_pid_all_count() {
        let dir = tempfile::tempdir().unwrap();
        let first = nameless(&dir, 7);
        first.publish(&snapshot(1), None, None);
        first.publish(&snapshot(2), None, None);
        drop(first);
        nameless(&dir, 7).publish(&snapshot(3), None, None);
        nameless(&dir, 6).publish(&snapshot(4), None, None);
        let found: Vec<_> = read_all(dir.path())
            .into_iter()
            .map(|(pid, snapshot)| (pid, snapshot.get(Counter::PgFault)))
            .collect();
        assert_eq!(found, [(6, 4), (7, 2), (7, 3)]);
        let mode = std::fs::metadata(dir.path().join("7.0")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_process_has_its_name_in_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        for (pid, name) in [(own, Name::in_proc("self")), (0, Name::in_proc("0"))] {
            StatsFile::create(dir.path(), pid, name).unwrap().publish(&snapshot(1), None, None);
        }
        let found = read_published(dir.path()).unwrap();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            found.iter().map(|(pid, it)| (*pid, &it.name[..])).collect::<Vec<_>>(),
            [(0, ""), (own, comm.trim_end())]
        );
        assert_eq!(name(&[u64::from_le_bytes(*b"ab\n\x1b[1m\0"), 7]), "ab??[1m");
        assert_eq!(name(&[u64::MAX; 2]).chars().count(), 16);
    }

    #[test]
    fn a_file_of_another_build_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let _ours = nameless(&dir, 1);
        let mut words = vec![0; WORDS];
        words[0] = LAYOUT ^ 1;
        let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_le_bytes).collect();
        for len in [bytes.len(), WORD, 10 * WORD] {
            std::fs::write(dir.path().join("2.0"), &bytes[..len]).unwrap();
            let error = read_published(dir.path()).unwrap_err();
            assert_eq!(error, OtherBuild { pid: 2 });
            assert_eq!(error.to_string().lines().count(), 1);
        }
        assert!(read_all(dir.path()).is_empty());
    }

    #[test]
    fn names_and_sizes_change_the_layout() {
        let drawn = [(1, [8, 4]), (2, [8, 4]), (1, [9, 4]), (1, [8, 5]), (1, [4, 8])];
        let layouts = drawn.map(|(names, sizes)| layout(names, sizes));
        let distinct: std::collections::HashSet<_> = layouts.into_iter().collect();
        assert_eq!(distinct.len(), drawn.len());
    }

    #[test]
    fn foreign_and_unpublished_files_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let _silent = nameless(&dir, 1);
        std::fs::write(dir.path().join("2.0"), "short").unwrap();
        std::fs::write(dir.path().join("3.0"), vec![0; WORDS * WORD]).unwrap();
        std::fs::write(dir.path().join("notes"), "foreign").unwrap();
        assert!(read_all(dir.path()).is_empty());
        assert!(read_all(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn ended_processes_are_taken_once_and_living_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let ended = |faults| {
            let mut snapshot = snapshot(faults);
            snapshot.counters[Counter::ProcessEnded as usize] = 1;
            snapshot
        };
        for (pid, last) in [(1, ended(10)), (2, snapshot(20)), (2, ended(30))] {
            nameless(&dir, pid).publish(&last, None, None);
        }
        let faults = |all: Vec<(u32, Published)>| -> Vec<_> {
            all.iter().map(|(pid, it)| (*pid, it.snapshot.get(Counter::PgFault))).collect()
        };
        assert_eq!(faults(take_ended(dir.path())), [(1, 10), (2, 30)]);
        assert_eq!(faults(take_ended(dir.path())), []);
        assert_eq!(faults(read_published(dir.path()).unwrap()), [(2, 20)]);
    }

    #[test]
    fn an_empty_file_counts_as_unpublished() {
        let dir = tempfile::tempdir().unwrap();
        let _living = nameless(&dir, 1);
        assert_eq!(unpublished(dir.path()), 0);
        std::fs::write(dir.path().join("2.0"), "").unwrap();
        assert_eq!((unpublished(dir.path()), take_ended(dir.path()).len()), (1, 0));
    }

    #[test]
    fn a_directory_that_is_missing_is_an_error() {
        assert!(StatsFile::create(Path::new("/nonexistent"), 1, Name::default()).is_err());
    }

    #[test]
    fn readers_never_see_half_a_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = nameless(&dir, 1);
        file.publish(&snapshot(0), None, Some(&malloc(0)));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                (1..20_000)
                    .for_each(|n| file.publish(&snapshot(n), Some(&parts(n)), Some(&malloc(n))))
            });
            while !writer.is_finished() {
                for (_, Published { snapshot, parts, malloc, .. }) in
                    read_published(dir.path()).unwrap()
                {
                    let faults = snapshot.get(Counter::PgFault);
                    assert_eq!(faults, snapshot.get(Counter::PswpIn));
                    let threads = parts.map_or(0, |parts| parts.kswapd_threads);
                    assert_eq!(threads, faults);
                    let at_most = malloc.expect("was published").at_most;
                    assert_eq!(at_most.caches[1].used, faults + 1);
                }
            }
        });
        let last = &read_published(dir.path()).unwrap()[0].1;
        assert_eq!((&last.snapshot, &last.malloc), (&snapshot(19_999), &Some(malloc(19_999))));
    }
}
