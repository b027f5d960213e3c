//! Reads the files that users name: settings, passwords, certificates, keys. They may be pipes,
//! such as <(command) of a shell.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The contents of a file; `None`: it is longer than `bytes_max`, or has no end, as /dev/zero.
///
/// # Errors
/// It cannot be read.
pub fn read_short_file(path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_a_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let length =
            |path: &Path| read_short_file(path, 4).map(|bytes| bytes.map(|bytes| bytes.len()));
        for (bytes, expected) in [(0, Some(0)), (4, Some(4)), (5, None)] {
            std::fs::write(file.path(), vec![1; bytes]).unwrap();
            assert_eq!(length(file.path()).unwrap(), expected, "{bytes} bytes");
        }
        assert_eq!(length(Path::new("/dev/zero")).unwrap(), None);
        assert!(length(Path::new("/nonexistent")).is_err());
    }
}
