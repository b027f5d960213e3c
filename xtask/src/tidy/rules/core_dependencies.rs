//! `core-dependencies`: the crates of core depend on each other and on nothing else.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;
use crate::tidy::source::File;
use toml::{Table, Value};

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests: Vec<(&File, Table)> = tree.files().iter().filter_map(manifest).collect();
    let names = |core: bool| {
        let chosen = manifests.iter().filter(move |(file, _)| !core || is_core(file));
        chosen.filter_map(|(_, table)| package_name(table)).collect::<Vec<&str>>()
    };
    let (core, ours) = (names(true), names(false));
    let of_core = manifests.iter().filter(|(file, _)| is_core(file));
    of_core.flat_map(|(file, table)| judge(file, table, &core, &ours)).collect()
}

fn manifest(file: &File) -> Option<(&File, Table)> {
    (file.name() == "Cargo.toml").then(|| Some((file, file.text.parse().ok()?)))?
}

fn is_core(file: &File) -> bool {
    file.path.starts_with("core/")
}

fn package_name(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// Tests of core may run on a platform, so they may use any crate of ours.
fn judge(file: &File, manifest: &Table, core: &[&str], ours: &[&str]) -> Vec<Finding> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = std::iter::once(manifest)
        .chain(targets.into_iter().flat_map(|all| all.values().filter_map(Value::as_table)));
    let mut findings = Vec::new();
    for table in tables {
        for (section, allowed) in
            [("dependencies", core), ("build-dependencies", core), ("dev-dependencies", ours)]
        {
            let names =
                table.get(section).and_then(Value::as_table).into_iter().flat_map(Table::keys);
            let others = names.filter(|name| !allowed.contains(&name.as_str()));
            let what = |name| format!("core depends on `{name}`: move what needs it out of core");
            findings.extend(others.map(|name| file.finding(line_of(file, name), what(name))));
        }
    }
    findings
}

/// Where a dependency is named; the parser keeps no positions.
fn line_of(file: &File, name: &str) -> usize {
    let names = |(_, line): &(usize, &str)| {
        let key = line.trim_start().trim_start_matches('"');
        key.starts_with(name) || line.trim_end().ends_with(&format!(".{name}]"))
    };
    file.lines().find(names).map_or(1, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::check;

    const UNITS: (&str, &str) = ("core/units/Cargo.toml", "[package]\nname = \"units\"\n");
    const OS: (&str, &str) =
        ("platforms/os/Cargo.toml", "[package]\nname = \"os\"\n[dependencies]\nlibc = \"0.2\"\n");

    #[track_caller]
    fn assert_found(sections: &str, expected: &[(usize, &str)]) {
        let text = format!("[package]\nname = \"mm\"\n{sections}");
        let expected: Vec<_> =
            expected.iter().map(|(line, part)| ("core/mm/Cargo.toml", *line, *part)).collect();
        assert_tree(check, &[UNITS, OS, ("core/mm/Cargo.toml", &text)], &expected);
    }

    #[test]
    fn crates_from_elsewhere_are_found() {
        assert_found("[dependencies]\nunits.workspace = true\n", &[]);
        assert_found(
            "[dependencies]\nunits = { path = \"x\" }\nlibc = \"0.2\"\n",
            &[(5, "`libc`")],
        );
        assert_found("[dependencies.libc]\nversion = \"0.2\"\n", &[(3, "`libc`")]);
        assert_found("[build-dependencies]\ncc = \"1\"\n", &[(4, "`cc`")]);
        assert_found("[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n", &[(4, "`libc`")]);
        assert_found("[dependencies]\nos.workspace = true\n", &[(4, "`os`")]);
    }

    #[test]
    fn tests_of_core_may_use_a_platform() {
        assert_found("[dev-dependencies]\nos.workspace = true\n", &[]);
        assert_found("[dev-dependencies]\nrand = \"1\"\n", &[(4, "`rand`")]);
    }
}
