//! Finds the program to run as `execvp` does, and checks that it can be served.
//!
//! ```text
//! name --- find: PATH ---> file --- check: follow #! ---> ELF --- elf::judge, raises ---> run
//! ```

use crate::Refusal;
use crate::elf::{self, Runtime, Verdict};
use crate::faults::Permitted;
use crate::preload::ServedGo;
use highwater_session::{FaultThreads, SystemCalls, come_as_signals, may_name_executable};
use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum depth of interpreters that the kernel follows.
const SCRIPT_LEVELS: u32 = 4;
/// How much the kernel reads of a file to determine its kind (BINPRM_BUF_SIZE).
const HEAD_BYTES: u64 = 256;
/// Where programs are searched if PATH is not set, as in the C library.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// The file of a program: `name` itself if it contains a slash, else the first executable one in
/// `search` (the value of PATH).
pub(crate) fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path);
    }
    let mut refused = None;
    for dir in std::env::split_paths(search.unwrap_or(OsStr::new(PATH_DEFAULT))) {
        let path = std::path::absolute(dir.join(name)).unwrap_or_default();
        // As in execvp, a file without permission is remembered, and the search continues.
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(refusal) if path.is_file() => refused = Some(refusal),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        let what = format!("program '{}' not found in PATH", name.display());
        Refusal::new(what, format!("install it, or give its path{}", unless_quoted(name)))
    }))
}

/// A remedy for a name that may be a whole command line in quotes.
fn unless_quoted(name: &OsStr) -> &'static str {
    if name.as_bytes().contains(&b' ') { ", or leave the quotes out" } else { "" }
}

/// Whether the kernel would execute `path`.
fn executable(path: &Path) -> Result<(), Refusal> {
    let name = path.display();
    let meta = std::fs::metadata(path).map_err(|error| {
        let what = format!("program '{name}' not found: {error}");
        Refusal::new(what, format!("check the path{}", unless_quoted(path.as_os_str())))
    })?;
    if !meta.is_file() {
        return Err(Refusal::new(format!("'{name}' is not a file"), "name a program"));
    }
    access(path, Access::EXEC_OK).map_err(|_| {
        Refusal::new(format!("'{name}' is not executable"), format!("run 'chmod +x {name}'"))
    })
}

/// Checks that the program in `path`, or its interpreter, can be served; returns its runtime.
pub(crate) fn check(path: &Path) -> Result<Runtime, Refusal> {
    let mut path = path.to_owned();
    for level in 0..=SCRIPT_LEVELS {
        let name = path.display();
        let unreadable = |error| {
            let what = format!("'{name}' cannot be read to see how it is linked: {error}");
            Refusal::new(what, format!("run 'chmod +r {name}'"))
        };
        let file = File::open(&path).map_err(unreadable)?;
        match kind(&head(&file).map_err(unreadable)?) {
            Kind::Elf => {
                let runtime = check_elf(&path, &file)?;
                let is_script = level > 0;
                return match runtime {
                    Runtime::StaticGo if is_script => Err(Refusal::new(
                        format!("the interpreter '{name}' is statically linked"),
                        format!("run '{name} SCRIPT'"),
                    )),
                    _ => Ok(runtime),
                };
            }
            Kind::Script { interpreter, argument } => {
                if let Some(lost) = lost(&interpreter, &argument) {
                    return Err(lost_interpreter(&path, lost));
                }
                executable(&interpreter)?;
                path = interpreter;
            }
            Kind::Unknown => {
                let what = format!("'{name}' is neither an ELF program nor a script");
                return Err(Refusal::new(what, "begin a script with a line such as #!/bin/sh"));
            }
        }
    }
    let what = format!("'{}' is interpreted over more than {SCRIPT_LEVELS} levels", path.display());
    Err(Refusal::new(what, "name the last interpreter in the #! line"))
}

/// The interpreter of a script, if it does not exist: that of the first line, or with a line end of
/// Windows the one that env(1) searches. env names others that it does not find itself.
fn lost<'a>(interpreter: &'a Path, argument: &'a OsStr) -> Option<&'a Path> {
    let is_env = interpreter.file_name() == Some(OsStr::new("env"));
    let is_of_windows = argument.as_bytes().ends_with(b"\r");
    let is_option = argument.as_bytes().starts_with(b"-");
    let searched = (is_env && is_of_windows && !is_option).then_some(argument);
    let is_missing = |name: &&OsStr| find(name, std::env::var_os("PATH").as_deref()).is_err();
    let missing = searched.filter(is_missing).map(Path::new);
    (!interpreter.exists()).then_some(interpreter).or(missing)
}

/// The refusal of a script whose interpreter does not exist.
fn lost_interpreter(script: &Path, interpreter: &Path) -> Refusal {
    let name = script.display();
    let shown = interpreter.display().to_string().replace('\r', "\\r");
    let what = format!("the interpreter of '{name}', '{shown}', was not found");
    match interpreter.as_os_str().as_bytes().ends_with(b"\r") {
        true => Refusal::new(
            format!("{what}: the script has the line ends of Windows"),
            format!("run sed -i 's/\\r$//' '{name}'"),
        ),
        false => Refusal::new(what, "install it, or correct the first line of the script"),
    }
}

/// The first bytes of a file, at most [`HEAD_BYTES`].
fn head(file: &File) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// The kind of a file, as the kernel sees it.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Elf,
    /// An interpreter, with one argument or an empty one. Its blanks are single spaces.
    Script {
        interpreter: PathBuf,
        argument: OsString,
    },
    Unknown,
}

fn kind(head: &[u8]) -> Kind {
    if head.starts_with(b"\x7fELF") {
        return Kind::Elf;
    }
    let line = head.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    // A carriage return is part of the last word.
    let words = line.unwrap_or_default().split(|byte| b" \t".contains(byte));
    let mut words = words.filter(|word| !word.is_empty());
    match words.next() {
        Some(interpreter) => Kind::Script {
            interpreter: PathBuf::from(OsStr::from_bytes(interpreter)),
            argument: OsString::from_vec(words.collect::<Vec<_>>().join(&b' ')),
        },
        None => Kind::Unknown,
    }
}

/// Checks that a program in Go can be served: its runtime handles the signals that could deliver
/// faults and system calls, reserves much memory, and may have to be loaded by the library.
pub(crate) fn check_go(
    path: &Path,
    runtime: Runtime,
    faults: FaultThreads,
    system_calls: SystemCalls,
) -> Result<(), Refusal> {
    if runtime == Runtime::C {
        return Ok(());
    }
    let refuse = |is: &str, remedy: &str| {
        Err(Refusal::new(format!("'{}' is a Go program{is}", path.display()), remedy))
    };
    if getrlimit(Resource::Data).current.is_some() {
        let is = ", and ulimit -d would count what Go reserves";
        return refuse(is, "run 'ulimit -d unlimited' before");
    }
    if come_as_signals(faults, system_calls) {
        let is = ", which takes the signals that page faults come by";
        return refuse(is, "use --faults handlers --system-calls faults");
    }
    if runtime == Runtime::StaticGo && !may_load() {
        let is = " and statically linked";
        return refuse(is, "run it as root, or with CAP_CHECKPOINT_RESTORE");
    }
    Ok(())
}

/// Whether the library may load static programs. With capabilities of its own file, this process
/// would be no loader (see [`check_privileges`]).
fn may_load() -> bool {
    elf::CAN_LOAD && may_name_executable() && !highwater_devices::is_privileged()
}

/// Which programs in Go the library can serve.
pub(crate) fn served_go(permitted: Permitted) -> ServedGo {
    match permitted.all {
        true if may_load() => ServedGo::All,
        true => ServedGo::Linked,
        false => ServedGo::None,
    }
}

fn check_elf(path: &Path, file: &File) -> Result<Runtime, Refusal> {
    let name = path.display();
    let damaged = |error| Refusal::new(format!("'{name}' is damaged: {error}"), "rebuild it");
    let facts = elf::read(file).map_err(damaged)?;
    let refuse = |what: String, remedy: &str| Err(Refusal::new(what, remedy));
    match elf::judge(&facts) {
        Verdict::Served => check_privileges(path, file).map(|()| facts.runtime),
        Verdict::StaticGo => check_privileges(path, file).map(|()| Runtime::StaticGo),
        Verdict::Static => refuse(
            format!("'{name}' is statically linked, so no library can be preloaded"),
            "link it dynamically (without -static)",
        ),
        Verdict::ThirtyTwoBit => {
            refuse(format!("'{name}' is a 32-bit program"), "use a 64-bit build of it")
        }
        Verdict::Foreign(machine) => refuse(
            format!("'{name}' is a program for {machine}, and this is {}", elf::host_name()),
            "use a build for this machine",
        ),
        Verdict::Musl(linker) => refuse(
            format!("'{name}' is linked with musl ({linker})"),
            "use a build for the GNU C library",
        ),
        Verdict::Sanitized(sanitizer) => refuse(
            format!("'{name}' is built with {sanitizer}, which has a malloc of its own"),
            "run a build without it",
        ),
    }
}

/// Why the dynamic linker would ignore LD_PRELOAD for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raises {
    User,
    Group,
    Capabilities,
}

/// The user and group that start the program.
#[derive(Clone, Copy)]
struct Caller {
    user: u32,
    group: u32,
}

/// The metadata by which a program may raise its privileges.
#[derive(Clone, Copy)]
struct Ownership {
    mode: u32,
    user: u32,
    group: u32,
}

impl From<&Metadata> for Ownership {
    fn from(meta: &Metadata) -> Ownership {
        Ownership { mode: meta.mode(), user: meta.uid(), group: meta.gid() }
    }
}

/// The kernel's rule for AT_SECURE. Set-user-ID to the caller's own user raises nothing.
fn raises(file: Ownership, caller: Caller) -> Option<Raises> {
    const SET_USER: u32 = 0o4000;
    // Without the group's execute bit, set-group-ID means mandatory locking.
    const SET_GROUP: u32 = 0o2010;
    if file.mode & SET_USER != 0 && file.user != caller.user {
        return Some(Raises::User);
    }
    let set_group = file.mode & SET_GROUP == SET_GROUP;
    (set_group && file.group != caller.group).then_some(Raises::Group)
}

fn check_privileges(path: &Path, file: &File) -> Result<(), Refusal> {
    let name = path.display();
    let caller = Caller {
        user: rustix::process::getuid().as_raw(),
        group: rustix::process::getgid().as_raw(),
    };
    let meta = file.metadata().map_err(|error| {
        Refusal::new(format!("'{name}' cannot be examined: {error}"), "check the path")
    })?;
    // Root has all capabilities: those of a file add nothing, and LD_PRELOAD is kept.
    let capabilities = (caller.user != 0 && has_capabilities(file)).then_some(Raises::Capabilities);
    let by = match raises(Ownership::from(&meta), caller).or(capabilities) {
        None => return Ok(()),
        Some(Raises::User) => "set-user-ID",
        Some(Raises::Group) => "set-group-ID",
        Some(Raises::Capabilities) => "file capabilities",
    };
    let what = format!("'{name}' has {by}, so the dynamic linker ignores the library");
    Err(Refusal::new(what, "run a copy of it without them, or as its owner"))
}

fn has_capabilities(file: &File) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_as_execvp_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        for (dir, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("tool"), "").unwrap();
            std::fs::set_permissions(dir.join("tool"), PermissionsExt::from_mode(mode)).unwrap();
        }
        let search = std::env::join_paths([&first, &second]).unwrap();
        let found = |name: &str, search: &OsStr| find(OsStr::new(name), Some(search));
        assert_eq!(found("tool", &search), Ok(second.join("tool")));
        assert!(found("tool", first.as_os_str()).unwrap_err().remedy().contains("chmod"));
        assert!(found("other", &search).unwrap_err().what().contains("not found"));
        assert!(found("", &search).unwrap_err().what().contains("not found"));
        assert!(found("/", &search).unwrap_err().what().contains("not a file"));
        assert!(find(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn kinds_are_those_of_the_kernel() {
        let with = |path: &str, argument: &str| Kind::Script {
            interpreter: path.into(),
            argument: argument.into(),
        };
        let script = |path: &str| with(path, "");
        for (head, expected) in [
            (&b"\x7fELF\x02"[..], Kind::Elf),
            (b"#!/bin/sh\necho", script("/bin/sh")),
            (b"#! /usr/bin/env \t python3 -u \n", with("/usr/bin/env", "python3 -u")),
            (b"#!/bin/sh\r\n", script("/bin/sh\r")),
            (b"#!/bin/sh \r\n", with("/bin/sh", "\r")),
            (b"#!\n/bin/sh", Kind::Unknown),
            (b"echo hello\n", Kind::Unknown),
            (b"", Kind::Unknown),
        ] {
            assert_eq!(kind(head), expected);
        }
    }

    #[test]
    fn scripts_with_windows_line_ends_are_refused_as_the_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        };
        let executed = || std::process::Command::new(&path).status();
        write("#!/bin/sh\r\nexit 0\r\n");
        assert_eq!(executed().unwrap_err().kind(), std::io::ErrorKind::NotFound);
        let refusal = check(&path).unwrap_err();
        assert!(refusal.what().contains("'/bin/sh\\r', was not found: the script"), "{refusal}");
        assert!(refusal.remedy().starts_with("run sed -i 's/\\r$//' '/"), "{refusal}");
        write("#!/usr/bin/env sh\r\nexit 0\r\n");
        assert_eq!(executed().unwrap().code(), Some(127), "env does not find it");
        let refusal = check(&path).unwrap_err();
        assert!(refusal.what().contains("'sh\\r', was not found: the script has"), "{refusal}");
        for served in ["#!/usr/bin/env -S sh\r\n", "#!/usr/bin/env sh\n"] {
            write(served);
            assert_eq!(check(&path), Ok(Runtime::C), "{served:?}");
        }
    }

    #[test]
    fn scripts_are_followed_and_loops_end() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, interpreter: &Path| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!{}\n", interpreter.display())).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let inner = write("inner", Path::new("/bin/sh"));
        assert_eq!(check(&write("outer", &inner)), Ok(Runtime::C));
        let lost = write("lost", &dir.path().join("missing"));
        let refusal = check(&lost).unwrap_err().to_string();
        assert!(refusal.contains("lost', '") && refusal.contains("missing', was"), "{refusal}");
        let own = dir.path().join("loop");
        write("loop", &own);
        assert!(check(&own).unwrap_err().what().contains("levels"));
    }

    #[test]
    fn only_privileges_of_others_are_raised() {
        let caller = Caller { user: 1000, group: 1000 };
        let file = |mode, user, group| Ownership { mode, user, group };
        for (file, expected) in [
            (file(0o755, 0, 0), None),
            (file(0o4755, 0, 0), Some(Raises::User)),
            (file(0o4755, 1000, 0), None),
            (file(0o2755, 0, 0), Some(Raises::Group)),
            (file(0o2745, 0, 0), None),
            (file(0o2755, 0, 1000), None),
        ] {
            assert_eq!(raises(file, caller), expected);
        }
    }
}
