//! How random tests choose their seeds and end when they hang: as the tests of platforms do.

pub(crate) use highwater_platform::conformance::{Watchdog, seeds};
