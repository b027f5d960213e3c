//! The lab: workloads that check the contents they read, and the peers that Highwater is compared
//! with.
//!
//! ```text
//! workload/  generators, generic over Target ---- run on ----> Service: memory and its counters
//! subject/   Highwater as such a service, on each of its platforms
//! peer/      services without Highwater: plain memory, a mapped file, kernel swap on zram
//! report/    measurements as text: units, lock tables
//! machines   what can be simulated
//! simulate/  workloads on simulated machines: settings, a run and its figures
//! calibrate/ costs of these machines, derived from published values of bases
//! reproduce/ published experiments on simulated machines, beside the published values
//! measure/   costs of this computer, and the machine file made of them
//! page/      tables of results inside a page of documentation
//! swarm/     the whole manager on simulated machines that a seed draws
//! ```

pub mod calibrate;
pub mod machines;
pub mod measure;
pub mod page;
pub mod peer;
pub mod report;
pub mod reproduce;
pub mod simulate;
pub mod subject;
pub mod swarm;
pub mod workload;
