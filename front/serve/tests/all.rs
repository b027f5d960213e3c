//! All tests of a manager on real page faults, in one program: what they share of the manager is
//! compiled once. A new file beside this one is named here.

mod common;

mod collapse;
mod files;
mod migrate;
mod paging;
mod ranges;
#[cfg(target_arch = "x86_64")]
mod resume;
