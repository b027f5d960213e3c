//! The subcommands of `highwater-lab`.

pub(crate) mod bench;
pub(crate) mod files;
pub(crate) mod reproduce;
pub(crate) mod simulate;
pub(crate) mod swarm;
