//! Descriptions of machines with random defects: each is refused, or describes a machine on which
//! threads can run.

use super::description::Machine;
use crate::{Limits, Policy, Setup, Traced, simulate};
use highwater_units::Nanos;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const MACHINE: &str = include_str!("../../../../lab/machines/x7-2l-52c-8nvme.toml");

/// Values that are nearly right, or of another kind.
const VALUES: [&str; 20] = [
    "0",
    "1",
    "-1",
    "2",
    "63",
    "65",
    "4096",
    "4294967296",
    "18446744073709551615",
    "9223372036854775807",
    "1e300",
    "nan",
    "0.5",
    "true",
    "\"\"",
    "\"x y\"",
    "[]",
    "[1, \"a\"]",
    "{}",
    "1979-05-27",
];

/// A change of one line.
#[derive(Clone, Copy, Debug)]
enum Change {
    Remove,
    Repeat,
    Value(&'static str),
    Key(&'static str),
    Text(&'static str),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Remove),
        Just(Change::Repeat),
        select(&VALUES[..]).prop_map(Change::Value),
        select(&["cpus", "about", "node", "", "a.b", "\"a b\""][..]).prop_map(Change::Key),
        select(&["[costs]", "[[devices]]", "[", "=", "é", "\0", "# x"][..]).prop_map(Change::Text),
    ]
}

fn changed(lines: &mut Vec<String>, at: usize, change: Change) {
    let line = lines.remove(at);
    let parts = line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    let new = match (change, parts) {
        (Change::Remove, _) => return,
        (Change::Repeat, _) => format!("{line}\n{line}"),
        (Change::Text(text), _) => text.to_owned(),
        (Change::Value(value), Some((key, _))) => format!("{key}= {value}"),
        (Change::Key(key), Some((_, value))) => format!("{key} ={value}"),
        (Change::Value(_) | Change::Key(_), None) => line,
    };
    lines.insert(at, new);
}

fn check(text: &str) {
    match Machine::load(text) {
        Ok(machine) => {
            let (policy, limits) = (Policy::SmallestClock, Limits::default());
            let setup = Setup { machine, seed: 1, policy, limits, holdups: 0, traced: Traced::Off };
            let work = |vm: &crate::Vm| {
                vm.scope(2, "thread", &|_| vm.sleep(Nanos(1000)));
                assert!(vm.now().0 >= 1000);
            };
            simulate(setup, work).expect("it ends");
        }
        Err(lines) => assert!(!lines.trim().is_empty(), "{text}"),
    }
}

proptest! {
    // A failure prints the changes, which become a test of check.rs.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn changed_machines_are_machines_or_are_refused(
        changes in proptest::collection::vec((any::<Index>(), change()), 1..4),
    ) {
        let mut lines: Vec<String> = MACHINE.lines().map(str::to_owned).collect();
        for (index, change) in changes {
            let at = index.index(lines.len());
            changed(&mut lines, at, change);
        }
        check(&lines.join("\n"));
    }

    #[test]
    fn any_text_is_refused(text in any::<String>()) {
        assert!(Machine::load(&text).is_err(), "{text:?}");
    }
}
