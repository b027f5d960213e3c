//! Whether a program of a run ended as it may.

use super::draw::Act;
use super::swap::Faults;

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
    /// It ended otherwise, which a kill explains.
    Killed,
    /// It ended otherwise, which a fault of the device explains; the reason it gave.
    Ended(String),
    /// What is wrong.
    Wrong(String),
}
use Judgement::{Ended, Killed, Right, Wrong};

/// What storm.c says if its contents are wrong, and if a process that it started ended badly.
const WRONG: &str = "wrong (pid";
const CHILD: [&str; 2] = ["a child: status", "true: status"];
/// What a killed process leads to: its own status in the shell, a storm's word about its child, and
/// a compiler's.
const KILLED: i32 = 137;
const KILLED_CHILD: [&str; 2] = ["status 9", "Killed signal terminated program"];
/// What Highwater says of a page that a device lost or cannot take.
const DEVICE: [&str; 4] = [
    "a page could not be read",
    "returned a page that was changed",
    "memory is full, and writes",
    "memory and swap are full",
];

/// In the line on a replica that is given up; the name of the other one follows.
const GIVEN_UP: &str = "does not answer, and is given up; ";

pub(super) fn judge(end: &End<'_>, expected: &[u8], done: Done<'_>) -> Judgement {
    let is_wrong = |line: &&str| line.contains(WRONG) && !says(line, &CHILD);
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
        Some(status) => match end.errors.lines().find(|line| says(line, &DEVICE)) {
            Some(line) if done.faults == Faults::Fatal || has_lost_both(end, done.acts) => {
                Ended(line.to_owned())
            }
            _ if done.acts.contains(&Act::Kill) && was_killed(status, end.errors) => Killed,
            _ => Wrong(format!("status {status}: {last}")),
        },
    }
}

fn says(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

/// Whether a server was lost after the program had given up the other one, which may take long to
/// answer on a busy machine.
fn has_lost_both(end: &End<'_>, acts: &[Act]) -> bool {
    acts.iter().any(|act| {
        let Act::LoseServer(number, _) = act else { return false };
        let given_up = end.errors.lines().filter_map(|line| line.split_once(GIVEN_UP));
        let mut left = given_up.map(|(_, left)| left);
        left.any(|left| left.contains(&format!("/server{number}:")))
    })
}

fn was_killed(status: i32, errors: &str) -> bool {
    status == KILLED || errors.lines().any(|line| says(line, &KILLED_CHILD))
}

#[cfg(test)]
mod tests {
    use super::super::draw::Loss;
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
        assert!(is_wrong(&of(Some(139), "a", "Segmentation fault", KILLED)));
        assert!(is_wrong(&of(Some(137), "a", "highwater: a block was freed twice", FATAL)));
        assert_eq!(of(Some(1), "", child, KILLED), Killed);
        let lost = "x\nhighwater: a page could not be read: Input/output error";
        assert!(matches!(of(Some(137), "a", lost, FATAL), Ended(_)));
        let acts = &[Act::LoseServer(1, Loss::Killed)];
        let loses = Done { faults: Faults::None, acts };
        let errors =
            |left| format!("swap A does not answer, and is given up; {left} goes on\n{lost}");
        let of = |left| of(Some(137), "a", &errors(left), loses);
        assert!(matches!(of("redis+unix:/x/server1:99M"), Ended(_)));
        assert!(is_wrong(&of("redis+unix:/x/server0:99M")));
    }
}
