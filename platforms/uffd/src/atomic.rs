//! Shared words: the standard library's atomics.

use crate::uffd::Uffd;
use highwater_platform::{Atomics, Int};

impl Atomics for Uffd {
    type Atomic<T: Int> = T::Std;

    fn zeros<T: Int>(len: usize) -> Vec<T::Std> {
        highwater_os::zeros::<T>(len)
    }
}
