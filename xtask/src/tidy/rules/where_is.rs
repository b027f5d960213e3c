//! `where-is`: the table "Where is" of ARCHITECTURE.md names files and the items that they define.

use crate::tidy::files::Tree;
use crate::tidy::finding::Finding;
use crate::tidy::source::File;
use crate::tidy::tokens::text;

const PAGE: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Where is";

/// What comes before the name of an item.
const ITEMS: &[&str] =
    &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union"];

pub(in crate::tidy) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.file(PAGE) else { return Vec::new() };
    let rows = rows(page);
    if rows.is_empty() {
        return vec![page.finding(1, format!("has no table under `{HEADING}`"))];
    }
    rows.iter().flat_map(|(line, row)| judge(tree, page, *line, row)).collect()
}

/// The rows of the table: question, file, items, with their lines.
fn rows(page: &File) -> Vec<(usize, Vec<&str>)> {
    let inside = page.lines().skip_while(|(_, line)| !line.starts_with(HEADING)).skip(1);
    let section = inside.take_while(|(_, line)| !line.starts_with("## "));
    let table = section.filter(|(_, line)| line.starts_with('|'));
    let rows = table.map(|(number, line)| (number, line.split('|').map(str::trim).collect()));
    rows.skip(2).collect()
}

fn judge(tree: &Tree, page: &File, line: usize, row: &[&str]) -> Vec<Finding> {
    let quoted = |cell: usize| {
        let cell = row.get(cell).copied().unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    };
    let mut findings = Vec::new();
    let mut files = quoted(2).peekable();
    if files.peek().is_none() || quoted(3).next().is_none() {
        findings.push(page.finding(line, "a row names a file and what it defines, in backticks"));
    }
    let sources: Vec<&File> = files.filter_map(|path| tree.file(path)).collect();
    for name in quoted(3) {
        if !sources.iter().any(|source| defines(source, name)) {
            findings.push(page.finding(line, format!("no file of this row defines `{name}`")));
        }
    }
    findings
}

fn defines(source: &File, name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    source.rust().is_some_and(|rust| {
        let tokens = &rust.tokens;
        let is_item = |at: usize| {
            let macros = text(tokens, at) == "macro_rules" && text(tokens, at + 2) == last;
            let item = ITEMS.contains(&text(tokens, at)) && text(tokens, at + 1) == last;
            item || macros
        };
        (0..tokens.len()).any(is_item)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_tree;
    use super::check;

    #[track_caller]
    fn assert_found(table: &str, expected: &[(&str, usize, &str)]) {
        let page =
            format!("# A\n## Where is\n\n| q | f | i |\n|---|---|---|\n{table}## B\n| c |\n");
        let source =
            "pub struct Zone;\nimpl Zone { fn take(&self) {} }\nmacro_rules! m { () => {} }\n";
        assert_tree(check, &[("ARCHITECTURE.md", &page), ("core/a.rs", source)], expected);
    }

    #[test]
    fn rows_name_what_exists() {
        assert_found("| x | `core/a.rs` | `Zone::take`, `m` |\n", &[]);
        assert_found("| x | `core/a.rs` | `give` |\n", &[("ARCHITECTURE.md", 6, "`give`")]);
        assert_found("| x | `core/b.rs` | `Zone` |\n", &[("ARCHITECTURE.md", 6, "`Zone`")]);
        assert_found("| x | core/a.rs | |\n", &[("ARCHITECTURE.md", 6, "a row names")]);
        assert_found("", &[("ARCHITECTURE.md", 1, "has no table")]);
    }
}
