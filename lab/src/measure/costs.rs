//! Costs of a machine from measured times: differences, in the order that a machine file demands.
//!
//! ```text
//! touch ─ populate = fault     populate ─ zero_page = map_page     the others as they are
//! atomic <= lock, line_near <= line_far ...   noise must not make a file that is refused
//! ```

use super::Times;
use highwater_sim::machine::Costs;
use std::fmt;

/// A second: no cost is longer.
const NS_MAX: f64 = 1e9;

/// The source of a value, and how or where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Measured(&'static str),
    System(&'static str),
    /// By the command line, or by this command.
    Given(&'static str),
    /// From the machine file that the new one follows.
    Taken,
}

/// A number of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) value: u64,
    pub(super) source: Source,
    /// The key of the number that limits this one, from below or above.
    limit: Option<&'static str>,
}

impl Number {
    pub(super) fn of(value: u64, source: Source) -> Number {
        Number { value, source, limit: None }
    }

    /// A measured time; otherwise the other machine's value.
    pub(super) fn measured(ns: Option<f64>, how: &'static str, other: u64) -> Number {
        match ns {
            // A negative difference is noise.
            Some(ns) => Number::of(ns.clamp(0.0, NS_MAX).round() as u64, Source::Measured(how)),
            None => Number::of(other, Source::Taken),
        }
    }

    pub(super) fn at_least(self, key: &'static str, least: u64) -> Number {
        let limit = (self.value < least).then_some(key);
        Number { value: self.value.max(least), limit, ..self }
    }

    fn at_most(self, key: &'static str, most: u64) -> Number {
        let limit = (self.value > most).then_some(key);
        Number { value: self.value.min(most), limit, ..self }
    }

    /// The words that its limit adds to its comment.
    pub(super) fn note(&self) -> String {
        self.limit.map_or(String::new(), |key| format!("; limit: {key}"))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The costs in ns by their keys, in the order of a file.
pub(super) fn costs(times: &Times, slice: Number, other: &Costs) -> Vec<(&'static str, Number)> {
    [processor(times, other), paths(times, other), tasks(times, slice, other)].concat()
}

fn processor(times: &Times, other: &Costs) -> Vec<(&'static str, Number)> {
    let measured = Number::measured;
    let atomic = measured(Some(times.atomic), "an addition to an atomic word", other.atomic);
    let atomic = atomic.at_least("1", 1);
    let near = measured(times.line_near, "a word that another core changed", other.line_near);
    let near = near.at_least("atomic", atomic.value);
    let far = measured(times.line_far, "a word that another socket changed", other.line_far);
    let far = far.at_least("line_near", near.value);
    let lock = measured(Some(times.lock), "a lock of the standard library", other.lock);
    let lock = lock.at_least("atomic", atomic.value);
    let to_near =
        measured(times.handover_near, "a store that a core waits for", other.handover_near);
    let to_near = to_near.at_least("1", 1);
    let to_far =
        measured(times.handover_far, "a store that another socket waits for", other.handover_far);
    let to_far = to_far.at_least("handover_near", to_near.value);
    vec![
        ("atomic", atomic),
        ("line_near", near),
        ("line_far", far),
        ("lock", lock),
        ("handover_near", to_near),
        ("handover_far", to_far),
    ]
}

fn paths(times: &Times, other: &Costs) -> Vec<(&'static str, Number)> {
    let measured = Number::measured;
    let fault = times.populate.map(|populate| times.touch - populate);
    let map = times.populate.map(|populate| populate - times.zero_page);
    let flush = times.flush;
    let first = measured(flush.map(|flush| flush.others), "mprotect beside one", other.shootdown);
    let further = measured(
        times.shootdown_target,
        "mprotect beside two, less that beside one",
        other.shootdown_target,
    );
    let further = further.at_most("shootdown", first.value);
    let interrupt = flush.map(|flush| flush.interrupt);
    vec![
        ("fault", measured(fault, "first writes, less MADV_POPULATE_WRITE", other.fault)),
        ("map_page", measured(map, "MADV_POPULATE_WRITE, less zero_page", other.map_page)),
        ("unmap_page", measured(Some(times.drop), "MADV_DONTNEED of 16 MiB", other.unmap_page)),
        ("scan", measured(Some(times.scan), "lines of 64 MiB in sequence", other.scan)),
        ("memory", measured(Some(times.memory), "lines of 64 MiB at random", other.memory)),
        ("zero_page", measured(Some(times.zero_page), "64 MiB", other.zero_page)),
        ("copy_page", measured(Some(times.copy_page), "32 MiB", other.copy_page)),
        ("shootdown", first),
        ("shootdown_target", further),
        (
            "shootdown_interrupt",
            measured(interrupt, "work that a flushed CPU misses", other.shootdown_interrupt),
        ),
    ]
}

fn tasks(times: &Times, slice: Number, other: &Costs) -> Vec<(&'static str, Number)> {
    let measured = Number::measured;
    let switch =
        measured(Some(times.switch), "turns of two threads by a futex", other.context_switch);
    let wake = times.woken.map(|woken| woken.wake);
    let latency = times.woken.map(|woken| woken.until_it_runs - woken.wake - times.switch);
    let slice = slice.at_least("context_switch", switch.value);
    vec![
        ("context_switch", switch),
        ("wake", measured(wake, "FUTEX_WAKE of a thread of an idle CPU", other.wake)),
        (
            "wake_latency",
            measured(latency, "until it ran, less wake and switch", other.wake_latency),
        ),
        ("slice", slice),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::{flush::Flush, tasks::Woken};
    use super::*;
    use crate::machines;

    fn other() -> Costs {
        machines::find("desktop-2012-kvm").expect("listed").costs
    }

    /// Value and source of a cost.
    #[track_caller]
    fn assert_cost(times: Times, key: &str, expected: u64, is_taken: bool) {
        let slice = Number::of(2000, Source::System("a file"));
        let all = costs(&times, slice, &other());
        let (_, found) = all.iter().find(|(name, _)| *name == key).expect(key);
        assert_eq!((found.value, found.source == Source::Taken), (expected, is_taken), "{key}");
    }

    #[test]
    fn costs_are_differences_of_times() {
        let woken = Some(Woken { wake: 900.0, until_it_runs: 5000.0 });
        let (populate, zero_page) = (Some(700.4), 300.0);
        let times = Times { touch: 1300.0, populate, zero_page, woken, switch: 1500.0, ..empty() };
        assert_cost(times, "fault", 600, false);
        assert_cost(times, "map_page", 400, false);
        assert_cost(times, "wake_latency", 2600, false);
        assert_cost(times, "wake", 900, false);
    }

    fn empty() -> Times {
        Times { atomic: 5.0, lock: 15.0, ..Times::default() }
    }

    #[test]
    fn times_that_were_not_measured_are_taken() {
        for (key, value) in [("line_near", 40), ("line_far", 120), ("handover_far", 300)] {
            assert_cost(empty(), key, value, true);
        }
        for (key, value) in [("fault", 700), ("shootdown", 1000), ("wake_latency", 3000)] {
            assert_cost(empty(), key, value, true);
        }
    }

    #[test]
    fn noise_makes_no_file_that_is_refused() {
        let flush = Some(Flush { others: 150.0, interrupt: -3.0 });
        let times = Times { atomic: 0.2, lock: 0.1, line_near: Some(900.0), flush, ..empty() };
        assert_cost(times, "atomic", 1, false);
        assert_cost(times, "lock", 1, false);
        assert_cost(times, "line_far", 900, true);
        assert_cost(times, "shootdown_target", 150, true);
        assert_cost(times, "shootdown_interrupt", 0, false);
        assert_cost(Times { switch: 3000.0, ..times }, "slice", 3000, false);
        assert_cost(Times { memory: 1e12, ..times }, "memory", 1_000_000_000, false);
        assert_cost(Times { populate: Some(9.0), ..times }, "fault", 0, false);
    }
}
