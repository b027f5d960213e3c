//! The kswapd threads of a manager: how many each node has, changed while they run.
//!
//! ```text
//! Crew -- Team, by node -- [Seat]     a thread, and the flag that tells it to return
//! set(n)   fewer: the last seats' flags are raised, the alarm is rung, the threads are joined
//!          more:  threads are started
//! ```
//! Threads of a node share its alarm, its lists and their locks, as in the multiple-kswapd patch;
//! a thread knows nothing of the others.
//!
//! Locking: a team's mutex is the standard library's, for nobody waits while holding it.

use super::kswapd::{self, StopFlag};
use crate::machine::Machine;
use highwater_platform::{Event, Platform, Thread};
use highwater_units::NodeId;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// A thread of a team.
struct Seat<P: Platform> {
    stop: Arc<StopFlag<P>>,
    thread: P::Thread,
}

/// The threads of one node.
struct Team<P: Platform>(Mutex<Vec<Seat<P>>>);

impl<P: Platform> Team<P> {
    fn seats(&self) -> MutexGuard<'_, Vec<Seat<P>>> {
        self.0.lock().expect("no panic")
    }
}

/// The kswapd threads of all nodes.
pub struct Crew<P: Platform> {
    machine: Arc<Machine<P>>,
    teams: Vec<Team<P>>,
}

impl<P: Platform> Crew<P> {
    /// No threads yet.
    pub fn new(machine: Arc<Machine<P>>) -> Crew<P> {
        let teams = machine.nodes.iter().map(|_| Team(Mutex::default())).collect();
        Crew { machine, teams }
    }

    /// Threads of a node.
    pub fn threads(&self, node: usize) -> usize {
        self.teams[node].seats().len()
    }

    /// Gives every node `threads` threads. Those that are too many have ended when this returns.
    ///
    /// # Errors
    /// The system gives no thread; those that were started stay.
    pub fn set(&self, threads: usize) -> io::Result<()> {
        let surplus: Vec<Seat<P>> =
            (0..self.teams.len()).flat_map(|node| self.dismiss(node, threads)).collect();
        surplus.into_iter().for_each(|seat| seat.thread.join());
        (0..self.teams.len()).try_for_each(|node| self.fill(node, threads))
    }

    /// Tells the threads of a node beyond so many to return.
    fn dismiss(&self, node: usize, threads: usize) -> Vec<Seat<P>> {
        let mut seats = self.teams[node].seats();
        let first = threads.min(seats.len());
        let surplus = seats.split_off(first);
        drop(seats);
        surplus.iter().for_each(|seat| seat.stop.raise());
        if !surplus.is_empty() {
            self.machine.nodes[node].alarm.notify_all();
        }
        surplus
    }

    /// Starts threads until a node has so many.
    fn fill(&self, node: usize, threads: usize) -> io::Result<()> {
        let mut seats = self.teams[node].seats();
        while seats.len() < threads {
            let stop = Arc::new(StopFlag::new());
            let (machine, flag) = (self.machine.clone(), stop.clone());
            let body = Box::new(move || kswapd::run(&machine, node, &flag));
            let name = format!("kswapd{node}:{}", seats.len());
            let thread = self.machine.platform.spawn(&name, NodeId(node as u8), body)?;
            seats.push(Seat { stop, thread });
        }
        Ok(())
    }
}
