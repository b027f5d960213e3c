//! `module-header`: a module says what it is for before it says anything else.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let says = |line: &str| line.strip_prefix("//!").is_some_and(|text| !text.trim().is_empty());
    match file.kind {
        Kind::Rust if !file.text.lines().next().is_some_and(says) => {
            vec![file.finding(1, "open the file with `//!` and what the module is for")]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn silent_modules_are_found() {
        assert_file(check, "a.rs", "//! Frames.\n", &[]);
        assert_file(check, "a.rs", "use a::B;\n//! Frames.\n", &[(1, "open the file")]);
        assert_file(check, "a.rs", "//!\n//! Frames.\n", &[(1, "open the file")]);
        assert_file(check, "a.rs", "", &[(1, "open the file")]);
        assert_file(check, "a.c", "int a;\n", &[]);
    }
}
