//! The trial: the whole manager under random operations of several threads, with all page contents
//! checked against a model. It runs on all platforms, and blocks only through the platform's own
//! primitives, so that it also runs in virtual time.
//!
//! ```text
//! run -- work     users: threads that use, drop, move and copy pages, and record what they wrote
//!     |- rest     kswapd brings the zones back above the low watermark
//!     |- check    reads every page again, and the file's device
//!     \- empty    frees everything
//!
//! space 0        shared: every thread owns words of every page
//! space 1        volatile: every thread owns words of every page, and any thread drops any range
//!                at any time
//! spaces 2..     private, one per thread: the thread drops and moves ranges
//! next spaces    spare, one per thread: empty, targets for restored snapshots
//! next space     a file's, if the platform has a device for one: the first half is shared; in the
//!                second half each page has an owner, which writes it back and drops it
//! next space     folios (pages of more than one frame), if the program uses guards
//! ```
//! A value is `count << 8 | thread` with an increasing count, so stale values and values of other
//! pages are detected.
//!
//! Locking: the model uses the standard library's atomics and mutexes, which are invisible to the
//! platform. Its two mutexes are never held across a call of the platform.

mod check;
mod folios;
mod marked;
mod model;
mod objects;
mod outcome;
mod plan;
mod program;
mod removals;
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

/// Like [`run`], on a platform with too little room for all pages, where accesses fail for that
/// reason: contents must still be correct, and each dropped page makes room.
pub fn run_full<P: Platform, G: Program<P>>(
    platform: P,
    program: G,
    plan: &Plan,
    seed: u64,
    beat: Beat,
) -> Outcome {
    assert_eq!(plan.failures, Failures::Allowed, "accesses fail where pages do not fit");
    // Free slots would not be adjacent, so an allocation would wait for long.
    let plan = &Plan { folios: FolioPlan::NONE, ..plan.clone() };
    let mut world = work(platform, program, plan, seed, beat);
    rest::check(&world);
    world.manager.stop_kswapd();
    world.manager.verify(&[]);
    let outcome = world.outcome();
    check::all_with_little_room(&world);
    check::file(&world);
    check::empty(&world);
    outcome
}

/// Runs all users to completion.
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
    let world = Arc::into_inner(world).expect("an ended user holds no reference");
    assert_eq!(world.known().len(), plan.threads, "a user panicked");
    world
}

/// Reports the user and the seed when a thread panics.
struct Naming {
    thread: usize,
    seed: u64,
}

impl Drop for Naming {
    fn drop(&mut self) {
        // Not `eprintln!`, whose output a test harness captures: the platform may end the process
        // next.
        let text = format!("user {} of the trial with seed {} panicked\n", self.thread, self.seed);
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
