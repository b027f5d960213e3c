//! The kswapd threads of a manager: how many each node has, changed while they run.
//!
//! ```text
//! Crew -- Team, by node -- Roster: [Seat]   a thread and its duty; those that are to end
//!                       |- due              when its size is reviewed next, if that is automatic
//!                       \- CPU time by seat
//! set(n)   fewer: the last seats' duties are ended, the alarm is rung, the threads are joined
//!          more:  threads are started
//! review   by whichever kswapd comes by when it is due: Totals -> Sample -> sizing::decide
//! ```
//! Threads of a node share its alarm, its lists and their locks, as in the multiple-kswapd patch;
//! a thread knows nothing of the others.
//!
//! Locking: a roster's mutex is the standard library's: nothing is waited for while it is held, and
//! no shared word of the platform is touched.

use super::kswapd::{self, Duty};
use super::sizing::{CALM_MIN, PERIOD, Sample, Sizing, Streaks, decide};
use super::throttle;
use crate::config::{KSWAPD_THREADS_MAX, KswapdThreads};
use crate::machine::Machine;
use crate::stats::Counter;
use highwater_platform::{Atomic, Event, Platform, Thread};
use highwater_units::{Nanos, NodeId};
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

/// Who says how many threads there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The user.
    Fixed = 0,
    /// [`Crew::review`].
    Auto = 1,
}

/// A thread of a team.
struct Seat<P: Platform> {
    duty: Arc<Duty<P>>,
    thread: P::Thread,
    /// How long it had slept when its team was last reviewed.
    slept: Nanos,
}

/// Who belongs to a team.
struct Roster<P: Platform> {
    mode: Mode,
    seats: Vec<Seat<P>>,
    /// Told to end, and not joined yet.
    leaving: Vec<Seat<P>>,
    /// Most seats so far.
    peak: usize,
    last: Totals,
    streaks: Streaks,
}

/// The threads of one node.
struct Team<P: Platform> {
    roster: Mutex<Roster<P>>,
    /// The roster's, for who has no lock.
    mode: P::Atomic<u8>,
    /// The time of the next review.
    due: P::Atomic<u64>,
    cpu_time: [AtomicU64; KSWAPD_THREADS_MAX],
}

/// What only grows, and how the zone stands, at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    at: Nanos,
    freed: u64,
    freed_directly: u64,
    stalls: u64,
    idle: Option<Nanos>,
    free: u32,
    low: u32,
}

/// The kswapd threads of all nodes.
pub struct Crew<P: Platform> {
    pub(super) machine: Arc<Machine<P>>,
    teams: Vec<Team<P>>,
}

impl<P: Platform> Team<P> {
    fn new() -> Team<P> {
        let roster = Roster {
            mode: Mode::Fixed,
            seats: Vec::new(),
            leaving: Vec::new(),
            peak: 0,
            last: Totals::default(),
            streaks: Streaks::default(),
        };
        let cpu_time = [const { AtomicU64::new(0) }; KSWAPD_THREADS_MAX];
        let mode = Atomic::new(Mode::Fixed as u8);
        Team { roster: Mutex::new(roster), mode, due: Atomic::new(0), cpu_time }
    }

    fn roster(&self) -> MutexGuard<'_, Roster<P>> {
        self.roster.lock().expect("no panic")
    }

    fn is_auto(&self) -> bool {
        self.mode.load(Relaxed) == Mode::Auto as u8
    }
}

impl<P: Platform> Roster<P> {
    /// What was seen since the last review; that was at `self.last`.
    fn sample(&mut self, now: &Totals) -> Sample {
        let last = std::mem::replace(&mut self.last, *now);
        let length = now.at.since(last.at);
        let (mut least_busy, mut busy) = (length, Nanos(0));
        for seat in &mut self.seats {
            let slept = seat.duty.slept(now.at);
            let at_work = length.since(slept.since(std::mem::replace(&mut seat.slept, slept)));
            (least_busy, busy) = (least_busy.min(at_work), Nanos(busy.0 + at_work.0));
        }
        let idle = now.idle.zip(last.idle).map(|(now, last)| now.since(last));
        Sample {
            length,
            threads: self.seats.len(),
            least_busy,
            busy,
            freed: now.freed - last.freed,
            freed_directly: now.freed_directly - last.freed_directly,
            stalls: now.stalls - last.stalls,
            free: now.free,
            low: now.low,
            idle,
        }
    }

    /// Takes the seats beyond `threads` off.
    fn dismiss(&mut self, threads: usize) -> Vec<Seat<P>> {
        self.seats.split_off(threads.min(self.seats.len()))
    }
}

impl<P: Platform> Crew<P> {
    /// No threads yet.
    pub fn new(machine: Arc<Machine<P>>) -> Arc<Crew<P>> {
        let teams = machine.nodes.iter().map(|_| Team::new()).collect();
        Arc::new(Crew { machine, teams })
    }

    /// Threads of a node.
    pub fn threads(&self, node: usize) -> usize {
        self.teams[node].roster().seats.len()
    }

    /// Most threads that a node has had.
    pub fn peak(&self) -> usize {
        self.teams.iter().map(|team| team.roster().peak).max().unwrap_or(0)
    }

    /// CPU time of the threads of a node, by seat; those of a seat together.
    pub fn cpu_times(&self, node: usize) -> Vec<Nanos> {
        let team = &self.teams[node];
        let peak = team.roster().peak;
        team.cpu_time[..peak].iter().map(|time| Nanos(time.load(Relaxed))).collect()
    }

    /// Gives every node so many threads, or as many as it needs from now on. Those that are too
    /// many have ended when this returns.
    ///
    /// # Errors
    /// The system gives no thread; those that were started stay.
    pub fn set(self: &Arc<Self>, threads: KswapdThreads) -> io::Result<()> {
        match threads {
            KswapdThreads::Fixed(threads) => self.change(Mode::Fixed, threads..=threads),
            KswapdThreads::Auto => self.change(Mode::Auto, 1..=KSWAPD_THREADS_MAX),
        }
    }

    /// Ends all threads.
    pub fn stop(self: &Arc<Self>) {
        self.change(Mode::Fixed, 0..=0).expect("no thread is started");
    }

    fn change(self: &Arc<Self>, mode: Mode, threads: RangeInclusive<usize>) -> io::Result<()> {
        let mut ended = Vec::new();
        for (team, node) in self.teams.iter().zip(&self.machine.nodes) {
            team.mode.store(mode as u8, Relaxed);
            let mut roster = team.roster();
            roster.mode = mode;
            roster.streaks = Streaks::default();
            let mut surplus = roster.dismiss(*threads.end());
            surplus.append(&mut roster.leaving);
            drop(roster);
            surplus.iter().for_each(|seat| seat.duty.end());
            if *threads.end() == 0 {
                throttle::give_up(&self.machine, node);
            }
            // Also for those that stay: whether they wake to be reviewed has changed.
            node.kswapd_wait.notify_all();
            ended.append(&mut surplus);
        }
        ended.into_iter().for_each(|seat| seat.thread.join());
        (0..self.teams.len()).try_for_each(|node| {
            let mut roster = self.teams[node].roster();
            while roster.mode == mode && roster.seats.len() < *threads.start() {
                self.start(node, &mut roster)?;
            }
            Ok(())
        })
    }

    /// Starts one thread more.
    fn start(self: &Arc<Self>, node: usize, roster: &mut Roster<P>) -> io::Result<()> {
        let (seat, platform) = (roster.seats.len(), &self.machine.platform);
        let duty = Arc::new(Duty::new());
        let (crew, own) = (self.clone(), duty.clone());
        let body = Box::new(move || kswapd::run(&crew, node, seat, &own));
        let name = format!("kswapd{node}:{seat}");
        let thread = platform.spawn(&name, NodeId(node as u8), body)?;
        roster.seats.push(Seat { duty, thread, slept: Nanos(0) });
        roster.peak = roster.peak.max(seat + 1);
        self.note_size(node, roster);
        Ok(())
    }

    fn note_size(&self, node: usize, roster: &Roster<P>) {
        let name = format!("threads of kswapd{node}");
        self.machine.platform.trace_value(&name, roster.seats.len() as u64);
    }

    /// How long a thread of a node sleeps when nobody wakes it: where its team's size is automatic,
    /// one that is idle is to be noticed.
    pub(super) fn patience(&self, node: usize) -> Option<Nanos> {
        let team = &self.teams[node];
        (team.is_auto() && team.roster().seats.len() > 1).then_some(CALM_MIN)
    }

    /// A thread has used CPU time.
    pub(super) fn used(&self, node: usize, seat: usize, time: Nanos) {
        self.teams[node].cpu_time[seat].fetch_add(time.0, Relaxed);
    }

    /// Changes the size of a team, if it is automatic and its period over.
    pub(super) fn review(self: &Arc<Self>, node: usize) {
        let (team, now) = (&self.teams[node], self.machine.platform.now());
        self.machine.update_pressure(now);
        if !team.is_auto() {
            return;
        }
        let (now, due) = (now.0, team.due.load(Relaxed));
        let next = now + PERIOD.0;
        if now < due || team.due.compare_exchange(due, next, Relaxed, Relaxed).is_err() {
            return;
        }
        let seen = self.totals(node);
        let mut roster = team.roster();
        let sample = roster.sample(&seen);
        roster.streaks.extend(&sample);
        let sizing = match roster.mode {
            Mode::Fixed => Sizing::Keep,
            Mode::Auto => decide(sample.threads, &roster.streaks),
        };
        match sizing {
            Sizing::Keep => {}
            Sizing::Grow(threads) => self.grow(node, roster, threads),
            Sizing::Shrink => self.shrink(node, roster),
        }
    }

    fn totals(&self, node: usize) -> Totals {
        let m = &self.machine;
        let zone = &m.nodes[node].zone;
        Totals {
            freed: m.stats.get(Counter::PgStealKswapd),
            freed_directly: m.stats.get(Counter::PgStealDirect),
            stalls: m.stats.get(Counter::AllocStall),
            idle: m.platform.idle_time(NodeId(node as u8)).map(|idle| idle.time),
            free: zone.free_frames(),
            low: zone.marks().low,
            at: m.platform.now(),
        }
    }

    fn grow(self: &Arc<Self>, node: usize, mut roster: MutexGuard<'_, Roster<P>>, threads: usize) {
        roster.streaks = Streaks::default();
        let before: Vec<Seat<P>> = roster.leaving.drain(..).collect();
        // Where the system gives no thread it is asked again when memory has been short for longer.
        let started = (0..threads).take_while(|_| self.start(node, &mut roster).is_ok()).count();
        self.machine.count(Counter::KswapdGrown, started as u64);
        drop(roster);
        before.into_iter().for_each(|seat| seat.thread.join());
    }

    fn shrink(&self, node: usize, mut roster: MutexGuard<'_, Roster<P>>) {
        roster.streaks = Streaks::default();
        let Some(seat) = roster.seats.pop() else { return };
        let duty = seat.duty.clone();
        // It may be the one that decides this: it is joined later, by another.
        roster.leaving.push(seat);
        self.note_size(node, &roster);
        drop(roster);
        self.machine.count(Counter::KswapdShrunk, 1);
        duty.end();
        self.machine.nodes[node].kswapd_wait.notify_all();
    }
}
