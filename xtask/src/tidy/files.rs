//! The files that belong to the repository: tracked, and new ones that git does not ignore.

use super::source::File;
use std::collections::HashSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Written by tools or by others: not ours to tidy.
const FOREIGN: [&str; 3] = ["Cargo.lock", "vendor/", "third_party/"];

/// Why the tree could not be looked at.
#[derive(Debug)]
pub enum TidyError {
    /// git does not list the files; what it says.
    Git(String),
    /// A file cannot be read.
    Read(PathBuf, std::io::Error),
}

impl fmt::Display for TidyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TidyError::Git(reason) => write!(f, "git cannot list the files: {}", reason.trim()),
            TidyError::Read(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for TidyError {}

/// All files, by path.
pub(super) struct Tree {
    files: Vec<File>,
    paths: HashSet<String>,
}

impl Tree {
    pub(super) fn new(mut files: Vec<File>) -> Tree {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let paths = files.iter().map(|file| file.path.clone()).collect();
        Tree { files, paths }
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        let found = self.files.binary_search_by(|file| file.path.as_str().cmp(path));
        found.ok().map(|index| &self.files[index])
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Whether files lie in the directory `path`.
    pub(super) fn contains_dir(&self, path: &str) -> bool {
        let path = format!("{}/", path.trim_end_matches('/'));
        self.paths.iter().any(|file| file.starts_with(&path))
    }
}

/// Reads all text files of the repository at `root`.
pub(super) fn read(root: &Path) -> Result<Tree, TidyError> {
    let mut files = Vec::new();
    for path in list(root)? {
        if let Some(text) = read_text(&root.join(&path))? {
            files.push(File::new(path, text));
        }
    }
    Ok(Tree::new(files))
}

fn list(root: &Path) -> Result<Vec<String>, TidyError> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let output = output.map_err(|error| TidyError::Git(error.to_string()))?;
    if !output.status.success() {
        return Err(TidyError::Git(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let ours = |name: &&str| !name.is_empty() && !is_foreign(name);
    Ok(names.split('\0').filter(ours).map(str::to_owned).collect())
}

fn is_foreign(path: &str) -> bool {
    FOREIGN.iter().any(|foreign| path.starts_with(foreign))
}

/// `None` for what is no text file: binary, a link, or removed but not yet from the index.
fn read_text(path: &Path) -> Result<Option<String>, TidyError> {
    let is_file = path.symlink_metadata().is_ok_and(|data| data.is_file());
    if !is_file {
        return Ok(None);
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::NotFound) => {
            Ok(None)
        }
        Err(error) => Err(TidyError::Read(path.to_owned(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_finds_files_and_directories() {
        let files = ["b/c.rs", "a.rs"].map(|path| File::new(path.into(), String::new()));
        let tree = Tree::new(files.into());
        assert!(tree.file("a.rs").is_some() && tree.contains("b/c.rs"));
        assert!(tree.file("b").is_none() && !tree.contains("b"));
        assert!(tree.contains_dir("b") && tree.contains_dir("b/") && !tree.contains_dir("a.rs"));
    }

    #[test]
    fn foreign_files_are_left_alone() {
        for (path, foreign) in
            [("Cargo.lock", true), ("vendor/x/lib.rs", true), ("core/vendor.rs", false)]
        {
            assert_eq!(is_foreign(path), foreign, "{path}");
        }
    }
}
