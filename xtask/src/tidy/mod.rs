//! Tidy: the rules of STYLE.md that a program can check, as a test.
//!
//! ```text
//! Tree (git's files) -- RULES --> Violation: `path:line: rule-name: what and what to do`
//!  \- File: path, kind, text, Rust syntax and tokens
//! ```
//! A rule is a pure function in a file of its own, with a table test that shows what it catches.

mod files;
mod finding;
mod modules;
mod paths;
mod rules;
mod source;
mod tokens;

pub use files::TidyError;
use files::Tree;
use finding::Finding;
use rules as r;
use source::File;
use std::fmt;
use std::path::Path;

/// The repository this program was built from.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Every rule, in the order of STYLE.md.
pub const RULES: &[Rule] = &[
    Rule { name: "parses", check: Check::File(r::parses::check) },
    Rule { name: "line-width", check: Check::File(r::line_width::check) },
    Rule { name: "clean-whitespace", check: Check::File(r::clean_whitespace::check) },
    Rule { name: "short-functions", check: Check::File(r::short_functions::check) },
    Rule { name: "short-files", check: Check::File(r::short_files::check) },
    Rule { name: "module-header", check: Check::File(r::module_header::check) },
    Rule { name: "safe-core", check: Check::File(r::safe_core::check) },
    Rule { name: "safety-comment", check: Check::File(r::safety_comment::check) },
    Rule { name: "layers", check: Check::File(r::layers::check) },
    Rule { name: "import-cycles", check: Check::Tree(r::import_cycles::check) },
    Rule { name: "core-dependencies", check: Check::Tree(r::core_dependencies::check) },
    Rule { name: "workspace-lints", check: Check::File(r::workspace_lints::check) },
    Rule { name: "equal-platforms", check: Check::Tree(r::equal_platforms::check) },
    Rule { name: "no-dead-files", check: Check::Tree(r::no_dead_files::check) },
    Rule { name: "no-leftovers", check: Check::File(r::no_leftovers::check) },
    Rule { name: "reasoned-allow", check: Check::File(r::reasoned_allow::check) },
    Rule { name: "no-machine-paths", check: Check::File(r::no_machine_paths::check) },
    Rule { name: "plain-words", check: Check::File(r::plain_words::check) },
    Rule { name: "where-is", check: Check::Tree(r::where_is::check) },
    Rule { name: "living-references", check: Check::Tree(r::living_references::check) },
];

/// A named rule.
pub struct Rule {
    /// As in STYLE.md.
    pub name: &'static str,
    check: Check,
}

/// What a rule has to see to judge.
enum Check {
    File(fn(&File) -> Vec<Finding>),
    Tree(fn(&Tree) -> Vec<Finding>),
}

impl Rule {
    fn violations(&self, tree: &Tree) -> Vec<Violation> {
        let findings = match self.check {
            Check::File(check) => tree.files().iter().flat_map(check).collect(),
            Check::Tree(check) => check(tree),
        };
        findings.into_iter().map(|finding| Violation { rule: self.name, finding }).collect()
    }
}

/// A finding under the name of its rule; shown as `path:line: rule-name: what`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    finding: Finding,
    rule: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, what } = &self.finding;
        write!(f, "{path}:{line}: {}: {what}", self.rule)
    }
}

/// Applies every rule to the files of the repository at `root`, by path and line.
///
/// # Errors
/// `root` is no git repository, or a file cannot be read.
pub fn repository(root: &Path) -> Result<Vec<Violation>, TidyError> {
    let tree = files::read(root)?;
    let mut violations: Vec<_> = RULES.iter().flat_map(|rule| rule.violations(&tree)).collect();
    violations.sort();
    Ok(violations)
}
