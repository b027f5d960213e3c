//! Helpers of the tests that run the real binary.

use highwater_platform::testing::skip_or_fail;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The binary under test: the one that HIGHWATER names, as for make, or that of this build.
pub(crate) fn binary() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_highwater"));
    std::env::var_os("HIGHWATER").map_or_else(built, PathBuf::from)
}

/// Runs the binary.
pub(crate) fn highwater() -> Command {
    let mut command = Command::new(binary());
    // The test may run under `highwater run` itself.
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// Compiles a C program or library into `output`.
pub(crate) fn compile(source: &str, output: &Path, options: &[&str]) {
    let file = output.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc").args(options).arg("-o").arg(output).arg(&file).status();
    assert!(status.expect("a C compiler").success(), "cc {options:?}");
}

/// A preload library that does nothing.
pub(crate) fn idle_library(dir: &Path) -> PathBuf {
    let path = dir.join("libidle.so");
    compile("const char HIGHWATER_PRELOAD_LIBRARY = 1;\n", &path, &["-shared", "-fPIC"]);
    path
}

/// Whether this machine can run programs with `library` as the preload library; skips the test
/// otherwise.
pub(crate) fn can_run(library: &Path) -> bool {
    let output = highwater().arg("doctor").env("HIGHWATER_PRELOAD", library).output().unwrap();
    if !output.status.success() {
        skip_or_fail(String::from_utf8_lossy(&output.stdout));
    }
    output.status.success()
}
