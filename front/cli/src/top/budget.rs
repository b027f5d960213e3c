//! The keys `+` and `-`: the budget of the session, by an eighth. Locks: none.

use crate::session::Session;
use highwater_session::{Budget, FLOOR};
use highwater_units::Bytes;

/// The direction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Up,
    Down,
}

/// The budget of a session now, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    now: u64,
    /// With this budget, all processes have their least memory.
    least: u64,
    most: u64,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The processes share no budget.
    Fixed,
    AtLeast,
    AtMost,
    /// The new budget in pages.
    To(u64),
}

fn decide(step: Step, limits: Limits) -> Change {
    let Limits { now, least, most } = limits;
    match step {
        Step::Up if now >= most => Change::AtMost,
        Step::Up => Change::To(most.min(now + now / 8)),
        Step::Down if now <= least => Change::AtLeast,
        Step::Down => Change::To(least.max(now - now / 8)),
    }
}

impl Limits {
    fn of(budget: &Budget) -> Limits {
        let processes = budget.members().len().max(1) as u64;
        Limits { now: budget.limit(), least: processes * FLOOR, most: budget.limit_max() }
    }
}

/// Changes the budget of a session; returns a line that describes the effect.
pub(super) fn change(session: &Session, step: Step) -> String {
    let shared = session.shared_budget().map(|budget| (Limits::of(&budget), budget));
    let change = shared.as_ref().map_or(Change::Fixed, |(limits, _)| decide(step, *limits));
    if let (Change::To(pages), Some((_, budget))) = (change, &shared) {
        budget.set_limit(pages);
    }
    notice(change, shared.map(|(limits, _)| limits))
}

fn notice(change: Change, limits: Option<Limits>) -> String {
    let [least, most] = limits.map_or([0; 2], |it| [it.least, it.most]).map(Bytes::of_pages);
    match change {
        Change::Fixed => "budget fixed: the processes share no memory (run --memory)".to_owned(),
        Change::AtLeast => format!("budget kept: {least} is 4 MiB for each process"),
        Change::AtMost => format!("budget kept: {most} is the most (run --memory-max)"),
        Change::To(pages) => format!("budget set to {}", Bytes::of_pages(pages)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::session;
    use highwater_session::Scope;

    #[test]
    fn the_budget_changes_by_an_eighth_within_its_limits() {
        for (step, now, expected) in [
            (Step::Up, 8000, Change::To(9000)),
            (Step::Down, 8000, Change::To(7000)),
            (Step::Up, 9500, Change::To(10_000)),
            (Step::Up, 10_000, Change::AtMost),
            (Step::Down, 2100, Change::To(2048)),
            (Step::Down, 2048, Change::AtLeast),
            (Step::Down, 1000, Change::AtLeast),
            (Step::Up, 1000, Change::To(1125)),
        ] {
            let limits = Limits { now, least: 2 * FLOOR, most: 10_000 };
            assert_eq!(decide(step, limits), expected, "{step:?} from {now}");
            assert!(notice(expected, Some(limits)).len() < 80);
        }
    }

    #[test]
    fn a_session_is_changed_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut session = session(7, None);
        session.run_dir = dir.path().to_owned();
        assert!(change(&session, Step::Up).starts_with("budget fixed: "));
        let budget = Budget::create(dir.path(), Scope::Everything, 16_384, 17_408).unwrap();
        for (step, expected, limit) in [
            (Step::Up, "budget set to 68 MiB", 17_408),
            (Step::Up, "budget kept: 68 MiB is the most", 17_408),
            (Step::Down, "budget set to ", 15_232),
        ] {
            let said = change(&session, step);
            assert!(said.starts_with(expected), "{said}");
            assert_eq!(budget.limit(), limit);
        }
    }
}
