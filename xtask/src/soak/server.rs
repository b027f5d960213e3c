//! A server of swap that a run has for itself.

use super::draw::Loss;
use super::swap::Server;
use crate::tool::{self, Trouble, await_that};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// A server listens within this.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server under way; it ends with this value.
pub(super) struct Running {
    child: Child,
    kind: Server,
    socket: PathBuf,
    lost: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended by itself if this fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a server whose socket is `socket`, and waits until it is there.
    pub(super) fn start(kind: Server, socket: PathBuf) -> Result<Running, Trouble> {
        let mut command = match kind {
            Server::Redis => redis(&socket),
            Server::Nbd(mib) => nbdkit(&socket, mib),
        };
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| Trouble(format!("{name}: {error}")))?;
        let server = Running { child, kind, socket, lost: false };
        match await_that(PATIENCE, || server.socket.exists()) {
            true => Ok(server),
            false => Err(Trouble(format!("{name} does not listen"))),
        }
    }

    /// Stops it for a while. Returns whether that took place.
    pub(super) fn stop_for(&self, time: Duration) -> bool {
        if self.lost || !self.signal(Signal::STOP) {
            return false;
        }
        sleep(time);
        self.signal(Signal::CONT)
    }

    /// Ends its service for good. Returns whether that took place.
    pub(super) fn lose(&mut self, loss: Loss) -> bool {
        self.lost = self.signal(match loss {
            Loss::Killed => Signal::KILL,
            Loss::Hung => Signal::STOP,
        });
        self.lost
    }

    fn signal(&self, signal: Signal) -> bool {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// How many keys a session has left in it. Those of a server that was lost end with it, or
    /// expire.
    pub(super) fn keys(&self) -> Result<u64, Trouble> {
        if self.kind != Server::Redis || self.lost {
            return Ok(0);
        }
        let mut command = Command::new("redis-cli");
        let answer = tool::run(command.arg("-s").arg(&self.socket).arg("dbsize"))?;
        answer.trim().parse().map_err(|_| Trouble(format!("redis-cli says {answer}")))
    }
}

fn redis(socket: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(socket);
    command
}

fn nbdkit(socket: &Path, mib: u64) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--threads", "1", "--unix"]).arg(socket);
    command.args(["memory", &format!("size={mib}M")]);
    command
}
