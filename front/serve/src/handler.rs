//! Threads that serve the faults of a platform's spaces.
//!
//! ```text
//! Server -- Lead: who may read messages        thread: take the lead -> read -> serve -> again
//!       |-- threads, more as they are needed            \-> a page on a slow device: give the
//!       |                                                   lead away first, then wait for it
//!       \-- Crowd: one thread faults, or many (readers.rs)
//! ```
//! Leader and followers. Many threads fault: one reads and serves batches, and only when it is
//! about to wait for a device, or for memory, does another take the lead. A single thread faults: a
//! reader sits on every CPU (of up to four), so that the fault is served where it happened, by a
//! switch on one CPU; the kernel moves the woken program thread about, and a reader elsewhere would
//! cost a wake-up across CPUs, there and back: 22 us a fault instead of 12 on a small virtual
//! machine.

use crate::readers::{Crowd, Seat, Seats};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Fault, FaultError, Manager, Range, Served as How};
use highwater_os::{OsThread, spawn};
use highwater_platform::{Clock, Cpu, Thread};
use highwater_uffd::Uffd;
use highwater_uffd::api::{Event, Message};
use highwater_units::{Nanos, PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages read at a time.
const BATCH: usize = 16;

/// Threads of a server at most: faults that wait for devices at once.
const THREADS_MAX: usize = 32;

/// A page that faulted, and what it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The space that has the page: the one whose address it is, or one that lies within it.
    pub space: SpaceId,
    /// Its number there.
    pub vpn: Vpn,
    /// Others are not brought along.
    pub within: Range,
}

/// What the owner of the spaces knows and decides.
pub trait Owner: Send + Sync + 'static {
    /// What a page belongs to; `None` if to nothing, and touching it is the program's error.
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part>;

    /// Calls `act` with what [`Owner::find`] finds, if anything, and says whether it did. Who takes
    /// parts away while others fault keeps it as it is until `act` has returned.
    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        self.find(space, vpn).map(act).is_some()
    }

    /// A fault that cannot be served. The thread will look again afterwards: this ends the process,
    /// or sees to it that the system answers the access.
    fn failed(&self, part: Part, error: FaultError);

    /// An access to a page that belongs to nothing. The thread will look again afterwards.
    fn stray(&self, space: SpaceId, vpn: Vpn);
}

/// Adds a thread's CPU time to the statistics, now and then: asking costs a system call.
#[derive(Default)]
struct Meter {
    batches: u32,
    counted: Nanos,
}

impl Meter {
    const PERIOD: u32 = 64;

    fn tick(&mut self, manager: &Manager<Uffd>) {
        self.batches += 1;
        if self.batches.is_multiple_of(Self::PERIOD) {
            let now = manager.platform().thread_cpu_time();
            manager.machine().count(Counter::HandlerNanos, now.since(self.counted).0);
            self.counted = now;
        }
    }
}

/// Serves all spaces of a platform whose faults are messages, until it is stopped. One to a
/// platform.
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Arc<Manager<Uffd>>,
    owner: Arc<dyn Owner>,
    lead: Mutex<Lead>,
    changed: Condvar,
    stop: AtomicBool,
    crowd: Crowd,
    seats: Seats,
    /// Messages read at a time.
    batch: usize,
    /// A page of no use but to be touched: that wakes a reader.
    bell: (SpaceId, Vpn),
}

/// Whose message was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// The program's.
    Program,
    /// The server's own: this reader is to stop.
    Bell,
}

/// Who reads, and who could.
struct Lead {
    /// Threads that read messages now.
    readers: usize,
    /// Threads that wait to.
    idle: usize,
    threads: Vec<OsThread>,
}

impl Server {
    /// Starts serving. The last page of `space`, which is anonymous, is the server's own: no part
    /// may have it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Server> {
        let bell = (space, Vpn(manager.machine().space(space).pages() - 1));
        let lead = Lead { readers: 0, idle: 0, threads: Vec::new() };
        // With slow devices every message may be another thread's to wait for.
        let slow = manager.machine().swap.any_asynchronous();
        let crowd = Crowd::new(manager.platform().cpus());
        let shared = Arc::new(Shared {
            manager,
            owner,
            lead: Mutex::new(lead),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            crowd,
            seats: Seats::of_this_thread(),
            batch: if slow { 1 } else { BATCH },
            bell,
        });
        Shared::fill_seats(&shared, &mut shared.lead())?;
        Ok(Server { shared })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // From here on nobody becomes a reader; those who are stop at the bell, and only there: a
        // bell that no reader hears would be waited for for ever.
        self.shared.stop.store(true, Release);
        while self.shared.dismiss_reader() {}
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut self.shared.lead().threads);
        threads.into_iter().for_each(Thread::join);
    }
}

impl Shared {
    fn lead(&self) -> MutexGuard<'_, Lead> {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one reader stop; `false` if there is none.
    fn dismiss_reader(&self) -> bool {
        let readers = self.lead().readers;
        if readers == 0 {
            return false;
        }
        let (space, page) = self.bell;
        self.manager.discard(space, Range { first: page, end: page.offset(1) });
        let bell = self.manager.platform().address(space, page);
        // SAFETY: a page of the space; the load waits until a reader has mapped the page.
        unsafe { bell.cast::<u64>().read_volatile() };
        // Nobody tells when a reader has gone that gave its lead away: look now and then.
        while self.lead().readers >= readers {
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Starts threads until as many may read as should.
    fn fill_seats(shared: &Arc<Shared>, lead: &mut Lead) -> io::Result<()> {
        if shared.stop.load(Acquire) {
            return Ok(());
        }
        let missing = shared.crowd.readers().saturating_sub(lead.readers + lead.idle);
        let room = THREADS_MAX - lead.threads.len();
        (0..missing.min(room)).try_for_each(|_| Shared::add_thread(shared, lead))
    }

    fn add_thread(shared: &Arc<Shared>, lead: &mut Lead) -> io::Result<()> {
        let (body, index) = (shared.clone(), lead.threads.len());
        let seat = Seat::new(shared.seats, index);
        let thread = spawn(&format!("fault{index}"), Box::new(move || body.run(seat)))?;
        lead.threads.push(thread);
        // It counts as waiting from now on, so that no other is started in its place.
        lead.idle += 1;
        Ok(())
    }

    /// The life of a thread of the server.
    fn run(self: Arc<Shared>, mut seat: Seat) {
        let mut messages = [Message::default(); BATCH];
        let mut meter = Meter::default();
        let batch = self.batch;
        while self.take_lead() {
            self.clone().read_and_serve(&mut messages[..batch], &mut meter, &mut seat);
            self.lead().idle += 1;
        }
    }

    /// Reads and serves until the lead is handed over, or this reader is one too many.
    fn read_and_serve(
        self: Arc<Shared>,
        messages: &mut [Message],
        meter: &mut Meter,
        seat: &mut Seat,
    ) {
        loop {
            seat.take(self.crowd.size());
            let Ok(read) = self.manager.platform().uffd(self.bell.0).read(messages) else { break };
            let (mut leading, mut dismissed) = (true, false);
            for message in &messages[..read] {
                if leading && self.may_wait(message) {
                    Shared::hand_over(&self);
                    leading = false;
                }
                dismissed |= self.serve(message) == Served::Bell;
            }
            meter.tick(&self.manager);
            match (leading, self.changed_crowd(&messages[..read])) {
                (false, _) => return,
                (true, _) if dismissed => break,
                // Without further threads faults are served one after the other.
                (true, true) => drop(Shared::fill_seats(&self, &mut self.lead())),
                (true, false) => {}
            }
            if self.is_one_too_many() {
                return;
            }
        }
        self.lead().readers -= 1;
        self.changed.notify_all();
    }

    /// Notes who faulted; whether that made one thread many, or many one.
    fn changed_crowd(&self, messages: &[Message]) -> bool {
        messages.iter().filter(|message| self.crowd.note(message.thread())).count() > 0
    }

    /// Stops reading if more read than should.
    fn is_one_too_many(&self) -> bool {
        if self.crowd.readers() > 1 {
            return false;
        }
        let mut lead = self.lead();
        let extra = lead.readers > 1;
        lead.readers -= usize::from(extra);
        extra
    }

    /// Waits for the lead; `false`: stop.
    fn take_lead(&self) -> bool {
        let mut lead = self.lead();
        while lead.readers >= self.crowd.readers() && !self.stop.load(Acquire) {
            lead = self.changed.wait(lead).unwrap_or_else(PoisonError::into_inner);
        }
        lead.idle -= 1;
        let goes_on = !self.stop.load(Acquire);
        lead.readers += usize::from(goes_on);
        goes_on
    }

    /// Gives the lead to another thread, made if there is none.
    fn hand_over(shared: &Arc<Shared>) {
        let mut lead = shared.lead();
        lead.readers -= 1;
        // Without a further thread faults are served one after the other.
        let _ = Shared::fill_seats(shared, &mut lead);
        shared.changed.notify_one();
    }

    /// Whether serving a message may have to wait for a device.
    fn may_wait(&self, message: &Message) -> bool {
        let Event::Fault { address, .. } = message.event() else { return false };
        let part = self.manager.platform().locate(address);
        let part = part.and_then(|(space, vpn)| self.owner.find(space, vpn));
        part.is_some_and(|part| self.manager.may_wait(part.space, part.vpn))
    }

    fn serve(&self, message: &Message) -> Served {
        let Event::Fault { address, write } = message.event() else { return Served::Program };
        let Some((space, vpn)) = self.manager.platform().locate(address) else {
            return Served::Program;
        };
        let access = if write { Access::Write } else { Access::Read };
        if (space, vpn) == self.bell {
            let within = Range { first: vpn, end: vpn.offset(1) };
            self.fault(Part { space, vpn, within }, access, address);
            return Served::Bell;
        }
        let mut failed = None;
        let found = self.owner.keep(space, vpn, &mut |part| {
            failed = self.fault(part, access, address).map(|error| (part, error));
        });
        match (found, failed) {
            (true, None) => return Served::Program,
            (true, Some((part, error))) => self.owner.failed(part, error),
            (false, _) => self.owner.stray(space, vpn),
        }
        self.wake(address);
        Served::Program
    }

    /// Serves a fault; returns why that failed.
    fn fault(&self, part: Part, access: Access, address: u64) -> Option<FaultError> {
        let Part { space, vpn, within } = part;
        match self.manager.fault(space, Fault { vpn, access, within }) {
            Ok(How::Again) => self.wake(address),
            Ok(How::Minor | How::Major) => {}
            Err(error) => return Some(error),
        }
        None
    }

    /// Lets the threads that wait for a page look again.
    fn wake(&self, address: u64) {
        let page = address / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        self.manager.platform().uffd(self.bell.0).wake(page, PAGE_SIZE);
    }
}
