//! `no-leftovers`: what is not finished is not committed; what is parked is an issue.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};
use crate::tidy::tokens::{Token, text};

/// Written in capitals in a source; not here, so that this file passes.
const MARKS: [&str; 3] = ["todo", "fixme", "xxx"];
const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    if matches!(file.kind, Kind::Markdown | Kind::Other) {
        return Vec::new();
    }
    let mut findings = marks(file);
    findings.extend(tokens(file));
    findings
}

fn marks(file: &File) -> Vec<Finding> {
    let words = |line: &str| -> Vec<String> {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let is_mark = |word: &&str| MARKS.iter().any(|mark| *word == mark.to_uppercase());
        words.filter(is_mark).map(str::to_owned).collect()
    };
    let marked =
        file.lines().flat_map(|(number, line)| words(line).into_iter().map(move |w| (number, w)));
    marked
        .map(|(number, word)| file.finding(number, format!("{word}: do it, or open an issue")))
        .collect()
}

fn tokens(file: &File) -> Vec<Finding> {
    let tokens = file.rust().map_or(&[][..], |rust| &rust.tokens);
    let judge = |index| judge(tokens, index).map(|what| file.finding(tokens[index].line, what));
    (0..tokens.len()).filter_map(judge).collect()
}

fn judge(tokens: &[Token], index: usize) -> Option<String> {
    let at = |index| text(tokens, index);
    match (at(index), at(index + 1), at(index + 2)) {
        (name, "!", _) if MACROS.contains(&name) => Some(format!("{name}!: finish it")),
        ("#", "[", "ignore") => Some("ignored test: make it pass, or remove it".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::{MARKS, check};

    #[test]
    fn marks_are_found_in_any_language() {
        for mark in MARKS.map(str::to_uppercase) {
            let text = format!("a\n  // {mark}: b\n");
            for path in ["a.c", "a.py", "a.sh", "Makefile", "a.toml", "a.rs"] {
                assert_file(check, path, &text, &[(2, "open an issue")]);
            }
            assert_file(check, "a.md", &text, &[]);
            assert_file(check, "a.c", &format!("// A{mark}, {mark}B, {mark}_C\n"), &[]);
        }
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_file(check, "a.rs", "fn a() {\n    todo!()\n}\n", &[(2, "todo!: finish")]);
        assert_file(check, "a.rs", "fn a() { unimplemented!(\"b\") }\n", &[(1, "unimplemented!")]);
        assert_file(check, "a.rs", "fn a() { b(vec![dbg!(c)]) }\n", &[(1, "dbg!")]);
        assert_file(check, "a.rs", "fn todo() { dbg(\"todo!()\") }\n", &[]);
    }

    #[test]
    fn parked_tests_are_found() {
        assert_file(check, "a.rs", "#[test]\n#[ignore]\nfn a() {}\n", &[(2, "ignored test")]);
        assert_file(check, "a.rs", "#[ignore = \"slow\"]\nfn a() {}\n", &[(1, "ignored test")]);
        assert_file(check, "a.rs", "fn a(ignore: u8) -> [u8; 1] { [ignore] }\n", &[]);
    }
}
