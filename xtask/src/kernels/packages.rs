//! The kernels to boot: packages of distributions, fetched with apt and checked by their hash.

use crate::tool::{Trouble, run};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TABLE: &str = include_str!("packages.toml");
/// Where apt is not set up for a distribution, a variable of this name has its mirror's address.
const MIRRORS: [(&str, &str); 2] =
    [("Debian", "HIGHWATER_DEBIAN_MIRROR"), ("Ubuntu", "HIGHWATER_UBUNTU_MIRROR")];

/// One kernel.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Kernel {
    /// Its version's first two numbers.
    pub(super) name: String,
    /// The distribution's release that ships it.
    pub(super) system: String,
    archive: String,
    package: Vec<Package>,
}

#[derive(Clone, Debug, Deserialize)]
struct Package {
    /// Its directory in the archive.
    dir: String,
    file: String,
    sha256: String,
}

#[derive(Deserialize)]
struct Table {
    kernel: Vec<Kernel>,
}

/// All kernels of the table, the oldest first.
pub(super) fn all() -> Vec<Kernel> {
    let table: Table = toml::from_str(TABLE).expect("the table of packages is valid");
    table.kernel
}

impl Kernel {
    /// Fetches and unpacks the packages below `dir`, unless that was done. Returns the directory
    /// with the contents.
    ///
    /// # Errors
    /// No mirror is known, or it does not have a package.
    pub(super) fn unpack(&self, dir: &Path) -> Result<PathBuf, Trouble> {
        let contents = dir.join(&self.name);
        if contents.exists() {
            return Ok(contents);
        }
        let (mirror, made) = (self.mirror()?, dir.join(format!("{}.new", self.name)));
        fs::create_dir_all(&made)?;
        for package in &self.package {
            let file = dir.join(&package.file);
            package.fetch(&mirror, &file)?;
            run(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&made))?;
        }
        fs::rename(&made, &contents)?;
        Ok(contents)
    }

    /// The address of a mirror of the archive.
    fn mirror(&self) -> Result<String, Trouble> {
        let variable = MIRRORS.iter().find(|(archive, _)| *archive == self.archive);
        let variable = variable.map(|(_, variable)| *variable).unwrap_or_default();
        if let Ok(mirror) = std::env::var(variable) {
            return Ok(mirror);
        }
        let list = ["indextargets", "--format", "$(ORIGIN)=$(REPO_URI)"];
        let sites = run(Command::new("apt-get").args(list))?;
        let main = |site: &&str| !site.trim_end_matches('/').ends_with("-security");
        let mut sites =
            sites.lines().filter_map(|line| line.strip_prefix(&self.archive)?.strip_prefix('='));
        sites.find(main).map(str::to_owned).ok_or_else(|| {
            Trouble(format!("apt knows no mirror of {}: set {variable} to one", self.archive))
        })
    }
}

impl Package {
    /// Downloads the package, unless it is there.
    fn fetch(&self, mirror: &str, to: &Path) -> Result<(), Trouble> {
        let from = format!("{}/{}/{}", mirror.trim_end_matches('/'), self.dir, self.file);
        let hash = format!("SHA256:{}", self.sha256);
        // It leaves a file that has this hash as it is.
        let mut fetch = Command::new("/usr/lib/apt/apt-helper");
        run(fetch.arg("download-file").arg(from).arg(to).arg(hash)).map(drop)
    }
}

/// The kernel's image in unpacked packages.
pub(super) fn image(contents: &Path) -> Result<PathBuf, Trouble> {
    let boot = ["boot", "usr/lib/modules", "lib/modules"].map(|dir| contents.join(dir));
    let images = boot.iter().flat_map(|dir| find(dir, &|name| name.starts_with("vmlinuz")));
    images.into_iter().next().ok_or_else(|| Trouble(format!("no kernel in {}", contents.display())))
}

/// Files below a directory whose name is wanted.
pub(super) fn find(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let below = |path: PathBuf| match path.is_dir() && !path.is_symlink() {
        true => find(&path, wanted),
        false => vec![path],
    };
    let files = entries.flatten().flat_map(|entry| below(entry.path()));
    files
        .filter(|path| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kernel_has_a_name_of_its_own_and_packages_with_hashes() {
        let kernels = all();
        let names: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names.len(), kernels.len());
        for kernel in &kernels {
            assert!(MIRRORS.iter().any(|(archive, _)| *archive == kernel.archive), "{kernel:?}");
            for package in &kernel.package {
                assert!(package.file.contains(&kernel.name), "{package:?}");
                assert_eq!(package.sha256.len(), 64, "{package:?}");
            }
        }
    }
}
