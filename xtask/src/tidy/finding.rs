//! What a rule finds.

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: String,
    /// From 1.
    pub(super) line: usize,
    /// What is wrong, and what to do.
    pub(super) what: String,
}
