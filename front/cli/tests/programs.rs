//! Real programs under `highwater run`, each with about a quarter of the memory it needs.
//!
//! ```text
//! Program --- Place::run -------> Run       output, peak       \ equal
//!         \-- Place::run_within > Run, Report within bounds    /
//! ```
//! Every program also runs without Highwater, checks itself, and must print the same both times.
//! Tests that measure run alone (`Place` holds a lock), others beside each other. Each run prints a
//! line to standard error that the test runner does not capture.

#[allow(dead_code, reason = "each test crate uses a part of it")]
mod common;
#[path = "programs/inputs.rs"]
mod inputs;
#[path = "programs/lines.rs"]
mod lines;
#[path = "programs/place.rs"]
mod place;
#[path = "../../../devices/tests/common/redis_cluster.rs"]
#[allow(dead_code, reason = "the tests of devices use more of it")]
mod redis_cluster;
#[path = "programs/report.rs"]
mod report;
#[path = "programs/run.rs"]
mod run;
#[path = "programs/stuck.rs"]
mod stuck;
#[path = "programs/terminal.rs"]
mod terminal;

#[path = "programs/calls.rs"]
mod calls;
#[path = "programs/cluster.rs"]
mod cluster;
#[path = "programs/ctl.rs"]
mod ctl;
#[path = "programs/devices.rs"]
mod devices;
#[path = "programs/faults.rs"]
mod faults;
#[path = "programs/forking.rs"]
mod forking;
#[path = "programs/gate.rs"]
mod gate;
#[path = "programs/go.rs"]
mod go;
#[path = "programs/helper.rs"]
mod helper;
#[path = "programs/host.rs"]
mod host;
#[path = "programs/killed.rs"]
mod killed;
#[path = "programs/limit.rs"]
mod limit;
#[path = "programs/mapped.rs"]
mod mapped;
#[path = "programs/memory.rs"]
mod memory;
#[path = "programs/metrics.rs"]
mod metrics;
#[path = "programs/nbd.rs"]
mod nbd;
#[path = "programs/objects.rs"]
mod objects;
#[path = "programs/packages.rs"]
mod packages;
#[path = "programs/pages.rs"]
mod pages;
#[path = "programs/pins.rs"]
mod pins;
#[path = "programs/python.rs"]
mod python;
#[path = "programs/redis.rs"]
mod redis;
#[path = "programs/refusals.rs"]
mod refusals;
#[path = "programs/refused.rs"]
mod refused;
#[path = "programs/remote.rs"]
mod remote;
#[path = "programs/replicas.rs"]
mod replicas;
#[path = "programs/rounds.rs"]
mod rounds;
#[path = "programs/seal.rs"]
mod seal;
#[path = "programs/shares.rs"]
mod shares;
#[path = "programs/shortage.rs"]
mod shortage;
#[path = "programs/start.rs"]
mod start;
#[path = "programs/strangers.rs"]
mod strangers;
#[path = "programs/tls.rs"]
mod tls;
#[path = "programs/tools.rs"]
mod tools;
#[path = "programs/verdict.rs"]
mod verdict;
#[path = "programs/watched.rs"]
mod watched;
