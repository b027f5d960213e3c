//! `import-cycles`: files of a crate do not import each other in circles.
//!
//! A file depends on the file that defines a name it uses, wherever the name is re-exported on the
//! way. A re-export alone is no dependency, and neither are `mod` declarations and test code.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;
use crate::tidy::modules::{Crate, crates};
use std::collections::BTreeMap;

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    crates(tree).iter().flat_map(|krate| check_crate(tree, krate)).collect()
}

fn check_crate(tree: &Tree, krate: &Crate) -> Vec<Finding> {
    let uses = krate.dependencies();
    let cycles = cycles(&uses);
    let describe = |cycle: &Vec<usize>| {
        let path = |index: usize| krate.path(index);
        let names: Vec<&str> = cycle.iter().map(|index| path(*index)).collect();
        let line =
            uses[&cycle[0]].iter().find(|(to, _)| **to == cycle[1]).map_or(1, |found| *found.1);
        let file = tree.file(names[0]).expect("a crate is made of files of the tree");
        let rest = names[1..].join(" -> ");
        let what = format!(
            "imports in a circle: -> {rest} -> {}: move what they share below them",
            names[0]
        );
        file.finding(line, what)
    };
    cycles.iter().map(describe).collect()
}

/// By file: the files that it depends on, and the first line that does.
type Graph = BTreeMap<usize, BTreeMap<usize, usize>>;

/// A shortest cycle through each file that is in one; each set of files once.
fn cycles(uses: &Graph) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = Vec::new();
    for start in uses.keys() {
        let Some(cycle) = shortest(uses, *start) else { continue };
        let least = cycle.iter().position(|index| index == cycle.iter().min().expect("not empty"));
        let mut cycle = cycle.clone();
        cycle.rotate_left(least.expect("the least is in it"));
        if !found.contains(&cycle) {
            found.push(cycle);
        }
    }
    found
}

/// A shortest way from `start` back to it: breadth first.
fn shortest(uses: &Graph, start: usize) -> Option<Vec<usize>> {
    let mut from: BTreeMap<usize, usize> = BTreeMap::new();
    let mut level = vec![start];
    while !level.is_empty() {
        let mut next = Vec::new();
        for at in level {
            for to in uses.get(&at).into_iter().flat_map(BTreeMap::keys) {
                if *to == start {
                    return Some(way_back(&from, start, at));
                }
                if !from.contains_key(to) {
                    from.insert(*to, at);
                    next.push(*to);
                }
            }
        }
        level = next;
    }
    None
}

fn way_back(from: &BTreeMap<usize, usize>, start: usize, last: usize) -> Vec<usize> {
    let mut way = vec![last];
    while *way.last().expect("not empty") != start {
        way.push(from[way.last().expect("not empty")]);
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::check;

    const MANIFEST: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[track_caller]
    fn assert_found(files: &[(&str, &str)], expected: &[(&str, usize, &str)]) {
        let files: Vec<_> = files.iter().copied().chain([MANIFEST]).collect();
        assert_tree(check, &files, expected);
    }

    #[test]
    fn circles_are_found_through_re_exports() {
        let files = [
            ("a/src/lib.rs", "mod b;\nmod c;\npub use b::B;\n"),
            ("a/src/b.rs", "use crate::c::C;\npub struct B;\n"),
            ("a/src/c.rs", "\nuse crate::B;\npub struct C;\n"),
        ];
        assert_found(&files, &[("a/src/b.rs", 1, "a/src/c.rs -> a/src/b.rs")]);
    }

    #[test]
    fn parents_that_call_children_that_call_back_are_found() {
        let files = [
            ("a/src/lib.rs", "mod b;\n"),
            ("a/src/b/mod.rs", "mod c;\nfn d() { c::e() }\n"),
            ("a/src/b/c.rs", "use super::d;\n"),
        ];
        assert_found(&files, &[("a/src/b/c.rs", 1, "-> a/src/b/mod.rs -> a/src/b/c.rs")]);
    }

    #[test]
    fn facades_modules_and_tests_are_no_dependency() {
        let files = [
            ("a/src/lib.rs", "mod b;\n"),
            ("a/src/b/mod.rs", "mod c;\npub use c::e;\npub struct D;\n"),
            ("a/src/b/c.rs", "use super::D;\npub fn e(d: D) {}\n"),
            ("a/src/b/f.rs", "use crate::b;\n#[cfg(test)]\nmod tests { use crate::b::g; }\n"),
            ("a/src/b/g.rs", "use super::f::h;\n"),
        ];
        assert_found(&files, &[]);
    }
}
