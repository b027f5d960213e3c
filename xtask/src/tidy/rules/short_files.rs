//! `short-files`: a file is one concept, read in one sitting.

use crate::tidy::finding::Finding;
use crate::tidy::source::File;

const LINES_MAX: usize = 600;
/// Test-only files: tables and models need no one to hold them in mind.
const TEST_LINES_MAX: usize = 800;

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let lines = file.lines().count();
    let most = if file.is_test() { TEST_LINES_MAX } else { LINES_MAX };
    if !file.kind.is_code() || lines <= most {
        return Vec::new();
    }
    vec![file.finding(most + 1, format!("{lines} lines, {most} at most: split by concept"))]
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn long_files_are_found() {
        let lines = |count| "\n".repeat(count);
        for path in ["a.rs", "a.c", "a.py"] {
            assert_file(check, path, &lines(600), &[]);
            assert_file(check, path, &lines(601), &[(601, "601 lines, 600 at most")]);
        }
        for path in ["core/mm/src/a_fuzz.rs", "front/cli/tests/a.c"] {
            assert_file(check, path, &lines(800), &[]);
            assert_file(check, path, &lines(801), &[(801, "800 at most")]);
        }
        assert_file(check, "a.md", &lines(2000), &[]);
    }
}
