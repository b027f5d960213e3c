//! Whether a program of a run ended as it may.

use super::draw::{Act, Faults};

/// How a program ended.
pub(super) struct End<'a> {
    /// `None`: it did not.
    pub(super) status: Option<i32>,
    pub(super) output: &'a [u8],
    pub(super) errors: &'a str,
}

/// What had been done to it.
#[derive(Clone, Copy)]
pub(super) struct Done<'a> {
    pub(super) faults: Faults,
    pub(super) acts: &'a [Act],
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It ended well, with the right output.
    Right,
    /// It ended otherwise, which a kill or a fault of the device explains; the reason it gave.
    Ended(String),
    /// What is wrong.
    Wrong(String),
}
use Judgement::{Ended, Right, Wrong};

/// What storm.c says if its contents are wrong, and if a process that it started ended badly.
const WRONG: &str = "wrong (pid";
const CHILD: [&str; 2] = ["a child: status", "true: status"];
/// How Highwater's lines begin.
const LINE: &str = "highwater: ";

pub(super) fn judge(end: &End<'_>, expected: &[u8], done: Done<'_>) -> Judgement {
    let is_wrong = |line: &&str| line.contains(WRONG) && !CHILD.iter().any(|it| line.contains(it));
    if let Some(line) = end.errors.lines().find(is_wrong) {
        return Wrong(line.to_owned());
    }
    let last = end.errors.lines().last().unwrap_or_default();
    match end.status {
        None => Wrong("it did not end".to_owned()),
        Some(0) if end.output == expected => Right,
        Some(0) => Wrong("it ended well with another output".to_owned()),
        Some(_) if !expected.starts_with(end.output) => {
            Wrong(format!("what it printed is wrong; {last}"))
        }
        Some(status) if done.acts.contains(&Act::Kill) => Ended(format!("status {status}, killed")),
        Some(status) => match end.errors.lines().find(|line| line.starts_with(LINE)) {
            Some(line) if done.faults == Faults::Fatal => Ended(line.to_owned()),
            _ => Wrong(format!("status {status}: {last}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Done<'static> = Done { faults: Faults::None, acts: &[Act::Stop, Act::KillRun] };
    const KILLED: Done<'static> = Done { faults: Faults::Borne, acts: &[Act::Kill] };
    const FATAL: Done<'static> = Done { faults: Faults::Fatal, acts: &[] };

    fn of(status: Option<i32>, output: &str, errors: &str, done: Done<'_>) -> Judgement {
        judge(&End { status, output: output.as_bytes(), errors }, b"ab\n", done)
    }

    fn is_wrong(judgement: &Judgement) -> bool {
        matches!(judgement, Wrong(_))
    }

    #[test]
    fn only_the_right_output_is_right() {
        assert_eq!(of(Some(0), "ab\n", "5 operations", NOTHING), Right);
        for done in [NOTHING, KILLED, FATAL] {
            assert!(is_wrong(&of(Some(0), "ab", "", done)));
            assert!(is_wrong(&of(Some(0), "", "", done)));
            assert!(is_wrong(&of(Some(137), "b", "highwater: a page", done)));
            assert!(is_wrong(&of(None, "ab\n", "", done)));
            assert!(is_wrong(&of(Some(1), "", "wrong (pid 5): check: page 7", done)));
        }
    }

    #[test]
    fn an_early_end_needs_a_reason() {
        let child = "wrong (pid 5): a child: status 9";
        assert!(is_wrong(&of(Some(137), "a", "highwater: a page could not be read", NOTHING)));
        assert!(is_wrong(&of(Some(1), "", child, NOTHING)));
        assert!(is_wrong(&of(Some(139), "a", "Segmentation fault", FATAL)));
        assert!(matches!(of(Some(1), "", child, KILLED), Ended(_)));
        assert!(matches!(of(Some(137), "a", "x\nhighwater: a page", FATAL), Ended(_)));
    }
}
