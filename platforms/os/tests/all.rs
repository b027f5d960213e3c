//! All tests of a manager on threads of this process, in one program, so that the manager is
//! compiled once. List every new test file here.

mod common;

mod collapse;
mod compact;
mod conformance;
mod counts;
mod files;
mod folios;
mod huge_pages;
mod manager;
mod poison;
mod readahead;
mod refusals;
mod runs;
mod swapoff;
