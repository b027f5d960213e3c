//! Time, as the platform counts it.

use highwater_units::Nanos;

/// The clocks of a platform.
///
/// Obligations: neither clock goes backwards. `now` is comparable between threads: a reading that
/// happens after another one is not smaller.
///
/// Cost: every fault reads `now` twice, and every kswapd round and direct reclaim reads
/// `thread_cpu_time`; both should avoid a system call where possible.
///
/// Used by `core/mm/src/manager.rs` (fault latency), `core/mm/src/machine.rs` (pressure) and
/// `core/mm/src/reclaim/kswapd.rs` (CPU time of kswapd).
pub trait Clock {
    /// Time since a fixed point in the past.
    fn now(&self) -> Nanos;

    /// CPU time that the calling thread has used.
    fn thread_cpu_time(&self) -> Nanos;
}
