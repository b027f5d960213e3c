//! The end of a run's directory when its `highwater run` was killed: processes of the run go on,
//! and the last one removes it.
//!
//! ```text
//! helper, at its end -- unlocks its statistics --\
//! the next `highwater run` -----------------------+--> decide ---> Fate: OfRun | InUse | Unused
//! ```
//! A process of the run is one that holds the lock of its statistics (stats_file.rs), or has the
//! directory in its environment: it may be served later. Helpers have their program's environment,
//! and are left out by their name.
//!
//! Only files with the names of a run's files are removed; a directory with any other file stays.
//! The directory of a run of root whose last process is another user's stays until root's next run.
//!
//! Locking: `owner` is locked (flock) by `highwater run` as long as it lives. A check locks it
//! shared, so that several processes that end at once do not take each other for the run. Each
//! unlocks its statistics before it checks, so the last one finds no other process. All of this
//! also runs in helpers, which do not call malloc: directories are read by rustix.

use crate::budget::BUDGET_FILE;
use crate::settings::RUN_DIR;
use crate::stats_file::{StatsFile, is_locked};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The file that describes a run, locked by its `highwater run`.
pub const OWNER_FILE: &str = "owner";

/// How the name of a run's directory in a public place begins; within it is the run's directory.
pub const RUN_DIR_PREFIX: &str = "highwater-";

/// The name (comm) of helpers and guardians. It differs from the command's: a nested `highwater
/// run` is a process of the run, and may have a helper, too.
pub const HELPER_NAME: &CStr = c"highwater-mm";

/// The fate of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// `highwater run` lives, and removes it.
    OfRun,
    /// Other processes of the run use it.
    InUse,
    Unused,
}

/// Whether a process, or several, live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Living,
    Ended,
}

fn decide(run: Life, processes: impl FnOnce() -> Life) -> Fate {
    match run {
        Life::Living => Fate::OfRun,
        Life::Ended => match processes() {
            Life::Living => Fate::InUse,
            Life::Ended => Fate::Unused,
        },
    }
}

/// Opens a run's directory and its [`OWNER_FILE`], if they are this user's.
///
/// # Errors
/// They are another user's, or there are none.
pub fn open_run_dir(path: &Path) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags | OFlags::DIRECTORY, Mode::empty())?;
    if fstat(&dir)?.st_uid != geteuid().as_raw() {
        return Err(Errno::PERM);
    }
    let owner = openat(&dir, OWNER_FILE, flags | OFlags::NONBLOCK, Mode::empty())?;
    Ok((dir, owner))
}

/// Removes the directory of a run that was killed, if no process of it goes on.
///
/// # Errors
/// It is not a run's directory, or has other files.
pub fn remove_if_abandoned(path: &Path) -> rustix::io::Result<()> {
    leave(path, None)
}

/// The end of a process, called by its helper. Its statistics in `file` are final, and their lock
/// is released. If the run was killed they are removed, and the last process removes the directory.
pub fn leave_run_dir(path: &Path, file: Option<&StatsFile>) {
    if let Some(file) = file {
        file.unlock();
    }
    // Of another user, or removed by another process that ended.
    let _ = leave(path, file);
}

fn leave(path: &Path, file: Option<&StatsFile>) -> rustix::io::Result<()> {
    let (dir, owner) = open_run_dir(path)?;
    let run = match flock(&owner, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Life::Living,
        Err(error) => return Err(error),
        Ok(()) => Life::Ended,
    };
    match decide(run, || processes(&dir, path)) {
        Fate::OfRun => Ok(()),
        Fate::InUse => match file {
            Some(file) => unlinkat(&dir, file.image().name(), AtFlags::empty()),
            None => Ok(()),
        },
        // Another process may have removed it, and a third may have reused its name.
        Fate::Unused if fstat(&owner)?.st_nlink == 0 => Ok(()),
        Fate::Unused => remove(&dir, path),
    }
}

/// Removes the files of a run, then its directory, and the one around it. Another process may be
/// doing that, too.
fn remove(dir: &OwnedFd, path: &Path) -> rustix::io::Result<()> {
    let names: Vec<_> = Dir::read_from(dir)?.flatten().collect();
    let is_of_run = |name: &str| name == BUDGET_FILE || is_of_process(name);
    let of_run = names.iter().map(|entry| entry.file_name());
    for name in of_run.filter(|name| name.to_str().is_ok_and(is_of_run)) {
        gone(unlinkat(dir, name, AtFlags::empty()))?;
    }
    gone(unlinkat(dir, OWNER_FILE, AtFlags::empty()))?;
    gone(unlinkat(CWD, path, AtFlags::REMOVEDIR))?;
    let is_named = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name.as_bytes().starts_with(RUN_DIR_PREFIX.as_bytes()))
    };
    let outer = path.parent().filter(is_named);
    outer.map_or(Ok(()), |outer| gone(unlinkat(CWD, outer, AtFlags::REMOVEDIR)))
}

fn gone(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

/// Whether a file is the statistics of a process.
fn is_of_process(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    name.split_once('.').is_some_and(|(pid, image)| is_number(pid) && is_number(image))
}

/// Whether processes of the run live. A process that cannot be read is another user's.
fn processes(dir: &OwnedFd, path: &Path) -> Life {
    let serves = |entry: &rustix::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str().is_ok_and(is_of_process) && is_locked(dir.as_fd(), name)
    };
    if entries(dir.as_fd()).any(|entry| serves(&entry)) || any_with(path).unwrap_or(false) {
        return Life::Living;
    }
    Life::Ended
}

fn entries(dir: BorrowedFd<'_>) -> impl Iterator<Item = rustix::fs::DirEntry> {
    Dir::read_from(dir).into_iter().flat_map(Iterator::flatten)
}

/// Whether a process has this directory in its environment.
fn any_with(path: &Path) -> rustix::io::Result<bool> {
    let variable = [RUN_DIR.as_bytes(), b"=", path.as_os_str().as_bytes()].concat();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let proc = openat(CWD, "/proc", flags | OFlags::DIRECTORY, Mode::empty())?;
    let has = |entry: rustix::fs::DirEntry| {
        let pid = entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { return false };
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("environ").split(|byte| *byte == 0).any(|entry| entry == variable)
            && read("comm").trim_ascii_end() != HELPER_NAME.to_bytes()
    };
    Ok(entries(proc.as_fd()).any(has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Name, Scope, StatsFile};
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    /// The state after a killed run.
    fn abandoned(place: &Path) -> PathBuf {
        let path = place.join("highwater-run");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(OWNER_FILE), "{}").unwrap();
        drop(Budget::create(&path, Scope::Everything, 10_000, 10_000).unwrap());
        path
    }

    #[test]
    fn a_directory_goes_with_its_last_process() {
        for (run, processes, fate) in [
            (Life::Living, Life::Living, Fate::OfRun),
            (Life::Living, Life::Ended, Fate::OfRun),
            (Life::Ended, Life::Living, Fate::InUse),
            (Life::Ended, Life::Ended, Fate::Unused),
        ] {
            assert_eq!(decide(run, || processes), fate);
        }
        let place = tempfile::tempdir().unwrap();
        let path = abandoned(place.path());
        let [first, last] =
            [1, 2].map(|pid| StatsFile::create(&path, pid, Name::default()).unwrap());
        leave_run_dir(&path, Some(&first));
        assert!(!path.join("1.0").exists() && path.join("2.0").exists());
        leave_run_dir(&path, Some(&last));
        assert!(!path.exists());
    }

    #[test]
    fn processes_that_are_not_served_keep_it_and_living_runs_do() {
        let place = tempfile::tempdir().unwrap();
        let path = abandoned(place.path());
        let mut waits = Command::new("cat");
        let waits = waits.env(RUN_DIR, &path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut waits = waits.spawn().unwrap();
        // While it executes `cat`, a process has no environment for a moment.
        waits.stdin.as_mut().unwrap().write_all(b"echo").unwrap();
        waits.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        remove_if_abandoned(&path).unwrap();
        assert!(path.exists());
        drop(waits.stdin.take());
        waits.wait().unwrap();
        let owner = std::fs::File::open(path.join(OWNER_FILE)).unwrap();
        flock(&owner, FlockOperation::NonBlockingLockExclusive).unwrap();
        remove_if_abandoned(&path).unwrap();
        assert!(path.exists());
        drop(owner);
        std::fs::write(path.join("notes"), "mine").unwrap();
        assert_eq!(remove_if_abandoned(&path), Err(Errno::NOTEMPTY));
        assert!(path.join("notes").exists());
    }

    #[test]
    fn of_processes_that_end_at_once_one_removes_it() {
        let place = tempfile::tempdir().unwrap();
        for _ in 0..50 {
            let path = abandoned(place.path());
            let files =
                [1, 2, 3, 4].map(|pid| StatsFile::create(&path, pid, Name::default()).unwrap());
            std::thread::scope(|scope| {
                for file in &files {
                    scope.spawn(|| leave_run_dir(&path, Some(file)));
                }
            });
            assert!(!path.exists());
        }
    }
}
