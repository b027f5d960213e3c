//! The directory where the processes of a run publish their statistics, and removal of directories
//! that earlier runs left behind.
//!
//! ```text
//! /dev/shm/highwater-XXXXXX/   mode 700, removed at the end of the run
//!   owner                      locked (flock) by `highwater` as long as it lives; describes it
//!   <pid>.<n>                  statistics of a process (highwater-session)
//!   budget                     memory that its processes share
//! ```
//! `owner` is written and locked before it gets its name: a reader that finds it locked finds all
//! of it. A run that was killed by SIGKILL cannot clean up, so each run first removes directories
//! of the same user with an unlocked `owner`. Only files with the names above are removed; a
//! directory with any other file stays.

use crate::Refusal;
use highwater_session::{BUDGET_FILE, free_space};
use highwater_units::Bytes;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Free space with which a place is preferred: that of the statistics of some hundred processes.
const ROOM: Bytes = Bytes(16 << 20);

const PREFIX: &str = "highwater-";
const OWNER: &str = "owner";
/// The file's name before it is locked.
const OWNER_NEW: &str = "owner.new";

/// Bytes of a description that are read; it is far shorter.
const DESCRIPTION_LEN_MAX: u64 = 1 << 20;

/// The directory of a run; removed when dropped.
pub(crate) struct RunDir {
    dir: TempDir,
    /// Locked as long as it is open.
    _owner: File,
}

impl RunDir {
    /// Makes a directory that only this user can read, in memory and where there is room, if
    /// possible; removes those of killed runs. `description` is for commands that look at the run.
    pub(crate) fn create(description: &str) -> Result<RunDir, Refusal> {
        let mut places = places();
        places.iter().for_each(|place| sweep(place));
        // A stable sort: the first with room, then the others.
        places.sort_by_key(|place| free_space(place).map_or(true, |free| free < ROOM));
        places.iter().find_map(|place| RunDir::create_in(place, description).ok()).ok_or_else(
            || {
                let what =
                    "no place for the statistics of the run (/dev/shm, $XDG_RUNTIME_DIR, /tmp)";
                Refusal::new(what, "make one of them writable")
            },
        )
    }

    fn create_in(place: &Path, description: &str) -> io::Result<RunDir> {
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(place)?;
        let mut owner = File::create_new(dir.path().join(OWNER_NEW))?;
        owner.write_all(description.as_bytes())?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(dir.path().join(OWNER_NEW), dir.path().join(OWNER))?;
        Ok(RunDir { dir, _owner: owner })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Where directories of runs are made.
fn places() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places = [Some(PathBuf::from("/dev/shm")), user, Some(PathBuf::from("/tmp"))];
    places.into_iter().flatten().collect()
}

/// The directories in a place that have the name of a run's.
fn named(place: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let ours = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(PREFIX));
    entries.filter(move |entry| ours(&entry.file_name())).map(|entry| entry.path())
}

/// Removes the directories of killed runs in a place. A directory that cannot be removed stays.
fn sweep(place: &Path) {
    for dir in named(place) {
        // A failure means another user's directory, and does no harm.
        let _ = remove_if_dead(&dir);
    }
}

/// The directories of this user's living runs, with their descriptions.
pub(crate) fn living() -> Vec<(PathBuf, String)> {
    let dirs = places().into_iter().flat_map(|place| named(&place).collect::<Vec<_>>());
    dirs.filter_map(|dir| description(&dir).map(|description| (dir, description))).collect()
}

/// The description of the run in a directory; `None` if it is not a living run of this user.
pub(crate) fn description(dir: &Path) -> Option<String> {
    let (_, owner) = open_own(dir).ok()?;
    // If this succeeds, the run has ended. It never waits, and the lock ends with the descriptor.
    let locked = flock(&owner, FlockOperation::NonBlockingLockShared);
    if locked != Err(rustix::io::Errno::WOULDBLOCK) {
        return None;
    }
    let mut text = String::new();
    File::from(owner).take(DESCRIPTION_LEN_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Opens a run's directory and its `owner`, if they are this user's.
fn open_own(path: &Path) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags | OFlags::DIRECTORY, Mode::empty())?;
    if fstat(&dir)?.st_uid != geteuid().as_raw() {
        return Err(rustix::io::Errno::PERM);
    }
    let owner = openat(&dir, OWNER, flags | OFlags::NONBLOCK, Mode::empty())?;
    Ok((dir, owner))
}

/// Removes the directory of a run whose `highwater` has ended.
fn remove_if_dead(path: &Path) -> rustix::io::Result<()> {
    let (dir, owner) = open_own(path)?;
    flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
    // Another run may have removed it, and a third may have reused its name.
    if fstat(&owner)?.st_nlink == 0 {
        return Ok(());
    }
    let names: Vec<_> = rustix::fs::Dir::read_from(&dir)?.flatten().collect();
    let of_run = names.iter().map(|entry| entry.file_name());
    let is_of_run = |name: &str| name == BUDGET_FILE || is_of_process(name);
    for name in of_run.filter(|name| name.to_str().is_ok_and(is_of_run)) {
        unlinkat(&dir, name, AtFlags::empty())?;
    }
    unlinkat(&dir, OWNER, AtFlags::empty())?;
    unlinkat(CWD, path, AtFlags::REMOVEDIR)
}

/// Whether a file is the statistics of a process.
fn is_of_process(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    name.split_once('.').is_some_and(|(pid, image)| is_number(pid) && is_number(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after a killed run: the directory, and an unlocked `owner`.
    fn leave(place: &Path) -> PathBuf {
        let RunDir { dir, _owner } = RunDir::create_in(place, "").unwrap();
        for (name, text) in [("4711.0", "statistics"), (BUDGET_FILE, "limit")] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        drop(_owner);
        dir.keep()
    }

    #[test]
    fn what_killed_runs_left_is_removed_and_a_living_ones_stays() {
        let place = tempfile::tempdir().unwrap();
        let living = RunDir::create_in(place.path(), "").unwrap();
        let dead = [(); 3].map(|()| leave(place.path()));
        sweep(place.path());
        assert!(living.path().join(OWNER).exists());
        assert!(dead.iter().all(|dir| !dir.exists()));
        assert!(!named(place.path()).any(|dir| dir != living.path()));
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn a_living_run_is_described_and_a_killed_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let living = RunDir::create_in(place.path(), "sort").unwrap();
        assert_eq!(description(living.path()), Some("sort".to_owned()));
        // The look at it has not unlocked it.
        sweep(place.path());
        assert_eq!(description(living.path()), Some("sort".to_owned()));
        assert_eq!(description(&leave(place.path())), None);
        assert_eq!(description(place.path()), None);
    }

    #[test]
    fn what_is_not_a_runs_stays() {
        let place = tempfile::tempdir().unwrap();
        let project = place.path().join("highwater-project");
        std::fs::create_dir(&project).unwrap();
        std::fs::write(project.join("1.0"), "mine").unwrap();
        let mixed = leave(place.path());
        std::fs::write(mixed.join("notes"), "mine").unwrap();
        let linked = place.path().join("highwater-link");
        let target = leave(tempfile::tempdir().unwrap().keep().as_path());
        std::os::unix::fs::symlink(&target, &linked).unwrap();
        let elsewhere = leave(place.path());
        std::fs::rename(&elsewhere, place.path().join("other")).unwrap();
        sweep(place.path());
        let stay = [project.join("1.0"), mixed.join("notes"), target, place.path().join("other")];
        for path in stay {
            assert!(path.exists(), "{}", path.display());
        }
        std::fs::remove_dir_all(linked.read_link().unwrap().parent().unwrap()).unwrap();
    }

    #[test]
    fn a_directory_that_is_being_made_is_not_taken_for_a_dead_ones() {
        let place = tempfile::tempdir().unwrap();
        let new = place.path().join("highwater-new");
        std::fs::create_dir(&new).unwrap();
        std::fs::write(new.join(OWNER_NEW), "").unwrap();
        sweep(place.path());
        assert!(new.join(OWNER_NEW).exists());
    }
}
