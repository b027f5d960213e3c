//! Memories for tests, and tests in a process of their own.

use highwater::{Builder, FaultThreads, Memory};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub(crate) const PAGE: usize = 4096;

/// Both kinds of threads that serve faults.
pub(crate) const WAYS: [FaultThreads; 2] = [FaultThreads::Handlers, FaultThreads::InThread];

/// A memory of 8 MiB.
pub(crate) fn builder(faults: FaultThreads) -> Builder {
    Memory::builder().memory("8M").faults(faults)
}

/// A memory of 8 MiB, and 64 MiB of swap in memory.
pub(crate) fn memory(faults: FaultThreads) -> Memory {
    builder(faults).swap("ram:64M").build().expect("userfaultfd")
}

/// Set in the process of [`alone`].
const ALONE: &str = "HIGHWATER_TEST_ALONE";

/// Calls `act` in a process of its own, which runs the test `name` again; returns the status and
/// the output of that process. In that process the function exits with status 0 after `act`, and
/// does not return.
pub(crate) fn alone(name: &str, act: impl FnOnce()) -> Output {
    if std::env::var_os(ALONE).is_some() {
        act();
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    let (pid, (sender, over)) = (child.id(), mpsc::channel());
    thread::spawn(move || sender.send(child.wait_with_output()));
    match over.recv_timeout(Duration::from_secs(60)) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            let threads = threads(pid);
            // SAFETY: the process started here, which has not been waited for.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            let written = over.recv().map(|output| output.expect("its output").stderr);
            let written = String::from_utf8_lossy(&written.unwrap_or_default()).into_owned();
            panic!("{name} hangs:\n{threads}{written}");
        }
    }
}

/// A line for each thread of a process: the kernel function in which it waits, its system call, and
/// its stat of /proc, which has its name, state and CPU time.
fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let [wchan, syscall, stat] = ["wchan", "syscall", "stat"].map(read);
        format!("{wchan}, system call {}: {stat}", syscall.trim())
    };
    tasks.map(of).collect()
}

/// The lines that Highwater wrote.
pub(crate) fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("highwater:")).map(str::to_owned).collect()
}
