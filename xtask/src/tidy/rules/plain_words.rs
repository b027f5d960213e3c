//! `plain-words`: text is plain English in the terms of the field.
//!
//! Checked are comments of code and pages of documentation. A banned phrase stands with what to
//! write instead.

use crate::tidy::finding::Finding;
use crate::tidy::source::{File, Kind};

/// A sentence must not begin so.
const OPENINGS: &[(&str, &str)] = &[
    ("The same", "say what it does; a reader does not look for what it is the same as"),
    ("Likewise", "say what it does"),
    ("Who ", "name the subject: a waiter, a reader, the caller"),
    ("Whoever ", "name the subject: the caller, a thread that ..."),
    ("Says whether", "`Whether ...` or `Returns whether ...`"),
    ("Says that", "name what is reported, and to whom"),
    ("Says what", "name what is returned or reported"),
    ("Yes.", "name the state"),
    ("No.", "name the state"),
];

/// Words and phrases, in small letters, and what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("alarm", "wake-up event"),
    ("alarm clock", "wake-up event"),
    ("rings kswapd", "wakes kswapd"),
    ("ring kswapd", "wake kswapd"),
    ("hopeless", "failing; kswapd has given up"),
    ("landlord", "owner"),
    ("shelf", "expiry time"),
    ("shelves", "expiry times"),
    ("crowd", "pool of readers"),
    ("is told", "is notified"),
    ("are told", "are notified"),
    ("was told", "was notified"),
    ("nobody is any more", "name the state"),
    ("whoever", "the caller; a thread that ..."),
    ("for who ", "for a caller that ..."),
    ("by who ", "by the thread that ..."),
    ("of who ", "of the thread that ..."),
    ("to who ", "to the thread that ..."),
    ("and who ", "and a thread that ..."),
    ("but who ", "but a thread that ..."),
    ("lru lane", "LRU shard"),
    ("lru lanes", "LRU shards"),
    ("without patience", "without retries"),
    ("with patience", "with retries"),
];

/// Code words of documents that a reader of this repository does not have.
const CODE_WORDS: &[&str] = &["S0", "S1", "S2", "S3", "S4", "DESIGN"];

pub(in crate::tidy) fn check(file: &File) -> Vec<Finding> {
    let marks: &[&str] = match file.kind {
        Kind::Rust => &["///", "//!", "//"],
        Kind::C => &["//", " * ", "/* "],
        Kind::Python | Kind::Shell | Kind::Toml | Kind::Make => &["#"],
        Kind::Markdown => &[""],
        Kind::Other => return Vec::new(),
    };
    let is_own = file.path.ends_with("rules/plain_words.rs") || file.path == "CHANGELOG.md";
    if is_own || file.path == "STYLE.md" {
        return Vec::new();
    }
    let texts = file.lines().filter_map(|(number, line)| Some((number, comment(line, marks)?)));
    let texts: Vec<(usize, &str)> = texts.collect();
    texts.iter().flat_map(|(number, text)| judge(file, *number, text)).collect()
}

/// The text of a comment; `None` for code.
fn comment<'a>(line: &'a str, marks: &[&str]) -> Option<&'a str> {
    let trimmed = line.trim_start();
    let mark = marks.iter().find(|mark| trimmed.starts_with(*mark));
    let whole = mark.map(|mark| trimmed[mark.len()..].trim());
    whole.or_else(|| {
        let (_, after) = line.split_once("  // ").or_else(|| line.split_once(" // "))?;
        marks.contains(&"//").then_some(after)
    })
}

fn judge(file: &File, number: usize, text: &str) -> Vec<Finding> {
    let opens = |start: &&(&str, &str)| {
        let inside = [". ", ": "].iter().any(|stop| text.contains(&format!("{stop}{}", start.0)));
        text.starts_with(start.0) || inside
    };
    let small = text.to_lowercase();
    let openings = OPENINGS.iter().filter(opens);
    let banned = BANNED.iter().filter(|(phrase, _)| has_phrase(&small, phrase));
    let found = openings.chain(banned);
    let what = |(phrase, instead): &(&str, &str)| {
        file.finding(number, format!("`{}`: {instead}", phrase.trim()))
    };
    let codes = CODE_WORDS.iter().filter(|word| has_phrase(text, word));
    let cite = |word: &&str| file.finding(number, format!("`{word}`: cite the document by title"));
    found.map(what).chain(codes.map(cite)).collect()
}

/// Whether `text` holds `phrase` and not as a part of longer words.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '`';
    let phrase = phrase.trim_end();
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_file;
    use super::check;

    #[test]
    fn banned_words_are_found_in_comments_only() {
        let text = "/// The same without patience.\nlet hopeless = 1; // Who waits, waits.\n";
        let expected = [(1, "`The same`"), (1, "`without patience`"), (2, "`Who`")];
        assert_file(check, "core/a.rs", text, &expected);
        assert_file(check, "core/a.rs", "let alarm = \"hopeless\";\n", &[]);
        assert_file(
            check,
            "docs/a.md",
            "A landlord. Likewise S0.\n",
            &[(1, "`Likewise`"), (1, "`landlord`"), (1, "`S0`")],
        );
    }

    #[test]
    fn parts_of_words_and_names_of_code_are_left_alone() {
        assert_file(check, "docs/a.md", "Bookshelf, `alarm`, a program whose name\n", &[]);
        assert_file(check, "core/a.rs", "/// A thread who_am_i.\n", &[]);
    }
}
