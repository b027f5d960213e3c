//! What is said on standard error, as lines that begin with the command's name.
//!
//! Standard error may be full or closed, and whoever started us may have meant it to be: there is
//! nobody to tell then, and what the command is for goes on.

use std::fmt::Display;
use std::io::{self, Write};

/// Says a line.
pub(crate) fn say(text: impl Display) {
    say_bare(format_args!("highwater: {text}"));
}

/// Says a line without the name. In one piece: lines of several threads stay whole.
pub(crate) fn say_bare(text: impl Display) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
