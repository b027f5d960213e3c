//! `equal-platforms`: what one platform has in a file, the others have in the file of that name.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;

/// The files of core/platform that every platform answers.
const NAMES: &[&str] =
    &["cpu", "lock", "atomic", "clock", "thread", "memory", "mmu", "block", "files"];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    let platforms = platforms(tree);
    let mut findings = Vec::new();
    for name in NAMES {
        let (with, without): (Vec<_>, Vec<_>) =
            platforms.iter().partition(|(platform, _)| has(tree, platform, name));
        let Some((owner, _)) = with.first() else { continue };
        let what = format!("no {name}.rs as in {owner}: add it, if only to re-export");
        let missing = without.into_iter().map(|(_, root)| root.clone());
        findings.extend(missing.map(|path| Finding { path, line: 1, what: what.clone() }));
    }
    findings
}

/// The crates under platforms/: name and root.
fn platforms(tree: &Tree) -> Vec<(String, String)> {
    let root = |path: &str| {
        let name = path.strip_prefix("platforms/")?.strip_suffix("/src/lib.rs")?;
        (!name.contains('/')).then(|| (name.to_owned(), path.to_owned()))
    };
    tree.files().iter().filter_map(|file| root(&file.path)).collect()
}

fn has(tree: &Tree, platform: &str, name: &str) -> bool {
    let stem = format!("platforms/{platform}/src/{name}");
    tree.contains(&format!("{stem}.rs")) || tree.contains(&format!("{stem}/mod.rs"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::{NAMES, check};

    const LIBS: [(&str, &str); 2] =
        [("platforms/os/src/lib.rs", ""), ("platforms/uffd/src/lib.rs", "")];

    #[track_caller]
    fn assert_found(files: &[&str], expected: &[(&str, usize, &str)]) {
        let files = files.iter().map(|path| (*path, ""));
        assert_tree(check, &LIBS.into_iter().chain(files).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn missing_files_are_found() {
        let uffd = "platforms/uffd/src/lib.rs";
        assert_found(&[], &[]);
        assert_found(&["platforms/os/src/arena.rs"], &[]);
        let both = ["platforms/os/src/mmu.rs", "platforms/uffd/src/mmu/mod.rs"];
        assert_found(&both, &[]);
        assert_found(&both[..1], &[(uffd, 1, "no mmu.rs as in os")]);
        let os = "platforms/os/src/lib.rs";
        assert_found(&both[1..], &[(os, 1, "no mmu.rs as in uffd")]);
    }

    #[test]
    fn names_are_those_of_the_contract() {
        let contract = include_str!("../../../../core/platform/src/lib.rs");
        for name in NAMES {
            assert!(contract.contains(&format!("mod {name};")), "core/platform has no {name}");
        }
    }
}
