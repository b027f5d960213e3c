//! Shared words: the standard library's, as they are.

use crate::uffd::Uffd;
use highwater_platform::{Atomics, Int};

impl Atomics for Uffd {
    type Atomic<T: Int> = T::Std;
}
