//! hackbench: groups of 20 senders and 20 receivers, each sender writing to each receiver in turn.
//!
//! ```text
//! sender:   head (256 bytes) and data (640) ──> queue of a receiver, up to 200 messages
//! receiver: ──> both freed, on its own CPU
//! ```
//! Each queue is a socket: a writer sleeps when the queue is full, a reader when it is empty. The
//! queue's contents cost no virtual time; the cost of sockets is part of the work.

use super::{Shift, measure};
use crate::workload::outcome::Outcome;
use crate::workload::tally::Tally;
use crate::workload::ticks::Stopwatch;
use crate::workload::world::World;
use highwater_mm::slab::{
    CacheError, CacheId, CacheSpec, Callers, Marks, Object, SlabPages, Slabs,
};
use highwater_platform::{Event, Locks};
use highwater_units::{Nanos, Order};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Senders of a group, and receivers.
pub const SIDE: usize = 20;
/// Bytes of a message's head (skbuff_head_cache).
const HEAD: u32 = 256;
/// Of its data: 100, and what the kernel keeps with them (skbuff_small_head).
const DATA: u32 = 640;
/// Messages that a socket holds: 212,992 bytes, 1,024 and some for each message.
const ROOM: usize = 200;

/// What sending a message, or receiving it, takes beside its objects.
pub const WORK: Nanos = Nanos(600);

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Groups, of 40 tasks.
    pub groups: usize,
    /// What it takes to send a message, or to receive it, beside its objects.
    pub work: Nanos,
    /// Before it is measured.
    pub warm_up: Duration,
    /// How long it is measured.
    pub time: Duration,
}

/// One receiver's.
struct Socket<E> {
    messages: Mutex<VecDeque<[Object; 2]>>,
    filled: E,
    emptied: E,
    /// Senders that may still write to it.
    senders: AtomicUsize,
}

/// The caches and all sockets.
struct Kernel<'a, S: SlabPages, W> {
    slabs: &'a Slabs<S>,
    world: &'a W,
    config: Config,
    heads: CacheId,
    data: CacheId,
    sockets: Vec<Socket<<S::Platform as Locks>::Event>>,
}

/// Runs it; an operation is a message.
///
/// # Errors
/// There are too many caches.
///
/// # Panics
/// If memory is short.
pub fn run<S: SlabPages, W: World>(
    slabs: &Slabs<S>,
    world: &W,
    config: &Config,
) -> Result<Outcome, CacheError> {
    let cache = |name: &str, size| {
        let (callers, marks) = (Callers::Unknown, Marks::Bits);
        let (name, order) = (name.into(), Order(0));
        slabs.create(CacheSpec { name, size, callers, marks, order })
    };
    let socket = |_| Socket {
        messages: Mutex::default(),
        filled: slabs.platform().new_event(),
        emptied: slabs.platform().new_event(),
        senders: AtomicUsize::new(SIDE),
    };
    let kernel = Kernel {
        heads: cache("skbuff_head_cache", HEAD)?,
        data: cache("skbuff_small_head", DATA)?,
        sockets: (0..config.groups * SIDE).map(socket).collect(),
        config: *config,
        slabs,
        world,
    };
    let (tasks, times) = (2 * SIDE * config.groups, (config.warm_up, config.time));
    Ok(measure((slabs, world), tasks, times, &|_| None, |thread, shift, watch| {
        let (group, role) = (thread / (2 * SIDE), thread % (2 * SIDE));
        match role.checked_sub(SIDE) {
            None => kernel.send(group, shift),
            Some(receiver) => kernel.receive(group * SIDE + receiver, shift, watch),
        }
    }))
}

impl<E: Event> Socket<E> {
    /// Tries until `attempt` gives something, asleep in between.
    fn until<R>(&self, event: &E, mut attempt: impl FnMut() -> Option<R>) -> R {
        loop {
            let ticket = event.ticket();
            match attempt() {
                Some(result) => return result,
                None => event.wait(ticket, None),
            }
        }
    }

    fn messages(&self) -> std::sync::MutexGuard<'_, VecDeque<[Object; 2]>> {
        self.messages.lock().expect("no panic")
    }
}

impl<S: SlabPages, W: World> Kernel<'_, S, W> {
    fn send(&self, group: usize, shift: Shift) -> Tally {
        let sockets = &self.sockets[group * SIDE..(group + 1) * SIDE];
        while self.world.now() < shift.end {
            for socket in sockets {
                self.world.work(self.config.work);
                let alloc = |cache| self.slabs.alloc(cache).expect("memory for an object");
                let message = [alloc(self.heads), alloc(self.data)];
                let was_empty = socket.until(&socket.emptied, || {
                    let mut messages = socket.messages();
                    let fits = messages.len() < ROOM;
                    fits.then(|| {
                        messages.push_back(message);
                        messages.len() == 1
                    })
                });
                if was_empty {
                    socket.filled.notify_all();
                }
            }
        }
        for socket in sockets {
            socket.senders.fetch_sub(1, Relaxed);
            socket.filled.notify_all();
        }
        Tally::new()
    }

    fn receive(&self, socket: usize, shift: Shift, watch: &Stopwatch<'_, W>) -> Tally {
        let (socket, mut tally) = (&self.sockets[socket], Tally::new());
        loop {
            let began = watch.ticks();
            let (message, left) = socket.until(&socket.filled, || {
                let mut messages = socket.messages();
                let message = messages.pop_front();
                let is_over = socket.senders.load(Relaxed) == 0;
                (message.is_some() || is_over).then_some((message, messages.len()))
            });
            let Some(message) = message else { return tally };
            // A sender waiting for room is woken once half of it is free.
            if left == ROOM / 2 {
                socket.emptied.notify_all();
            }
            self.world.work(self.config.work);
            for object in message {
                self.slabs.free(object).expect("it was sent");
            }
            let now = self.world.now();
            if (shift.warm..shift.end).contains(&now) {
                tally.stores += 1;
                tally.latency.saturating_record(watch.ticks().saturating_sub(began));
            }
        }
    }
}
