//! The platform's threads are started by [`mod@crate::spawn`]. The host's scheduler places them.

use crate::os::Os;
use crate::spawn::{OsThread, spawn};
use highwater_platform::Threads;
use highwater_units::NodeId;
use std::io;

impl Threads for Os {
    type Thread = OsThread;

    fn spawn(&self, name: &str, _: NodeId, body: Box<dyn FnOnce() + Send>) -> io::Result<OsThread> {
        spawn(name, body)
    }
}
