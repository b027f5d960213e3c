//! The rules, one per file, each with the table test that shows what it catches.

pub(super) mod clean_whitespace;
pub(super) mod core_dependencies;
pub(super) mod equal_platforms;
pub(super) mod import_cycles;
pub(super) mod layers;
pub(super) mod line_width;
pub(super) mod living_references;
pub(super) mod module_header;
pub(super) mod no_dead_files;
pub(super) mod no_leftovers;
pub(super) mod no_machine_paths;
pub(super) mod parses;
pub(super) mod plain_words;
pub(super) mod reasoned_allow;
pub(super) mod safe_core;
pub(super) mod safety_comment;
pub(super) mod short_files;
pub(super) mod short_functions;
pub(super) mod where_is;
pub(super) mod workspace_lints;

/// How the rules are tested: sources in, findings out.
#[cfg(test)]
mod testing {
    use crate::tidy::files::Tree;
    use crate::tidy::finding::Finding;
    use crate::tidy::source::File;

    /// A rule about files finds exactly `expected` in a file: lines, and a part of what it says.
    #[track_caller]
    pub(super) fn assert_file(
        rule: fn(&File) -> Vec<Finding>,
        path: &str,
        text: &str,
        expected: &[(usize, &str)],
    ) {
        let found = rule(&File::new(path.into(), text.into()));
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(finding, (line, part))| {
                finding.path == path && finding.line == *line && finding.what.contains(part)
            });
        assert!(same, "{path}: expected {expected:?}, found {found:#?}\nin\n{text}");
    }

    /// A rule about the tree finds exactly `expected` in the files of `tree` (path, text).
    #[track_caller]
    pub(super) fn assert_tree(
        rule: fn(&Tree) -> Vec<Finding>,
        tree: &[(&str, &str)],
        expected: &[(&str, usize, &str)],
    ) {
        let files = tree.iter().map(|(path, text)| File::new((*path).into(), (*text).into()));
        let found = rule(&Tree::new(files.collect()));
        let same = found.len() == expected.len()
            && found.iter().zip(expected).all(|(finding, (path, line, part))| {
                finding.path == *path && finding.line == *line && finding.what.contains(part)
            });
        assert!(same, "expected {expected:?}, found {found:#?}\nin\n{tree:#?}");
    }
}
