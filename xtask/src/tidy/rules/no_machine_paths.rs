//! `no-machine-paths`: the repository knows no directory of the machines it was written on.

use crate::tidy::finding::Finding;
use crate::tidy::source::File;

/// Top directories where people and builds live.
const HOMES: [&str; 3] = ["work", "root", "home"];

/// Where such a path is meant: (file, path).
const ALLOWED: &[(&str, &str)] = &[];

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    check_with(file, ALLOWED)
}

fn check_with(file: &File, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let is_meant = |path: &str| allowed.contains(&(file.path.as_str(), path));
    let mut findings = Vec::new();
    for (number, line) in file.lines() {
        let paths = HOMES.iter().flat_map(|home| absolute_paths(line, home));
        let stray = paths.filter(|path| !is_meant(path));
        let what =
            |path| format!("{path} is a place on one machine: make it relative or an option");
        findings.extend(stray.map(|path| file.finding(number, what(path))));
    }
    findings
}

/// The paths in `line` that begin with `/home/`.
fn absolute_paths<'a>(line: &'a str, home: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("/{home}/");
    let found: Vec<usize> = line.match_indices(&start).map(|(at, _)| at).collect();
    found.into_iter().filter_map(move |at| {
        let is_part =
            |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '}' | ')');
        let begins = !line[..at].chars().next_back().is_some_and(is_part);
        let end = line[at..].find(|c: char| c.is_whitespace() || "\"'`),;:".contains(c));
        let path = &line[at..end.map_or(line.len(), |end| at + end)];
        (begins && path.len() > home.len() + 2).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::{HOMES, check, check_with};

    #[test]
    fn absolute_paths_are_found() {
        for home in HOMES {
            let text = format!("a\nb = \"/{home}/me/x\"\n");
            let path = format!("/{home}/me/x is a place");
            for name in ["a.rs", "a.md", "a.csv"] {
                assert_file(check, name, &text, &[(2, &path)]);
            }
        }
    }

    #[test]
    fn parts_of_other_paths_are_not() {
        for home in HOMES {
            assert_file(check, "a.rs", &format!("https://example.org/{home}/x\n"), &[]);
            assert_file(check, "a.rs", &format!("./{home}/x, {{}}/{home}/x, /{home}/\n"), &[]);
        }
    }

    #[test]
    fn meant_paths_are_allowed_in_their_file() {
        let path = format!("/{}/you", HOMES[2]);
        let allowed = [("README.md", path.as_str())];
        let text = format!("dir:{path}:8G\n");
        let find = |name: &str| {
            let file = crate::tidy::source::File::new(name.into(), text.clone());
            check_with(&file, &allowed).len()
        };
        assert_eq!((find("README.md"), find("a.rs")), (0, 1));
    }
}
