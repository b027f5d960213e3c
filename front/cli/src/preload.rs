//! Finds the preload library, and builds the variables LD_PRELOAD and GODEBUG.

use crate::elf::Runtime;
use crate::{Refusal, elf};
use highwater_session::{LOADER, STATIC_PROGRAM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "libhighwater_preload.so";
/// Environment variable with the library's path, if it is in none of the usual places.
const VARIABLE: &str = "HIGHWATER_PRELOAD";
/// A symbol that the library defines, by which it is recognized.
const SYMBOL: &str = "HIGHWATER_PRELOAD_LIBRARY";

/// The library: at `HIGHWATER_PRELOAD`, beside this program, or where it is installed.
pub(crate) fn find() -> Result<PathBuf, Refusal> {
    let lost = |error| Refusal::new(format!("own path not known: {error}"), "mount /proc");
    let executable = std::env::current_exe().map_err(lost)?;
    // An empty variable counts as unset, as elsewhere.
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let origin = if named.is_some() { Origin::Variable } else { Origin::Usual };
    find_for(&executable, named).and_then(|library| check(library, origin))
}

/// Where the path of the library comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Variable,
    /// It is in one of the usual places.
    Usual,
}

/// Refuses a file that is not this library: the program would run without a budget.
fn check(library: PathBuf, origin: Origin) -> Result<PathBuf, Refusal> {
    match File::open(&library) {
        Ok(file) if elf::defines(&file, SYMBOL) => Ok(library),
        found => {
            let why = found.err().map_or("it is another file".into(), |error| error.to_string());
            let what = format!("'{}' is not Highwater's library: {why}", library.display());
            Err(match origin {
                Origin::Variable => {
                    Refusal::new(what, format!("install {NAME} again, and unset {VARIABLE}"))
                }
                Origin::Usual => Refusal::new(what, format!("install {NAME} again")),
            })
        }
    }
}

fn find_for(executable: &Path, named: Option<PathBuf>) -> Result<PathBuf, Refusal> {
    let dir = executable.parent().unwrap_or(Path::new("/"));
    let remedy = match &named {
        Some(_) => format!("correct {VARIABLE}, or unset it"),
        None => format!("install it there, or set {VARIABLE} to its path"),
    };
    let places = match named {
        Some(path) => vec![path],
        None => vec![dir.join(NAME), dir.join("../lib/highwater").join(NAME)],
    };
    let found = places.iter().find_map(|path| path.canonicalize().ok().filter(|p| p.is_file()));
    let path = found.ok_or_else(|| {
        let tried: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let what = format!("{NAME} not found (tried {})", tried.join(", "));
        Refusal::new(what, remedy)
    })?;
    if path.as_os_str().as_bytes().iter().any(|byte| b": ;".contains(byte)) {
        let what = format!("LD_PRELOAD cannot name '{}': blank, ':' or ';'", path.display());
        return Err(Refusal::new(what, format!("move it, and set {VARIABLE} to its path")));
    }
    Ok(path)
}

/// Programs in Go that the library can serve in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedGo {
    None,
    /// Those that are linked with the C library.
    Linked,
    /// Static ones, too.
    All,
}

/// The command that starts a program with the library. The library loads a static program in place
/// of this one, which the dynamic linker has loaded it into.
pub(crate) fn command(program: &Path, runtime: Runtime, library: &Path, go: ServedGo) -> Command {
    let mut command = match runtime {
        Runtime::C | Runtime::Go => Command::new(program),
        Runtime::StaticGo => {
            let mut command = Command::new("/proc/self/exe");
            command.env(STATIC_PROGRAM, program);
            command
        }
    };
    let existing = std::env::var_os;
    command.env("LD_PRELOAD", variable(library, existing("LD_PRELOAD").as_deref()));
    if go != ServedGo::None {
        command.env("GODEBUG", godebug(existing("GODEBUG").as_deref()));
    }
    if let (ServedGo::All, Ok(own)) = (go, std::env::current_exe()) {
        command.env(LOADER, own);
    }
    command
}

/// The value of LD_PRELOAD. The library comes first, so that its malloc is used.
fn variable(library: &Path, existing: Option<&OsStr>) -> OsString {
    prepended(library.as_os_str(), ":", existing)
}

/// The value of GODEBUG with which Go's heap can be paged: Go's runtime frees memory by MADV_FREE,
/// and does not rely on zeros in pages that it has freed. A setting of the user comes later, and
/// counts.
fn godebug(existing: Option<&OsStr>) -> OsString {
    prepended(OsStr::new("madvdontneed=0"), ",", existing)
}

fn prepended(first: &OsStr, separator: &str, existing: Option<&OsStr>) -> OsString {
    let mut value = first.to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(separator);
        value.push(existing);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_beside_the_program_or_installed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let executable = root.join("bin/highwater");
        let (beside, installed) =
            (root.join("bin").join(NAME), root.join("lib/highwater").join(NAME));
        for dir in ["bin", "lib/highwater"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        assert!(find_for(&executable, None).unwrap_err().remedy().contains(VARIABLE));
        std::fs::write(&installed, "").unwrap();
        assert_eq!(find_for(&executable, None), Ok(installed));
        std::fs::write(&beside, "").unwrap();
        assert_eq!(find_for(&executable, None), Ok(beside));
        let none = find_for(&executable, Some(root.join("none"))).unwrap_err();
        assert!(none.remedy().contains("or unset it"), "{none}");
        std::fs::write(root.join("with blank.so"), "").unwrap();
        let blank = find_for(&executable, Some(root.join("with blank.so"))).unwrap_err();
        assert!(blank.what().contains("LD_PRELOAD"));
    }

    #[test]
    fn a_damaged_library_is_refused_and_the_variable_named_only_if_it_is_set() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join(NAME);
        std::fs::write(&library, "\x7fELF").unwrap();
        for (origin, is_named) in [(Origin::Usual, false), (Origin::Variable, true)] {
            let refusal = check(library.clone(), origin).unwrap_err();
            assert!(refusal.what().contains("is not Highwater's library"), "{refusal}");
            assert_eq!(refusal.remedy().contains(VARIABLE), is_named, "{refusal}");
        }
    }

    #[test]
    fn what_was_preloaded_stays() {
        let library = Path::new("/lib/hw.so");
        for (existing, expected) in [
            (None, "/lib/hw.so"),
            (Some(""), "/lib/hw.so"),
            (Some("a.so b.so"), "/lib/hw.so:a.so b.so"),
        ] {
            assert_eq!(variable(library, existing.map(OsStr::new)), expected);
        }
        assert_eq!(godebug(None), "madvdontneed=0");
        assert_eq!(godebug(Some(OsStr::new("gctrace=1"))), "madvdontneed=0,gctrace=1");
    }
}
