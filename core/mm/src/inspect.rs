//! The internals of a manager, for the testkit and the tests of platforms: the state that they
//! read, and the parts that they call separately. Compiled with the feature `inspect` only.

pub use crate::alloc::frames;
pub use crate::compact::{Outcome, direct as compact};
pub use crate::folio::ORDER_MAX;
pub use crate::lru::{List, Mode};
pub use crate::machine::{Machine, Node};
pub use crate::reclaim::wake_kswapd;
pub use crate::space::{Entry, Page, Space};
pub use crate::zone::{Contention, Level, Wanted, Watermarks};

use crate::manager::Manager;
use highwater_platform::Platform;

impl<P: Platform> Manager<P> {
    /// All parts of the manager but its threads.
    pub fn inspect(&self) -> &Machine<P> {
        self.machine()
    }
}
