//! The swarm: the trial of the whole manager on virtual machines drawn by a seed, with all checks
//! on.
//!
//! ```text
//! seed --> Case::draw   CPUs, costs, frames, devices, policy, injected faults, users  case.rs
//!      \-> run          trial::run on the simulator: contents, lists, slots, watermarks;
//!                       the simulator's own: frames, slots, lock order, progress
//! ```
//! A contradiction panics; a run that hangs or gets nowhere is an error. Both repeat exactly for
//! the same seed and the same program.

mod case;

pub use case::{AccessPath, Case, Room};

use highwater_mm::{Access, Fault, FaultError, Manager};
use highwater_sim::{InjectedFaults, Sim, SimConfig, Stuck, Vm, simulate};
use highwater_testkit::trial::{self, ObjectsPlan, Outcome, Pins, Program, Reach};
use highwater_units::{Prng, SpaceId, Vpn};
use std::fmt;
use std::sync::Arc;

/// What a run of the swarm was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What was run, on a line.
    pub case: String,
    /// Calls of the users to the manager: loads, stores, drops, moves, copies of pages and others.
    pub operations: u64,
    /// Steps of the users of slabs.
    pub objects: u64,
    /// The number of these calls that failed, as they may where faults are injected or room is
    /// short.
    pub failures: u64,
    /// Virtual time, s.
    pub seconds: f64,
    /// Locks taken, transfers begun, lines moved.
    pub events: u64,
    /// Of all events.
    pub hash: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { case, operations, objects, failures, seconds, events, hash } = self;
        write!(f, "{case}: {operations} operations, {failures} failed, {objects} on objects, ")?;
        write!(f, "{seconds:.3} virtual s, {events} events, hash {hash:016x}")
    }
}

/// Runs the case of a seed.
///
/// # Errors
/// Threads wait for each other, or nothing useful happens any more.
///
/// # Panics
/// At the first contradiction.
pub fn run(seed: u64) -> Result<Summary, Stuck> {
    let case = Case::draw(seed);
    let text = case.to_string();
    let finished = simulate(case.setup(), move |vm| carry_out(vm, case))?;
    let (Outcome { operations, failures, .. }, report) = (finished.result, finished.report);
    let seconds = report.time.0 as f64 / 1e9;
    let (events, hash) = (report.events, report.hash);
    let whole = Summary { case: text, operations, objects: 0, failures, seconds, events, hash };
    if Prng::new(seed ^ 0x51ab).percent(OBJECTS_PERCENT) {
        run_objects(seed).map(|objects| whole.and(&objects))
    } else {
        Ok(whole)
    }
}

/// Of 100 seeds, how many try slabs, too: on the same machine, alone.
const OBJECTS_PERCENT: u64 = 50;
/// Steps of all its users together.
const OBJECTS_STEPS: usize = 3000;

/// Runs the trial of slabs that a seed draws.
///
/// # Errors
/// Those of [`run`].
///
/// # Panics
/// If a check fails.
pub fn run_objects(seed: u64) -> Result<Summary, Stuck> {
    let case = Case::draw(seed);
    let plan = ObjectsPlan::draw(seed, OBJECTS_STEPS);
    let text = format!("{plan:?}");
    let (frames, recency) = (case.frames.clone(), case.recency);
    let finished = simulate(case.setup(), move |vm| {
        let injected_faults = Arc::new(InjectedFaults::default());
        let sim = Sim::new(vm, SimConfig { frames, devices: Vec::new(), recency, injected_faults });
        trial::run_objects(Arc::new(sim), &plan, seed, vm.beat())
    })?;
    let (objects, report) = (finished.result, finished.report);
    let seconds = report.time.0 as f64 / 1e9;
    let (events, hash) = (report.events, report.hash);
    Ok(Summary { case: text, operations: 0, objects, failures: 0, seconds, events, hash })
}

impl Summary {
    /// Both runs of a seed.
    fn and(self, other: &Summary) -> Summary {
        Summary {
            objects: self.objects + other.objects,
            seconds: self.seconds + other.seconds,
            events: self.events + other.events,
            hash: self.hash ^ other.hash.rotate_left(1),
            ..self
        }
    }
}

/// The trial of a case, on its platform.
fn carry_out(vm: &Vm, case: Case) -> Outcome {
    let Case { seed, frames, devices, recency, injected_faults, plan, access_path, room, .. } =
        case;
    let injected_faults = Arc::new(injected_faults);
    let injected = injected_faults.clone();
    let sim = Sim::new(vm, SimConfig { frames, devices, recency, injected_faults });
    let (beat, end_faults) = (vm.beat(), move || injected.end());
    match (access_path, room) {
        (AccessPath::Guards, Room::Enough) => trial::run(sim, Pins, &plan, seed, beat, end_faults),
        (AccessPath::Guards, Room::Short) => trial::run_full(sim, Pins, &plan, seed, beat),
        (AccessPath::PageTables, Room::Enough) => {
            trial::run(sim, Hardware, &plan, seed, beat, end_faults)
        }
        (AccessPath::PageTables, Room::Short) => trial::run_full(sim, Hardware, &plan, seed, beat),
    }
}

/// A program whose accesses go through the virtual page tables, and fault where these have nothing.
struct Hardware;

impl Hardware {
    /// Makes an access, and serves its faults until it succeeds.
    fn access<R>(
        manager: &Manager<Sim>,
        (space, vpn): (SpaceId, Vpn),
        access: Access,
        attempt: impl Fn(&Sim) -> Option<R>,
    ) -> Result<R, FaultError> {
        let within = manager.whole(space);
        loop {
            if let Some(done) = attempt(manager.platform()) {
                return Ok(done);
            }
            manager.fault(space, Fault { vpn, access, within })?;
        }
    }
}

impl Program<Sim> for Hardware {
    fn reach(&self) -> Reach {
        Reach::PageTables
    }

    fn load(
        &self,
        manager: &Manager<Sim>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
    ) -> Result<u64, FaultError> {
        let load = |sim: &Sim| sim.program_load(space, vpn, word);
        Hardware::access(manager, (space, vpn), Access::Read, load)
    }

    fn store(
        &self,
        manager: &Manager<Sim>,
        space: SpaceId,
        vpn: Vpn,
        word: usize,
        value: u64,
    ) -> Result<(), FaultError> {
        let store = |sim: &Sim| sim.program_store(space, vpn, word, value);
        Hardware::access(manager, (space, vpn), Access::Write, store)
    }

    fn owe(&self, manager: &Manager<Sim>, frames: u32) {
        manager.platform().owe(frames);
    }
}
