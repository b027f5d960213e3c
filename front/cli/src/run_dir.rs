//! The directory where the processes of a run publish their statistics, and removal of directories
//! that earlier runs left behind.
//!
//! ```text
//! /dev/shm/highwater-XXXXXX/   mode 700, removed at the end of the run
//!   owner                      locked (flock) by `highwater` as long as it lives
//!   <pid>.<n>                  statistics of a process (highwater-session)
//! ```
//! A run that was killed by SIGKILL cannot clean up. So each run first removes directories of the
//! same user with an unlocked `owner`. A new directory never looks like that, because `owner` is
//! locked before it gets its name. Only files with the names above are removed, so a directory with
//! any other file stays.

use crate::Refusal;
use highwater_session::free_space;
use highwater_units::Bytes;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, fstat, openat, unlinkat};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Free space with which a place is preferred: that of the statistics of some hundred processes.
const ROOM: Bytes = Bytes(16 << 20);

const PREFIX: &str = "highwater-";
const OWNER: &str = "owner";
/// The file's name before it is locked.
const OWNER_NEW: &str = "owner.new";

/// The directory of a run; removed when dropped.
pub(crate) struct RunDir {
    dir: TempDir,
    /// Locked as long as it is open.
    _owner: File,
}

impl RunDir {
    /// Makes a directory that only this user can read, in memory and where there is room, if
    /// possible; removes those of killed runs.
    pub(crate) fn create() -> Result<RunDir, Refusal> {
        let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = [Some(PathBuf::from("/dev/shm")), user, Some(PathBuf::from("/tmp"))];
        let mut places: Vec<_> = places.into_iter().flatten().collect();
        places.iter().for_each(|place| sweep(place));
        // A stable sort: the first with room, then the others.
        places.sort_by_key(|place| free_space(place).map_or(true, |free| free < ROOM));
        places.iter().find_map(|place| RunDir::create_in(place).ok()).ok_or_else(|| {
            let what = "no place for the statistics of the run (/dev/shm, $XDG_RUNTIME_DIR, /tmp)";
            Refusal::new(what, "make one of them writable")
        })
    }

    fn create_in(place: &Path) -> io::Result<RunDir> {
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(place)?;
        let owner = File::create_new(dir.path().join(OWNER_NEW))?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(dir.path().join(OWNER_NEW), dir.path().join(OWNER))?;
        Ok(RunDir { dir, _owner: owner })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the directories of killed runs in a place. A directory that cannot be removed stays.
fn sweep(place: &Path) {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let ours = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(PREFIX));
    for entry in entries.filter(|entry| ours(&entry.file_name())) {
        // A failure means another user's directory, and does no harm.
        let _ = remove_if_dead(&entry.path());
    }
}

/// Removes the directory of a run whose `highwater` has ended.
fn remove_if_dead(path: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags | OFlags::DIRECTORY, Mode::empty())?;
    if fstat(&dir)?.st_uid != geteuid().as_raw() {
        return Ok(());
    }
    let owner = openat(&dir, OWNER, flags | OFlags::NONBLOCK, Mode::empty())?;
    flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
    // Another run may have removed it, and a third may have reused its name.
    if fstat(&owner)?.st_nlink == 0 {
        return Ok(());
    }
    let names: Vec<_> = rustix::fs::Dir::read_from(&dir)?.flatten().collect();
    let of_processes = names.iter().map(|entry| entry.file_name());
    for name in of_processes.filter(|name| name.to_str().is_ok_and(is_of_process)) {
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
        let RunDir { dir, _owner } = RunDir::create_in(place).unwrap();
        std::fs::write(dir.path().join("4711.0"), "statistics").unwrap();
        drop(_owner);
        dir.keep()
    }

    #[test]
    fn what_killed_runs_left_is_removed_and_a_living_ones_stays() {
        let place = tempfile::tempdir().unwrap();
        let living = RunDir::create_in(place.path()).unwrap();
        let dead = [(); 3].map(|()| leave(place.path()));
        sweep(place.path());
        assert!(living.path().join(OWNER).exists());
        assert!(dead.iter().all(|dir| !dir.exists()));
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
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
