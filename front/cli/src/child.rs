//! The running program, seen from its parent.
//!
//! ```text
//! Running --- thread "wait": wait4 ---------------> Ended       others' orphans: reaped
//!         \-- thread "signals": SIGTERM ----------> program, and what it has started
//!                               SIGHUP, SIGUSR ---> program
//! ```
//! Keyboard signals reach the program from the terminal; here they are only survived, so that
//! there is a summary. SIGTERM asks for the end of all, as that of a terminal's job or of timeout
//! does: it goes to every process of the run that is in our process group, once. The program stays
//! in that group, so that the keyboard and job control are its own. The other signals are messages
//! to the program, as they would be without us.
//!
//! SIGKILL of this process kills the program (PR_SET_PDEATHSIG): who kills what was started means
//! the program, and would have hit it without us.
//!
//! Locks: none; threads end with the program.

use crate::family::Family;
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that someone sends to us and means the program.
const FORWARDED: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
/// Signals of the keyboard, which the program gets as well.
const KEYBOARD: [i32; 2] = [SIGINT, SIGQUIT];

/// How often what is left of a run is looked at.
const REST_PERIOD: Duration = Duration::from_millis(2);

/// What becomes of processes of the run whose parents have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// They are this process's children: signals reach them, and they are reaped. This process has
    /// no other children then.
    Adopt,
    /// They are somebody else's.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests have children of their own"))]
    Leave,
}

/// What the kernel says of a process that ended, and of the children it waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Largest resident set of one process, in bytes.
    pub(crate) max_rss: u64,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Ended {
    /// The exit status to pass on: the program's, or 128 + signal as shells say it.
    pub(crate) fn code(&self) -> u8 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).unwrap_or(1) as u8
    }
}

/// A program that was started.
pub(crate) struct Running {
    pid: Pid,
    ended: Receiver<io::Result<Ended>>,
    signals: Handle,
}

impl Running {
    /// Starts a program, which is killed when this thread ends before it.
    pub(crate) fn start(command: &mut Command, orphans: Orphans) -> io::Result<Running> {
        if orphans == Orphans::Adopt {
            set_child_subreaper(Some(getpid()))?;
        }
        // Before the start, so that no signal finds us without a handler: exec resets handlers.
        let signals = Signals::new(heeded())?;
        let handle = signals.handle();
        prepare(command);
        let pid = Pid::from_child(&command.spawn()?);
        let program = pidfd_open(pid, PidfdFlags::empty())?;
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || forward(signals, pid, &program))?;
        let (sender, ended) = channel();
        thread::Builder::new().name("wait".to_owned()).spawn(move || {
            let status = match orphans {
                Orphans::Adopt => reap_until(pid).and_then(|()| wait(pid)),
                Orphans::Leave => wait(pid),
            };
            // The receiver lives as long as anybody wants to know.
            let _ = sender.send(status);
        })?;
        Ok(Running { pid, ended, signals: handle })
    }

    /// The program's process number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// How the program ended, if it does within `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> Option<io::Result<Ended>> {
        match self.ended.recv_timeout(patience) {
            Ok(ended) => Some(ended),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(io::Error::other("waiter is gone"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signals.close();
    }
}

/// The signals to handle: what we were told to ignore (nohup, a shell's background jobs) stays
/// ignored, for the program too.
fn heeded() -> Vec<i32> {
    FORWARDED.into_iter().chain(KEYBOARD).filter(|signal| !is_ignored(*signal)).collect()
}

fn is_ignored(signal: i32) -> bool {
    let mut current = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only writes the present one into `current`; all-zero
    // bytes are a valid sigaction, should it fail.
    let current = unsafe {
        libc::sigaction(signal, std::ptr::null(), current.as_mut_ptr());
        current.assume_init()
    };
    current.sa_sigaction == libc::SIG_IGN
}

fn forward(mut signals: Signals, pid: Pid, program: &OwnedFd) {
    for signal in signals.forever().filter(|signal| FORWARDED.contains(signal)) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // Before the program gets it, and starts something to clean up.
            let family = (signal == Signal::TERM).then(Family::now);
            // Fails only if the program has ended: then there is nobody to tell.
            let _ = pidfd_send_signal(program, signal);
            family.iter().for_each(|family| family.signal_group(signal, pid));
        }
    }
}

/// Has the program of a command killed when the thread that starts it ends. Children whose SIGCHLD
/// is ignored cannot be waited for: here it is not, and in the program as it was.
fn prepare(command: &mut Command) {
    let (parent, ignored) = (getpid(), is_ignored(libc::SIGCHLD));
    if ignored {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    let prepare = move || {
        if ignored {
            // SAFETY: as above.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before it was said.
        match getppid() == Some(parent) {
            true => Ok(()),
            false => Err(rustix::io::Errno::SRCH.into()),
        }
    };
    // SAFETY: a few system calls and nothing else, between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// Reaps children until one has ended that is to be waited for.
fn reap_until(pid: Pid) -> io::Result<()> {
    loop {
        let mut ended = MaybeUninit::<libc::siginfo_t>::zeroed();
        let how = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the pointer is to a live variable of the right type.
        let status = unsafe { libc::waitid(libc::P_ALL, 0, ended.as_mut_ptr(), how) };
        if status == -1 {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        }
        // SAFETY: zeroed is valid, and waitid has filled in what it says of a child.
        let child = unsafe { ended.assume_init().si_pid() };
        match Pid::from_raw(child) {
            Some(orphan) if orphan != pid => {
                // How it ended is of no interest: nobody waits for it.
                let _ = rustix::process::waitpid(Some(orphan), WaitOptions::NOHANG)?;
            }
            _ => return Ok(()),
        }
    }
}

/// After the end of the program: reaps what ends with it, and returns what does not.
pub(crate) fn wait_for_rest(patience: Duration) -> Family {
    let start = Instant::now();
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) if start.elapsed() < patience => thread::sleep(REST_PERIOD),
            Ok(None) => return Family::now(),
            // Whoever descends from the program is a child by now, or descends from one.
            Err(_) => return Family::none(),
        }
    }
}

/// Waits for a child to end.
fn wait(pid: Pid) -> io::Result<Ended> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live variables of the right types.
        let waited =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, usage.as_mut_ptr()) };
        match waited {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => break,
        }
    }
    // SAFETY: zeroed is valid, and wait4 has filled it in.
    let usage = unsafe { usage.assume_init() };
    Ok(Ended {
        status: ExitStatus::from_raw(status),
        max_rss: (usage.ru_maxrss as u64) << 10,
        user: duration(usage.ru_utime),
        system: duration(usage.ru_stime),
    })
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(script: &str) -> Ended {
        let running =
            Running::start(Command::new("/bin/sh").args(["-c", script]), Orphans::Leave).unwrap();
        running.wait(Duration::from_secs(60)).expect("ends").unwrap()
    }

    #[test]
    fn the_status_is_the_programs_own() {
        assert_eq!(ended("exit 0").code(), 0);
        assert_eq!(ended("exit 7").code(), 7);
        assert_eq!(ended("kill -9 $$").code(), 137);
        assert!(ended("exit 0").max_rss > 0);
    }

    #[test]
    fn a_running_program_is_waited_for() {
        let running = Running::start(Command::new("/bin/sleep").arg("1"), Orphans::Leave).unwrap();
        assert!(running.wait(Duration::from_millis(1)).is_none());
        assert_eq!(running.wait(Duration::from_secs(60)).unwrap().unwrap().code(), 0);
    }
}
