//! Time, as the platform counts it.

use highwater_units::Nanos;

/// The clocks of a platform.
pub trait Clock {
    /// Monotonic time since some fixed point.
    fn now(&self) -> Nanos;

    /// CPU time this thread has used.
    fn thread_cpu_time(&self) -> Nanos;
}
