//! The directory where the processes of a run publish their statistics, and removal of directories
//! that earlier runs left behind.
//!
//! ```text
//! /dev/shm/highwater-XXXXXX/   removed at the end of the run
//!   <32 digits>/               random: the run's directory
//!     owner                    locked (flock) by `highwater` as long as it lives; describes it
//!     <pid>.<n>                statistics of a process (highwater-session)
//!     budget                   memory that its processes share
//! ```
//! A run of root may execute programs as other users. Their processes share its budget, too: they
//! find the directory by its name, which is in their environment. Other users do not know the name,
//! because they cannot list the directory that contains it.
//!
//! `owner` is written and locked before it gets its name: a reader that finds it locked finds it
//! complete. A run that was killed by SIGKILL cannot clean up, so its last process does
//! (`highwater_session::leave_run_dir`). If that process was killed, too, the next run cleans up:
//! every run first removes directories of the same user that have an unlocked `owner` and that no
//! process uses. Only files with the names above are removed; a directory with any other file
//! stays.

use crate::Refusal;
use highwater_session::{
    BUDGET_FILE, OWNER_FILE, RUN_DIR_PREFIX, free_space, open_run_dir, remove_if_abandoned,
};
use highwater_units::Bytes;
use rustix::fs::{Dir, FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A place with this much free space is preferred. The statistics of some hundred processes take as
/// much.
const ROOM: Bytes = Bytes(16 << 20);

/// The file's name before it is locked.
const OWNER_NEW: &str = "owner.new";

/// Most bytes of a description that are read; descriptions are far shorter.
const DESCRIPTION_LEN_MAX: u64 = 1 << 20;

/// The users whose processes may be in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    One,
    Any,
}

impl Users {
    /// The users of a run that this user starts.
    fn of_run() -> Users {
        if geteuid().is_root() { Users::Any } else { Users::One }
    }

    /// The modes of the directory in the public place, of the run's directory, and of its budget.
    fn modes(self) -> [u32; 3] {
        match self {
            Users::One => [0o700, 0o700, 0o600],
            Users::Any => [0o711, 0o1733, 0o666],
        }
    }
}

/// The directory of a run; removed when dropped.
pub(crate) struct RunDir {
    _outer: TempDir,
    path: PathBuf,
    users: Users,
    /// Locked as long as it is open.
    _owner: File,
}

impl RunDir {
    /// Makes a directory that only this user can read, if possible in memory and where there is
    /// room, and removes directories of killed runs. `description` is for other commands that show
    /// the run.
    pub(crate) fn create(description: &str) -> Result<RunDir, Refusal> {
        let mut places = places();
        places.iter().for_each(|place| sweep(place));
        // A stable sort: places with room come first, otherwise the order stays.
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
        RunDir::create_for(Users::of_run(), place, description)
    }

    fn create_for(users: Users, place: &Path, description: &str) -> io::Result<RunDir> {
        let private = Permissions::from_mode(0o700);
        let mut named = tempfile::Builder::new();
        let outer = named.prefix(RUN_DIR_PREFIX).permissions(private).tempdir_in(place)?;
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let path = outer.path().join(format!("{:032x}", u128::from_ne_bytes(random)));
        std::fs::create_dir(&path)?;
        let mut owner = File::create_new(path.join(OWNER_NEW))?;
        owner.set_permissions(Permissions::from_mode(0o600))?;
        owner.write_all(description.as_bytes())?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(path.join(OWNER_NEW), path.join(OWNER_FILE))?;
        let [in_place, of_run, _] = users.modes().map(Permissions::from_mode);
        std::fs::set_permissions(&path, of_run)?;
        std::fs::set_permissions(outer.path(), in_place)?;
        Ok(RunDir { _outer: outer, path, users, _owner: owner })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Lets all processes of the run use its budget.
    ///
    /// # Errors
    /// There is no budget.
    pub(crate) fn open_budget(&self) -> io::Result<()> {
        let [.., of_budget] = self.users.modes().map(Permissions::from_mode);
        std::fs::set_permissions(self.path.join(BUDGET_FILE), of_budget)
    }
}

/// Where directories of runs are made.
fn places() -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places = [Some(PathBuf::from("/dev/shm")), user, Some(PathBuf::from("/tmp"))];
    places.into_iter().flatten().collect()
}

/// The directories in a place that may belong to runs of this user.
fn named(place: &Path) -> impl Iterator<Item = PathBuf> {
    let is_named = |name: &OsStr| name.to_str().is_some_and(|it| it.starts_with(RUN_DIR_PREFIX));
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let outer = entries.filter(move |entry| is_named(&entry.file_name()));
    outer.flat_map(|entry| within(&entry.path()).unwrap_or_default())
}

/// The entries of a directory; none if it belongs to another user. Other users cannot replace a
/// directory of this user, because the places have the sticky bit.
fn within(outer: &Path) -> rustix::io::Result<Vec<PathBuf>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = open(outer, flags, Mode::empty())?;
    if fstat(&dir)?.st_uid != geteuid().as_raw() {
        return Ok(Vec::new());
    }
    let names = Dir::read_from(&dir)?.flatten().map(|entry| entry.file_name().to_owned());
    let names = names.filter(|name| name.to_bytes() != b"." && name.to_bytes() != b"..");
    Ok(names.map(|name| outer.join(OsStr::from_bytes(name.to_bytes()))).collect())
}

/// Removes the directories of killed runs in a place. A directory that cannot be removed stays.
fn sweep(place: &Path) {
    for dir in named(place) {
        // A failure means that the directory belongs to another user, and does no harm.
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
    // If the lock is granted, the run has ended. The call never waits, and closing the descriptor
    // releases the lock.
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
        let RunDir { _outer, path, .. } = RunDir::create_in(place, "").unwrap();
        for (name, text) in [("4711.0", "statistics"), (BUDGET_FILE, "limit")] {
            std::fs::write(path.join(name), text).unwrap();
        }
        let _ = _outer.keep();
        path
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
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        drop(living);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn users_of_a_run_find_it_by_its_name_alone() {
        let place = tempfile::tempdir().unwrap();
        for users in [Users::One, Users::Any] {
            let run = RunDir::create_for(users, place.path(), "").unwrap();
            std::fs::write(run.path().join(BUDGET_FILE), "").unwrap();
            run.open_budget().unwrap();
            let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
            let outer = run.path().parent().unwrap();
            let modes = [outer, run.path(), &run.path().join(BUDGET_FILE)].map(mode);
            assert_eq!(modes, users.modes());
            assert_eq!(mode(&run.path().join(OWNER_FILE)), 0o600);
            assert_eq!(run.path().file_name().unwrap().len(), 32);
        }
    }

    #[test]
    fn a_living_run_is_described_and_a_killed_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let living = RunDir::create_in(place.path(), "sort").unwrap();
        assert_eq!(description(living.path()), Some("sort".to_owned()));
        // Reading the description has not unlocked `owner`.
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
        std::os::unix::fs::symlink(target.parent().unwrap(), &linked).unwrap();
        let elsewhere = leave(place.path());
        std::fs::rename(elsewhere.parent().unwrap(), place.path().join("other")).unwrap();
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
        let new = place.path().join("highwater-new").join("0");
        std::fs::create_dir_all(&new).unwrap();
        std::fs::write(new.join(OWNER_NEW), "").unwrap();
        sweep(place.path());
        assert!(new.join(OWNER_NEW).exists());
    }
}
