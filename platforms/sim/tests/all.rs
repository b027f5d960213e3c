//! All tests of the manager on simulated machines, in one binary so that the manager is compiled
//! once. List every new test file here.

mod common;

mod balance;
mod conformance;
mod devices;
mod files;
mod folios;
mod kswapd;
mod models;
mod places;
mod probing;
mod races;
mod reuse;
mod settle;
mod slots;
mod streams;
mod transfers;
