//! The host's clocks, as on platform `os`.

use crate::uffd::Uffd;
use highwater_os::{monotonic, thread_cpu_time};
use highwater_platform::Clock;
use highwater_units::Nanos;

impl Clock for Uffd {
    fn now(&self) -> Nanos {
        monotonic()
    }

    fn thread_cpu_time(&self) -> Nanos {
        thread_cpu_time()
    }
}
