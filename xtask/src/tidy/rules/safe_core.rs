//! `safe-core`: no crate of core has `unsafe`, and each forbids it.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Rust};
use syn::AttrStyle;

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let Some(rust) = file.rust().filter(|_| file.path.starts_with("core/")) else {
        return Vec::new();
    };
    let what = "no `unsafe` in core: put it behind a method of core/platform";
    let uses = rust.tokens.iter().filter(|token| token.text == "unsafe");
    let mut findings: Vec<Finding> = uses.map(|token| file.finding(token.line, what)).collect();
    if is_crate_root(&file.path) && !forbids_unsafe(rust) {
        findings.push(file.finding(1, "a crate of core: add `#![forbid(unsafe_code)]`"));
    }
    findings
}

/// `core/<crate>/src/lib.rs` or main.rs.
fn is_crate_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    matches!(parts[..], ["core", _, "src", "lib.rs" | "main.rs"])
}

fn forbids_unsafe(rust: &Rust) -> bool {
    rust.syntax.attrs.iter().any(|attribute| {
        let names = |name: syn::Ident| name == "unsafe_code";
        matches!(attribute.style, AttrStyle::Inner(_))
            && attribute.path().is_ident("forbid")
            && attribute.parse_args().is_ok_and(names)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    const ROOT: &str = "//! A crate.\n#![forbid(unsafe_code)]\n";

    #[test]
    fn unsafe_in_core_is_found() {
        let found = [(2, "no `unsafe` in core")];
        assert_file(check, "core/mm/src/a.rs", "fn a() {\n    unsafe { b() }\n}\n", &found);
        assert_file(check, "core/mm/src/a.rs", "\nunsafe impl Send for A {}\n", &found);
        assert_file(check, "core/mm/src/a.rs", "m! {\n    unsafe { b() }\n}\n", &found);
        assert_file(check, "core/mm/src/a.rs", "// unsafe\nconst A: &str = \"unsafe\";\n", &[]);
        assert_file(check, "platforms/os/src/a.rs", "\nunsafe impl Send for A {}\n", &[]);
    }

    #[test]
    fn crate_roots_that_allow_it_are_found() {
        let found = [(1, "forbid(unsafe_code)")];
        assert_file(check, "core/mm/src/lib.rs", ROOT, &[]);
        assert_file(check, "core/mm/src/lib.rs", "//! #![forbid(unsafe_code)]\n", &found);
        assert_file(check, "core/mm/src/lib.rs", "#![deny(unsafe_code)]\n", &found);
        assert_file(check, "core/mm/src/lru/lib.rs", "//! Not a root.\n", &[]);
    }
}
