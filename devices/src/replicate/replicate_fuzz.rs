//! Random transfers of several threads against a model, over replicas that fail at random rates and
//! die for good.

use super::*;
use crate::open::open;
use crate::quota::Lender;
use crate::spec::Spec;
use crate::test_frames::Frames;
use highwater_units::{FrameList, PAGE_SIZE, Pfn, Prng};
use std::slice;
use std::sync::OnceLock;

const THREADS: u32 = 3;
/// Slots of a thread.
const SLOTS: u32 = 85;
const STEPS: u32 = 3000;
/// Frames of a thread.
const FRAMES: u32 = 48;
const EIO: IoError = IoError::Failed(libc::EIO);

/// Faults of a replica, and its slots whose last write failed.
#[derive(Default)]
struct Faults {
    /// How many of 100 transfers fail.
    writes: AtomicU64,
    reads: AtomicU64,
    /// How many of 100 polls of a read in flight find that the read is not over.
    slow: AtomicU64,
    dead: AtomicBool,
    drawn: AtomicU64,
    bad: Vec<AtomicBool>,
}

impl Faults {
    fn strikes(&self, percent: &AtomicU64) -> bool {
        Prng::new(self.drawn.fetch_add(1, Relaxed)).percent(percent.load(Relaxed))
    }
}

/// Memory with a queue and faults: a write that fails has written half of its pages.
struct Failing {
    memory: Box<dyn Device>,
    faults: Arc<Faults>,
    standby: OnceLock<Standby>,
}

impl Failing {
    fn empty() -> (Box<dyn Device>, Arc<Faults>) {
        let memory = open(&Spec::parse("ram:1M").unwrap()).unwrap();
        let bad = (0..memory.info().pages).map(|_| AtomicBool::new(false)).collect();
        let faults = Arc::new(Faults { bad, ..Faults::default() });
        (Box::new(Failing { memory, faults: faults.clone(), standby: OnceLock::new() }), faults)
    }

    fn fault(&self, direction: Direction) -> Option<IoError> {
        let standby = self.standby.get().expect("it has a replica");
        let is_dead = self.faults.dead.load(Relaxed);
        // A last replica is waited for until it comes back.
        if is_dead && standby.give_up() == Standing::Lost {
            return Some(LOST);
        }
        let (percent, errors) = match direction {
            Direction::Read => (&self.faults.reads, [EIO, IoError::Failed(libc::EBADMSG)]),
            Direction::Write => (&self.faults.writes, [EIO, IoError::Full]),
        };
        let which = self.faults.drawn.load(Relaxed) as usize % 2;
        self.faults.strikes(percent).then_some(errors[which])
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn one(&self, arena: Arena, direction: Direction, io: &mut Io) {
        let fault = self.fault(direction);
        let half = io.frames.iter().take(io.frames.len() / 2).collect::<FrameList>();
        let mut part = match fault {
            None => Some(*io),
            Some(_) => (!half.is_empty()).then(|| Io::new(io.slot, half)),
        };
        // SAFETY: by contract of this function.
        part.iter_mut().for_each(|part| unsafe {
            self.memory.read_or_write(arena, direction, slice::from_mut(part));
        });
        io.result = fault.map_or_else(|| part.expect("whole").result, Err);
        let pages = (io.slot..).zip(io.frames.iter());
        pages.for_each(|(slot, pfn)| match (direction, fault) {
            (Direction::Write, fault) => {
                self.faults.bad[slot as usize].store(fault.is_some(), Relaxed);
            }
            // SAFETY: as above.
            (Direction::Read, Some(_)) => unsafe {
                arena.address(pfn).write_bytes(0xdb, PAGE_SIZE);
            },
            (Direction::Read, None) => {}
        });
    }
}

impl Device for Failing {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.memory.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        batch.iter_mut().for_each(|io| unsafe { self.one(arena, Direction::Read, io) });
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        batch.iter_mut().for_each(|io| unsafe { self.one(arena, Direction::Write, io) });
    }

    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        if self.faults.drawn.fetch_add(1, Relaxed).is_multiple_of(3) {
            // SAFETY: by contract of this function.
            unsafe { self.read_or_write(arena, direction, batch) };
            return None;
        }
        Some(Started { index: 0, direction, left: 0, bounce: None })
    }

    fn is_over(&self, _started: &Started) -> bool {
        self.faults.drawn.load(Relaxed).is_multiple_of(2)
    }

    fn can_cancel(&self) -> bool {
        true
    }

    fn await_over(&self, _started: &Started, _most: Duration) -> bool {
        !self.faults.strikes(&self.faults.slow)
    }

    fn cancel(&self, started: Started) {
        assert_eq!(started.direction, Direction::Read, "writes are finished");
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.read_or_write(arena, started.direction, batch) };
    }

    fn stand_by(&self, standby: &Standby) {
        self.standby.set(standby.clone()).expect("once");
    }

    fn share_room(&self, _next: &mut Lenders<'_>) -> Result<(), Reason> {
        panic!("replicas take room together")
    }

    fn inherit(&self) -> Box<dyn Device> {
        let (memory, standby) = (self.memory.inherit(), self.standby.clone());
        Box::new(Failing { memory, faults: self.faults.clone(), standby })
    }

    fn resident(&self) -> Bytes {
        self.memory.resident()
    }
}

/// Two replicas, and their faults.
struct Pair {
    device: Replicated,
    faults: [Arc<Faults>; 2],
    /// Whether reads of good pages may fail.
    reads_fail: AtomicBool,
}

impl Pair {
    fn new() -> Pair {
        let (first, of_first) = Failing::empty();
        let (second, of_second) = Failing::empty();
        let device = Replicated::new("two".to_owned(), [first, second], Duration::ZERO).unwrap();
        Pair { device, faults: [of_first, of_second], reads_fail: AtomicBool::new(false) }
    }

    /// Whether a replica has a page; the replica may be lost.
    fn has(&self, replica: usize, slot: u32) -> bool {
        !self.faults[replica].bad[slot as usize].load(Relaxed)
    }

    /// Records, for slots on both replicas, whether they have the last write.
    fn note(&self, slot: u32, pages: u32, bad: bool) {
        for faults in &self.faults {
            let slots = &faults.bad[slot as usize..(slot + pages) as usize];
            slots.iter().for_each(|it| it.store(bad, Relaxed));
        }
    }

    fn set(&self, writes: u64, reads: u64) {
        for faults in &self.faults {
            faults.writes.store(writes, Relaxed);
            faults.reads.store(reads, Relaxed);
        }
        self.reads_fail.fetch_or(reads > 0, Relaxed);
    }
}

fn word_of(seed: u64, word: usize) -> u64 {
    if seed == 0 { 0 } else { seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64 }
}

/// A thread with slots and frames of its own. `None`: the contents of the slot are unknown.
struct Caller<'a> {
    pair: &'a Pair,
    device: &'a dyn Device,
    frames: Frames,
    first: u32,
    model: Vec<Option<u64>>,
    random: Prng,
    /// Transfers that failed on both replicas.
    failed: u32,
}

impl<'a> Caller<'a> {
    fn new(pair: &'a Pair, first: u32, slots: u32, seed: u64) -> Caller<'a> {
        let frames = Frames::new(FRAMES, word_of);
        let (device, model, random) =
            (&pair.device, vec![Some(0); slots as usize], Prng::new(seed));
        Caller { pair, device, frames, first, model, random, failed: 0 }
    }

    fn at(&mut self, slot: u32) -> &mut Option<u64> {
        &mut self.model[(slot - self.first) as usize]
    }

    /// Up to three runs of slots that do not overlap.
    fn batch(&mut self) -> Vec<Io> {
        let third = self.model.len() as u64 / 3;
        let runs = 1 + self.random.below(3);
        let run = |index: u64| {
            let pages = 1 + self.random.below(16) as u32;
            let at = index * third + self.random.below(third - u64::from(pages) + 1);
            let frame = index as u32 * 16;
            Io::new(self.first + at as u32, (frame..frame + pages).map(Pfn).collect())
        };
        (0..runs).map(run).collect()
    }

    /// Takes steps, in the middle of which replicas die.
    fn go(mut self, dies: Dies, reads: Reads) -> Caller<'a> {
        for step in 0..STEPS {
            let (writes, percent) = [(0, 0), (30, 0), (5, 30), (70, 0)][step as usize / 100 % 4];
            self.pair.set(writes, if reads == Reads::Fail { percent } else { 0 });
            if step == STEPS / 2 {
                let dead = |side: usize| dies == Dies::One(side) || dies == Dies::Both;
                let faults = self.pair.faults.iter().enumerate();
                faults.for_each(|(side, faults)| faults.dead.store(dead(side), Relaxed));
            }
            self.step();
        }
        self
    }

    fn step(&mut self) {
        let mut batch = self.batch();
        match self.random.below(10) {
            0..5 => self.write(&mut batch),
            5..9 => self.read(&mut batch),
            _ => batch.iter().for_each(|io| self.discard(io.slot, io.frames.len() as u32)),
        }
    }

    fn transfer(&mut self, direction: Direction, batch: &mut [Io]) {
        let arena = self.frames.arena();
        if self.random.percent(50) {
            // SAFETY: frames of this caller.
            return unsafe { self.device.read_or_write(arena, direction, batch) };
        }
        // SAFETY: as above.
        if let Some(started) = unsafe { self.device.start(arena, direction, batch) } {
            let _ = self.device.is_over(&started);
            // SAFETY: as above; the batch that was started.
            unsafe { self.device.finish(arena, started, batch) };
        }
    }

    fn write(&mut self, batch: &mut [Io]) {
        let pages: Vec<Pfn> = batch.iter().flat_map(|io| io.frames.iter()).collect();
        let seeds: Vec<u64> = pages.iter().map(|_| self.random.next_u64()).collect();
        pages.iter().zip(&seeds).for_each(|(pfn, seed)| self.frames.fill(*pfn, *seed));
        // No request goes to a lost replica.
        batch.iter().for_each(|io| self.pair.note(io.slot, io.frames.len() as u32, true));
        self.transfer(Direction::Write, batch);
        let mut seeds = seeds.into_iter();
        for io in batch {
            let slots = io.slot..io.slot + io.frames.len() as u32;
            let has = |replica| slots.clone().all(|slot| self.pair.has(replica, slot));
            assert_eq!(io.result.is_ok(), has(0) || has(1), "{io:?}");
            self.failed += u32::from(io.result.is_err());
            for slot in slots {
                let seed = seeds.next();
                *self.at(slot) = io.result.map_or(None, |()| seed);
            }
        }
    }

    fn read(&mut self, batch: &mut [Io]) {
        self.transfer(Direction::Read, batch);
        for io in &*batch {
            let pages = (io.slot..).zip(io.frames.iter());
            let has = |slot: u32, may: &dyn Fn(usize) -> bool| {
                [0, 1].into_iter().any(|replica| may(replica) && self.pair.has(replica, slot))
            };
            if io.result.is_err() {
                // A replica that is lost now may have been in use a moment ago, but not the
                // reverse.
                let used = |replica: usize| !self.pair.device.replicas[replica].is_lost();
                let all = (io.slot..).take(io.frames.len()).all(|slot| has(slot, &used));
                assert!(self.pair.reads_fail.load(Relaxed) || !all, "{io:?}");
                continue;
            }
            for (slot, pfn) in pages {
                assert!(has(slot, &|_| true), "slot {slot} is nowhere");
                if let Some(seed) = *self.at(slot) {
                    assert!(self.frames.holds(pfn, seed), "slot {slot}");
                }
            }
        }
    }

    fn discard(&mut self, slot: u32, pages: u32) {
        self.device.discard(slot, pages);
        self.pair.note(slot, pages, false);
        (slot..slot + pages).for_each(|slot| *self.at(slot) = None);
    }

    fn read_all(&mut self) {
        for slot in self.first..self.first + self.model.len() as u32 {
            self.read(&mut [Io::new(slot, FrameList::one(Pfn(0)))]);
        }
    }
}

/// Unlimited room, of which this much is taken.
#[derive(Default)]
struct Room(AtomicU64);

impl Lender for Room {
    fn claim(&self, pages: u32) -> u32 {
        self.0.fetch_add(pages.into(), Relaxed);
        pages
    }

    fn give_back(&self, pages: u32) {
        self.0.fetch_sub(pages.into(), Relaxed);
    }

    fn is_scarce(&self) -> bool {
        false
    }
}

/// Which replicas die in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    Neither,
    One(usize),
    Both,
}

/// Whether reads fail for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Fail,
    AreSound,
}

fn run(dies: Dies, reads: Reads, seed: u64) -> (Replication, u32) {
    println!("{dies:?}, {reads:?}, seed {seed}");
    let (pair, room) = (Pair::new(), Arc::new(Room::default()));
    pair.device.share_room(&mut || room.clone()).unwrap();
    pair.faults.iter().for_each(|faults| faults.slow.store(seed / 8 % 2 * 30, Relaxed));
    let caller = |thread| Caller::new(&pair, thread * SLOTS, SLOTS, seed * 10 + u64::from(thread));
    let callers: Vec<Caller<'_>> = std::thread::scope(|scope| {
        let callers = (0..THREADS).map(caller);
        let callers = callers.map(|caller| scope.spawn(move || caller.go(dies, reads)));
        let callers: Vec<_> = callers.collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    pair.set(0, 0);
    let inherited = pair.device.inherit();
    let mut failed = 0;
    for mut caller in callers {
        caller.read_all();
        caller.device = &*inherited;
        caller.read_all();
        let mut refused = [Io::new(caller.first, FrameList::one(Pfn(0)))];
        // SAFETY: frames of this caller.
        unsafe { inherited.write(caller.frames.arena(), &mut refused) };
        assert_eq!(refused[0].result, Err(IoError::Failed(libc::EROFS)));
        caller.device = &pair.device;
        caller.discard(caller.first, SLOTS);
        failed += caller.failed;
    }
    pair.device.vacate();
    assert_eq!(room.0.load(Relaxed), 0, "all room is given back");
    (pair.device.replication().unwrap(), failed)
}

#[test]
fn threads_match_a_model_while_replicas_fail_and_die() {
    let ways = [Dies::Neither, Dies::One(0), Dies::One(1), Dies::Both];
    for (seed, dies) in (0..).zip(ways.into_iter().cycle().take(4 * ways.len())) {
        let reads = if seed / 4 % 2 == 0 { Reads::Fail } else { Reads::AreSound };
        let (found, failed) = run(dies, reads, seed);
        assert_eq!(found.lost, u64::from(dies != Dies::Neither), "{found:?}");
        assert!(found.single_writes > 0 && failed > 0, "{found:?}");
        assert!(found.second_reads > 0 || reads == Reads::AreSound, "{found:?}");
        assert_eq!(found.hedged_reads > 0, seed / 8 % 2 == 1, "{found:?}");
    }
}

#[test]
fn a_replica_that_was_lost_is_not_asked_again() {
    let pair = Pair::new();
    let mut caller = Caller::new(&pair, 0, SLOTS, 3);
    pair.faults[0].dead.store(true, Relaxed);
    caller.write(&mut one(0));
    pair.faults[0].dead.store(false, Relaxed);
    pair.faults[0].reads.store(100, Relaxed);
    (0..SLOTS).cycle().take(300).for_each(|slot| caller.read(&mut one(slot)));
    (0..300).for_each(|slot| caller.write(&mut one(slot % SLOTS)));
    let found = pair.device.replication().unwrap();
    assert_eq!(
        found,
        Replication { lost: 1, single_writes: 301, second_reads: 0, hedged_reads: 0 }
    );
}

#[test]
fn a_read_that_takes_long_is_answered_by_the_other() {
    let pair = Pair::new();
    let mut caller = Caller::new(&pair, 0, SLOTS, 4);
    (0..SLOTS).for_each(|slot| caller.write(&mut one(slot)));
    for slow in [0, 1] {
        pair.faults[slow].slow.store(100, Relaxed);
        // In case the slow replica is read all the same.
        pair.faults[slow].reads.store(100, Relaxed);
        (0..SLOTS).for_each(|slot| caller.read(&mut one(slot)));
        pair.faults[slow].slow.store(0, Relaxed);
        pair.faults[slow].reads.store(0, Relaxed);
    }
    let found = pair.device.replication().unwrap();
    assert!(found.hedged_reads > 0 && found.lost == 0, "{found:?}");
    // No request goes to a replica without the page.
    pair.faults[1].writes.store(100, Relaxed);
    (0..SLOTS).for_each(|slot| caller.write(&mut one(slot)));
    pair.faults[0].slow.store(100, Relaxed);
    (0..SLOTS).for_each(|slot| caller.read(&mut one(slot)));
    assert_eq!(pair.device.replication().unwrap().hedged_reads, found.hedged_reads);
}

fn one(slot: u32) -> [Io; 1] {
    [Io::new(slot, FrameList::one(Pfn(0)))]
}

#[test]
fn a_page_that_no_replica_has_is_an_error() {
    let pair = Pair::new();
    let mut caller = Caller::new(&pair, 0, SLOTS, 1);
    let percent = |side: usize, writes| pair.faults[side].writes.store(writes, Relaxed);
    for side in [0, 1] {
        percent(side, 100);
        caller.write(&mut one(side as u32));
        percent(side, 0);
    }
    // Each page is on one replica; neither replica has both.
    let mut both = [Io::new(0, [Pfn(0), Pfn(1)].into_iter().collect())];
    caller.read(&mut both);
    assert_eq!(both[0].result, Ok(()));
    pair.faults[0].dead.store(true, Relaxed);
    let read = |caller: &mut Caller<'_>, slot| {
        let mut it = one(slot);
        caller.read(&mut it);
        it[0].result
    };
    assert_eq!([0, 1, 2].map(|slot| read(&mut caller, slot)), [Ok(()), Err(NOWHERE), Ok(())]);
    percent(1, 100);
    caller.write(&mut one(2));
    percent(1, 0);
    assert_eq!((read(&mut caller, 2), caller.failed), (Err(NOWHERE), 1));
    // An invalid transfer is refused, and reaches no replica.
    let mut outside = [one(5)[0], Io::new(u32::MAX, FrameList::one(Pfn(1)))];
    // SAFETY: frames of this caller.
    unsafe { pair.device.read(caller.frames.arena(), &mut outside) };
    let invalid = Err(IoError::Failed(libc::EINVAL));
    assert_eq!(outside.map(|io| io.result), [Ok(()), invalid]);
}

#[test]
fn a_changed_page_is_read_from_the_other_and_an_error_if_both_are() {
    let pair = Pair::new();
    pair.reads_fail.store(true, Relaxed);
    let mut caller = Caller::new(&pair, 0, SLOTS, 2);
    caller.write(&mut one(0));
    let read = |caller: &mut Caller<'_>, first, second| {
        pair.faults[0].reads.store(first, Relaxed);
        pair.faults[1].reads.store(second, Relaxed);
        let mut it = one(0);
        caller.read(&mut it);
        it[0].result
    };
    for _ in 0..20 {
        assert_eq!(read(&mut caller, 100, 0), Ok(()));
        assert_eq!(read(&mut caller, 0, 100), Ok(()));
    }
    assert!(!pair.device.altered());
    let changed = Err(IoError::Failed(libc::EBADMSG));
    while read(&mut caller, 100, 100) != changed {}
    assert!(pair.device.altered());
}
