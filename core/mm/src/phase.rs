//! The table of phases: what a thread is doing for the manager. Lock statistics, and the CPU time
//! of simulated threads, are by phase. [`crate::machine::Machine::enter`] begins one.

use highwater_platform::{Phase, PhaseKind, Platform};

/// The program's own work.
pub const PROGRAM: &Phase = Phase::PROGRAM;
/// A fault, except for its parts that are phases of their own below.
pub const FAULT: &Phase = &Phase::new(1, "fault", PhaseKind::Fault);
/// Allocating and freeing frames.
pub const ALLOC: &Phase = &Phase::new(2, "alloc", PhaseKind::Other);
/// Scanning lists, deciding, unmapping: kswapd or direct reclaim.
pub const RECLAIM: &Phase = &Phase::new(3, "reclaim", PhaseKind::Eviction);
/// Taking slots and writing pages to them.
pub const SWAP_OUT: &Phase = &Phase::new(4, "swap_out", PhaseKind::Eviction);
/// Reading pages, and releasing their slots.
pub const SWAP_IN: &Phase = &Phase::new(5, "swap_in", PhaseKind::Other);
/// Dropping and moving ranges, copying spaces.
pub const RANGE: &Phase = &Phase::new(6, "range", PhaseKind::Other);
/// Moving pages so that free frames come together.
pub const COMPACT: &Phase = &Phase::new(7, "compact", PhaseKind::Other);

/// All phases, in the order of their ids.
pub const ALL: [&Phase; 8] = [PROGRAM, FAULT, ALLOC, RECLAIM, SWAP_OUT, SWAP_IN, RANGE, COMPACT];

/// A phase of this thread: when it is dropped, the phase before it resumes.
#[must_use]
pub struct PhaseGuard<'a, P: Platform> {
    platform: &'a P,
    before: &'static Phase,
}

impl<'a, P: Platform> PhaseGuard<'a, P> {
    /// Begins a phase of this thread.
    pub fn enter(platform: &'a P, phase: &'static Phase) -> PhaseGuard<'a, P> {
        PhaseGuard { platform, before: platform.enter(phase) }
    }
}

impl<P: Platform> Drop for PhaseGuard<'_, P> {
    fn drop(&mut self) {
        self.platform.enter(self.before);
    }
}
