//! Keeps the program from closing Highwater's descriptors: the channel to the helper, through which
//! forked children get theirs, and those with which its threads serve their faults.
//!
//! Programs that close everything they did not open (daemons, shells) would close them too. So
//! close, close_range, closefrom, dup2 and dup3 treat them as not open. A program that closes them
//! past the C library continues: its forked children cannot be served, and the helper serves its
//! faults.

use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, Ordering::*};

const NONE: libc::c_int = -1;

/// The most descriptors besides the channel.
pub(crate) const OTHERS_MAX: usize = 31;

/// The channel, then the others.
static GUARDED: [AtomicI32; 1 + OTHERS_MAX] = [const { AtomicI32::new(NONE) }; 1 + OTHERS_MAX];

/// Descriptors move to this number or above: shells and daemons use and close the low ones.
const LEAST: RawFd = 900;

/// Moves a descriptor to a high number, at the end of what the limit on descriptors allows. Where
/// that allows none, it stays, but not on a standard stream.
pub(crate) fn raise(fd: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.map_or(RawFd::MAX, |limit| limit as RawFd);
    let room = 1 + OTHERS_MAX as RawFd;
    off_streams(move_above(fd, LEAST.min(limit.saturating_sub(room)).max(3)))
}

/// Moves a descriptor that took the number of a standard stream, because the program closed that.
pub(crate) fn off_streams(fd: OwnedFd) -> OwnedFd {
    if fd.as_raw_fd() < 3 { move_above(fd, 3) } else { fd }
}

fn move_above(fd: OwnedFd, least: RawFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, least).unwrap_or(fd)
}

/// Calls `act`; if the program has no descriptor left, once more under its hard limit.
pub(crate) fn with_room<R>(act: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
    let done = act();
    if !matches!(done, Err(Errno::MFILE)) {
        return done;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let done = act();
    setrlimit(Resource::Nofile, limit)?;
    done
}

/// Guards the channel from now on, instead of any other.
pub(crate) fn guard(channel: RawFd) {
    GUARDED[0].store(channel, Release);
}

/// Guards further descriptors.
pub(crate) fn guard_others(descriptors: &[RawFd]) {
    assert!(descriptors.len() <= OTHERS_MAX, "{} descriptors", descriptors.len());
    GUARDED[1..].iter().zip(descriptors).for_each(|(place, fd)| place.store(*fd, Release));
}

/// Ends the guard of descriptors besides the channel, which stay open.
pub(crate) fn release_others() {
    GUARDED[1..].iter().for_each(|place| place.store(NONE, Release));
}

/// The channel.
pub(crate) fn guarded() -> Option<RawFd> {
    Some(GUARDED[0].load(Acquire)).filter(|descriptor| *descriptor != NONE)
}

/// Closes the guarded descriptors.
pub(crate) fn close_guarded() {
    let all = GUARDED.iter().map(|place| place.swap(NONE, AcqRel));
    all.filter(|descriptor| *descriptor != NONE).for_each(close_raw);
}

/// Closes a descriptor of the library's.
pub(crate) fn close_raw(descriptor: RawFd) {
    // SAFETY: a descriptor that is no longer used.
    unsafe { rustix::io::close(descriptor) };
}

fn is_guarded(descriptor: libc::c_int) -> bool {
    descriptor != NONE && GUARDED.iter().any(|place| place.load(Acquire) == descriptor)
}

fn fail(errno: libc::c_int) -> libc::c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn close(descriptor: libc::c_int) -> libc::c_int {
    if is_guarded(descriptor) {
        return fail(libc::EBADF);
    }
    // SAFETY: the program's descriptor, at its request.
    unsafe { libc::syscall(libc::SYS_close, descriptor) as libc::c_int }
}

/// close_range(2), in the parts around the guarded descriptors.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn close_range(
    first: libc::c_uint,
    last: libc::c_uint,
    flags: libc::c_int,
) -> libc::c_int {
    let ours = GUARDED.iter().map(|place| place.load(Acquire) as libc::c_uint);
    let next = ours.filter(|ours| (first..=last).contains(ours)).min();
    let Some(ours) = next else { return close_piece(first, last, flags) };
    let before = if first < ours { close_piece(first, ours - 1, flags) } else { 0 };
    let after = if ours < last { close_range(ours + 1, last, flags) } else { 0 };
    before.min(after)
}

fn close_piece(first: libc::c_uint, last: libc::c_uint, flags: libc::c_int) -> libc::c_int {
    // SAFETY: descriptors of the program, at its request.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as libc::c_int }
}

/// closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn closefrom(first: libc::c_int) {
    close_range(first.max(0) as libc::c_uint, libc::c_uint::MAX, 0);
}

/// dup2(2), by dup3, which every architecture has; they differ where both descriptors are equal.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup2(from: libc::c_int, to: libc::c_int) -> libc::c_int {
    if from != to || is_guarded(to) {
        return dup3(from, to, 0);
    }
    // SAFETY: only queries a number; errno is that of dup2.
    match unsafe { libc::fcntl(from, libc::F_GETFD) } {
        -1 => -1,
        _ => to,
    }
}

/// dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn dup3(from: libc::c_int, to: libc::c_int, flags: libc::c_int) -> libc::c_int {
    if is_guarded(to) {
        return fail(libc::EBUSY);
    }
    // SAFETY: descriptors of the program, at its request.
    unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) as libc::c_int }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::fcntl_getfd;
    use std::fs::File;
    use std::os::fd::{BorrowedFd, IntoRawFd};

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: the kernel refuses a number that is not open.
        fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
    }

    /// A descriptor at `at` or above, where no other test has one.
    fn open_at(at: RawFd) -> RawFd {
        let file = File::open("/dev/null").unwrap();
        rustix::io::fcntl_dupfd_cloexec(&file, at).unwrap().into_raw_fd()
    }

    fn errno() -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn the_guarded_descriptor_stays_open_and_others_close() {
        let fds = [700, 701, 702].map(open_at);
        assert_eq!(fds, [700, 701, 702]);
        guard(701);
        assert_eq!(guarded(), Some(701));
        assert_eq!((close(701), errno()), (-1, libc::EBADF));
        assert_eq!((dup3(700, 701, 0), errno()), (-1, libc::EBUSY));
        assert_eq!((dup2(701, 701), errno()), (-1, libc::EBUSY));
        assert_eq!(close_range(700, 702, 0), 0);
        assert_eq!(fds.map(is_open), [false, true, false]);
        let [first, last] = [700, 702].map(open_at);
        assert_eq!((close_range(700, 701, 0), close_range(701, 702, 0)), (0, 0));
        assert_eq!([first, 701, last].map(is_open), [false, true, false]);
        assert_eq!(close_range(701, 701, 0), 0);
        assert!(is_open(701));
        let others = [703, 705].map(open_at);
        guard_others(&others);
        let between = open_at(704);
        assert_eq!((between, close_range(700, 706, 0), close(705)), (704, 0, -1));
        assert_eq!([701, 703, 704, 705].map(is_open), [true, true, false, true]);
        close_guarded();
        assert_eq!((guarded(), [701, 703, 705].map(is_open)), (None, [false; 3]));
        let plain = open_at(710);
        assert_eq!((dup2(plain, plain), dup2(plain, 715), close(plain)), (plain, 715, 0));
        assert_eq!((close(715), is_open(715)), (0, false));
        assert_eq!((dup2(715, 715), errno()), (-1, libc::EBADF));
    }

    #[test]
    fn own_descriptors_are_moved_out_of_the_way() {
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(raise(file()).as_raw_fd() >= LEAST);
        let fd = file();
        let number = fd.as_raw_fd();
        assert!(number >= 3);
        assert_eq!(off_streams(fd).as_raw_fd(), number);
    }
}
