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
    use std::io;
    use std::os::unix::process::CommandExt;
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
        assert!(std::env::var_os(USER).is_none(), "the program has no more privileges");
        let name = "environment::tests::a_program_with_more_privileges_reads_no_variables";
        let mut itself = Command::new(std::env::current_exe().unwrap());
        itself.env(USER, "me").args(["--exact", name, "--nocapture"]);
        // To the kernel, a program that begins with another effective group has raised its
        // privileges. A set-group-ID program would, too, but not on all file systems.
        // SAFETY: one system call in the forked child.
        unsafe {
            itself.pre_exec(|| match libc::setresgid(libc::gid_t::MAX, GROUP, libc::gid_t::MAX) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        match itself.output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && said.contains("privileged\n"), "{said}");
            }
            Err(error) => skip_or_fail(format_args!("no other effective group: {error}")),
        }
    }
}
