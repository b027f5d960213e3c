//! A text file as the rules see it.

use super::finding::Finding;
use super::tokens::{Token, flatten};
use proc_macro2::TokenStream;

/// The language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rust,
    C,
    Python,
    Shell,
    Make,
    Markdown,
    Toml,
    Other,
}

impl Kind {
    fn of(path: &str, text: &str) -> Kind {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((_, "rs")) => Kind::Rust,
            Some((_, "c" | "h")) => Kind::C,
            Some((_, "py" | "pyi")) => Kind::Python,
            Some((_, "sh")) => Kind::Shell,
            Some((_, "mk")) => Kind::Make,
            Some((_, "md")) => Kind::Markdown,
            Some((_, "toml")) => Kind::Toml,
            _ if name == "Makefile" => Kind::Make,
            _ if text.starts_with("#!") => Kind::of_interpreter(text),
            _ => Kind::Other,
        }
    }

    fn of_interpreter(text: &str) -> Kind {
        match text.lines().next().unwrap_or_default() {
            line if line.contains("python") => Kind::Python,
            line if line.ends_with("sh") || line.contains("sh ") => Kind::Shell,
            _ => Kind::Other,
        }
    }

    /// Whether it is made of functions and statements.
    pub(super) fn is_code(self) -> bool {
        matches!(self, Kind::Rust | Kind::C | Kind::Python | Kind::Shell)
    }
}

/// A Rust file, taken apart.
pub(super) struct Rust {
    pub(super) syntax: syn::File,
    /// All tokens in order, without comments; doc comments are attributes, literals are blank.
    pub(super) tokens: Vec<Token>,
}

/// A file and its contents.
pub(super) struct File {
    /// From the root of the repository, with `/`.
    pub(super) path: String,
    pub(super) kind: Kind,
    pub(super) text: String,
    /// `None` for other languages.
    pub(super) rust: Option<Result<Rust, syn::Error>>,
}

impl File {
    pub(super) fn new(path: String, text: String) -> File {
        let kind = Kind::of(&path, &text);
        let rust = (kind == Kind::Rust).then(|| parse(&text));
        File { path, kind, text, rust }
    }

    /// The Rust of the file; `None` if it is in another language or does not parse.
    pub(super) fn rust(&self) -> Option<&Rust> {
        self.rust.as_ref()?.as_ref().ok()
    }

    /// Its lines with their numbers from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.split_terminator('\n').enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The name without its directory.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether only tests need it.
    pub(super) fn is_test(&self) -> bool {
        let stem = self.name().split('.').next().unwrap_or_default();
        let is_named = ["_fuzz", "_model"].iter().any(|end| stem.ends_with(end)) || stem == "tests";
        is_named || self.path.split('/').any(|dir| dir == "tests")
    }

    pub(super) fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }
}

fn parse(text: &str) -> Result<Rust, syn::Error> {
    let stream: TokenStream = text.parse().map_err(syn::Error::from)?;
    Ok(Rust { tokens: flatten(stream.clone()), syntax: syn::parse2(stream)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_go_by_name_then_by_first_line() {
        for (path, text, kind) in [
            ("core/mm/src/lib.rs", "", Kind::Rust),
            ("a.h", "", Kind::C),
            (".ci/run", "#!/bin/sh\nmake test\n", Kind::Shell),
            ("tools/plot", "#!/usr/bin/env python3\n", Kind::Python),
            ("Makefile", "", Kind::Make),
            ("LICENSE-MIT", "MIT", Kind::Other),
        ] {
            assert_eq!(Kind::of(path, text), kind, "{path}");
        }
    }

    #[test]
    fn test_files_are_known_by_name_and_place() {
        for (path, test) in [
            ("core/mm/src/lru/lru_fuzz.rs", true),
            ("core/mm/src/space/space_model.rs", true),
            ("front/cli/tests/run.rs", true),
            ("lab/src/workload/pmbench/tests.rs", true),
            ("core/mm/src/lru/mod.rs", false),
        ] {
            assert_eq!(File::new(path.into(), String::new()).is_test(), test, "{path}");
        }
    }
}
