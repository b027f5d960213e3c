//! Runs one process within a time limit, and records its output and peak.
//!
//! A thread waits for the deadline, describes the stuck process group (`stuck.rs`) and kills it;
//! the end of the process closes the channel on which that thread waits. Locks: none.

use crate::stuck;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A command line; the first part is the program.
pub(crate) type Program = Vec<OsString>;

/// The result of a process.
pub(crate) struct Run {
    pub(crate) status: ExitStatus,
    /// The file that took its standard output.
    pub(crate) output: PathBuf,
    pub(crate) errors: String,
    /// Largest resident set of it or of one of its children, in bytes.
    pub(crate) peak: u64,
    pub(crate) elapsed: Duration,
}

impl Run {
    /// Runs a command in `dir`, where its output goes to the file `name`.
    pub(crate) fn of(command: &mut Command, dir: &Path, name: &str, time_limit: Duration) -> Run {
        let [output, errors] = ["out", "err"].map(|end| dir.join(format!("{name}.{end}")));
        let create = |path: &Path| File::create(path).expect("a file for output");
        command.current_dir(dir).process_group(0).stdin(Stdio::null());
        command.stdout(create(&output)).stderr(create(&errors));
        lower_own_peak();
        let started = Instant::now();
        let pid = match command.spawn() {
            Ok(child) => Pid::from_child(&child),
            Err(error) => panic!("{command:?}: {error}"),
        };
        let (ended, deadline) = channel();
        let watch = thread::spawn(move || kill_at(&deadline, pid, time_limit));
        let (status, peak) = wait(pid);
        drop(ended);
        let elapsed = started.elapsed();
        let stuck = watch.join().expect("the watch does not panic");
        let errors = String::from_utf8_lossy(&std::fs::read(errors).unwrap()).into_owned();
        if let Some(stuck) = stuck {
            panic!("still running after {time_limit:?}: {command:?}\n{errors}{stuck}");
        }
        Run { status, output, errors, peak, elapsed }
    }

    /// Fails the test unless the exit status is 0.
    pub(crate) fn expect_success(self, what: &str) -> Run {
        assert!(self.status.success(), "{what}: {}\n{}", self.status, self.errors);
        self
    }

    /// Standard output, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(std::fs::read(&self.output).unwrap()).expect("text")
    }
}

/// Makes the peak of this process small: its children's peaks start at it, since they share its
/// memory until they execute the program.
fn lower_own_peak() {
    // SAFETY: gives free memory of the heap back to the kernel.
    unsafe { libc::malloc_trim(0) };
    // 5 sets the peak to what is resident now (proc(5)). Where that is refused, peaks are too high.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Kills the group unless the process ends before the deadline. Returns a description of the stuck
/// group.
fn kill_at(deadline: &Receiver<()>, group: Pid, time_limit: Duration) -> Option<String> {
    match deadline.recv_timeout(time_limit) {
        Err(RecvTimeoutError::Timeout) => {
            let stuck = stuck::describe(group);
            // Fails only if the group has just ended.
            let _ = kill_process_group(group, Signal::KILL);
            Some(stuck)
        }
        Ok(()) | Err(RecvTimeoutError::Disconnected) => None,
    }
}

/// Waits for a child: its status and its largest resident set in bytes.
fn wait(pid: Pid) -> (ExitStatus, u64) {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to live variables of the right types.
        let waited =
            unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, usage.as_mut_ptr()) };
        let error = io::Error::last_os_error();
        match waited {
            -1 => assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}"),
            _ => break,
        }
    }
    // SAFETY: zeroed is valid, and wait4 has filled it in.
    let usage = unsafe { usage.assume_init() };
    (ExitStatus::from_raw(status), (usage.ru_maxrss as u64) << 10)
}
