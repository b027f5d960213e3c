//! The subcommands of `highwater-lab`.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod files;
pub(crate) mod machine;
pub(crate) mod manual;
mod number;
pub(crate) mod page;
mod progress;
pub(crate) mod reproduce;
pub(crate) mod simulate;
pub(crate) mod swarm;
