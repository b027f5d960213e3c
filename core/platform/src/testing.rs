//! Test support: seeds and a watchdog for random tests, and a platform for unit tests of the
//! manager's structures.

mod harness;
mod platform;
mod skip;

pub use harness::{Watchdog, seeds, seeds_on_all_cpus};
pub use platform::{Sharing, StdSharing, TestEvent, TestGuard, TestLock, TestPlatform, TestThread};
pub use skip::skip_or_fail;
