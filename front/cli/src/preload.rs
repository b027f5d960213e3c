//! Finds the preload library, and builds LD_PRELOAD.

use crate::{Refusal, elf};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const NAME: &str = "libhighwater_preload.so";
/// Environment variable with the library's path, if it is in none of the usual places.
const VARIABLE: &str = "HIGHWATER_PRELOAD";
/// A symbol that the library defines, by which it is recognized.
const SYMBOL: &str = "HIGHWATER_PRELOAD_LIBRARY";

/// The library: at `HIGHWATER_PRELOAD`, beside this program, or where it is installed.
pub(crate) fn find() -> Result<PathBuf, Refusal> {
    let lost = |error| Refusal::new(format!("own path not known: {error}"), "mount /proc");
    let executable = std::env::current_exe().map_err(lost)?;
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    find_for(&executable, named).and_then(check)
}

/// Refuses a file that is not this library: the program would run without a budget.
fn check(library: PathBuf) -> Result<PathBuf, Refusal> {
    match File::open(&library) {
        Ok(file) if elf::defines(&file, SYMBOL) => Ok(library),
        found => {
            let why = found.err().map_or("it is another file".into(), |error| error.to_string());
            let what = format!("'{}' is not Highwater's library: {why}", library.display());
            Err(Refusal::new(what, format!("install {NAME} again, and unset {VARIABLE}")))
        }
    }
}

fn find_for(executable: &Path, named: Option<PathBuf>) -> Result<PathBuf, Refusal> {
    let dir = executable.parent().unwrap_or(Path::new("/"));
    let places = match named {
        Some(path) => vec![path],
        None => vec![dir.join(NAME), dir.join("../lib/highwater").join(NAME)],
    };
    let found = places.iter().find_map(|path| path.canonicalize().ok().filter(|p| p.is_file()));
    let path = found.ok_or_else(|| {
        let tried: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        let what = format!("{NAME} not found (tried {})", tried.join(", "));
        Refusal::new(what, format!("install it there, or set {VARIABLE} to its path"))
    })?;
    if path.as_os_str().as_bytes().iter().any(|byte| b": ;".contains(byte)) {
        let what = format!("LD_PRELOAD cannot name '{}': blank, ':' or ';'", path.display());
        return Err(Refusal::new(what, format!("move it, and set {VARIABLE} to its path")));
    }
    Ok(path)
}

/// The value of LD_PRELOAD. The library comes first, so that its malloc is used.
pub(crate) fn variable(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(":");
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
        assert!(find_for(&executable, Some(root.join("none"))).is_err());
        std::fs::write(root.join("with blank.so"), "").unwrap();
        let blank = find_for(&executable, Some(root.join("with blank.so"))).unwrap_err();
        assert!(blank.what().contains("LD_PRELOAD"));
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
    }
}
