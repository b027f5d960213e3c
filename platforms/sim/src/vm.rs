//! The interface that drives a simulation: start, threads, time and result.

use crate::engine::{Engine, Home, Limits, Policy, Report, Stuck, Trace};
use crate::event::SimEvent;
use crate::machine::Machine;
use highwater_platform::Event;
use highwater_units::{Nanos, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The initial state of a simulation. Equal setups give identical runs, event by event.
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// Seeds every random draw: the policy's choices and the injected faults.
    pub seed: u64,
    /// How the next CPU to run is chosen.
    pub policy: Policy,
    /// When a run is considered stuck.
    pub limits: Limits,
    /// One in this many shared accesses is delayed, to find races; 0: none.
    pub holdups: u64,
    /// Whether to record a trace.
    pub traced: Traced,
}

/// Which bars a trace records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// None.
    Off,
    /// All, up to two million.
    On,
    /// Those recorded while threads of this name run.
    While(&'static str),
}

/// A completed run.
pub struct Finished<R> {
    /// The result of the main thread.
    pub result: R,
    /// The statistics of the run.
    pub report: Report,
    /// The trace, if the setup requested one.
    pub trace: Option<Trace>,
}

/// The virtual machine, as used by its main thread.
pub struct Vm {
    home: Home,
}

/// Runs `main` as the first thread ("main") of a virtual machine, until it and all threads that it
/// started have ended.
///
/// # Errors
/// [`Stuck`]: no thread can run, or the run makes no progress.
///
/// # Panics
/// If a thread of the simulation panics.
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

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.engine().now()
    }

    /// CPU time of all threads so far.
    pub fn busy(&self) -> Nanos {
        self.engine().busy()
    }

    /// The statistics so far.
    pub fn report(&self) -> Report {
        self.engine().busy();
        self.engine().report()
    }

    /// The running thread computes for this long.
    pub fn work(&self, nanos: Nanos) {
        self.engine().charge(nanos.0);
        self.engine().sync();
    }

    /// Reports progress; see [`Limits`].
    pub fn progressed(&self) {
        self.engine().progress();
    }

    /// The running thread sleeps for this long.
    pub fn sleep(&self, nanos: Nanos) {
        self.engine().sleep(Some(nanos.0), "a time");
    }

    /// A function that reports progress; see [`Limits`].
    pub fn beat(&self) -> Arc<dyn Fn() + Send + Sync> {
        let home = self.home.clone();
        Arc::new(move || home.engine().progress())
    }

    /// Runs `body` on `threads` threads named `role` on any CPUs, and waits for all. Returns their
    /// results in order.
    pub fn scope<R>(&self, threads: usize, role: &str, body: &dyn Fn(usize) -> R) -> Vec<R> {
        self.scope_on(threads, role, &|_| None, body)
    }

    /// Like `scope`, but runs each thread on the CPUs of a node, if one is given.
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
        for (thread, place) in results.iter().enumerate() {
            let count = count.clone();
            let whole: Box<dyn FnOnce() + '_> = Box::new(move || {
                place.set(Some(body(thread)));
                count.down();
            });
            // SAFETY: the task borrows `body` and `place`, and does not use them after it has
            // decremented the count; this function returns only after all tasks have done so. If
            // the run ends early instead, this stack is neither unwound nor used again.
            let whole = unsafe {
                std::mem::transmute::<Box<dyn FnOnce() + '_>, Box<dyn FnOnce() + 'static>>(whole)
            };
            self.engine().spawn(role, node(thread), whole);
        }
        count.wait();
        results.into_iter().map(|place| place.into_inner().expect("all have returned")).collect()
    }
}

/// The number of threads that have not ended.
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
