//! The trial: the whole manager under random operations of several threads, its contents against a
//! model. One code for all platforms; like the conformance suite it blocks by the platform's own
//! means only, so that it runs in virtual time, too.
//!
//! ```text
//! run -- work     users: threads that use, drop, move and copy pages, and know what they wrote
//!     |- rest     kswapd brings the zones back above low
//!     |- check    every page once more; the file's device itself
//!     \- empty    everything is given back
//!
//! space 0        shared: every thread has words of every page, and knows what it wrote there
//! space 1        volatile: likewise, and any thread drops any range at any time
//! spaces 2..     private, one per thread: ranges are dropped and moved about
//! spaces after   spare, as many: empty, to restore snapshots into
//! the last       a file's, if the platform has a device for one: its first half is shared; of the
//!                others every thread has some to itself, writes them back and drops them
//! or, behind it  of pages of more than one frame, where these are reached by guards
//! ```
//! A value is `count << 8 | thread`, with a count that only rises: what was never written there, or
//! belongs to another page, or to another time, differs.
//!
//! Locking: the model is the observer's, so it is made of the standard library's atomics, which a
//! platform does not see. Its two mutexes are never held across a call of the platform.

mod check;
mod folios;
mod marked;
mod model;
mod objects;
mod outcome;
mod plan;
mod program;
mod rest;
mod runs;
mod user;
mod world;

pub use objects::{ObjectsPlan, run_objects};
pub use outcome::{Beat, Outcome};
pub use plan::{Failures, FolioPlan, LARGE_FRAMES_MIN, Mix, Operation, Plan, THREADS_MAX};
pub use program::{Pins, Program, Reach};

use highwater_platform::{Platform, Thread};
use highwater_units::NodeId;
use std::io::{self, Write};
use std::sync::Arc;
use user::User;
use world::World;

/// Runs a plan on a platform with room for all its pages ([`Plan::slots`]). `seed` determines the
/// operations. `calm` ends all injected faults (failing devices, refused memory); it is called
/// before the final check of every page. Panics at the first contradiction.
pub fn run<P: Platform, G: Program<P>>(
    platform: P,
    program: G,
    plan: &Plan,
    seed: u64,
    beat: Beat,
    calm: impl FnOnce(),
) -> Outcome {
    let mut world = work(platform, program, plan, seed, beat);
    calm();
    rest::check(&world);
    world.manager.stop_kswapd();
    world.manager.verify(&[]);
    check::all(&world);
    check::file(&world);
    world.manager.verify(&[]);
    let outcome = world.outcome();
    check::empty(&world);
    outcome
}

/// As [`run`], on a platform where the pages do not all fit, and accesses fail for that reason:
/// contents are right all the same, and each page that is dropped makes room.
pub fn run_full<P: Platform, G: Program<P>>(
    platform: P,
    program: G,
    plan: &Plan,
    seed: u64,
    beat: Beat,
) -> Outcome {
    assert_eq!(plan.failures, Failures::Allowed, "accesses fail where pages do not fit");
    // Free slots would not be adjacent, and an allocation of a frame would wait for long.
    let plan = &Plan { folios: FolioPlan::NONE, ..plan.clone() };
    let mut world = work(platform, program, plan, seed, beat);
    rest::check(&world);
    world.manager.stop_kswapd();
    world.manager.verify(&[]);
    let outcome = world.outcome();
    check::all_by_and_by(&world);
    check::file(&world);
    check::empty(&world);
    outcome
}

/// Runs the users, to their end.
fn work<P: Platform, G: Program<P>>(
    platform: P,
    program: G,
    plan: &Plan,
    seed: u64,
    beat: Beat,
) -> World<P, G> {
    let world = Arc::new(World::new(platform, program, plan, beat));
    let nodes = world.manager.inspect().nodes.len();
    let start = |thread: usize| {
        let user = User::new(world.clone(), thread, seed);
        let body = move || {
            let naming = Naming { thread, seed };
            user.run();
            std::mem::forget(naming);
        };
        let node = NodeId((thread % nodes) as u8);
        let platform = world.manager.platform();
        platform.spawn(&format!("trial{thread}"), node, Box::new(body)).expect("a thread")
    };
    let threads: Vec<P::Thread> = (0..plan.threads).map(start).collect();
    threads.into_iter().for_each(Thread::join);
    let world = Arc::into_inner(world).expect("who has ended holds nothing");
    assert_eq!(world.known().len(), plan.threads, "a user panicked");
    world
}

/// Reports the user and the seed of a panic.
struct Naming {
    thread: usize,
    seed: u64,
}

impl Drop for Naming {
    fn drop(&mut self) {
        // Not by a macro, whose output a test harness would keep to itself: the platform may end
        // the process next.
        let text = format!("user {} of the trial with seed {} panicked\n", self.thread, self.seed);
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
