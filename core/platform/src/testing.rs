//! Help for tests: seeds and a watchdog for random ones, and a platform for structures of the
//! manager, which then need no crate above theirs.

mod harness;
mod platform;
mod skip;

pub use harness::{Watchdog, seeds};
pub use platform::{TestEvent, TestGuard, TestLock, TestPlatform, TestThread};
pub use skip::skip_or_fail;
