//! Real files with random contents, for tests of spaces over them.

use highwater_units::{PAGE_SIZE, Prng};
use std::fs;
use std::path::PathBuf;

/// A file of `bytes` random bytes on a disk, and these bytes.
pub(crate) fn file(dir: &tempfile::TempDir, bytes: usize) -> (PathBuf, Vec<u8>) {
    let mut random = Prng::new(bytes as u64);
    let contents: Vec<u8> = (0..bytes).map(|_| random.next_u64() as u8).collect();
    let path = dir.path().join("file");
    fs::write(&path, &contents).expect("a file");
    (path, contents)
}

/// A directory for these files.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// The page of a space: zeros behind the end of the file.
pub(crate) fn page_of(contents: &[u8], page: usize) -> Vec<u8> {
    let first = page * PAGE_SIZE;
    let mut page = contents[first..contents.len().min(first + PAGE_SIZE)].to_vec();
    page.resize(PAGE_SIZE, 0);
    page
}
