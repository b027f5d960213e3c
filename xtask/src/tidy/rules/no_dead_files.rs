//! `no-dead-files`: every source is built, run or named by something.
//!
//! Rust files are reached by `mod` from a root that cargo builds. C, Python and shell files are
//! named by another file.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};
use std::collections::HashSet;
use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};
use toml::{Table, Value};

/// Found by the tools that run them, by name.
const ENTRIES: &[&str] = &[".ci/run"];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    let reached = reached(tree);
    let judge = |file: &File| match file.kind {
        Kind::Rust if !reached.contains(&file.path) => {
            Some(file.finding(1, "no crate reaches this file: add a `mod` for it, or remove it"))
        }
        Kind::C | Kind::Python | Kind::Shell if !is_entry(file) && !is_named(tree, file) => {
            Some(file.finding(1, "no other file names this one: use it, or remove it"))
        }
        _ => None,
    };
    tree.files().iter().filter_map(judge).collect()
}

/// What pytest, Python and the CI find by themselves.
fn is_entry(file: &File) -> bool {
    let name = file.name();
    ENTRIES.contains(&file.path.as_str())
        || matches!(name, "__init__.py" | "__main__.py" | "conftest.py")
        || (name.starts_with("test_") && name.ends_with(".py"))
}

/// By its whole name, or by its stem in quotes or after `import`.
fn is_named(tree: &Tree, file: &File) -> bool {
    let name = file.name();
    let stem = name.split('.').next().unwrap_or(name);
    let (quoted, imported) = (format!("\"{stem}\""), format!("import {stem}"));
    let from = format!("from {stem}");
    tree.files().iter().filter(|other| other.path != file.path).any(|other| {
        let python = || {
            other.kind == Kind::Python
                && [&imported, &from].iter().any(|s| has_word(&other.text, s))
        };
        has_word(&other.text, name) || other.text.contains(&quoted) || python()
    })
}

/// Whether `text` holds `word` and not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        let before = text[..at].chars().next_back();
        !before.is_some_and(is_name) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The Rust files that some crate reaches.
fn reached(tree: &Tree) -> HashSet<String> {
    let manifests = tree.files().iter().filter(|file| file.name() == "Cargo.toml");
    let mut waiting: Vec<(String, bool)> =
        manifests.flat_map(|manifest| roots(tree, manifest)).map(|root| (root, true)).collect();
    let mut reached = HashSet::new();
    while let Some((path, is_root)) = waiting.pop() {
        let Some(rust) = tree.file(&path).and_then(File::rust) else {
            reached.insert(path);
            continue;
        };
        if reached.insert(path.clone()) {
            let children = children(&rust.syntax.items, &directory(&path, is_root), &path);
            waiting.extend(children.into_iter().filter(|p| tree.contains(p)).map(|p| (p, false)));
        }
    }
    reached
}

/// The roots that cargo finds for a crate: by place, and by `path` in the manifest.
fn roots(tree: &Tree, manifest: &File) -> Vec<String> {
    let base = manifest.path.trim_end_matches("Cargo.toml");
    let Ok(table) = manifest.text.parse::<Table>() else { return Vec::new() };
    if !table.contains_key("package") {
        return Vec::new();
    }
    let inside = |file: &&File| {
        file.path.strip_prefix(base).is_some_and(|path| is_conventional_root(&table, path))
    };
    let by_place = tree.files().iter().filter(inside).map(|file| file.path.clone());
    let by_path = named_paths(&table).into_iter().map(|path| join(base, path));
    by_place.chain(by_path).collect()
}

fn is_conventional_root(manifest: &Table, path: &str) -> bool {
    let automatic = manifest.get("package").and_then(|package| package.get("autotests"));
    if automatic.and_then(Value::as_bool) == Some(false) && path.starts_with("tests/") {
        return false;
    }
    let parts: Vec<&str> = path.split('/').collect();
    let is_rust = |name: &str| name.ends_with(".rs");
    match parts[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", name] | ["examples" | "tests" | "benches", name] => is_rust(name),
        ["src", "bin", _, "main.rs"] | ["examples" | "tests" | "benches", _, "main.rs"] => true,
        _ => false,
    }
}

fn named_paths(manifest: &Table) -> Vec<&str> {
    let targets = |kind: &str| match manifest.get(kind) {
        Some(Value::Array(targets)) => targets.iter().collect(),
        Some(target) => vec![target],
        None => Vec::new(),
    };
    let all = ["lib", "bin", "test", "bench", "example"].into_iter().flat_map(targets);
    let build = manifest.get("package").and_then(|package| package.get("build"));
    let paths = all.filter_map(|target| target.get("path")).chain(build);
    paths.filter_map(Value::as_str).collect()
}

/// Where the modules of a file lie.
fn directory(path: &str, is_root: bool) -> String {
    match path.strip_suffix("/mod.rs") {
        Some(directory) => directory.to_owned(),
        None if is_root => parent(path).to_owned(),
        None => path.trim_end_matches(".rs").to_owned(),
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The files that the modules declared by `items` may lie in.
fn children(items: &[Item], directory: &str, path: &str) -> Vec<String> {
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) => Some(module),
        _ => None,
    });
    let mut found = Vec::new();
    for module in modules {
        let inside = join(directory, &module.ident.to_string());
        match (&module.content, path_attribute(module)) {
            // Bounded by how deep modules nest in one file.
            (Some((_, items)), _) => found.extend(children(items, &inside, path)),
            (None, Some(named)) => found.push(join(parent(path), &named)),
            (None, None) => found.extend([format!("{inside}.rs"), format!("{inside}/mod.rs")]),
        }
    }
    found
}

/// The path `name` seen from `directory`, without `.` and `..`.
fn join(directory: &str, name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in directory.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The value of `#[path = "..."]`.
fn path_attribute(module: &ItemMod) -> Option<String> {
    module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::check;

    const PACKAGE: (&str, &str) = ("a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[track_caller]
    fn assert_dead(files: &[(&str, &str)], dead: &[&str]) {
        let tree: Vec<_> = [PACKAGE].into_iter().chain(files.iter().copied()).collect();
        let dead: Vec<_> = dead.iter().map(|path| (*path, 1, "remove it")).collect();
        assert_tree(check, &tree, &dead);
    }

    #[test]
    fn unreached_rust_files_are_found() {
        assert_dead(&[("a/src/lib.rs", "mod b;"), ("a/src/b.rs", "")], &[]);
        assert_dead(&[("a/src/lib.rs", "// mod b;"), ("a/src/b.rs", "")], &["a/src/b.rs"]);
        assert_dead(&[("a/src/lib.rs", ""), ("a/src/b/mod.rs", "")], &["a/src/b/mod.rs"]);
        assert_dead(&[("c/src/lib.rs", "")], &["c/src/lib.rs"]);
    }

    #[test]
    fn modules_are_followed_to_their_places() {
        let lib = ("a/src/lib.rs", "mod b;");
        assert_dead(&[lib, ("a/src/b/mod.rs", "mod c;"), ("a/src/b/c.rs", "")], &[]);
        assert_dead(&[lib, ("a/src/b.rs", "mod c;"), ("a/src/b/c.rs", "")], &[]);
        assert_dead(&[lib, ("a/src/b.rs", "mod c;"), ("a/src/c.rs", "")], &["a/src/c.rs"]);
        assert_dead(&[("a/src/lib.rs", "mod b { mod c; }"), ("a/src/b/c.rs", "")], &[]);
        assert_dead(&[("a/src/lib.rs", "#[path = \"x/y.rs\"]\nmod b;"), ("a/src/x/y.rs", "")], &[]);
        let named = [("a/tests/t.rs", "#[path = \"../x/y.rs\"]\nmod b;"), ("a/x/y.rs", "")];
        assert_dead(&named, &[]);
    }

    #[test]
    fn cargo_targets_are_roots() {
        for root in ["src/main.rs", "build.rs", "tests/t.rs", "examples/e/main.rs", "src/bin/b.rs"]
        {
            assert_dead(&[(&format!("a/{root}"), "")], &[]);
        }
        let manifest = "[package]\nname = \"c\"\n[[bench]]\nname = \"b\"\npath = \"x/b.rs\"\n";
        assert_dead(&[("c/Cargo.toml", manifest), ("c/x/b.rs", "")], &[]);
        assert_dead(&[("a/tests/common/mod.rs", "")], &["a/tests/common/mod.rs"]);
        let one = "[package]\nname = \"d\"\nautotests = false\n[[test]]\npath = \"tests/all.rs\"\n";
        let tests = [("d/Cargo.toml", one), ("d/tests/all.rs", ""), ("d/tests/b.rs", "")];
        assert_dead(&tests, &["d/tests/b.rs"]);
    }

    #[test]
    fn unnamed_scripts_and_programs_are_found() {
        assert_dead(&[("t/mix.c", "mix.c")], &["t/mix.c"]);
        assert_dead(&[("t/mix.c", ""), ("Makefile", "x: t/mix.c\n")], &[]);
        assert_dead(&[("t/mix.c", ""), ("Makefile", "x: t/remix.c\n")], &["t/mix.c"]);
        assert_dead(&[("t/mix.c", ""), ("a/tests/run.rs", "const A: &str = \"mix\";")], &[]);
        assert_dead(&[("t/mix.h", ""), ("Makefile", "t/mix.hpp\n")], &["t/mix.h"]);
        assert_dead(&[("t/plot.py", ""), ("t/test_plot.py", "from plot import line\n")], &[]);
        assert_dead(&[("demo.sh", ""), (".ci/run", "#!/bin/sh\n")], &["demo.sh"]);
    }
}
