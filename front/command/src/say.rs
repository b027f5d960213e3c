//! Lines on standard error that begin with the program's name.
//!
//! A write that fails is ignored: standard error may be full or closed on purpose, and the command
//! continues.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The program's name; set once, before the first line.
static PROGRAM: OnceLock<String> = OnceLock::new();

pub(crate) fn set_program(name: &str) {
    PROGRAM.get_or_init(|| name.to_owned());
}

/// Prints a line.
pub fn say(text: impl Display) {
    say_bare(format_args!("{}: {text}", PROGRAM.get().map_or("highwater", String::as_str)));
}

/// Prints a line without the name, by one write, so that lines of several threads are not mixed.
pub fn say_bare(text: impl Display) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
