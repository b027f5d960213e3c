//! `reasoned-allow`: an exception to a lint says why.

use crate::tidy::finding::Finding;
use crate::tidy::source::File;
use crate::tidy::tokens::{Token, inside, text};

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let Some(rust) = file.rust() else { return Vec::new() };
    let tokens = &rust.tokens;
    let attributes = (0..tokens.len()).filter(|index| is_attribute(tokens, *index));
    let bare = attributes.flat_map(|index| bare_exceptions(inside(tokens, bracket(tokens, index))));
    bare.map(|token| {
        file.finding(token.line, format!("{} without a reason: add `reason = \"...\"`", token.text))
    })
    .collect()
}

/// Whether `#[` or `#![` begins here.
fn is_attribute(tokens: &[Token], index: usize) -> bool {
    text(tokens, index) == "#" && text(tokens, bracket(tokens, index)) == "["
}

fn bracket(tokens: &[Token], hash: usize) -> usize {
    hash + 1 + usize::from(text(tokens, hash + 1) == "!")
}

/// The `allow` and `expect` of one attribute, inside `cfg_attr` as well.
fn bare_exceptions(attribute: &[Token]) -> impl Iterator<Item = &Token> {
    attribute.iter().enumerate().filter_map(|(index, token)| {
        let is_exception = matches!(token.text.as_str(), "allow" | "expect");
        let is_bare = is_exception
            && text(attribute, index + 1) == "("
            && inside(attribute, index + 1).iter().all(|token| token.text != "reason");
        is_bare.then_some(token)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn bare_exceptions_are_found() {
        let found = [(1, "allow without a reason")];
        assert_file(check, "a.rs", "#[allow(dead_code)]\nfn a() {}\n", &found);
        assert_file(check, "a.rs", "#![allow(dead_code)]\nfn a() {}\n", &found);
        assert_file(check, "a.rs", "#[cfg_attr(test, allow(dead_code))]\nfn a() {}\n", &found);
        let found = [(2, "expect without a reason")];
        assert_file(check, "a.rs", "m! {\n    #[expect(unused)]\n    fn a() {}\n}\n", &found);
        assert_file(check, "a.rs", "#[allow(unused, reason = \"b\")]\nfn a() {}\n", &[]);
        assert_file(check, "a.rs", "#[b]\nfn a() { c.expect(\"d\"); allow(e) }\n", &[]);
    }
}
