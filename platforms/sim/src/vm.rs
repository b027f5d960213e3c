//! Driving a simulation: its start, its threads, its time, its end.

use crate::engine::{Engine, Home, Limits, Policy, Report, Stuck, Trace};
use crate::event::SimEvent;
use crate::machine::Machine;
use highwater_platform::Event;
use highwater_units::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What a simulation starts from. Equal setups give equal runs, to the last event.
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// Seeds every random draw: the policy's choices and the injected faults.
    pub seed: u64,
    /// Which CPU runs next.
    pub policy: Policy,
    /// When a run counts as stuck.
    pub limits: Limits,
    /// One shared access in so many is held up for a while, for finding races; 0: none is.
    pub holdups: u64,
    /// Whether to keep a trace.
    pub traced: Traced,
}

/// Whether bars are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// No bars.
    Off,
    /// Up to two million bars.
    On,
    /// While threads of this name run.
    While(&'static str),
}

/// A run that came to its end.
pub struct Finished<R> {
    /// What the main thread returned.
    pub result: R,
    /// The accounts.
    pub report: Report,
    /// The trace, if one was asked for.
    pub trace: Option<Trace>,
}

/// The virtual machine, as its main thread sees it.
pub struct Vm {
    home: Home,
}

/// Runs `main` as the first thread ("main") of a virtual machine, until it and all threads that it
/// started have ended.
///
/// # Errors
/// [`Stuck`]: no thread can go on, or nothing useful happens any more.
///
/// # Panics
/// If a thread of the simulation does.
pub fn simulate<R: 'static>(
    setup: Setup,
    main: impl FnOnce(&Vm) -> R + 'static,
) -> Result<Finished<R>, Stuck> {
    let Setup { machine, seed, policy, limits, holdups, traced } = setup;
    let trace = match traced {
        Traced::Off => None,
        Traced::On => Some(Trace::new(None)),
        Traced::While(name) => Some(Trace::new(Some(name))),
    };
    #[allow(clippy::arc_with_non_send_sync, reason = "shared through `Home`, which is both")]
    let engine = Arc::new(Engine::new(machine, policy, limits, holdups, seed, trace));
    let result = Rc::new(RefCell::new(None));
    let (inner, place) = (engine.clone(), result.clone());
    let body = move || {
        let vm = Vm { home: Home::new(&inner) };
        let value = main(&vm);
        drop(vm);
        *place.borrow_mut() = Some(value);
    };
    engine.spawn("main", None, Box::new(body));
    engine.run()?;
    let result = result.borrow_mut().take().expect("the main task has returned");
    Ok(Finished { result, report: engine.report(), trace: engine.take_trace() })
}

impl Vm {
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.home.engine()
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.engine().now()
    }

    /// CPU time of all threads so far.
    pub fn busy(&self) -> Nanos {
        self.engine().busy()
    }

    /// The accounts so far.
    pub fn report(&self) -> Report {
        self.engine().busy();
        self.engine().report()
    }

    /// The running thread computes for a time.
    pub fn work(&self, nanos: Nanos) {
        self.engine().charge(nanos.0);
        self.engine().sync();
    }

    /// Something useful was done: see [`Limits`].
    pub fn progressed(&self) {
        self.engine().progress();
    }

    /// The running thread sleeps.
    pub fn sleep(&self, nanos: Nanos) {
        self.engine().sleep(Some(nanos.0), "a time");
    }

    /// To be called when something useful was done: see [`Limits`].
    pub fn beat(&self) -> Arc<dyn Fn() + Send + Sync> {
        let home = self.home.clone();
        Arc::new(move || home.engine().progress())
    }

    /// Runs `body` on `threads` threads named `role`, on any CPUs, until all have returned; results
    /// in their order.
    pub fn scope<R>(&self, threads: usize, role: &str, body: &dyn Fn(usize) -> R) -> Vec<R> {
        self.scope_on(threads, role, &|_| None, body)
    }

    /// Runs threads as `scope` does, each on the CPUs of a node, if one is given.
    pub fn scope_on<R>(
        &self,
        threads: usize,
        role: &str,
        node: &dyn Fn(usize) -> Option<NodeId>,
        body: &dyn Fn(usize) -> R,
    ) -> Vec<R> {
        let results: Vec<Cell<Option<R>>> = (0..threads).map(|_| Cell::new(None)).collect();
        let count =
            Rc::new(Countdown { left: Cell::new(threads), ended: SimEvent::new(&self.home) });
        for (seat, place) in results.iter().enumerate() {
            let count = count.clone();
            let whole: Box<dyn FnOnce() + '_> = Box::new(move || {
                place.set(Some(body(seat)));
                count.down();
            });
            // SAFETY: what the task borrows, `body` and `place`, outlives its use: it is not used
            // after the count went down, and this function returns after it went down for all. If
            // the run ends early instead, this stack is neither unwound nor used again.
            let whole = unsafe {
                std::mem::transmute::<Box<dyn FnOnce() + '_>, Box<dyn FnOnce() + 'static>>(whole)
            };
            self.engine().spawn(role, node(seat), whole);
        }
        count.wait();
        results.into_iter().map(|place| place.into_inner().expect("all have returned")).collect()
    }
}

/// Counts threads that have yet to end.
struct Countdown {
    left: Cell<usize>,
    ended: SimEvent,
}

impl Countdown {
    fn down(&self) {
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            self.ended.notify_all();
        }
    }

    fn wait(&self) {
        loop {
            let ticket = self.ended.ticket();
            if self.left.get() == 0 {
                return;
            }
            self.ended.wait(ticket, None);
        }
    }
}
