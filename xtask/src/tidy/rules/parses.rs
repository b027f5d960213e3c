//! `parses`: what does not parse, the other rules cannot judge.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    match (file.kind, &file.rust) {
        (Kind::Rust, Some(Err(error))) => {
            vec![file.finding(error.span().start().line, format!("does not parse: {error}"))]
        }
        (Kind::Toml, _) => match file.text.parse::<toml::Table>() {
            Err(error) => vec![file.finding(1, format!("does not parse: {}", error.message()))],
            Ok(_) => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn broken_files_are_found() {
        assert_file(check, "a.rs", "fn a() {}\n", &[]);
        assert_file(check, "a.rs", "fn a() {}\nfn fn\n", &[(2, "does not parse")]);
        assert_file(check, "a.toml", "[a]\nb = 1\n", &[]);
        assert_file(check, "a.toml", "[a\n", &[(1, "does not parse")]);
        assert_file(check, "a.py", "def def\n", &[]);
    }
}
