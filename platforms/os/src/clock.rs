//! The platform's clocks are the host's.

use crate::os::Os;
use crate::time;
use highwater_platform::Clock;
use highwater_units::Nanos;

impl Clock for Os {
    fn now(&self) -> Nanos {
        time::monotonic()
    }

    fn thread_cpu_time(&self) -> Nanos {
        time::thread_cpu_time()
    }
}
