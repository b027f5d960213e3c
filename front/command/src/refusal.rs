//! A command that cannot run, as one line: what is wrong, and what to do.

use std::fmt;

/// Shown as `what; remedy`, always on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    what: String,
    remedy: String,
}

impl Refusal {
    /// Exit status of a refusal, the usual status for wrong usage.
    pub const STATUS: u8 = 2;

    /// A refusal for the reason `what`.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { what: what.into(), remedy: remedy.into() }
    }

    /// What is wrong.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name of a program may contain any character, including line breaks.
        let line = format!("{}; {}", self.what, self.remedy);
        f.write_str(&line.replace(|c: char| c.is_control(), " "))
    }
}
