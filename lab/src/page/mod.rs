//! Tables and pictures of results inside a page of documentation, between markers.
//!
//! ```text
//! <!-- results: swap-2016 -->              rows of that experiment (tables), and their ratios as a
//!                                          file of its own beside the page (picture)
//! <!-- calibration: xeon-48c-2-ramdisks --> costs that its base fixes, and what follows from them
//! ...                                      replaced
//! <!-- end -->
//! ```
//! The page is generated from the results, so the two cannot disagree.

mod picture;
mod tables;

use crate::calibrate::Calibration;
use crate::reproduce::{Outcome, Results};
use std::collections::BTreeMap;

const RESULTS: &str = "<!-- results: ";
const CALIBRATION: &str = "<!-- calibration: ";
const END: &str = "<!-- end -->";

/// Results from which a page is written.
#[derive(Debug, Default)]
pub struct Sources {
    /// Results of experiments.
    pub results: Results,
    /// Calibrations by machine.
    pub calibrations: BTreeMap<String, Calibration>,
}

/// A page, and the pictures that it shows.
#[derive(Debug, Default, PartialEq)]
pub struct Written {
    /// The page.
    pub page: String,
    /// SVG files, by their names in the directory of pictures.
    pub pictures: BTreeMap<String, String>,
}

impl Sources {
    /// The page with new text between its markers, and its pictures. `directory` is the path from
    /// the page to the pictures.
    ///
    /// # Errors
    /// A marker has no end, or names results that do not exist. The text gives its line and the
    /// remedy.
    pub fn write(&self, page: &str, directory: &str) -> Result<Written, String> {
        let Written { page: mut text, mut pictures } = Written::default();
        let mut lines = page.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            text.push_str(line);
            text.push('\n');
            let found = self.found(line).map_err(|what| format!("line {}: {what}", at + 1))?;
            let Some(found) = found else { continue };
            if !lines.by_ref().any(|(_, line)| line == END) {
                return Err(format!("line {}: no '{END}' follows; add it", at + 1));
            }
            let tables = match found {
                Found::Results(name, outcome) => {
                    let picture = picture::ratios(&outcome.rows).map(|svg| {
                        let file = format!("{name}.svg");
                        let path = format!("{directory}/{file}");
                        pictures.insert(file, svg);
                        path
                    });
                    tables::outcome(outcome, picture.as_deref())
                }
                Found::Calibration(found) => tables::calibration(found, &self.results),
            };
            text.push_str(&format!("{}\n\n{END}\n", tables.trim_end()));
        }
        Ok(Written { page: text, pictures })
    }

    /// The source that a marker names; `None` for any other line.
    fn found<'a>(&'a self, line: &'a str) -> Result<Option<Found<'a>>, String> {
        let name = |marker: &str| line.strip_prefix(marker)?.strip_suffix(" -->");
        if let Some(name) = name(RESULTS) {
            let outcome = self.results.experiments.get(name);
            let none =
                || format!("no results of {name}; run 'highwater-lab reproduce {name} --json'");
            return outcome.ok_or_else(none).map(|outcome| Some(Found::Results(name, outcome)));
        }
        if let Some(name) = name(CALIBRATION) {
            let found = self.calibrations.get(name);
            let none = || format!("no calibration of {name}; run 'highwater-lab calibrate {name}'");
            return found.ok_or_else(none).map(|found| Some(Found::Calibration(found)));
        }
        Ok(None)
    }
}

/// The source of the text between a marker and its end.
enum Found<'a> {
    Results(&'a str, &'a Outcome),
    Calibration(&'a Calibration),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::{CostRange, Prediction, Residual};
    use crate::machines;
    use crate::reproduce::{Role, Row, Verdict};
    use highwater_sim::Machine;

    const CALIBRATED: [&str; 2] = [
        include_str!("../../reproduce/calibrations/xeon-e5v3-72t-ramdisk.json"),
        include_str!("../../reproduce/calibrations/server-128c-8nvme.json"),
    ];

    /// The committed page is equal to the one that its command would write from the committed
    /// results.
    #[test]
    fn the_page_agrees_with_the_committed_results() {
        let page = include_str!("../../../docs/reproduction.md");
        let found = CALIBRATED.map(|text| {
            let found: Calibration = serde_json::from_str(text).expect("sound");
            (found.machine.clone(), found)
        });
        let sources = Sources {
            results: serde_json::from_str(include_str!("../../reproduce/results.json"))
                .expect("sound"),
            calibrations: found.into(),
        };
        let written = sources.write(page, "reproduction").expect("all markers have sources");
        assert!(written.page == page, "run 'make reproduction': docs/reproduction.md is older");
        assert!(page.contains(CALIBRATION));
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reproduction");
        let files = std::fs::read_dir(directory).expect("pictures");
        let committed = files.map(|file| {
            let path = file.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("text"))
        });
        let committed: BTreeMap<String, String> = committed.collect();
        assert!(written.pictures == committed, "run 'make reproduction': a picture is older");
    }

    /// The machine's file states for each cost what the committed calibration found.
    #[test]
    fn a_machine_file_agrees_with_its_committed_calibration() {
        for text in CALIBRATED {
            assert_agrees(&serde_json::from_str(text).expect("sound"));
        }
    }

    fn assert_agrees(found: &Calibration) {
        let name = found.machine.as_str();
        let (text, machine) = (machines::text(name), machines::find(name).expect("listed"));
        assert_eq!(machine.calibrated.len(), found.costs.len());
        for (one, cost) in machine.calibrated.iter().zip(&found.costs) {
            let file = (&one.cost, one.search, one.allowed);
            assert_eq!(file, (&cost.cost, cost.search, cost.allowed));
            let value = Machine::cost_in(text.expect("listed"), &one.cost);
            assert_eq!(value, Some(cost.best), "{}", one.cost);
        }
    }

    fn sources() -> Sources {
        let row = |role, published, measured, verdict| Row {
            experiment: "one".into(),
            quantity: "speed".into(),
            tasks: None,
            unit: "GB/s".into(),
            role,
            published: Some(published),
            measured,
            spread: None,
            verdict,
        };
        let rows =
            vec![row(Role::Base, 2.0, 2.1, None), row(Role::Change, 1.5, 1.6, Some(Verdict::Met))];
        let conditions = vec!["somewhere".into()];
        let outcome = Outcome { seeds: 1, conditions, runs: 2, seconds: 1.0, rows };
        let calibration = Calibration {
            machine: "small".into(),
            scale: 64,
            shorter: 1.0,
            simulations: 9,
            bound: 0.05,
            costs: vec![CostRange {
                cost: "costs.fault".into(),
                in_file: Some(5),
                search: [1, 100],
                best: 5,
                allowed: [2, 90],
            }],
            residuals: vec![Residual {
                value: "one: speed".into(),
                unit: "GB/s".into(),
                published: 2.0,
                best: 2.1,
            }],
            predictions: vec![Prediction {
                change: "one: speed".into(),
                best: 1.6,
                least: 1.4,
                most: 1.7,
            }],
        };
        Sources {
            results: Results { experiments: [("one".into(), outcome)].into() },
            calibrations: [("small".into(), calibration)].into(),
        }
    }

    #[test]
    fn text_between_markers_is_replaced_and_other_text_stays() {
        let page = "# Head\n<!-- results: one -->\nold\n<!-- end -->\ntext\n";
        let all = sources().write(page, "pictures").expect("sound");
        let written = &all.page;
        assert!(written.starts_with("# Head\n<!-- results: one -->\n"), "{written}");
        assert!(written.ends_with("\n\n<!-- end -->\ntext\n") && !written.contains("old"));
        assert!(
            written.contains("| one | speed | 1.500 | 1.600 | +6.7 % | +10.0 | met |"),
            "{written}"
        );
        assert_eq!(sources().write(written, "pictures").as_ref(), Ok(&all), "again");
        let link = "published beside measured](pictures/one.svg)\n";
        assert!(written.contains(link), "{written}");
        let verdicts = "Of 1 published changes 1 are met, 0 within 25 %, 0 not met.\n";
        assert!(written.contains(verdicts), "{written}");
        assert_eq!(all.pictures.keys().collect::<Vec<_>>(), ["one.svg"]);
    }

    #[test]
    fn a_calibration_has_intervals_beside_published_ratios() {
        let page = "<!-- calibration: small -->\n<!-- end -->\n";
        let written = sources().write(page, "pictures").expect("sound").page;
        assert!(
            written.contains("| `costs.fault` | 5 | 1 to 100 | 2 to 90 | not fixed |"),
            "{written}"
        );
        assert!(
            written.contains("| one: speed | 1.600 | 1.400 to 1.700 | 1.500 | met |"),
            "{written}"
        );
    }

    #[test]
    fn what_a_page_lacks_is_named() {
        for (page, expected) in [
            ("a\n<!-- results: two -->\n<!-- end -->\n", "line 2: no results of two"),
            ("<!-- calibration: two -->\n<!-- end -->\n", "line 1: no calibration of two"),
            ("<!-- results: one -->\n", "no '<!-- end -->' follows"),
        ] {
            let error = sources().write(page, "pictures").expect_err("it cannot be written");
            assert!(error.contains(expected), "{error}");
        }
    }
}
