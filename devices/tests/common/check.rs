//! A device against a model of its contents, for tests of servers.

use super::{Frames, random_batch, read, write};
use highwater_devices::{Device, OpenOptions, Reason, Replication, Spec, open_with};
use highwater_platform::{Direction, Io, IoError};
use highwater_units::{Bytes, Order, Pfn, Prng};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const SIZE: Bytes = Bytes(8 << 20);
pub(crate) const SLOTS: u32 = 2048;
/// Far above what any step takes.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIME_LIMIT, "{what}: not within {TIME_LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Opens a device on a port where another service gives this answer and nothing more; returns the
/// statistics of its replicas.
pub(crate) fn open_another_service(
    words: &'static [u8],
    options: &OpenOptions,
    spec: impl Fn(u16) -> String,
) -> Result<Option<Replication>, Reason> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let spec = Spec::parse(&spec(listener.local_addr().unwrap().port())).unwrap();
    let service = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(words).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    let opened = open_with(&spec, options).map(|device| device.replication());
    service.join().unwrap();
    opened.map_err(|error| error.reason)
}

/// A device with a model of its contents.
pub(crate) struct Check<'a> {
    device: &'a dyn Device,
    frames: &'a Frames,
    first: u32,
    own: Vec<Pfn>,
    model: Vec<u64>,
    random: Prng,
}

impl<'a> Check<'a> {
    /// A device with `slots` slots from `first` on, used through as many frames.
    pub(crate) fn new(
        device: &'a dyn Device,
        frames: &'a Frames,
        first: u32,
        slots: u32,
    ) -> Check<'a> {
        let own = (first..first + slots).map(Pfn).collect();
        let (model, random) = (vec![0; slots as usize], Prng::new(first.into()));
        Check { device, frames, first, own, model, random }
    }

    pub(crate) fn step(&mut self) {
        let slots = self.model.len() as u32;
        let start = self.random.below(slots.into()) as u32;
        let most = 1 + self.random.below(self.own.len() as u64) as usize;
        let mut batch =
            random_batch(&mut self.random, self.first + start, slots - start, &self.own[..most]);
        let pages: Vec<(u32, Pfn)> =
            batch.iter().flat_map(|io| (io.slot..).zip(io.frames.iter())).collect();
        let direction = match self.random.below(5) {
            0 => {
                let slot = self.random.below(slots.into()) as u32;
                let count = 1 + self.random.below(u64::from(slots - slot)) as u32;
                self.device.discard(self.first + slot, count);
                let freed = slot as usize..(slot + count) as usize;
                return self.model[freed].fill(0);
            }
            1 | 2 => Direction::Write,
            _ => Direction::Read,
        };
        for (slot, pfn) in &pages {
            let seed = self.random.next_u64() | 1;
            self.frames.fill(*pfn, seed);
            if direction == Direction::Write {
                self.model[(slot - self.first) as usize] = seed;
            }
        }
        self.transfer(direction, &mut batch);
        let began = Instant::now();
        while batch.iter().any(|io| io.result == Err(IoError::Busy)) {
            assert!(direction == Direction::Write && began.elapsed() < TIME_LIMIT, "busy");
            thread::sleep(Duration::from_millis(5));
            batch.iter_mut().for_each(|io| io.result = Ok(()));
            self.transfer(direction, &mut batch);
        }
        let results = batch.iter().map(|io| io.result);
        results.for_each(|result| assert_eq!(result, Ok(()), "{direction:?}"));
        for (slot, pfn) in pages {
            let expected = self.model[(slot - self.first) as usize];
            // A freed slot may read as anything.
            assert!(expected == 0 || self.frames.holds(pfn, expected), "slot {slot}");
        }
    }

    /// Transfers a batch in one call, or with the wait as a separate call.
    fn transfer(&mut self, direction: Direction, batch: &mut [Io]) {
        let arena = self.frames.arena();
        if self.random.percent(50) {
            // SAFETY: the frames are populated, and the test keeps others off them.
            return unsafe { self.device.read_or_write(arena, direction, batch) };
        }
        // SAFETY: as above.
        if let Some(started) = unsafe { self.device.start(arena, direction, batch) } {
            while self.random.percent(50) && !self.device.is_over(&started) {}
            // SAFETY: as above; the batch that was started.
            unsafe { self.device.finish(arena, started, batch) };
        }
    }
}

/// Fills the slots from 0 on, in runs of 16. Waits for slots that are busy.
pub(crate) fn fill(device: &dyn Device, frames: &Frames, slots: u32) -> Result<(), IoError> {
    let began = Instant::now();
    (0..slots).step_by(16).try_for_each(|first| {
        loop {
            match fill_run(device, frames, first) {
                Err(IoError::Busy) => assert!(began.elapsed() < TIME_LIMIT, "busy"),
                filled => break filled,
            }
            thread::sleep(Duration::from_millis(5));
        }
    })
}

/// Fills a run of 16 slots.
pub(crate) fn fill_run(device: &dyn Device, frames: &Frames, first: u32) -> Result<(), IoError> {
    (first..first + 16).for_each(|slot| frames.fill(Pfn(slot), slot.into()));
    let mut batch = [Io::new(first, (first..first + 16).map(Pfn).collect())];
    write(device, frames, &mut batch);
    batch[0].result
}

/// Reads a run of 16 slots that [`fill`] has written.
pub(crate) fn read_run(device: &dyn Device, frames: &Frames, first: u32) -> Result<(), IoError> {
    (first..first + 16).for_each(|slot| frames.fill(Pfn(slot), 0xdead));
    let mut batch = [Io::new(first, (first..first + 16).map(Pfn).collect())];
    read(device, frames, &mut batch);
    batch[0].result?;
    assert!((first..first + 16).all(|slot| frames.holds(Pfn(slot), slot.into())), "run {first}");
    Ok(())
}

/// Four threads use a device, each with slots of its own, while the caller does something.
pub(crate) fn use_by_threads(device: &dyn Device, steps: u32, mut meanwhile: impl FnMut()) {
    let frames = Frames::new(SLOTS);
    thread::scope(|scope| {
        let check = |index| Check::new(device, &frames, index * SLOTS / 4, SLOTS / 4);
        let threads: Vec<_> = (0..4)
            .map(check)
            .map(|mut check| scope.spawn(move || (0..steps).for_each(|_| check.step())))
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            meanwhile();
            thread::sleep(Duration::from_millis(20));
        }
    });
}

/// A block of 512 pages, and slots that were never written.
pub(crate) fn use_blocks(device: &dyn Device) {
    let frames = Frames::new(512);
    (0..512).for_each(|frame| frames.fill(Pfn(frame), frame.into()));
    let mut batch = [Io::block(700, Pfn(0), Order::LARGE)];
    write(device, &frames, &mut batch);
    assert_eq!(batch[0].result, Ok(()));
    (0..512).for_each(|frame| frames.fill(Pfn(frame), 0xdead));
    read(device, &frames, &mut batch);
    assert_eq!(batch[0].result, Ok(()));
    assert!((0..512).all(|frame| frames.holds(Pfn(frame), frame.into())));
    let mut batch =
        [Io::new(699, (0..2).map(Pfn).collect()), Io::new(5, [Pfn(2)].into_iter().collect())];
    read(device, &frames, &mut batch);
    assert!(batch.iter().all(|io| io.result == Ok(())));
    assert!(frames.holds(Pfn(0), 0) && frames.holds(Pfn(1), 0) && frames.holds(Pfn(2), 0));
}

/// A forked child reads its parent's pages, even after the parent has ended; `are_kept` is called
/// then.
pub(crate) fn read_on_in_a_child(device: Box<dyn Device>, are_kept: impl Fn() -> bool) {
    let frames = Frames::new(SLOTS);
    fill(&*device, &frames, 64).unwrap();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    device.pause();
    // SAFETY: the child makes system calls and allocates, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // Dropped so that the child ends with its parent.
        drop(here);
        let inherited = device.inherit();
        there.write_all(b"r").unwrap();
        there.read_exact(&mut [0]).unwrap();
        drop(device);
        let right = (0..64).step_by(16).all(|run| read_run(&*inherited, &frames, run) == Ok(()));
        let mut refused = [Io::new(0, [Pfn(0)].into_iter().collect())];
        write(&*inherited, &frames, &mut refused);
        let refused = refused[0].result == Err(IoError::Failed(libc::EROFS));
        drop(inherited);
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!(right && refused))) };
    }
    device.resume();
    here.read_exact(&mut [0]).unwrap();
    assert!(are_kept());
    device.forget();
    assert_eq!(read_run(&*device, &frames, 0), Err(IoError::Failed(libc::ESHUTDOWN)));
    assert!(are_kept(), "the child needs the pages");
    here.write_all(b"g").unwrap();
    let mut status = 0;
    // SAFETY: a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// A read is served after the server has stopped for a moment; `signal` stops and continues it.
pub(crate) fn read_through_a_stop(device: &dyn Device, signal: impl Fn(i32)) {
    let frames = Frames::new(SLOTS);
    fill(device, &frames, 128).unwrap();
    signal(libc::SIGSTOP);
    thread::scope(|scope| {
        let reading = scope.spawn(|| read_run(device, &frames, 64));
        thread::sleep(Duration::from_millis(300));
        assert!(!reading.is_finished(), "a stopped server answers");
        signal(libc::SIGCONT);
        assert_eq!(reading.join().unwrap(), Ok(()));
    });
}
