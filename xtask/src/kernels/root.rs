//! The file system of a guest: programs of this machine with their libraries, Highwater, the C
//! programs of its tests, and modules of the kernels. It is an archive that the kernel unpacks into
//! its memory.

use super::packages::find;
use crate::tool::{Trouble, run};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const INIT: &str = include_str!("guest/init");
const CHECKS: &str = include_str!("guest/checks.py");
const PYTHON: &str = "/usr/bin/python3";
/// Programs of this machine.
const PROGRAMS: [&str; 7] = [
    "/bin/busybox",
    "/usr/bin/cat",
    "/usr/bin/gzip",
    "/usr/bin/head",
    "/usr/bin/sh",
    "/usr/bin/sort",
    "/usr/bin/xz",
];
/// Programs of the tests, which check their contents themselves.
const C_PROGRAMS: [&str; 12] = [
    "forking",
    "forks",
    "gate",
    "heap",
    "host",
    "in_thread",
    "inherits",
    "mixed",
    "regions",
    "shared",
    "structs",
    "threads",
];
/// Parts of Python's library that no check uses.
const UNUSED: [&str; 9] = [
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
];
/// Modules for swap in memory, before those that need them.
const MODULES: [&str; 9] = [
    "loop",
    "zsmalloc",
    "lzo_compress",
    "lzo",
    "lzo-rle",
    "lz4_compress",
    "lz4hc_compress",
    "lz4",
    "zram",
];

/// The tree that becomes a guest's file system.
pub(super) struct Root {
    dir: PathBuf,
}

impl Root {
    /// Makes the tree anew. `products`: the directory of `highwater` and its library.
    ///
    /// # Errors
    /// A program is missing, or a file cannot be written.
    pub(super) fn new(dir: PathBuf, repository: &Path, products: &Path) -> Result<Root, Trouble> {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        let root = Root { dir };
        for name in ["dev", "highwater", "modules", "proc", "programs", "sys", "tmp", "usr/bin"] {
            fs::create_dir_all(root.at(name))?;
        }
        for (link, to) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("bin", "usr/bin")] {
            fs::create_dir_all(root.at(to))?;
            symlink(to, root.at(link))?;
        }
        PROGRAMS.iter().try_for_each(|program| root.add_program(Path::new(program)))?;
        root.add_python()?;
        for name in ["highwater", "libhighwater_preload.so"] {
            root.add(&products.join(name), &Path::new("highwater").join(name))?;
        }
        let sources = repository.join("front/cli/tests/programs");
        C_PROGRAMS.iter().try_for_each(|name| root.compile(&sources, name))?;
        fs::write(root.at("checks.py"), CHECKS)?;
        fs::write(root.at("init"), INIT)?;
        fs::set_permissions(root.at("init"), fs::Permissions::from_mode(0o755))?;
        Ok(root)
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.dir.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies a file, unless it is there.
    fn place(&self, from: &Path, to: &Path) -> Result<(), Trouble> {
        let to = self.at(to);
        if !to.exists() {
            fs::create_dir_all(to.parent().unwrap_or(&self.dir))?;
            fs::copy(from, &to).map_err(|error| Trouble(format!("{}: {error}", from.display())))?;
        }
        Ok(())
    }

    /// Copies a program or library, and the libraries that it needs.
    fn add(&self, from: &Path, to: &Path) -> Result<(), Trouble> {
        self.place(from, to)?;
        // A program without libraries is an error of ldd.
        let libraries = run(Command::new("ldd").arg(from)).unwrap_or_default();
        let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        paths.map(Path::new).try_for_each(|path| self.place(path, path))
    }

    fn add_program(&self, path: &Path) -> Result<(), Trouble> {
        self.add(path, path)
    }

    /// Python with its library, where it has them.
    fn add_python(&self) -> Result<(), Trouble> {
        self.add_program(Path::new(PYTHON))?;
        let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
        let library = run(Command::new(PYTHON).args(["-c", ask]))?;
        self.add_tree(Path::new(library.trim()))
    }

    fn add_tree(&self, dir: &Path) -> Result<(), Trouble> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match path.is_dir() {
                true if UNUSED.contains(&name.as_str()) || name.starts_with("config-") => {}
                true => self.add_tree(&path)?,
                false if name.ends_with(".py") => self.place(&path, &path)?,
                false if name.ends_with(".so") => self.add_program(&path)?,
                false => {}
            }
        }
        Ok(())
    }

    fn compile(&self, sources: &Path, name: &str) -> Result<(), Trouble> {
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-std=gnu11", "-pthread", "-I"]).arg(sources);
        compiler.arg(sources.join(format!("{name}.c"))).arg("-o");
        run(compiler.arg(self.at("programs").join(name))).map(drop)
    }

    /// Adds the modules of a kernel, uncompressed, for the guest to load in the order of their
    /// names.
    ///
    /// # Errors
    /// A module cannot be uncompressed.
    pub(super) fn add_modules(&self, contents: &Path) -> Result<(), Trouble> {
        for (index, name) in MODULES.iter().enumerate() {
            let is_it = |file: &str| file.split('.').next() == Some(name) && file.contains(".ko");
            for file in find(contents, &is_it) {
                let Some(release) = release_of(&file) else { continue };
                let dir = self.at("modules").join(release);
                fs::create_dir_all(&dir)?;
                uncompress(&file, &dir.join(format!("{index}-{name}.ko")))?;
            }
        }
        Ok(())
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn pack(&self, to: &Path) -> Result<(), Trouble> {
        let mut paths = BTreeSet::new();
        list(&self.dir, &mut paths)?;
        let names = paths.iter().filter_map(|path| path.strip_prefix(&self.dir).ok());
        let names: Vec<String> = names.map(|name| format!("{}\n", name.display())).collect();
        let mut pack = Command::new("cpio");
        pack.args(["--create", "--format=newc", "--quiet"]).current_dir(&self.dir);
        let mut pack = pack.stdin(Stdio::piped()).stdout(File::create(to)?).spawn()?;
        if let Some(mut input) = pack.stdin.take() {
            input.write_all(names.concat().as_bytes())?;
        }
        match pack.wait()?.success() {
            true => Ok(()),
            false => Err(Trouble("cpio failed".to_owned())),
        }
    }
}

/// The kernel's release in the path of a module: the directory below `modules`.
fn release_of(module: &Path) -> Option<&str> {
    let mut names = module.iter().skip_while(|name| *name != "modules");
    names.nth(1)?.to_str()
}

fn uncompress(from: &Path, to: &Path) -> Result<(), Trouble> {
    let tool = match from.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => "cat",
    };
    let mut command = Command::new(tool);
    if tool != "cat" {
        command.args(["--decompress", "--stdout"]);
    }
    let done = command.arg(from).stdout(File::create(to)?).status()?;
    match done.success() {
        true => Ok(()),
        false => Err(Trouble(format!("{tool} cannot read {}", from.display()))),
    }
}

/// All files, directories and links below a directory, each directory before its contents.
fn list(dir: &Path, paths: &mut BTreeSet<PathBuf>) -> Result<(), Trouble> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, paths)?;
        }
        paths.insert(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_of_the_release_in_its_path() {
        let path = Path::new("a/usr/lib/modules/6.12+deb13/kernel/mm/zsmalloc.ko.xz");
        assert_eq!(release_of(path), Some("6.12+deb13"));
        assert_eq!(release_of(Path::new("zram.ko")), None);
    }
}
