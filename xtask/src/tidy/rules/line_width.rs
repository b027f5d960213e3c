//! `line-width`: a line fits beside another file on one screen.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

const COLUMNS_MAX: usize = 100;

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    if file.kind == Kind::Other {
        return Vec::new();
    }
    let wide = |line: &str| line.chars().count() > COLUMNS_MAX && !cannot_wrap(file.kind, line);
    let wide = file.lines().filter(|(_, line)| wide(line));
    let what =
        |line: &str| format!("{} columns, {COLUMNS_MAX} at most: wrap", line.chars().count());
    wide.map(|(number, line)| file.finding(number, what(line))).collect()
}

/// Tables and links end where they end.
fn cannot_wrap(kind: Kind, line: &str) -> bool {
    kind == Kind::Markdown && (line.trim_start().starts_with('|') || line.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn wide_lines_are_found() {
        let (fits, wide) = ("é".repeat(100), "x".repeat(101));
        for path in ["a.rs", "a.c", "a.py", "a.md", "a.sh", "a.toml"] {
            assert_file(check, path, &format!("{fits}\n"), &[]);
            assert_file(check, path, &format!("\n{wide}\n"), &[(2, "101 columns")]);
        }
        assert_file(check, "a.csv", &wide, &[]);
    }

    #[test]
    fn markdown_tables_and_links_cannot_wrap() {
        let (table, link) =
            (format!("| {}\n", "x".repeat(120)), format!("see https://{:0120}\n", 0));
        assert_file(check, "a.md", &table, &[]);
        assert_file(check, "a.md", &link, &[]);
        assert_file(check, "a.rs", &link, &[(1, "columns")]);
    }
}
