//! The repository obeys its own rules.

use highwater_xtask::tidy;
use std::path::Path;

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
