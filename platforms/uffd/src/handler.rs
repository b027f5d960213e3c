//! Threads that serve the faults of a space.
//!
//! ```text
//! Server -- Lead: who may read messages        thread: take the lead -> read -> serve -> again
//!       \-- threads, more as they are needed            \-> a page on a slow device: give the
//!                                                           lead away first, then wait for it
//! ```
//! Leader and followers: one thread reads and serves, so that no fault wakes two threads; only when it
//! is about to wait for a device, or for memory, does another take the lead. A batch of messages is
//! served by one thread as long as all its pages are at memory speed.

use crate::Uffd;
use crate::api::{Event, Message};
use highwater_mm::stats::Counter;
use highwater_mm::{Access, Fault, FaultError, Manager, Served};
use highwater_os::{OsThread, spawn};
use highwater_platform::{Clock, Thread};
use highwater_units::{Nanos, PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Messages read at a time.
const BATCH: usize = 16;

/// Threads of a server at most: faults that wait for devices at once.
const THREADS_MAX: usize = 32;

/// What the owner of a space knows and decides.
pub trait Owner: Send + Sync + 'static {
    /// The end of the region that a page belongs to; `None` if it belongs to none, and touching it
    /// is the program's error.
    fn bound(&self, vpn: Vpn) -> Option<Vpn>;

    /// A fault that cannot be served: the thread waits for ever unless this ends the process.
    fn failed(&self, vpn: Vpn, error: FaultError);

    /// An access to a page that belongs to no region. The thread will look again afterwards.
    fn stray(&self, vpn: Vpn);
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

/// Serves a space until it is stopped.
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Arc<Manager<Uffd>>,
    space: SpaceId,
    owner: Arc<dyn Owner>,
    lead: Mutex<Lead>,
    changed: Condvar,
    stop: AtomicBool,
    /// A page of no use but to be touched: that wakes a reader.
    bell: Vpn,
}

/// Who reads, and who could.
struct Lead {
    taken: bool,
    idle: usize,
    threads: Vec<OsThread>,
}

impl Server {
    /// Starts serving. The last page of the space is the server's own: no region may have it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        manager: Arc<Manager<Uffd>>,
        space: SpaceId,
        owner: Arc<dyn Owner>,
    ) -> io::Result<Server> {
        let bell = Vpn(manager.machine().space(space).pages() - 1);
        let lead = Lead { taken: false, idle: 0, threads: Vec::new() };
        let shared = Arc::new(Shared {
            manager,
            space,
            owner,
            lead: Mutex::new(lead),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            bell,
        });
        Shared::add_thread(&shared, &mut shared.lead())?;
        Ok(Server { shared })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ring();
        let threads = std::mem::take(&mut self.shared.lead().threads);
        threads.into_iter().for_each(Thread::join);
    }
}

impl Shared {
    fn lead(&self) -> MutexGuard<'_, Lead> {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Touches the bell page: its fault is a message for whoever reads.
    fn ring(&self) {
        let bell = self.manager.platform().address(self.space, self.bell);
        // SAFETY: a page of the space; the load waits until the server has mapped the page.
        unsafe { bell.cast::<u64>().read_volatile() };
        self.changed.notify_all();
    }

    fn add_thread(shared: &Arc<Shared>, lead: &mut Lead) -> io::Result<()> {
        let body = shared.clone();
        let name = format!("fault{}", lead.threads.len());
        lead.threads.push(spawn(&name, Box::new(move || body.run()))?);
        Ok(())
    }

    /// The life of a thread of the server.
    fn run(self: Arc<Shared>) {
        let mut messages = [Message::default(); BATCH];
        let mut meter = Meter::default();
        while self.take_lead() {
            self.clone().serve_while_leading(&mut messages, &mut meter);
        }
    }

    /// Reads and serves until the lead is handed over, or the server stops.
    fn serve_while_leading(self: Arc<Shared>, messages: &mut [Message], meter: &mut Meter) {
        let mut leading = true;
        while leading && !self.stop.load(Acquire) {
            let Ok(read) = self.manager.platform().uffd(self.space).read(messages) else { break };
            for message in &messages[..read] {
                if leading && self.may_wait(message) {
                    Shared::hand_over(&self);
                    leading = false;
                }
                self.serve(message);
            }
            meter.tick(&self.manager);
        }
        if leading {
            self.lead().taken = false;
            self.changed.notify_all();
        }
    }

    /// Waits for the lead; `false`: stop.
    fn take_lead(&self) -> bool {
        let mut lead = self.lead();
        lead.idle += 1;
        while lead.taken && !self.stop.load(Acquire) {
            lead = self.changed.wait(lead).unwrap_or_else(PoisonError::into_inner);
        }
        lead.idle -= 1;
        let goes_on = !self.stop.load(Acquire);
        lead.taken |= goes_on;
        goes_on
    }

    /// Gives the lead to another thread, made if there is none.
    fn hand_over(shared: &Arc<Shared>) {
        let mut lead = shared.lead();
        lead.taken = false;
        if lead.idle == 0 && lead.threads.len() < THREADS_MAX {
            // Without a further thread faults are served one after the other.
            let _ = Shared::add_thread(shared, &mut lead);
        }
        shared.changed.notify_one();
    }

    /// Whether serving a message may have to wait for a device.
    fn may_wait(&self, message: &Message) -> bool {
        match message.event() {
            Event::Fault { address, .. } => self
                .manager
                .platform()
                .page_at(self.space, address)
                .is_some_and(|vpn| self.manager.may_wait(self.space, vpn)),
            Event::Other => false,
        }
    }

    fn serve(&self, message: &Message) {
        let Event::Fault { address, write } = message.event() else { return };
        let Some(vpn) = self.manager.platform().page_at(self.space, address) else { return };
        let access = if write { Access::Write } else { Access::Read };
        if vpn == self.bell {
            // Only now: a leader that stopped earlier would leave the bell unanswered.
            self.stop.store(true, Release);
        }
        let bound = if vpn == self.bell { Some(vpn.offset(1)) } else { self.owner.bound(vpn) };
        let Some(bound) = bound else {
            self.owner.stray(vpn);
            return self.wake(vpn);
        };
        match self.manager.fault(self.space, Fault { vpn, access, bound }) {
            Ok(Served::Again) => self.wake(vpn),
            Ok(Served::Minor | Served::Major) => {}
            Err(error) => self.owner.failed(vpn, error),
        }
    }

    /// Lets the threads that wait for a page look again.
    fn wake(&self, vpn: Vpn) {
        let address = self.manager.platform().address(self.space, vpn) as u64;
        self.manager.platform().uffd(self.space).wake(address, PAGE_SIZE);
    }
}
