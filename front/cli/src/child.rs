//! The running program, seen from its parent.
//!
//! ```text
//! Running --- thread "wait": wait4 ---------------> Ended       orphans of the run: reaped
//!         \-- thread "signals": SIGTERM ----------> program and its descendants
//!                               SIGHUP, SIGUSR ---> program
//!                      SIGINT, SIGQUIT, if sent --> program
//! ```
//! Keyboard signals reach the program from the terminal. This process survives them, in order to
//! print the summary, and passes them on only if a process sent them. If a process signals the
//! whole group, the program gets the signal twice. SIGTERM is meant to end the whole job, for
//! example when job control or timeout(1) sends it: it is sent once to every process of the run in
//! this process group. The program stays in that group, so that keyboard and job control work.
//! Other signals are messages for the program and are passed on to it alone.
//!
//! SIGKILL of this process kills the program (PR_SET_PDEATHSIG), as it would without Highwater.
//!
//! Locks: none; threads end with the program.

use crate::family::Family;
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, set_parent_process_death_signal,
};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::unregister;
use signal_hook_registry::register_sigaction;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that are meant for the program.
const FORWARDED: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
/// Keyboard signals, which the program gets from the terminal, too.
const KEYBOARD: [i32; 2] = [SIGINT, SIGQUIT];

/// How often the remaining processes of a run are checked.
const REST_PERIOD: Duration = Duration::from_millis(2);

/// Which process becomes the parent of orphans: processes of the run whose own parent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphans {
    /// This process, which passes signals to orphans and reaps them. It must have no other
    /// children.
    Adopt,
    /// Another process.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests have children of their own"))]
    Leave,
}

/// What the kernel reports about a process that ended, and about the children it waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Largest resident set of one process, in bytes.
    pub(crate) max_rss: u64,
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Ended {
    /// The exit status to pass on: the program's, or 128 + signal, as in a shell.
    pub(crate) fn code(&self) -> u8 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).unwrap_or(1) as u8
    }
}

/// A running program.
pub(crate) struct Running {
    pid: Pid,
    ended: Receiver<io::Result<Ended>>,
    signals: Handle,
    _sent: Sent,
}

impl Running {
    /// Starts a program. It is killed when this thread ends before it.
    pub(crate) fn start(command: &mut Command, orphans: Orphans) -> io::Result<Running> {
        if orphans == Orphans::Adopt {
            set_child_subreaper(Some(getpid()))?;
        }
        // Before the start, so that no signal arrives without a handler; exec resets handlers.
        let sent = Sent::note()?;
        let signals = Signals::new(heeded())?;
        let handle = signals.handle();
        prepare(command);
        let pid = Pid::from_child(&command.spawn()?);
        let program = pidfd_open(pid, PidfdFlags::empty())?;
        let noted = sent.signals.clone();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || forward(signals, &noted, pid, &program))?;
        let (sender, ended) = channel();
        thread::Builder::new().name("wait".to_owned()).spawn(move || {
            let status = match orphans {
                Orphans::Adopt => reap_until(pid).and_then(|()| wait(pid)),
                Orphans::Leave => wait(pid),
            };
            // Fails if the receiver is gone; the status is not needed then.
            let _ = sender.send(status);
        })?;
        Ok(Running { pid, ended, signals: handle, _sent: sent })
    }

    /// The program's process number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// How the program ended; `None` if it does not end within `patience`.
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

/// Keyboard signals that a process has sent to this one, as opposed to signals that the terminal
/// sends to the whole group.
struct Sent {
    /// One bit for each signal, set before the signal arrives at [`forward`].
    signals: Arc<AtomicU32>,
    actions: Vec<SigId>,
}

impl Sent {
    fn note() -> io::Result<Sent> {
        let signals = Arc::new(AtomicU32::new(0));
        let note = |signal: &i32| {
            let (signals, bit) = (signals.clone(), 1 << signal);
            let action = move |info: &libc::siginfo_t| {
                // Signals that the kernel itself sends have a positive code.
                if info.si_code <= 0 {
                    signals.fetch_or(bit, Relaxed);
                }
            };
            // SAFETY: the action is one atomic operation.
            unsafe { register_sigaction(*signal, action) }
        };
        let heeded = KEYBOARD.iter().filter(|signal| !is_ignored(**signal));
        let actions = heeded.map(note).collect::<io::Result<_>>()?;
        Ok(Sent { signals, actions })
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            unregister(action);
        }
    }
}

/// The signals to handle. Signals that were ignored at the start (nohup, background jobs of a
/// shell) stay ignored, for the program too.
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

fn forward(mut signals: Signals, sent: &AtomicU32, pid: Pid, program: &OwnedFd) {
    let was_sent = |signal: i32| sent.fetch_and(!(1 << signal), Relaxed) & 1 << signal != 0;
    let is_for_program = |signal: &i32| FORWARDED.contains(signal) || was_sent(*signal);
    for signal in signals.forever().filter(is_for_program) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // Before the program gets the signal: it may then start a process that cleans up.
            let family = (signal == Signal::TERM).then(Family::now);
            // Fails only if the program has ended.
            let _ = pidfd_send_signal(program, signal);
            family.iter().for_each(|family| family.signal_group(signal, pid));
        }
    }
}

/// Whether this process was started with SIGPIPE ignored.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// Runs before main: Rust's start code makes this process ignore SIGPIPE.
#[used]
// SAFETY: the C library calls the functions of this section once each, without arguments that
// matter, before it calls main.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn note_pipe() {
        IGNORED_PIPE.store(is_ignored(libc::SIGPIPE), Relaxed);
    }
    note_pipe
};

/// Arranges that the program of a command is killed when the thread that starts it ends, and that
/// it ignores SIGCHLD and SIGPIPE if this process was started so. Children cannot be waited for
/// while SIGCHLD is ignored, so this process stops ignoring it. [`Command`] gives programs the
/// default action for SIGPIPE.
fn prepare(command: &mut Command) {
    let (parent, ignores_child) = (getpid(), is_ignored(libc::SIGCHLD));
    if ignores_child {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    let ignored = [(libc::SIGCHLD, ignores_child), (libc::SIGPIPE, IGNORED_PIPE.load(Relaxed))];
    let prepare = move || {
        for (signal, _) in ignored.into_iter().filter(|(_, ignored)| *ignored) {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the call.
        if getppid() == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: makes a few system calls between fork and exec, and nothing else.
    unsafe { command.pre_exec(prepare) };
}

/// Reaps children until the program has ended.
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
        // SAFETY: zeroed is valid, and waitid has filled it in.
        let child = unsafe { ended.assume_init().si_pid() };
        match Pid::from_raw(child) {
            Some(orphan) if orphan != pid => {
                // An orphan's status is not needed.
                let _ = rustix::process::waitpid(Some(orphan), WaitOptions::NOHANG)?;
            }
            _ => return Ok(()),
        }
    }
}

/// After the program's end: reaps the processes that end with it, and returns the others.
pub(crate) fn wait_for_rest(patience: Duration) -> Family {
    let start = Instant::now();
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) if start.elapsed() < patience => thread::sleep(REST_PERIOD),
            Ok(None) => return Family::now(),
            // No child is left, so no descendant of the program is: by now each of them is a child
            // of this process, or descends from one.
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
