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
//! of it. A run that was killed by SIGKILL cannot clean up: its last process does
//! (`highwater_session::leave_run_dir`). If that was killed, too, the next run does: each first
//! removes directories of the same user with an unlocked `owner` that no process uses. Only files
//! with the names above are removed; a directory with any other file stays.

use crate::Refusal;
use highwater_session::{OWNER_FILE, free_space, open_run_dir, remove_if_abandoned};
use highwater_units::Bytes;
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Free space with which a place is preferred: that of the statistics of some hundred processes.
const ROOM: Bytes = Bytes(16 << 20);

const PREFIX: &str = "highwater-";
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
        std::fs::rename(dir.path().join(OWNER_NEW), dir.path().join(OWNER_FILE))?;
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
        let _ = remove_if_abandoned(&dir);
    }
}

/// The directories of this user's living runs, with their descriptions.
pub(crate) fn living() -> Vec<(PathBuf, String)> {
    let dirs = places().into_iter().flat_map(|place| named(&place).collect::<Vec<_>>());
    dirs.filter_map(|dir| description(&dir).map(|description| (dir, description))).collect()
}

/// The description of the run in a directory; `None` if it is not a living run of this user.
pub(crate) fn description(dir: &Path) -> Option<String> {
    let (_, owner) = open_run_dir(dir).ok()?;
    // If this succeeds, the run has ended. It never waits, and the lock ends with the descriptor.
    let locked = flock(&owner, FlockOperation::NonBlockingLockShared);
    if locked != Err(rustix::io::Errno::WOULDBLOCK) {
        return None;
    }
    let mut text = String::new();
    File::from(owner).take(DESCRIPTION_LEN_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_session::BUDGET_FILE;

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
        assert!(living.path().join(OWNER_FILE).exists());
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
