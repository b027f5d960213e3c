//! Calibration reads base values only, and machine files agree with it.

use super::*;
use crate::machines;

/// The files of this directory name no table and take no published value but those of bases.
#[test]
fn only_published_values_of_bases_are_in_reach() {
    for source in [
        include_str!("mod.rs"),
        include_str!("search.rs"),
        include_str!("surrogate.rs"),
        include_str!("report.rs"),
    ] {
        let code = source.split("#[cfg(test)]").next().expect("there is code");
        for forbidden in ["include_str", ".csv", "improved/", "find_experiment", "Study", "Variant"]
        {
            assert!(!code.contains(forbidden), "{forbidden}");
        }
    }
}

/// Each calibrated cost names published base values that exist, and has a value that they allow.
#[test]
fn machine_files_say_what_fixes_their_costs() {
    let mut checked = 0;
    for name in machines::names() {
        let (text, machine) = (machines::text(name).expect("listed"), machines::find(name));
        for one in machine.expect("listed").calibrated {
            let known: Vec<String> = base_values(name).iter().map(BaseValue::name).collect();
            assert!(one.by.iter().all(|by| known.contains(by)), "{name} {}: {known:?}", one.cost);
            if let Some(value) = Machine::cost_in(text, &one.cost) {
                let [least, most] = one.allowed;
                assert!((least..=most).contains(&value), "{name} {}", one.cost);
            }
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked} costs");
}

#[test]
fn what_cannot_be_calibrated_is_said_before_anything_runs() {
    let options = Options { scale: None, rounds: [0, 0], shorter: 1.0 };
    let refused = |text: &str, expected: &str| {
        let error = calibrate(text, options, &|_| panic!("nothing runs")).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    };
    let desktop = machines::text("desktop-2012-kvm").expect("listed");
    refused(desktop, "no [[calibrated]] costs");
    let ramdisk = machines::text("xeon-e5v3-72t-ramdisk").expect("listed");
    refused(
        &ramdisk.replace("swap-2016: lock share", "swap-2016: share"),
        "use swap-2016: swap-out",
    );
    refused(&ramdisk.replace("costs.section_lines", "costs.lines"), "no such number");
}
