//! Threads, as on platform `os`.

use crate::uffd::Uffd;
use highwater_os::{OsThread, spawn};
use highwater_platform::Threads;
use highwater_units::NodeId;
use std::io;

impl Threads for Uffd {
    type Thread = OsThread;

    fn spawn(&self, name: &str, _: NodeId, body: Box<dyn FnOnce() + Send>) -> io::Result<OsThread> {
        spawn(name, body)
    }
}
