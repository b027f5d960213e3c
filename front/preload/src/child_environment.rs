//! The environment of a program that is executed: with this library, unless it must be left out.
//! For a static program in Go, `highwater` is executed in its place, and loads it (static_go).
//!
//! Runs in children of vfork and in signal handlers (exec.rs): neither allocates nor locks.

use crate::environment::{self, PREFIX, PRELOAD, Variables, value_of};
use crate::target::{self, Reason, Target};
use highwater_session::{STATIC_PROGRAM, may_name_executable};
use libc::c_char;
use rustix::fs::{Access, access};
use std::ffi::{CStr, CString};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::ptr;

/// Strings, ended by a null pointer.
pub(crate) type Strings = *const *const c_char;

/// Maximum number of strings of a new environment, or of gathered arguments.
pub(crate) const STRINGS_MAX: usize = 512;
/// Maximum length of LD_PRELOAD with the program's other libraries, and of a path that is found.
const TEXT_MAX: usize = 1024;

/// How a program to execute is named.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    /// By the path of its file.
    Path(*const c_char),
    /// As for a shell: a name without a slash is searched for in the directories of PATH.
    Name(*const c_char),
    /// By a descriptor.
    File,
}

/// Number of strings that most environments and lists of arguments fit in.
const STRINGS_FEW: usize = 64;

/// Calls `act` with an array of null pointers for at least `count` strings. It is on the stack,
/// which may be a thread's of 16 KiB: no larger than it has to be.
pub(crate) fn with_room<R>(count: usize, act: impl FnOnce(&mut [*const c_char]) -> R) -> R {
    assert!(count <= STRINGS_MAX);
    if count <= STRINGS_FEW {
        with_array::<STRINGS_FEW, R>(act)
    } else {
        with_array::<STRINGS_MAX, R>(act)
    }
}

#[inline(never)]
fn with_array<const LEN: usize, R>(act: impl FnOnce(&mut [*const c_char]) -> R) -> R {
    act(&mut [ptr::null(); LEN])
}

/// Calls `act` with the environment for a child, and with the path of the program to execute in
/// place of the one named, if there is one.
///
/// # Safety
/// `program` has a string or null, `environment` is null or an environment.
pub(crate) unsafe fn completed<R>(
    program: Named,
    environment: Strings,
    act: impl FnOnce(Option<&CStr>, Strings) -> R,
) -> R {
    let Some(variables) = environment::variables() else { return act(None, environment) };
    // SAFETY: as the caller says.
    unsafe {
        let lack = lack(environment, variables);
        match target(program) {
            Target::Without(reason) => without_us(environment, variables, |without| {
                say(name(program), reason);
                act(None, without)
            }),
            Target::StaticGo if lack != Lack::Removed && may_load() => {
                with_program(environment, variables, lack, program, act)
            }
            Target::StaticGo | Target::AsItIs => {
                let unchanged = |all: Option<Strings>| act(None, all.unwrap_or(environment));
                with_lacking(environment, variables, lack, [None; 2], unchanged)
            }
        }
    }
}

/// Whether `highwater` can be executed here, and load a static program. This program may have
/// changed its root directory, or dropped privileges.
#[inline(never)]
fn may_load() -> bool {
    let is_there = |path: &CStr| access(path, Access::EXEC_OK).is_ok();
    environment::loader().is_some_and(is_there) && may_name_executable()
}

/// How a program has to be started. Not inlined, as the other functions here that need much stack:
/// it is free again when they return.
///
/// # Safety
/// As for [`completed`].
#[inline(never)]
unsafe fn target(program: Named) -> Target {
    // SAFETY: as the caller says.
    unsafe {
        match (name(program), is_path(program)) {
            (Some(path), true) => target::of(path),
            (Some(name), false) => of_searched(name),
            (None, _) => Target::AsItIs,
        }
    }
}

/// [`target::of`], for a program in the directories of PATH.
#[inline(never)]
fn of_searched(name: &CStr) -> Target {
    let mut buffer = [0; TEXT_MAX];
    search(name.to_bytes(), &mut buffer).map_or(Target::AsItIs, target::of)
}

/// Calls `act` with an environment to which what it lacks and `more` variables are added; with none
/// if nothing is added, or there is no room.
///
/// # Safety
/// As for [`strings`].
unsafe fn with_lacking<R>(
    environment: Strings,
    variables: &Variables,
    lack: Lack,
    more: [Option<&CStr>; 2],
    act: impl FnOnce(Option<Strings>) -> R,
) -> R {
    let ours = if lack == Lack::All { &variables.ours[..] } else { &[] };
    let more = more.into_iter().flatten();
    match lack {
        Lack::Nothing | Lack::Removed if more.clone().count() == 0 => act(None),
        _ => {
            let added = ours.iter().map(CString::as_c_str).chain(more);
            // SAFETY: as the caller says.
            unsafe { with_ours(environment, variables, added, act) }
        }
    }
}

/// Calls `act` with the loader in place of a static program, and an environment that names the
/// program; with the program itself if there is no room.
///
/// # Safety
/// As for [`completed`].
#[inline(never)]
unsafe fn with_program<R>(
    environment: Strings,
    variables: &Variables,
    lack: Lack,
    program: Named,
    act: impl FnOnce(Option<&CStr>, Strings) -> R,
) -> R {
    let mut buffer = [0; TEXT_MAX];
    // SAFETY: as the caller says.
    unsafe {
        let named = variable(program, &mut buffer);
        let mut all = strings(environment);
        let has_debug = all.any(|entry| value_of(entry, b"GODEBUG").is_some());
        // As `highwater run` sets it: the program has cleared its environment.
        let debug = (!has_debug).then_some(c"GODEBUG=madvdontneed=0");
        let more = if named.is_some() { [named, debug] } else { [None; 2] };
        with_lacking(environment, variables, lack, more, |all| {
            let loader = environment::loader().filter(|_| named.is_some() && all.is_some());
            act(loader, all.unwrap_or(environment))
        })
    }
}

/// The variable that names a static program.
///
/// # Safety
/// As for [`completed`].
#[inline(never)]
unsafe fn variable(program: Named, buffer: &mut [u8; TEXT_MAX]) -> Option<&CStr> {
    let mut found = [0; TEXT_MAX];
    // SAFETY: as the caller says.
    let path = unsafe { path(program, &mut found) }?;
    join(buffer, STATIC_PROGRAM.as_bytes(), b'=', path.to_bytes())
}

/// The name that a program was given by.
///
/// # Safety
/// As for [`completed`].
unsafe fn name<'a>(program: Named) -> Option<&'a CStr> {
    let (Named::Path(name) | Named::Name(name)) = program else { return None };
    // SAFETY: as the caller says.
    unsafe { name.as_ref().map(|name| CStr::from_ptr(name)) }
}

/// The path of a program.
///
/// # Safety
/// As for [`completed`].
unsafe fn path(program: Named, buffer: &mut [u8; TEXT_MAX]) -> Option<&CStr> {
    // SAFETY: as the caller says.
    let (name, is_path) = unsafe { (name(program)?, is_path(program)) };
    if is_path { Some(name) } else { search(name.to_bytes(), buffer) }
}

/// Whether a program is named by its path.
///
/// # Safety
/// As for [`completed`].
unsafe fn is_path(program: Named) -> bool {
    // SAFETY: as the caller says.
    let name = unsafe { name(program) };
    let has_slash = |name: &CStr| name.to_bytes().contains(&b'/');
    matches!(program, Named::Path(_)) || name.is_some_and(has_slash)
}

/// The path of a program in the directories of PATH.
fn search<'a>(name: &[u8], buffer: &'a mut [u8; TEXT_MAX]) -> Option<&'a CStr> {
    // SAFETY: the value is a string, which the C library's search reads, too.
    let directories = unsafe { libc::getenv(c"PATH".as_ptr()).as_ref() }?;
    // SAFETY: as above.
    let directories = unsafe { CStr::from_ptr(directories) }.to_bytes();
    let directories = directories.split(|byte| *byte == b':');
    let mut directories = directories.map(|path| if path.is_empty() { b"." } else { path });
    let found = directories.find(|directory| {
        let path = join(buffer, directory, b'/', name);
        path.is_some_and(|path| access(path, Access::EXEC_OK).is_ok())
    })?;
    join(buffer, found, b'/', name)
}

/// Writes a line, without allocating.
fn say(program: Option<&CStr>, reason: Reason) {
    let [is, with, because] = match reason {
        Reason::Sanitizer(name) => ["built with ", name, ", which has a malloc of its own"],
        Reason::Musl => ["linked with ", "musl", ", and not with the GNU C library"],
    };
    let line: [&[u8]; 7] = [
        b"highwater: '",
        program.map_or(b"", CStr::to_bytes),
        b"' is ",
        is.as_bytes(),
        with.as_bytes(),
        because.as_bytes(),
        b": it is not paged\n",
    ];
    // SAFETY: the kernel refuses a number that is not open.
    let stream = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    // There is nowhere to report a failed write.
    let _ = rustix::io::writev(stream, &line.map(IoSlice::new));
}

/// Calls `act` with an environment whose LD_PRELOAD does not name this library: with the given one
/// if it does not name the library anyway, or if there is no room for another one.
///
/// # Safety
/// As for [`strings`].
#[inline(never)]
unsafe fn without_us<R>(
    environment: Strings,
    variables: &Variables,
    act: impl FnOnce(Strings) -> R,
) -> R {
    // SAFETY: as the caller says.
    let entries = unsafe { strings(environment) };
    let count = entries.clone().count() + 1;
    if count > STRINGS_MAX {
        return act(environment);
    }
    let own = variables.preload.to_bytes().strip_prefix(PRELOAD).unwrap_or_default();
    with_room(count, |all| {
        let mut preload = [0; TEXT_MAX];
        for (place, entry) in all.iter_mut().zip(entries) {
            let libraries = entry.to_bytes().strip_prefix(PRELOAD);
            let without = libraries.and_then(|libraries| leave_out(libraries, own, &mut preload));
            *place = without.unwrap_or(entry).as_ptr();
        }
        act(all.as_ptr())
    })
}

/// LD_PRELOAD without `library`; `None`: the buffer is too small.
fn leave_out<'a>(
    libraries: &[u8],
    library: &[u8],
    buffer: &'a mut [u8; TEXT_MAX],
) -> Option<&'a CStr> {
    let mut end = 0;
    let mut add = |bytes: &[u8]| {
        buffer.get_mut(end..end + bytes.len())?.copy_from_slice(bytes);
        end += bytes.len();
        Some(())
    };
    add(PRELOAD)?;
    let others = libraries.split(|byte| matches!(byte, b':' | b' '));
    for other in others.filter(|path| !path.is_empty() && *path != library) {
        add(other)?;
        add(b":")?;
    }
    add(b"\0")?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// The strings of an environment.
///
/// # Safety
/// `environment` is null, or an environment that does not change.
unsafe fn strings<'a>(environment: Strings) -> impl Iterator<Item = &'a CStr> + Clone {
    let entry = move |at: usize| {
        // SAFETY: as the caller says; no null pointer was before this place.
        unsafe { environment.add(at).read().as_ref().map(|entry| CStr::from_ptr(entry)) }
    };
    (0..).map_while(entry).take(if environment.is_null() { 0 } else { usize::MAX })
}

/// The variables that a child's environment lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// One of the library's variables was removed on purpose, or another library must be first.
    Removed,
    /// The program has cleared its environment.
    All,
    /// The program has set LD_PRELOAD to other libraries.
    Library,
}

/// # Safety
/// As for [`strings`].
unsafe fn lack(environment: Strings, variables: &Variables) -> Lack {
    let (mut has_ours, mut preload) = (false, &[][..]);
    // SAFETY: as the caller says.
    for entry in unsafe { strings(environment) } {
        has_ours |= entry.to_bytes().starts_with(PREFIX);
        preload = entry.to_bytes().strip_prefix(PRELOAD).unwrap_or(preload);
    }
    match has_ours {
        false => Lack::All,
        true if names(preload, &variables.preload) => Lack::Nothing,
        true if preload.is_empty() || files(preload).any(target::is_of_sanitizer) => Lack::Removed,
        true => Lack::Library,
    }
}

/// Whether LD_PRELOAD names this library, on whatever path.
fn names(libraries: &[u8], own: &CStr) -> bool {
    let own = files(own.to_bytes()).next();
    files(libraries).any(|file| Some(file) == own)
}

/// The names of the files that a value of LD_PRELOAD lists.
fn files(libraries: &[u8]) -> impl Iterator<Item = &[u8]> {
    let paths = libraries.split(|byte| matches!(byte, b':' | b' '));
    paths.map(|path| path.rsplit(|byte| matches!(byte, b'/' | b'=')).next().unwrap_or_default())
}

/// Calls `act` with an environment, this library in its LD_PRELOAD, and `added` variables; with
/// none if there is no room for them.
///
/// # Safety
/// As for [`strings`].
#[inline(never)]
unsafe fn with_ours<'a, R>(
    environment: Strings,
    variables: &'a Variables,
    added: impl Iterator<Item = &'a CStr> + Clone,
    act: impl FnOnce(Option<Strings>) -> R,
) -> R {
    let mut buffer = [0; TEXT_MAX];
    let libraries = |entry: &CStr| entry.to_bytes().starts_with(PRELOAD);
    // SAFETY: as the caller says.
    let entries = unsafe { strings(environment) };
    let theirs = entries.clone().filter(|entry| libraries(entry)).last();
    let others = entries.filter(|entry| !libraries(entry));
    let count = others.clone().count() + added.clone().count() + 2;
    let preload = match theirs.map(|entry| (entry, &entry.to_bytes()[PRELOAD.len()..])) {
        None | Some((_, [])) => Some(&*variables.preload),
        Some((entry, theirs)) if names(theirs, &variables.preload) => Some(entry),
        Some((_, theirs)) => join(&mut buffer, variables.preload.as_bytes(), b':', theirs),
    };
    match preload {
        Some(preload) if count <= STRINGS_MAX => with_room(count, |all| {
            let added = added.map(CStr::as_ptr).chain([preload.as_ptr()]);
            for (place, entry) in all.iter_mut().zip(others.map(CStr::as_ptr).chain(added)) {
                *place = entry;
            }
            act(Some(all.as_ptr()))
        }),
        _ => act(None),
    }
}

/// Two texts with a byte between them, if the buffer has room.
fn join<'a>(
    buffer: &'a mut [u8; TEXT_MAX],
    first: &[u8],
    between: u8,
    second: &[u8],
) -> Option<&'a CStr> {
    let end = first.len() + 1 + second.len();
    buffer.get_mut(..first.len())?.copy_from_slice(first);
    *buffer.get_mut(first.len())? = between;
    buffer.get_mut(first.len() + 1..end)?.copy_from_slice(second);
    *buffer.get_mut(end)? = 0;
    CStr::from_bytes_until_nul(buffer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        let ours = vec![c"HIGHWATER_MEMORY=1".to_owned()];
        Variables { ours, preload: c"LD_PRELOAD=/hw.so".to_owned() }
    }

    fn after(environment: &[&CStr], added: &[CString]) -> Vec<String> {
        let entries = environment.iter().map(|entry| entry.as_ptr());
        let entries: Vec<_> = entries.chain([ptr::null()]).collect();
        let text = |entry: &CStr| entry.to_str().unwrap().to_owned();
        // SAFETY: an environment, and the one made from it.
        unsafe {
            let made = |all: Option<Strings>| all.unwrap_or(entries.as_ptr());
            let act = |all| strings(made(all)).map(text).collect();
            let added = added.iter().map(CString::as_c_str);
            with_ours(entries.as_ptr(), &variables(), added, act)
        }
    }

    #[test]
    fn what_was_cleared_is_added() {
        let (ours, added) = (["HIGHWATER_MEMORY=1", "LD_PRELOAD=/hw.so"], variables().ours);
        assert_eq!(after(&[], &added), ours);
        assert_eq!(after(&[c"A=1", c"LD_PRELOAD="], &added), [&["A=1"], &ours[..]].concat());
        let joined = ["HIGHWATER_MEMORY=1", "LD_PRELOAD=/hw.so:a.so b.so"];
        assert_eq!(after(&[c"LD_PRELOAD=a.so b.so"], &added), joined);
        assert_eq!(after(&[c"HIGHWATER_MEMORY=1", c"LD_PRELOAD=a.so b.so"], &[]), joined);
    }

    #[test]
    fn other_libraries_stay_where_this_one_is_left_out() {
        let mut buffer = [0; TEXT_MAX];
        let mut left =
            |libraries: &[u8]| leave_out(libraries, b"/hw.so", &mut buffer).map(CStr::to_owned);
        assert_eq!(left(b"a.so:/hw.so b.so").as_deref(), Some(c"LD_PRELOAD=a.so:b.so:"));
        assert_eq!(left(b"/hw.so").as_deref(), Some(c"LD_PRELOAD="));
        assert_eq!(left(&[b'x'; TEXT_MAX]), None);
    }

    #[test]
    fn what_there_is_no_room_for_stays_as_it_is() {
        assert_eq!(after(&[c"A=1"; STRINGS_MAX], &[]), ["A=1"; STRINGS_MAX]);
        let long = CString::new(format!("LD_PRELOAD={}", "x".repeat(TEXT_MAX)));
        let long = long.unwrap();
        assert_eq!(after(&[&long], &[]), [long.to_str().unwrap()]);
    }

    #[test]
    fn what_was_removed_on_purpose_is_not_added() {
        let lack = |entries: &[&CStr]| {
            let entries = entries.iter().map(|entry| entry.as_ptr());
            let entries: Vec<_> = entries.chain([ptr::null()]).collect();
            // SAFETY: an environment.
            unsafe { lack(entries.as_ptr(), &variables()) }
        };
        for (entries, expected) in [
            (&[][..], Lack::All),
            (&[c"LD_PRELOAD=other.so"], Lack::All),
            (&[c"LD_PRELOAD=/hw.so"], Lack::All),
            (&[c"HIGHWATER_KSWAPD=2"], Lack::Removed),
            (&[c"HIGHWATER_KSWAPD=2", c"LD_PRELOAD="], Lack::Removed),
            (&[c"LD_PRELOAD=other.so:/hw.so", c"HIGHWATER_KSWAPD=2"], Lack::Nothing),
            (&[c"HIGHWATER_KSWAPD=2", c"LD_PRELOAD=a.so /elsewhere/hw.so"], Lack::Nothing),
            (&[c"HIGHWATER_KSWAPD=2", c"LD_PRELOAD=a.so:/lib/other-hw.so"], Lack::Library),
            (&[c"HIGHWATER_KSWAPD=2", c"LD_PRELOAD=/lib/libasan.so.8"], Lack::Removed),
        ] {
            assert_eq!(lack(entries), expected, "{entries:?}");
        }
        // SAFETY: no environment is an empty one.
        assert_eq!(unsafe { super::lack(ptr::null(), &variables()) }, Lack::All);
    }
}
