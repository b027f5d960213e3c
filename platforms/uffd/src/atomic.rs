//! Shared words: the standard library's atomics.

use crate::uffd::Uffd;
use highwater_platform::{Atomics, Int};

impl Atomics for Uffd {
    type Atomic<T: Int> = T::Std;
}
