//! Threads that read the fault messages of a platform's spaces, and serve them.
//!
//! ```text
//! Server -- Readers: counts, threads        a reader: read messages -> serve them -> again
//!                                             \-> a page on a slow device: let another thread
//!                                                 read first, then wait for the device
//! ```
//! The threads are leaders (readers) and followers: a leader reads and serves messages; before it
//! waits for a device or for memory it hands reading over to a follower. `readers.rs` decides how
//! many threads lead, and on which CPUs.

use crate::owner::{At, Outcome, Owner, Part, answer, attempt, fault};
use crate::readers::{AllowedCpus, raise_priority, readers_for};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Manager, Range};
use highwater_os::{OsThread, spawn};
use highwater_platform::{Clock, Thread};
use highwater_uffd::Uffd;
use highwater_uffd::api::{Event, Message};
use highwater_units::{Nanos, PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages read at a time.
const BATCH: usize = 16;

/// The most threads of a server, and so the most faults that can wait for devices at once.
const THREADS_MAX: usize = 32;

/// Adds a thread's CPU time to the statistics every few batches: reading it is a system call.
#[derive(Default)]
struct CpuMeter {
    batches: u32,
    counted: Nanos,
}

impl CpuMeter {
    const PERIOD: u32 = 64;

    fn tick(&mut self, manager: &Manager<Uffd>) {
        self.batches += 1;
        if self.batches.is_multiple_of(Self::PERIOD) {
            let now = manager.platform().thread_cpu_time();
            manager.count(Counter::HandlerNanos, now.since(self.counted).0);
            self.counted = now;
        }
    }
}

/// Serves all spaces of a platform whose faults are messages, until it is dropped. A platform has
/// at most one server.
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Arc<Manager<Uffd>>,
    owner: Arc<dyn Owner>,
    readers: Mutex<Readers>,
    changed: Condvar,
    stop: AtomicBool,
    /// How many threads should read at a time.
    wanted: usize,
    cpus: AllowedCpus,
    /// Messages read at a time.
    batch: usize,
    /// A page outside all parts. Touching it wakes a reader, which then stops.
    stop_page: (SpaceId, Vpn),
}

/// The origin of a message that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A thread of the program.
    Program,
    /// [`Shared::stop_reader`]: the reader is to stop.
    StopPage,
}

/// Whether a thread continues to read after it has served its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It continues.
    Reads,
    /// Others read instead, until it becomes a reader again.
    HandedOver,
}

/// The threads of a server.
struct Readers {
    /// Threads that read messages now.
    reading: usize,
    /// Threads that wait to become readers.
    waiting: usize,
    threads: Vec<OsThread>,
}

impl Server {
    /// Starts serving. The last page of `space`, which is anonymous, belongs to the server: no
    /// part may include it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Server> {
        let stop_page = (space, Vpn(manager.whole(space).end.0 - 1));
        let readers = Readers { reading: 0, waiting: 0, threads: Vec::new() };
        // A reader that waits for a slow device would delay all other messages of its batch.
        let slow = manager.swaps_slowly();
        let cpus = AllowedCpus::of_this_thread();
        let shared = Arc::new(Shared {
            manager,
            owner,
            readers: Mutex::new(readers),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            wanted: readers_for(cpus.count()),
            cpus,
            batch: if slow { 1 } else { BATCH },
            stop_page,
        });
        Shared::add_readers(&shared, &mut shared.readers())?;
        Ok(Server { shared })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // From here on no thread becomes a reader. Readers stop only when they serve the stop page:
        // without a reader, a fault on that page would never be served.
        self.shared.stop.store(true, Release);
        while self.shared.stop_reader() {}
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut self.shared.readers().threads);
        threads.into_iter().for_each(Thread::join);
    }
}

impl Shared {
    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops one reader; `false` if there is none.
    fn stop_reader(&self) -> bool {
        let reading = self.readers().reading;
        if reading == 0 {
            return false;
        }
        let (space, page) = self.stop_page;
        self.manager.discard(space, Range { first: page, end: page.offset(1) });
        let address = self.manager.platform().address(space, page);
        // SAFETY: a page of the space; the load returns when a reader has mapped the page.
        unsafe { address.cast::<u64>().read_volatile() };
        // A reader that handed reading over before it stopped sends no notification: poll.
        while self.readers().reading >= reading {
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Starts threads until there are as many readers as wanted.
    fn add_readers(shared: &Arc<Shared>, readers: &mut Readers) -> io::Result<()> {
        if shared.stop.load(Acquire) {
            return Ok(());
        }
        let missing = shared.wanted.saturating_sub(readers.reading + readers.waiting);
        let room = THREADS_MAX - readers.threads.len();
        (0..missing.min(room)).try_for_each(|_| Shared::add_thread(shared, readers))
    }

    fn add_thread(shared: &Arc<Shared>, readers: &mut Readers) -> io::Result<()> {
        let (body, index) = (shared.clone(), readers.threads.len());
        let thread = spawn(&format!("fault{index}"), Box::new(move || body.run(index)))?;
        readers.threads.push(thread);
        // Counted before the thread runs, so that no other thread is started in its place.
        readers.waiting += 1;
        Ok(())
    }

    /// The body of a thread.
    fn run(self: Arc<Shared>, index: usize) {
        self.cpus.apply(index);
        raise_priority();
        let mut messages = [Message::default(); BATCH];
        let mut meter = CpuMeter::default();
        let batch = self.batch;
        while self.become_reader() {
            self.clone().read_and_serve(&mut messages[..batch], &mut meter);
            self.readers().waiting += 1;
        }
    }

    /// Reads and serves until another thread takes reading over, or the server stops.
    fn read_and_serve(self: Arc<Shared>, messages: &mut [Message], meter: &mut CpuMeter) {
        loop {
            let uffd = self.manager.platform().uffd(self.stop_page.0);
            let Ok(read) = uffd.read(messages) else { break };
            let (mut turn, mut stopped) = (Turn::Reads, false);
            for message in &messages[..read] {
                stopped |= self.serve(message, &mut turn) == Origin::StopPage;
            }
            meter.tick(&self.manager);
            if turn == Turn::HandedOver {
                return;
            }
            if stopped {
                break;
            }
        }
        self.readers().reading -= 1;
        self.changed.notify_all();
    }

    /// Waits until this thread is needed as a reader; `false` if the server stops.
    fn become_reader(&self) -> bool {
        let mut readers = self.readers();
        while readers.reading >= self.wanted && !self.stop.load(Acquire) {
            readers = self.changed.wait(readers).unwrap_or_else(PoisonError::into_inner);
        }
        readers.waiting -= 1;
        let goes_on = !self.stop.load(Acquire);
        readers.reading += usize::from(goes_on);
        goes_on
    }

    /// Lets other threads read in place of this one. If this was the last reader, wakes a waiting
    /// thread, or starts one if none waits.
    fn hand_over(self: &Arc<Shared>) {
        let mut readers = self.readers();
        readers.reading -= 1;
        if readers.reading > 0 {
            return;
        }
        match readers.waiting {
            // If the system refuses a thread, faults are served one after the other.
            0 => drop(Shared::add_readers(self, &mut readers)),
            _ => self.changed.notify_one(),
        }
    }

    /// Serves a message. A reader that may have to wait for a device hands reading over first.
    fn serve(self: &Arc<Shared>, message: &Message, turn: &mut Turn) -> Origin {
        let Event::Fault { address, write } = message.event() else { return Origin::Program };
        let Some((space, vpn)) = self.manager.platform().locate(address) else {
            return Origin::Program;
        };
        let access = if write { Access::Write } else { Access::Read };
        let at = At { space, vpn, access };
        let (outcome, origin) = match (space, vpn) == self.stop_page {
            true => (fault(&self.manager, stop_part(self.stop_page), access), Origin::StopPage),
            false => (self.attempt(at, turn), Origin::Program),
        };
        answer(&*self.owner, at, outcome);
        if outcome != Outcome::Mapped {
            self.wake(address);
        }
        origin
    }

    /// Serves a fault of the program.
    fn attempt(self: &Arc<Shared>, at: At, turn: &mut Turn) -> Outcome {
        attempt(&self.manager, &*self.owner, at, |part| {
            if *turn == Turn::Reads && self.manager.may_wait(part.space, part.vpn) {
                self.hand_over();
                *turn = Turn::HandedOver;
            }
        })
    }

    /// Wakes the threads that wait for a page; they retry their accesses.
    fn wake(&self, address: u64) {
        let page = address / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        self.manager.platform().uffd(self.stop_page.0).wake(page, PAGE_SIZE);
    }
}

/// The page that stops a reader, as a part.
fn stop_part((space, vpn): (SpaceId, Vpn)) -> Part {
    Part { space, vpn, within: Range { first: vpn, end: vpn.offset(1) } }
}
