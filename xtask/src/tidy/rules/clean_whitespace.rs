//! `clean-whitespace`: differences between versions are differences in meaning.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    if file.kind == Kind::Other {
        return Vec::new();
    }
    let mut findings: Vec<Finding> =
        file.lines().flat_map(|(number, line)| check_line(file, number, line)).collect();
    let last = file.lines().count().max(1);
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(file.finding(last, "the last line has no newline: end it with one"));
    }
    if file.text.ends_with("\n\n") || file.text == "\n" {
        findings.push(file.finding(last, "blank line at the end: remove it"));
    }
    findings
}

fn check_line(file: &File, number: usize, line: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if line.ends_with([' ', '\t', '\r']) {
        findings.push(file.finding(number, "blank at the end of the line: remove it"));
    }
    if file.kind == Kind::Rust && line.contains('\t') {
        findings.push(file.finding(number, "tab: indent with four spaces, write \\t in a string"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn stray_whitespace_is_found() {
        assert_file(check, "a.rs", "fn a() {}\n\nfn b() {}\n", &[]);
        assert_file(check, "a.py", "", &[]);
        assert_file(check, "a.md", "a\nb \n", &[(2, "blank at the end")]);
        assert_file(check, "a.c", "a\r\nb\n", &[(1, "blank at the end")]);
        assert_file(check, "a.rs", "fn a() {\n\tb()\n}\n", &[(2, "tab")]);
        assert_file(check, "Makefile", "all:\n\ttrue\n", &[]);
        assert_file(check, "a.sh", "a\nb", &[(2, "no newline")]);
        assert_file(check, "a.toml", "a = 1\n\n", &[(2, "blank line at the end")]);
        assert_file(check, "a.toml", "\n", &[(1, "blank line at the end")]);
        assert_file(check, "a.csv", "a \t\n\n", &[]);
    }
}
