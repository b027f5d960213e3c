//! All tests of a manager on simulated machines, in one program: what they share of the manager is
//! compiled once. A new file beside this one is named here.

mod common;

mod balance;
mod conformance;
mod devices;
mod files;
mod folios;
mod kswapd;
mod models;
mod places;
mod races;
mod streams;
mod transfers;
