//! `layers`: inside core/mm a module uses only modules further down the way of a fault.

use crate::tidy::finding::Finding;
use crate::tidy::paths::{Named, named};
use crate::tidy::source::File;

const SOURCES: &str = "core/mm/src/";

/// From the top down; a module may use those of later rows, not its neighbours.
const LAYERS: &[&[&str]] = &[
    &["files"],
    &["snapshot", "swapoff", "write_back", "khugepaged"],
    &["fault", "slab", "range"],
    &["alloc"],
    &["reclaim", "compact"],
    &["write_completion"],
    &["large", "run", "folio", "kthread"],
    &["machine"],
    &["space", "swap", "lru", "zone"],
    &["frame"],
];

/// What every module may use; they use only each other.
const SHARED: &[&str] = &["stats", "error", "config", "lock_class", "phase"];

/// What may use every module: the front door, the view for tests, the check of everything.
const WHOLE: &[&str] = &["lib", "inspect", "manager", "verify"];

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let Some(rust) = file.rust().filter(|_| file.path.starts_with(SOURCES)) else {
        return Vec::new();
    };
    let here = module_path(&file.path);
    let from = here.first().map_or("lib", String::as_str).trim_end_matches("_fuzz").to_owned();
    if !is_known(&from) {
        let what = format!("`{from}` is in no layer: give it a place in the table of this rule");
        return vec![file.finding(1, what)];
    }
    let mut findings: Vec<Finding> =
        uses(&here, &rust.syntax).iter().filter_map(|used| judge(file, &from, used)).collect();
    findings.dedup();
    findings
}

/// A module at the top of the crate, and where it is named.
struct Use {
    line: usize,
    to: String,
}

fn judge(file: &File, from: &str, used: &Use) -> Option<Finding> {
    let to = used.to.as_str();
    if may_use(from, to) {
        return None;
    }
    let what = match (to, is_known(to)) {
        ("lib", _) => format!("`{from}` uses the crate root, which is above it: name the module"),
        (_, false) => {
            format!("`{from}` uses `{to}`, which is in no layer: name a module, or place it")
        }
        (_, true) => format!("`{from}` may not use `{to}`: it is not below it in {}", shown()),
    };
    Some(file.finding(used.line, what))
}

fn may_use(from: &str, to: &str) -> bool {
    if from == to || WHOLE.contains(&from) || SHARED.contains(&to) {
        return true;
    }
    matches!((row(from), row(to)), (Some(from), Some(to)) if from < to)
}

fn row(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

fn is_known(module: &str) -> bool {
    row(module).is_some() || SHARED.contains(&module) || WHOLE.contains(&module)
}

/// The table on one line.
fn shown() -> String {
    LAYERS.iter().map(|row| row.join(", ")).collect::<Vec<_>>().join(" -> ")
}

/// `core/mm/src/zone/buddy.rs` is `[zone, buddy]`, `zone/mod.rs` is `[zone]`, lib.rs is `[]`.
fn module_path(path: &str) -> Vec<String> {
    let inside = path[SOURCES.len()..].trim_end_matches(".rs");
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    match inside {
        "lib" => Vec::new(),
        inside => inside.split('/').map(str::to_owned).collect(),
    }
}

/// The modules that the file of module `here` names, in tests too.
fn uses(here: &[String], syntax: &syn::File) -> Vec<Use> {
    let module_of = |named: Named| {
        let to = top_module(&[here, &named.inside].concat(), &named.path)?;
        Some(Use { line: named.line, to })
    };
    // A lone `crate` in a macro is a visibility.
    let paths = named(syntax).into_iter().filter(|named| named.path.len() > 1);
    paths.filter_map(module_of).collect()
}

/// The module at the top of the crate that `path`, read in the module `here`, leads to; `None` if
/// it leads out of the crate or is relative.
fn top_module(here: &[String], path: &[String]) -> Option<String> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (&here[..0], &path[1..]),
        "self" => (here, &path[1..]),
        "super" => (&here[..here.len().saturating_sub(supers)], &path[supers..]),
        _ => return None,
    };
    let top = base.first().or(rest.first()).map_or("lib", String::as_str);
    // Items of the root are written like types; its globs bring everything.
    let is_module = top.starts_with(|first: char| first.is_ascii_lowercase());
    Some(if is_module { top.to_owned() } else { "lib".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[track_caller]
    fn assert_found(path: &str, text: &str, expected: &[(usize, &str)]) {
        assert_file(check, &format!("core/mm/src/{path}"), text, expected);
    }

    #[test]
    fn downwards_is_allowed() {
        assert_found("fault.rs", "use crate::{alloc, frame::Frames, swap as s};\n", &[]);
        assert_found("zone/buddy.rs", "use super::Block;\nuse super::super::frame::A;\n", &[]);
        assert_found("zone/mod.rs", "use crate::frame::A;\nuse highwater_units::Pfn;\n", &[]);
        assert_found("zone/mod.rs", "pub(crate) struct A {\n    pub(super) b: u8,\n}\n", &[]);
        assert_found("zone/mod.rs", "mod tests {\n    use super::*;\n}\n", &[]);
        assert_found("frame/mod.rs", "use crate::stats::A;\nuse std::fault::A;\n", &[]);
        assert_found("verify.rs", "use crate::fault::A;\nuse crate::Manager;\n", &[]);
        assert_found("lib.rs", "use fault::A;\nmod tests {\n    use super::*;\n}\n", &[]);
        assert_found("lru_fuzz.rs", "use crate::lru::A;\nuse crate::frame::A;\n", &[]);
    }

    #[test]
    fn upwards_is_found_however_it_is_written() {
        for source in [
            "use crate::reclaim::shrink;",
            "use crate::{frame::A, reclaim::{b, c}};",
            "use super::super::reclaim;",
            "use crate::reclaim as r;",
            "fn a() { crate::reclaim::shrink() }",
            "fn a(b: &crate::reclaim::B) {}",
            "fn a() { debug_assert!(b, \"{}\", crate::reclaim::c()) }",
            "mod tests { use super::super::super::reclaim; }",
        ] {
            let found = [(1, "`swap` may not use `reclaim`")];
            assert_found("swap/device.rs", source, &found);
        }
    }

    #[test]
    fn neighbours_are_found() {
        assert_found(
            "lru/mod.rs",
            "\nuse crate::zone::Zone;\n",
            &[(2, "`lru` may not use `zone`")],
        );
        assert_found("lru_fuzz.rs", "use crate::zone::Zone;\n", &[(1, "`lru` may not use `zone`")]);
        assert_found(
            "stats/mod.rs",
            "use crate::frame::A;\n",
            &[(1, "`stats` may not use `frame`")],
        );
    }

    #[test]
    fn the_root_and_modules_without_a_place_are_found() {
        assert_found("lru/mod.rs", "use crate::Manager;\n", &[(1, "uses the crate root")]);
        assert_found("lru/mod.rs", "use super::*;\n", &[(1, "uses the crate root")]);
        assert_found(
            "lru/mod.rs",
            "use crate::other::A;\n",
            &[(1, "`other`, which is in no layer")],
        );
        assert_found("other.rs", "use crate::lru;\n", &[(1, "`other` is in no layer")]);
    }
}
