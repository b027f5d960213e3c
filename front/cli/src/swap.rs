//! The swap devices of a run: from `--swap` or by default, each tried once before the program.

use crate::Refusal;
use highwater_devices::{Spec, open};
use highwater_session::{default_swap, free_space};
use highwater_units::Bytes;
use std::path::{Path, PathBuf, absolute};

const FORMS: &str =
    "write ram:SIZE, file:PATH:SIZE or dir:PATH:SIZE, for example --swap dir:/var/tmp:8G";

/// The devices asked for, or the default one. Paths become absolute: programs change directory.
pub(crate) fn devices(asked: &[String]) -> Result<Vec<Spec>, Refusal> {
    if asked.is_empty() {
        let remedy = "name a directory on a disk, for example --swap dir:/var/tmp:8G";
        return default_swap().map(|spec| vec![spec]).map_err(|what| Refusal::new(what, remedy));
    }
    asked.iter().map(|text| device(text)).collect()
}

fn device(text: &str) -> Result<Spec, Refusal> {
    let spec =
        Spec::parse(text).map_err(|what| Refusal::new(format!("--swap {text}: {what}"), FORMS))?;
    if text.contains(';') {
        let what = format!("--swap {text}: ';' separates devices, a path cannot contain it");
        return Err(Refusal::new(what, "use another path"));
    }
    let full = |path: PathBuf| absolute(&path).unwrap_or(path);
    Ok(match spec {
        Spec::Ram { size } => Spec::Ram { size },
        Spec::File { path, size } => Spec::File { path: full(path), size },
        Spec::Dir { path, size } => Spec::Dir { path: full(path), size },
    })
}

/// Opens a device as the program will, and closes it again.
pub(crate) fn try_open(spec: &Spec) -> Result<(), Refusal> {
    room(spec)?;
    open(spec).map(drop).map_err(|error| {
        let what = format!("cannot open swap device {spec}: {error}");
        Refusal::new(what, "name a place that exists and is writable, for example dir:/var/tmp:8G")
    })
}

/// Whether there is room for the device where it is to be.
fn room(spec: &Spec) -> Result<(), Refusal> {
    match spec {
        Spec::Ram { .. } => Ok(()),
        Spec::Dir { path, size } => enough(path, *size, space_in_dir(path)?),
        Spec::File { path, size } => match std::fs::metadata(path) {
            // Its blocks are already there, or the device itself says how large it is.
            Ok(_) => Ok(()),
            Err(_) => {
                let dir = path.parent().unwrap_or(Path::new("/"));
                enough(path, *size, space_in_dir(dir)?)
            }
        },
    }
}

fn space_in_dir(dir: &Path) -> Result<Bytes, Refusal> {
    let unusable = |why: String| {
        let what = format!("swap directory {}: {why}", dir.display());
        Refusal::new(what, "create it, or name another directory with --swap dir:PATH:SIZE")
    };
    // Opened, and not only looked up: a directory we may not read is refused here by name.
    std::fs::read_dir(dir).map_err(|error| unusable(error.to_string()))?;
    free_space(dir).map_err(|error| unusable(error.to_string()))
}

fn enough(path: &Path, size: Bytes, free: Bytes) -> Result<(), Refusal> {
    if size <= free {
        return Ok(());
    }
    let what = format!("swap of {size} at {} has only {free} of free space", path.display());
    Err(Refusal::new(what, "give a smaller SIZE, free some space, or name another directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_is_told_the_known_ones() {
        let refusal = devices(&["tape:1G".to_owned()]).unwrap_err();
        assert!(refusal.what().contains("tape") && refusal.remedy().contains("dir:PATH:SIZE"));
    }

    #[test]
    fn paths_become_absolute() {
        let found = devices(&["dir:somewhere:1M".to_owned()]).unwrap();
        let expected = std::env::current_dir().unwrap().join("somewhere");
        assert!(matches!(&found[0], Spec::Dir { path, .. } if *path == expected));
    }

    #[test]
    fn a_path_with_the_separator_is_refused() {
        assert!(device("dir:/a;b:1M").unwrap_err().what().contains("';'"));
    }

    #[test]
    fn a_device_needs_its_space() {
        let path = Path::new("/x");
        assert_eq!(enough(path, Bytes(10), Bytes(10)), Ok(()));
        assert!(enough(path, Bytes(11), Bytes(10)).unwrap_err().remedy().contains("smaller"));
    }
}
