//! All tests of a manager on real page faults, in one program, so that the manager is compiled
//! once. List every new test file here.

mod common;

mod collapse;
mod files;
mod migrate;
mod paging;
mod ranges;
#[cfg(target_arch = "x86_64")]
mod resume;
