//! The repository obeys its own rules.

use highwater_xtask::tidy;
use std::path::{Path, PathBuf};

#[test]
fn repository_is_tidy() {
    let violations = tidy::repository(Path::new(tidy::ROOT)).expect("the tree can be read");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} places to tidy:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn style_guide_names_every_rule() {
    let guide = std::fs::read_to_string(Path::new(tidy::ROOT).join("STYLE.md")).expect("exists");
    let marked: Vec<&str> = guide.lines().filter_map(checked_rule).collect();
    for rule in tidy::RULES {
        assert!(
            marked.contains(&rule.name),
            "STYLE.md does not say that tidy checks {}",
            rule.name
        );
    }
    for name in marked {
        let known = tidy::RULES.iter().any(|rule| rule.name == name);
        assert!(known, "STYLE.md says that tidy checks {name}");
    }
}

/// The name in "- `name` (tidy): ...".
fn checked_rule(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("- `")?.split_once('`')?;
    rest.starts_with(" (tidy):").then_some(name)
}

/// The names of the pages of docs.
fn pages() -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(tidy::ROOT).join("docs")).expect("a directory");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string());
    let names = names.map(|name| name.expect("UTF-8"));
    names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect()
}

/// A page, by its path from the root.
fn page(path: &Path) -> String {
    std::fs::read_to_string(Path::new(tidy::ROOT).join(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The targets of a page's links, without those of other sites.
fn links(text: &str) -> Vec<String> {
    // A link may go on in the next line.
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// The anchors of a page, made from its headings as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        line.trim_start_matches('#').trim().chars().filter(kept).collect::<String>()
    });
    titles.map(|title| title.to_lowercase().replace(' ', "-")).collect()
}

#[test]
fn the_book_has_every_page_once() {
    let (mut listed, mut pages) = (links(&page(Path::new("docs/SUMMARY.md"))), pages());
    listed.sort_unstable();
    pages.sort_unstable();
    assert_eq!(listed, pages, "docs/SUMMARY.md lists the pages of docs");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let of_docs = pages().into_iter().map(|name| Path::new("docs").join(name));
    for path in of_docs.chain(["README.md", "ARCHITECTURE.md"].map(PathBuf::from)) {
        for link in links(&page(&path)) {
            let (to, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if to.is_empty() { path.clone() } else { path.with_file_name(to) };
            let found = anchor.is_empty() || anchors(&page(&target)).iter().any(|it| it == anchor);
            assert!(found, "{}: no heading for {link}", path.display());
        }
    }
}
