//! Variables of this process's environment, as secure_getenv(3) reads them.
//!
//! The libraries also run in programs that have raised their privileges: set-user-ID programs, and
//! those with file capabilities. The environment of such a program is that of a user with fewer.

use std::ffi::OsString;

/// Whether the process has raised its privileges (AT_SECURE).
pub fn is_privileged() -> bool {
    // SAFETY: looks a number up.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A variable of the environment; `None` if the process has raised its privileges.
pub fn secure_var(name: &str) -> Option<OsString> {
    (!is_privileged()).then(|| std::env::var_os(name)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RemoteOptions;
    use highwater_platform::testing::skip_or_fail;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::process::Command;

    const USER: &str = "HIGHWATER_REDIS_USER";
    /// A group that the tests do not run as.
    const GROUP: u32 = 1;

    #[test]
    fn a_program_with_more_privileges_reads_no_variables() {
        if is_privileged() {
            assert_eq!(std::env::var(USER).as_deref(), Ok("me"));
            assert_eq!(secure_var(USER), None);
            assert_eq!(RemoteOptions::from_env(), Ok(RemoteOptions::default()));
            println!("privileged");
            return;
        }
        assert!(secure_var("PATH").is_some());
        if std::env::var(USER).as_deref() == Ok("me") {
            // On a file system without such bits (nosuid), or in a process with no_new_privs.
            println!("no more privileges");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        if chown(&program, None, Some(GROUP)).is_err() {
            return skip_or_fail("only root can give a program to another group");
        }
        std::fs::set_permissions(&program, Permissions::from_mode(0o2755)).unwrap();
        let name = "environment::tests::a_program_with_more_privileges_reads_no_variables";
        let mut itself = Command::new(&program);
        let output =
            itself.env(USER, "me").args(["--exact", name, "--nocapture"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        if said.contains("no more privileges\n") {
            // Such a system has no programs of this kind, and needs no test.
            return;
        }
        assert!(output.status.success() && said.contains("privileged\n"), "{said}");
    }
}
