//! Rows as text: a column is as wide as its widest cell.

use super::rows::{Role, Row};

/// What a column is headed, and on which side its cells are.
const HEADS: [(&str, Side); 10] = [
    ("experiment", Side::Left),
    ("quantity", Side::Left),
    ("role", Side::Left),
    ("unit", Side::Left),
    ("published", Side::Right),
    ("measured", Side::Right),
    ("off", Side::Right),
    ("points", Side::Right),
    ("verdict", Side::Left),
    ("spread", Side::Left),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// The rows as people read them. `off` is in percent of the published value, for changes of the
/// published ratio.
pub fn table(rows: &[Row]) -> String {
    let heads = HEADS.map(|(head, _)| head.to_owned());
    let lines: Vec<[String; 10]> = [heads].into_iter().chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADS.len()).map(|column| width(column).unwrap_or(0)).collect();
    let aligned = |line: &[String; 10]| {
        let columns = line.iter().zip(&widths).zip(HEADS);
        let cells = columns.map(|((cell, width), (_, side))| match side {
            Side::Left => format!("{cell:width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(aligned).collect::<Vec<_>>().join("\n")
}

fn cells(row: &Row) -> [String; 10] {
    let none = || "-".to_owned();
    let unit = Scale::of(row);
    let show = |value: f64| unit.show(value);
    [
        row.experiment.clone(),
        row.named(),
        row.role.name().into(),
        row.unit.clone(),
        row.published.map_or_else(none, show),
        show(row.measured),
        row.off_percent().map_or_else(none, |off| format!("{off:+.1} %")),
        row.off_points().map_or_else(none, |points| format!("{points:+.1}")),
        row.verdict.map_or_else(none, |verdict| verdict.name().into()),
        row.spread.map_or_else(String::new, |[a, b]| format!("{} to {}", show(a), show(b))),
    ]
}

impl Row {
    /// The quantity, with the number of tasks if there are several.
    pub fn named(&self) -> String {
        match self.tasks {
            None => self.quantity.clone(),
            Some(1) => format!("{}, 1 task", self.quantity),
            Some(tasks) => format!("{}, {tasks} tasks", self.quantity),
        }
    }
}

/// The power of 1000 in which the numbers of a row are shown, so that they compare at a glance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    divisor: f64,
    suffix: &'static str,
    /// Ratios have three decimals.
    is_ratio: bool,
}

impl Scale {
    /// By the larger of published and measured.
    pub fn of(row: &Row) -> Scale {
        let large = row.published.unwrap_or(0.0).abs().max(row.measured.abs());
        let steps = [(1e9_f64, " G"), (1e6, " M"), (1e3, " k")];
        // Up to 9999 all digits of a count are shown.
        let step = steps.into_iter().find(|(divisor, _)| large >= divisor.max(1e4));
        let (divisor, suffix) = step.unwrap_or((1.0, ""));
        Scale { divisor, suffix, is_ratio: row.role == Role::Change }
    }

    /// A number with four significant digits, at most three decimals.
    pub fn show(self, number: f64) -> String {
        let number = number / self.divisor;
        let decimals = match number.abs() {
            _ if self.is_ratio => 3,
            size if size == 0.0 || size >= 1000.0 => 0,
            size if size >= 100.0 => 1,
            size if size >= 10.0 => 2,
            _ => 3,
        };
        format!("{number:.decimals$}{}", self.suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::{Role, Values};
    use super::*;

    fn row(role: Role, published: Option<f64>, measured: f64) -> Row {
        let values = Values { median: measured, spread: Some([1.0, 9.0]) };
        Row::new("swap", "swap in", "GB/s", role, published, values)
    }

    #[test]
    fn a_table_has_a_line_for_each_row() {
        let base = row(Role::Base, Some(2.96), 3.0);
        let change = base.change(Some(1.185), Values::exactly(1.5)).with(16);
        let text = table(&[base, change, row(Role::Improved, None, 2e6)]);
        let lines: Vec<&str> = text.lines().collect();
        let words = |line: &str| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[1]), "base GB/s 2.960 3.000 +1.4 % - - 1.000 to 9.000");
        assert_eq!(words(lines[2]), "16 tasks change ratio 1.185 1.500 +26.6 % +31.5 not met");
        assert_eq!(words(lines[3]), "improved GB/s - 2.000 M - - - 0.000 M to 0.000 M");
    }

    #[test]
    fn columns_do_not_collide() {
        let long =
            Row { quantity: "x".repeat(60), unit: "y".repeat(30), ..row(Role::Base, None, 1.0) };
        let text = table(&[row(Role::Base, Some(1e12), 7.0), long]);
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        let at = lines[0].windows(4).position(|word| word.iter().collect::<String>() == "unit");
        let at = at.expect("a heading");
        assert!(lines.iter().all(|line| line[at - 2..at] == [' ', ' ']), "{text}");
    }

    #[test]
    fn numbers_of_a_row_have_one_scale_and_four_digits() {
        let show = |published: f64, measured: f64| {
            let row = row(Role::Base, Some(published), measured);
            [published, measured].map(|number| Scale::of(&row).show(number)).join(" / ")
        };
        assert_eq!(show(2_506_952.0, 998_100.0), "2.507 M / 0.998 M");
        assert_eq!(show(223_670.0, 205_716.0), "223.7 k / 205.7 k");
        assert_eq!(show(5068.0, 0.0), "5068 / 0");
        assert_eq!(show(40.38, 15.0), "40.38 / 15.00");
        assert_eq!(show(1.207, 999.96), "1.207 / 1000.0");
    }
}
