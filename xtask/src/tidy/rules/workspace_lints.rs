//! `workspace-lints`: every crate obeys the one table of lints.

use crate::tidy::finding::Finding;
use crate::tidy::source::File;
use toml::{Table, Value};

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let Some(manifest) = manifest(file) else { return Vec::new() };
    let inherits = |lints: &Value| lints.get("workspace").and_then(Value::as_bool) == Some(true);
    if manifest.contains_key("package") && !manifest.get("lints").is_some_and(inherits) {
        vec![file.finding(1, "the crate has lints of its own: `[lints] workspace = true`")]
    } else {
        Vec::new()
    }
}

fn manifest(file: &File) -> Option<Table> {
    (file.name() == "Cargo.toml").then(|| file.text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn crates_without_the_lints_are_found() {
        let package = "[package]\nname = \"a\"\n";
        let found = [(1, "`[lints] workspace = true`")];
        assert_file(check, "a/Cargo.toml", &format!("{package}[lints]\nworkspace = true\n"), &[]);
        assert_file(check, "a/Cargo.toml", package, &found);
        assert_file(check, "a/Cargo.toml", &format!("{package}[lints.rust]\n"), &found);
        assert_file(check, "Cargo.toml", "[workspace]\nmembers = []\n", &[]);
        assert_file(check, "rustfmt.toml", package, &[]);
    }
}
