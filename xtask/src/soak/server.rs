//! A server of swap that a run has for itself.

use super::draw::Server;
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
        let server = Running { child, kind, socket };
        match await_that(PATIENCE, || server.socket.exists()) {
            true => Ok(server),
            false => Err(Trouble(format!("{name} does not listen"))),
        }
    }

    /// Stops it for a while. Returns whether that took place.
    pub(super) fn stop_for(&self, time: Duration) -> bool {
        let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) else { return false };
        let stopped = kill_process(pid, Signal::STOP).is_ok();
        sleep(time);
        stopped && kill_process(pid, Signal::CONT).is_ok()
    }

    /// How many keys a session has left in it.
    pub(super) fn keys(&self) -> Result<u64, Trouble> {
        if self.kind != Server::Redis {
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
    command.args(["--foreground", "--unix"]).arg(socket);
    command.args(["memory", &format!("size={mib}M")]);
    command
}
