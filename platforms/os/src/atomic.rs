//! Shared words: the standard library's atomics.

use crate::os::Os;
use highwater_platform::{Atomics, Int};

impl Atomics for Os {
    type Atomic<T: Int> = T::Std;
}
