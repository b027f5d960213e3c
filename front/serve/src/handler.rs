//! Threads that read the fault messages of a platform's spaces, and serve them.
//!
//! ```text
//! Server -- Lead, threads                   a leader: read messages -> serve them -> again
//!                                             \-> a page on a slow device: let another thread
//!                                                 read first, then wait for the device
//! ```
//! The threads are leaders and followers: a leader reads and serves messages; before it waits for a
//! device or for memory it hands reading over to a follower (`lead.rs`). `readers.rs` decides how
//! many threads lead, and on which CPUs.

use crate::lead::{Handover, Lead, Next, Turn};
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    lead: Lead,
    threads: Mutex<Vec<OsThread>>,
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
        // A reader that waits for a slow device would delay all other messages of its batch.
        let slow = manager.swaps_slowly();
        let cpus = AllowedCpus::of_this_thread();
        let shared = Arc::new(Shared {
            manager,
            owner,
            lead: Lead::new(readers_for(cpus.count()), THREADS_MAX),
            threads: Mutex::new(Vec::new()),
            cpus,
            batch: if slow { 1 } else { BATCH },
            stop_page,
        });
        let server = Server { shared };
        server.shared.add_threads(server.shared.lead.recruit())?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lead.stop(|| self.shared.stop_leader());
        let threads = std::mem::take(&mut *self.shared.threads());
        threads.into_iter().for_each(Thread::join);
    }
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Vec<OsThread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Faults on the stop page; returns when a leader has served the fault.
    fn stop_leader(&self) {
        let (space, page) = self.stop_page;
        self.manager.discard(space, Range { first: page, end: page.offset(1) });
        let address = self.manager.platform().address(space, page);
        // SAFETY: a page of the space; the load returns when a leader has mapped the page.
        unsafe { address.cast::<u64>().read_volatile() };
    }

    /// Starts threads that the lead has recruited.
    fn add_threads(self: &Arc<Shared>, recruits: usize) -> io::Result<()> {
        let mut threads = self.threads();
        for started in 0..recruits {
            let (body, index) = (self.clone(), threads.len());
            let thread = spawn(&format!("fault{index}"), Box::new(move || body.run(index)));
            let thread = thread.inspect_err(|_| self.lead.dismiss(recruits - started))?;
            threads.push(thread);
        }
        Ok(())
    }

    /// The body of a thread.
    fn run(self: Arc<Shared>, index: usize) {
        self.cpus.apply(index);
        raise_priority();
        let mut messages = [Message::default(); BATCH];
        let mut meter = CpuMeter::default();
        let batch = self.batch;
        while self.lead.become_leader() == Next::Lead {
            let turn = self.read_and_serve(&mut messages[..batch], &mut meter);
            self.lead.follow(turn);
        }
    }

    /// Reads and serves until another thread takes reading over, or the server stops.
    fn read_and_serve(self: &Arc<Shared>, messages: &mut [Message], meter: &mut CpuMeter) -> Turn {
        loop {
            let uffd = self.manager.platform().uffd(self.stop_page.0);
            let Ok(read) = uffd.read(messages) else { return Turn::Leads };
            let (mut turn, mut stopped) = (Turn::Leads, false);
            for message in &messages[..read] {
                stopped |= self.serve(message, &mut turn) == Origin::StopPage;
            }
            meter.tick(&self.manager);
            if turn == Turn::HandedOver || stopped {
                return turn;
            }
        }
    }

    /// Lets other threads read in place of this one.
    fn hand_over(self: &Arc<Shared>) -> Turn {
        match self.lead.hand_over() {
            Handover::Done => Turn::HandedOver,
            Handover::Start(recruits) => {
                // If the system refuses a thread, faults are served one after the other.
                let _ = self.add_threads(recruits);
                Turn::HandedOver
            }
            Handover::Refused => Turn::Leads,
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
            if *turn == Turn::Leads && self.manager.may_wait(part.space, part.vpn) {
                *turn = self.hand_over();
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
