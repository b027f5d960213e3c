//! Programs of the tests.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The directory of this package.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The directory where cargo has put the libraries of this build: that of the test program.
pub(crate) fn built() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.parent().expect("beside the libraries").to_owned()
}

/// Removes the variables by which the environment, or a `make test` that runs this, affects `make`.
pub(crate) fn without_variables_of_make(command: &mut Command) {
    for name in ["MAKEFLAGS", "MAKELEVEL", "LIBDIR", "INCLUDEDIR", "DESTDIR"] {
        command.env_remove(name);
    }
}

/// Runs a program to its end.
///
/// # Panics
/// If there is no such program, or it hangs.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (pid, (sender, over)) = (child.id(), mpsc::channel());
    thread::spawn(move || sender.send(child.wait_with_output()));
    match over.recv_timeout(Duration::from_secs(300)) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            panic!("{command:?} hangs");
        }
    }
}

/// Asserts that a program has succeeded; returns its standard output.
#[track_caller]
pub(crate) fn ended(output: &Output) -> String {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    stdout
}
