//! The speed of a disk without any memory manager: one io_uring over a file, with as many transfers
//! in flight as its depth.
//!
//! ```text
//! fill: every page once ──> passes: reads at random, or all pages in sequence ──> sweep
//! Request x depth   a buffer and its transfer: made, in flight, completed, checked, made again
//! ```
//! One thread, O_DIRECT, no lock. Contents are those of the workloads, and all reads are checked:
//! one word of a page that is read at random, as in pmbench, otherwise every word.

use super::{Unavailable, file};
use crate::workload::WORDS;
use crate::workload::content::{Content, Mismatch};
use crate::workload::host::Host;
use crate::workload::outcome::{Failure, Measured, Outcome};
use crate::workload::tally::Tally;
use crate::workload::world::World;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::{Bytes, PAGE_SIZE, Prng, RUN_PAGES_MAX};
use io_uring::{IoUring, opcode, types};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags};
use std::path::Path;
use std::time::Duration;

/// Transfers in flight at the same time.
pub const DEPTH: usize = 64;

/// The transfers that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Pages at random, for this time.
    ReadRandom(Duration),
    /// All pages once, in runs as long as Highwater's.
    ReadSequential,
    /// Writes all pages in sequence.
    WriteSequential,
}

/// Why there is no outcome.
#[derive(Debug)]
pub enum DiskError {
    /// It could not be set up.
    Setup(Unavailable),
    /// It ran and failed.
    Run(Failure),
    /// A transfer failed.
    Transfer(String),
}

impl From<Unavailable> for DiskError {
    fn from(reason: Unavailable) -> DiskError {
        DiskError::Setup(reason)
    }
}

/// Measures a pass over a new file of `len` bytes in `dir`.
///
/// # Errors
/// No such file or ring, a failed transfer, or wrong contents.
pub fn run(dir: &Path, len: Bytes, pass: Pass, seed: u64) -> Result<Outcome, DiskError> {
    let mut disk = Disk::new(dir, len, seed)?;
    let fill = match pass {
        Pass::WriteSequential => None,
        Pass::ReadRandom(_) | Pass::ReadSequential => {
            Some(disk.measure(DEPTH, &mut Sequence::new(Direction::Write, disk.pages))?.run)
        }
    };
    disk.tally = Tally::new();
    let measured = match pass {
        Pass::ReadRandom(time) => disk.measure(DEPTH, &mut Draws::new(&disk, time, seed))?,
        Pass::ReadSequential => {
            disk.measure(DEPTH, &mut Sequence::new(Direction::Read, disk.pages))?
        }
        Pass::WriteSequential => {
            disk.measure(DEPTH, &mut Sequence::new(Direction::Write, disk.pages))?
        }
    };
    let tally = disk.tally.clone();
    let sweep = disk.measure(DEPTH, &mut Sequence::new(Direction::Read, disk.pages))?.run;
    let (pages, threads, swept) = (disk.pages, 1, disk.pages);
    Ok(Outcome { pages, threads, fill, sweep, swept, ..Outcome::new(tally, measured) })
}

/// The speed of a directory, page by page and in runs.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// A read of a page, with no other transfer in flight, in ns: the median.
    pub read_alone: f64,
    /// A write of `write_bytes`, with no other transfer in flight, in ns: the median.
    pub write_alone: f64,
    /// A run of pages, as Highwater writes them.
    pub write_bytes: usize,
    /// Pages at random, [`DEPTH`] at once.
    pub reads_per_s: f64,
    /// Runs in sequence, [`DEPTH`] at once, in 10^6 bytes per second.
    pub read_mb_per_s: f64,
    /// Runs in sequence, [`DEPTH`] at once, in 10^6 bytes per second.
    pub write_mb_per_s: f64,
}

/// Measures transfers of a new file of `len` bytes, or less, in `dir`; each kind takes `time` at
/// most.
///
/// # Errors
/// Those of [`run`].
pub fn speeds(dir: &Path, len: Bytes, time: Duration) -> Result<Speeds, DiskError> {
    let mut disk = Disk::new(dir, len, 1)?;
    let write_mb_per_s = disk.in_sequence(Direction::Write, time)?;
    let read_mb_per_s = disk.in_sequence(Direction::Read, time)?;
    let mut draws = Draws::new(&disk, time, 1);
    let (reads, took) = disk.count(DEPTH, &mut draws)?;
    let mut draws = Draws::new(&disk, time, 2);
    disk.count(1, &mut draws)?;
    let read_alone = disk.median();
    let writes = Sequence::new(Direction::Write, disk.pages);
    disk.count(1, &mut Until::new(writes, time))?;
    Ok(Speeds {
        read_alone,
        write_alone: disk.median(),
        write_bytes: disk.pages.min(RUN_PAGES_MAX as u64) as usize * PAGE_SIZE,
        reads_per_s: reads as f64 / took.as_secs_f64(),
        read_mb_per_s,
        write_mb_per_s,
    })
}

/// The room that a user's files may still take in a directory.
pub fn free(dir: &Path) -> Bytes {
    rustix::fs::statvfs(dir).map_or(Bytes(0), |stat| Bytes(stat.f_bavail * stat.f_frsize))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// A transfer: its pages, and whether one or all of their words are checked.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    direction: Direction,
    first: u64,
    pages: usize,
    word: Option<usize>,
}

/// Transfers to make, one after the other.
trait Plan {
    fn next(&mut self) -> Option<Transfer>;
}

/// Every page once.
struct Sequence {
    direction: Direction,
    at: u64,
    end: u64,
}

impl Sequence {
    fn new(direction: Direction, pages: u64) -> Sequence {
        Sequence { direction, at: 0, end: pages }
    }
}

impl Plan for Sequence {
    fn next(&mut self) -> Option<Transfer> {
        let (first, pages) = (self.at, (self.end - self.at).min(RUN_PAGES_MAX as u64));
        self.at += pages;
        let transfer =
            Transfer { direction: self.direction, first, pages: pages as usize, word: None };
        (pages > 0).then_some(transfer)
    }
}

/// Pages at random, until it is over.
struct Draws {
    random: Prng,
    pages: u64,
    end: u64,
}

impl Draws {
    fn new(disk: &Disk, time: Duration, seed: u64) -> Draws {
        let end = Host.now().0 + time.as_nanos() as u64;
        Draws { random: Prng::new(seed), pages: disk.pages, end }
    }
}

impl Plan for Draws {
    fn next(&mut self) -> Option<Transfer> {
        if Host.now().0 >= self.end {
            return None;
        }
        let first = self.random.below(self.pages);
        let word = Some(self.random.below(WORDS as u64) as usize);
        Some(Transfer { direction: Direction::Read, first, pages: 1, word })
    }
}

/// A plan that ends early: this long after its first transfer.
struct Until<P> {
    plan: P,
    time: Duration,
    end: Option<u64>,
}

impl<P: Plan> Until<P> {
    fn new(plan: P, time: Duration) -> Until<P> {
        Until { plan, time, end: None }
    }
}

impl<P: Plan> Plan for Until<P> {
    fn next(&mut self) -> Option<Transfer> {
        let now = Host.now().0;
        let end = *self.end.get_or_insert(now + self.time.as_nanos() as u64 + 1);
        if now < end { self.plan.next() } else { None }
    }
}

/// A buffer of a run's length, aligned as O_DIRECT wants it.
#[repr(align(4096))]
struct Buffer([[u64; WORDS]; RUN_PAGES_MAX]);

/// A buffer, and what it is used for.
struct Request {
    buffer: Box<Buffer>,
    transfer: Option<Transfer>,
    began: u64,
}

struct Disk {
    file: OwnedFd,
    ring: IoUring,
    requests: Vec<Request>,
    pages: u64,
    content: Content,
    tally: Tally,
    counters: Snapshot,
}

impl Disk {
    fn new(dir: &Path, len: Bytes, seed: u64) -> Result<Disk, Unavailable> {
        let file = file::unnamed(dir, OFlags::DIRECT)?;
        let whole = Bytes::of_pages(len.pages());
        rustix::fs::ftruncate(&file, whole.0).map_err(|e| file::no_room(dir, whole, e))?;
        // Writes to holes are three times as slow on ext4, and Highwater's swap files are
        // allocated, too. A hint.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, whole.0);
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32);
        let ring = ring.map_err(|reason| Unavailable::because("io_uring", reason))?;
        let buffer = || Box::new(Buffer([[0; WORDS]; RUN_PAGES_MAX]));
        let request = |_| Request { buffer: buffer(), transfer: None, began: 0 };
        Ok(Disk {
            file,
            ring,
            requests: (0..DEPTH).map(request).collect(),
            pages: whole.pages(),
            content: Content::new(seed),
            tally: Tally::new(),
            counters: Snapshot::empty(),
        })
    }

    /// Makes the transfers of a plan, `depth` at once: at most [`DEPTH`].
    fn measure(&mut self, depth: usize, plan: &mut impl Plan) -> Result<Measured, DiskError> {
        let (before, kernel) = (self.counters.clone(), Host.kernel_counts());
        let (began, cpu) = (Host.now(), Host.cpu_use());
        let mut free: Vec<usize> = (0..depth).collect();
        loop {
            while let Some(request) = free.pop() {
                match plan.next() {
                    Some(transfer) => self.submit(request, transfer),
                    None => {
                        free.push(request);
                        break;
                    }
                }
            }
            if free.len() == depth {
                break;
            }
            let waited = self.ring.submit_and_wait(1);
            waited.map_err(|error| DiskError::Transfer(format!("io_uring: {error}")))?;
            self.reap(&mut free)?;
        }
        let run = Duration::from_nanos(Host.now().since(began).0);
        let cpu = Host.cpu_use().since(&cpu);
        let kernel = Host.kernel_counts().since(&kernel);
        let (after, calls, nanos_per_tick, locks) = (self.counters.clone(), None, 1.0, None);
        Ok(Measured { run, cpu, kernel, calls, nanos_per_tick, before, after, locks })
    }

    /// Transfers in sequence for a time: 10^6 bytes per second. After writes, the disk has as many
    /// pages as were written.
    fn in_sequence(&mut self, direction: Direction, time: Duration) -> Result<f64, DiskError> {
        let mut plan = Until::new(Sequence::new(direction, self.pages), time);
        let (_, took) = self.count(DEPTH, &mut plan)?;
        if direction == Direction::Write {
            self.pages = plan.plan.at;
        }
        Ok(Bytes::of_pages(plan.plan.at).0 as f64 / took.as_secs_f64() / 1e6)
    }

    /// The number of transfers that a plan made, and their time.
    fn count(&mut self, depth: usize, plan: &mut impl Plan) -> Result<(u64, Duration), DiskError> {
        self.tally = Tally::new();
        let took = self.measure(depth, plan)?.run;
        Ok((self.tally.latency.len(), took.max(Duration::from_nanos(1))))
    }

    /// The median time of the last plan's transfers, in ns.
    fn median(&self) -> f64 {
        self.tally.latency.value_at_quantile(0.5) as f64
    }

    fn submit(&mut self, index: usize, transfer: Transfer) {
        let request = &mut self.requests[index];
        let file = types::Fd(self.file.as_raw_fd());
        let (buffer, len) = (request.buffer.0.as_mut_ptr(), (transfer.pages * PAGE_SIZE) as u32);
        let offset = Bytes::of_pages(transfer.first).0;
        let entry = match transfer.direction {
            Direction::Read => opcode::Read::new(file, buffer.cast(), len).offset(offset).build(),
            Direction::Write => {
                for (page, words) in (transfer.first..).zip(&mut request.buffer.0[..transfer.pages])
                {
                    for (word, value) in words.iter_mut().enumerate() {
                        *value = self.content.value(page, word, 0);
                    }
                }
                opcode::Write::new(file, buffer.cast(), len).offset(offset).build()
            }
        };
        (request.transfer, request.began) = (Some(transfer), Host.now().0);
        // SAFETY: only this request uses the buffer until `reap` takes its completion; `drop`
        // waits for completions that `reap` has not taken.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        pushed.expect("a request has at most one entry in a queue of DEPTH");
    }

    /// Takes in completions.
    fn reap(&mut self, free: &mut Vec<usize>) -> Result<(), DiskError> {
        let done: Vec<(usize, i32)> =
            self.ring.completion().map(|c| (c.user_data() as usize, c.result())).collect();
        // All of them are complete, even if the first one failed.
        let over = |(index, result): &(usize, i32)| {
            let transfer = self.requests[*index].transfer.take().expect("it was in flight");
            (*index, *result, transfer)
        };
        let done: Vec<_> = done.iter().map(over).collect();
        for (index, result, transfer) in done {
            if result != (transfer.pages * PAGE_SIZE) as i32 {
                let what = format!("{:?} of page {}: {result}", transfer.direction, transfer.first);
                return Err(DiskError::Transfer(what));
            }
            self.account(index, transfer).map_err(DiskError::Run)?;
            free.push(index);
        }
        Ok(())
    }

    fn account(&mut self, index: usize, transfer: Transfer) -> Result<(), Failure> {
        let request = &self.requests[index];
        self.tally.latency.saturating_record(Host.now().0.saturating_sub(request.began));
        let words = transfer.pages * transfer.word.map_or(WORDS, |_| 1);
        let (counter, counted) = match transfer.direction {
            Direction::Read => (Counter::PswpIn, &mut self.tally.loads),
            Direction::Write => (Counter::PswpOut, &mut self.tally.stores),
        };
        *counted += words as u64;
        self.counters.counters[counter as usize] += transfer.pages as u64;
        match transfer.direction {
            Direction::Write => Ok(()),
            Direction::Read => check(&self.content, &request.buffer, transfer),
        }
    }
}

/// Checks the words of a transfer.
fn check(content: &Content, buffer: &Buffer, transfer: Transfer) -> Result<(), Failure> {
    for (page, words) in (transfer.first..).zip(&buffer.0[..transfer.pages]) {
        for word in transfer.word.map_or(0..WORDS, |word| word..word + 1) {
            let (expected, found) = (content.value(page, word, 0), words[word]);
            if found != expected {
                let (version, found_version) = (Some(0), content.version(page, word, found));
                let seed = content.seed();
                let wrong = Mismatch { page, word, version, expected, found, found_version, seed };
                return Err(Failure::Mismatch(wrong));
            }
        }
    }
    Ok(())
}

impl Drop for Disk {
    /// Buffers are freed only when the kernel no longer uses them.
    fn drop(&mut self) {
        let mut in_flight =
            self.requests.iter().filter(|request| request.transfer.is_some()).count();
        while in_flight > 0 && self.ring.submit_and_wait(1).is_ok() {
            in_flight -= self.ring.completion().count();
        }
        if in_flight > 0 {
            std::mem::take(&mut self.requests).into_iter().for_each(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_testkit::skip_or_fail;

    const LEN: Bytes = Bytes(100 * PAGE_SIZE as u64);

    fn here() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn passes_move_every_page_and_check_it() {
        for (pass, read, written) in [
            (Pass::WriteSequential, 0, 100),
            (Pass::ReadSequential, 100, 0),
            (Pass::ReadRandom(Duration::from_millis(20)), 1, 0),
        ] {
            let outcome = match run(here(), LEN, pass, 3) {
                Err(DiskError::Setup(reason)) => return skip_or_fail(reason),
                other => other.expect("a good run"),
            };
            let Measured { before, after, .. } = &outcome.measured;
            let gained = |counter| after.get(counter) - before.get(counter);
            match pass {
                Pass::ReadRandom(_) => {
                    assert!(gained(Counter::PswpIn) >= read);
                    assert_eq!(outcome.tally.loads, gained(Counter::PswpIn), "a word of each");
                }
                _ => assert_eq!(gained(Counter::PswpIn), read),
            }
            assert_eq!(gained(Counter::PswpOut), written);
        }
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut disk = match Disk::new(here(), LEN, 3) {
            Err(reason) => return skip_or_fail(reason),
            Ok(disk) => disk,
        };
        disk.measure(DEPTH, &mut Sequence::new(Direction::Write, LEN.pages())).expect("written");
        let mut page = Box::new(Buffer([[0; WORDS]; RUN_PAGES_MAX]));
        page.0[0][5] = disk.content.value(40, 5, 0) ^ 1 << 17;
        // SAFETY: plain words, as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(page.0.as_ptr().cast(), PAGE_SIZE) };
        rustix::io::pwrite(&disk.file, bytes, 40 * PAGE_SIZE as u64).expect("written");
        let found = disk.measure(DEPTH, &mut Sequence::new(Direction::Read, LEN.pages()));
        let Err(DiskError::Run(Failure::Mismatch(wrong))) = found else { panic!("{found:?}") };
        assert_eq!(wrong.page, 40);
    }
}
