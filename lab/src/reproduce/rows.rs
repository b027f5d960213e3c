//! Published and measured values, side by side.

use super::published::Published;
use super::{Change, Known, Quantity, Run, Variant};
use crate::report::simulation::SimulationFigures;
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
    /// As it came out here.
    pub measured: f64,
}

/// The rows of runs, the base first.
pub(super) fn rows(file: &[Published], quantities: &[Quantity], runs: &[Run<'_>]) -> Vec<Row> {
    let (base, improved) = runs.split_first().expect("an experiment has a base");
    let of_base = quantities.iter().map(|quantity| {
        let published = sum(file, quantity.published, |row| row.base);
        row(base.0, quantity, published, (quantity.take)(&base.1))
    });
    let of_others = improved.iter().flat_map(|(variant, figures)| {
        let each = quantities.iter();
        each.flat_map(|quantity| compared(file, quantity, variant, [&base.1, figures]))
    });
    of_base.chain(of_others).collect()
}

/// A quantity of an improved run, and its change from the base.
fn compared(
    file: &[Published],
    quantity: &Quantity,
    variant: &Variant,
    figures: [&SimulationFigures; 2],
) -> Vec<Row> {
    let of = |value: fn(&Published) -> Option<f64>| match variant.known {
        Known::Published => sum(file, quantity.published, value),
        Known::Beyond => None,
    };
    let (was, is) = (of(|row| row.base), of(|row| row.improved));
    let [base, improved] = figures.map(quantity.take);
    let change = match (quantity.change, variant.known) {
        (Change::None, _) => return vec![row(variant, quantity, is, improved)],
        (Change::Row(name), Known::Published) => sum(file, &[name], |row| row.improved),
        (Change::Percent, _) | (Change::Row(_), Known::Beyond) => {
            was.zip(is).and_then(|(was, is)| percent(was, is))
        }
    };
    let improved_row = row(variant, quantity, is, improved);
    let change_row = percent(base, improved).map(|measured| Row {
        unit: "percent".into(),
        role: Role::Change,
        published: change,
        measured,
        ..improved_row.clone()
    });
    [Some(improved_row), change_row].into_iter().flatten().collect()
}

/// A point of a curve.
pub(super) fn point(variant: &Variant, quantity: &Quantity, tasks: usize, value: f64) -> Row {
    let processes = if tasks == 1 { "process" } else { "processes" };
    let name = format!("{}, {tasks} {processes}", quantity.name);
    Row { quantity: name, ..row(variant, quantity, None, value) }
}

fn row(variant: &Variant, quantity: &Quantity, published: Option<f64>, measured: f64) -> Row {
    Row {
        experiment: variant.name.into(),
        quantity: quantity.name.into(),
        unit: quantity.unit.into(),
        role: variant.role,
        published,
        measured,
    }
}

/// The change from one value to another; none from nothing.
fn percent(base: f64, improved: f64) -> Option<f64> {
    (base > 0.0).then(|| (improved / base - 1.0) * 100.0)
}

/// The sum of published rows; none if one of them is not there.
fn sum(
    file: &[Published],
    names: &[&str],
    value: impl Fn(&Published) -> Option<f64>,
) -> Option<f64> {
    let of = |name: &&str| {
        let row = file.iter().find(|row| row.quantity == **name);
        value(row.unwrap_or_else(|| panic!("no published row is called '{name}'")))
    };
    match names {
        [] => None,
        names => names.iter().map(of).sum(),
    }
}

/// The rows as people read them. The difference is in percent of the published value, but for
/// changes in points.
pub fn table(rows: &[Row]) -> String {
    let heads = ["published", "measured", "difference"];
    let mut text = format!("{:22}{:34}{:10}{:9}", "experiment", "quantity", "role", "unit");
    heads.iter().for_each(|head| {
        let _ = write!(text, "{head:>12}");
    });
    for row in rows {
        let Row { experiment, quantity, unit, role, published, measured } = row;
        let role = role.name();
        let known = published.map_or("-".into(), shown);
        let measured = shown(*measured);
        let difference = difference(row).unwrap_or_else(|| "-".into());
        let _ = write!(
            text,
            "\n{experiment:22}{quantity:34}{role:10}{unit:9}{known:>12}{measured:>12}\
             {difference:>12}"
        );
    }
    text
}

fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 1e5 => format!("{:.0} k", value / 1e3),
        _ => format!("{value:.2}"),
    }
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
        Row { experiment, quantity, unit, role, published, measured }
    }

    #[test]
    fn differences_are_percent_of_values_and_points_of_changes() {
        let told = |role, published, measured| difference(&row(role, published, measured));
        assert_eq!(told(Role::Base, Some(2.0), 2.5).as_deref(), Some("+25.0 %"));
        assert_eq!(told(Role::Change, Some(18.5), 16.0).as_deref(), Some("-2.5 pt"));
        assert_eq!(told(Role::Improved, None, 1.0), None);
        assert_eq!(told(Role::Improved, Some(0.0), 1.0), None, "of nothing");
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

    #[test]
    fn sums_need_all_their_rows() {
        let file =
            crate::reproduce::published::rows("quantity,unit,base,improved\na,x,1,2\nb,x,3,\n");
        assert_eq!(sum(&file, &["a", "b"], |row| row.base), Some(4.0));
        assert_eq!(sum(&file, &["a", "b"], |row| row.improved), None);
        assert_eq!(sum(&file, &[], |row| row.base), None);
    }
}
