//! `living-references`: a file that a page of documentation points at exists.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

/// History may name what is gone.
const HISTORY: &str = "CHANGELOG.md";

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files().iter().filter(|f| f.kind == Kind::Markdown && f.name() != HISTORY);
    pages.flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, page: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in page.lines() {
        let gone = quoted(line).filter(|path| is_reference(tree, path) && !exists(tree, path));
        let what = |path| format!("{path} does not exist: point at what took its place");
        findings.extend(gone.map(|path| page.finding(number, what(path))));
    }
    findings
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A path from the root: its first directory exists, and nothing in it is left open.
fn is_reference(tree: &Tree, path: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let first = path.split_once('/').map(|(first, _)| first);
    path.chars().all(is_plain) && first.is_some_and(|first| tree.contains_dir(first))
}

fn exists(tree: &Tree, path: &str) -> bool {
    tree.contains(path) || tree.contains_dir(path)
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::check;

    #[track_caller]
    fn assert_found(page: &str, text: &str, expected: &[(usize, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(line, part)| (page, *line, *part)).collect();
        assert_tree(check, &[(page, text), ("core/mm/src/lib.rs", "")], &expected);
    }

    #[test]
    fn references_to_nothing_are_found() {
        assert_found("A.md", "see `core/mm/src/lib.rs` and `core/mm`\n", &[]);
        assert_found("A.md", "\n`x` `core/mm/src/a.rs`\n", &[(2, "core/mm/src/a.rs does not")]);
        assert_found("A.md", "`core/x/`\n", &[(1, "core/x/ does not exist")]);
        assert_found("A.md", "`/proc/self`, `a/b`, `core/<x>/y`, core/x\n", &[]);
        assert_found("CHANGELOG.md", "`core/mm/src/a.rs`\n", &[]);
    }
}
