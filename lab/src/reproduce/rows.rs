//! Published and measured values, side by side.

use highwater_command::value;
use serde::Serialize;
use std::fmt::Write;

/// What a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// How it was.
    Base,
    /// How it is.
    Improved,
    /// From one to the other.
    Change,
}

impl Role {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Base => "base",
            Role::Improved => "improved",
            Role::Change => "change",
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Of which experiment.
    pub experiment: String,
    /// What was measured.
    pub quantity: String,
    /// Its unit.
    pub unit: String,
    /// Of what.
    pub role: Role,
    /// As the document has it, if it does.
    pub published: Option<f64>,
    /// As it came out here: the median of all seeds.
    pub measured: f64,
    /// The least and the most, where there were several.
    #[serde(skip)]
    pub spread: Option<[f64; 2]>,
}

/// What several seeds made of a quantity.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pub(super) median: f64,
    pub(super) spread: Option<[f64; 2]>,
}

impl Values {
    /// None of none.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Values> {
        let mut all: Vec<f64> = values.collect();
        all.sort_by(f64::total_cmp);
        let (least, most) = (*all.first()?, *all.last()?);
        let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
        Some(Values { median, spread: (all.len() > 1).then_some([least, most]) })
    }

    /// A value without spread.
    pub(super) fn exactly(median: f64) -> Values {
        Values { median, spread: None }
    }
}

impl Row {
    /// A row of a measured quantity.
    pub(super) fn new(
        experiment: String,
        quantity: String,
        unit: &str,
        role: Role,
        published: Option<f64>,
        Values { median: measured, spread }: Values,
    ) -> Row {
        Row { experiment, quantity, unit: unit.into(), role, published, measured, spread }
    }
}

/// The change from one value to another; none from nothing.
pub(super) fn percent(base: f64, improved: f64) -> Option<f64> {
    (base > 0.0).then(|| (improved / base - 1.0) * 100.0)
}

/// The rows as people read them. The difference is in percent of the published value, but for
/// changes in points.
pub fn table(rows: &[Row]) -> String {
    let heads = ["published", "measured", "difference"];
    let mut text = format!("{:28}{:34}{:10}{:9}", "experiment", "quantity", "role", "unit");
    heads.iter().for_each(|head| {
        let _ = write!(text, "{head:>12}");
    });
    for row in rows {
        let Row { experiment, quantity, unit, role, published, measured, spread } = row;
        let role = role.name();
        let known = published.map_or("-".into(), value);
        let measured = value(*measured);
        let difference = difference(row).unwrap_or_else(|| "-".into());
        let _ = write!(
            text,
            "\n{experiment:28}{quantity:34}{role:10}{unit:9}{known:>12}{measured:>12}\
             {difference:>12}"
        );
        if let Some([least, most]) = spread {
            let _ = write!(text, "   {} to {}", value(*least), value(*most));
        }
    }
    text
}

fn difference(row: &Row) -> Option<String> {
    let published = row.published?;
    match row.role {
        Role::Change => Some(format!("{:+.1} pt", row.measured - published)),
        Role::Base | Role::Improved => {
            percent(published, row.measured).map(|percent| format!("{percent:+.1} %"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(role: Role, published: Option<f64>, measured: f64) -> Row {
        let [experiment, quantity, unit] = ["swap", "swap in", "GB/s"].map(String::from);
        Row { experiment, quantity, unit, role, published, measured, spread: None }
    }

    #[test]
    fn differences_are_percent_of_values_and_points_of_changes() {
        let shown = |role, published, measured| difference(&row(role, published, measured));
        assert_eq!(shown(Role::Base, Some(2.0), 2.5).as_deref(), Some("+25.0 %"));
        assert_eq!(shown(Role::Change, Some(18.5), 16.0).as_deref(), Some("-2.5 pt"));
        assert_eq!(shown(Role::Improved, None, 1.0), None);
        assert_eq!(shown(Role::Improved, Some(0.0), 1.0), None, "of nothing");
    }

    #[test]
    fn several_seeds_become_their_median_and_spread() {
        let of = |values: &[f64]| Values::of(values.iter().copied());
        let summary = |values| of(values).map(|found| (found.median, found.spread));
        assert_eq!(summary(&[3.0]), Some((3.0, None)));
        assert_eq!(summary(&[3.0, 1.0, 9.0]), Some((3.0, Some([1.0, 9.0]))));
        assert_eq!(summary(&[4.0, 1.0]), Some((2.5, Some([1.0, 4.0]))));
        assert_eq!(summary(&[]), None);
        let row = Row { spread: Some([1.0, 9.0]), ..row(Role::Base, None, 3.0) };
        assert!(table(&[row]).ends_with("-   1.00 to 9.00"));
    }

    #[test]
    fn a_table_has_a_line_for_each_row() {
        let text = table(&[row(Role::Base, Some(2.96), 3.0), row(Role::Improved, None, 2e6)]);
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(lines[1][3..], ["base", "GB/s", "2.96", "3.00", "+1.4", "%"]);
        assert_eq!(lines[2][3..], ["improved", "GB/s", "-", "2000", "k", "-"]);
    }

    #[test]
    fn rows_have_the_keys_that_programs_read() {
        let json = serde_json::to_value(row(Role::Change, None, 1.5)).expect("JSON");
        assert_eq!(
            json,
            serde_json::json!({"experiment": "swap", "quantity": "swap in", "unit": "GB/s",
                "role": "change", "published": null, "measured": 1.5})
        );
    }
}
