//! Results and calibrations as tables of Markdown.

use crate::calibrate::{Calibration, CostRange};
use crate::reproduce::{Outcome, Results, Role, Row, Scale, Verdict};
use highwater_command::value;
use std::fmt::Write;

/// An experiment: verdicts in numbers, with the picture in this file if there is one; conditions,
/// values, changes, orders.
pub(super) fn outcome(outcome: &Outcome, picture: Option<&str>) -> String {
    let seeds = match outcome.seeds {
        1 => "One run each, seed 1".into(),
        seeds => format!("Medians of {seeds} seeds"),
    };
    let conditions = outcome.conditions.iter().map(|of| format!("| {} |", of.replace('\n', "; ")));
    let conditions = table(&["conditions"], &conditions.collect::<Vec<_>>());
    let rows = |keep: fn(&Row) -> bool| outcome.rows.iter().filter(move |row| keep(row));
    let values: Vec<&Row> = rows(|row| matches!(row.role, Role::Base | Role::Improved)).collect();
    let verdicts = verdicts(&outcome.rows);
    let shown = picture.map_or_else(String::new, |file| {
        format!("![Ratios of improved to base: published beside measured]({file})\n")
    });
    let parts = [
        format!("{seeds}; {} runs, {:.0} s.\n{verdicts}\n", outcome.runs, outcome.seconds),
        shown,
        conditions,
        one_by_one(&values),
        by_tasks(&values),
        changes(&rows(|row| row.role == Role::Change).collect::<Vec<_>>()),
        orders(&rows(|row| row.role == Role::Order).collect::<Vec<_>>()),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The number of published changes with each verdict.
fn verdicts(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict == Some(verdict)).count();
    match [Verdict::Met, Verdict::Near, Verdict::NotMet].map(count) {
        [0, 0, 0] => "No change was published.".into(),
        [met, near, not] => format!(
            "Of {} published changes {met} are met, {near} within 25 %, {not} not met.",
            met + near + not
        ),
    }
}

/// Values without numbers of tasks, a line each.
fn one_by_one(rows: &[&Row]) -> String {
    let lines: Vec<String> =
        rows.iter().filter(|row| row.tasks.is_none()).map(|row| line(row)).collect();
    let head = ["variant", "role", "quantity", "unit", "published", "measured", "off", "spread"];
    table(&head, &lines)
}

fn line(row: &Row) -> String {
    let Row { experiment, quantity, unit, .. } = row;
    let (published, measured) = both(row);
    format!(
        "| {experiment} | {} | {quantity} | {unit} | {published} | {measured} | {} | {} |",
        row.role.name(),
        off(row),
        spread(row)
    )
}

/// Values by number of tasks: a table for each variant, a column for each quantity.
fn by_tasks(rows: &[&Row]) -> String {
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.tasks.is_some()).collect();
    let mut text = String::new();
    for variant in distinct(rows.iter().map(|row| row.experiment.as_str())) {
        let own = || rows.iter().filter(|row| row.experiment == variant);
        let quantities = distinct(own().map(|row| row.quantity.as_str()));
        let unit = |quantity: &&str| {
            let row = own().find(|row| row.quantity == *quantity).expect("it has one");
            format!("{quantity}, {}", row.unit)
        };
        let heads = quantities.iter().map(unit).collect::<Vec<_>>();
        let heads: Vec<&str> =
            [variant, "tasks"].into_iter().chain(heads.iter().map(String::as_str)).collect();
        let line = |tasks: usize| {
            let cell = |quantity: &&str| {
                own().find(|row| (row.tasks, row.quantity.as_str()) == (Some(tasks), *quantity))
            };
            let cells = quantities.iter().map(|quantity| match cell(quantity) {
                Some(row) => {
                    let (published, measured) = both(row);
                    format!("{published} / {measured}")
                }
                None => "-".into(),
            });
            format!("| | {tasks} | {} |", cells.collect::<Vec<_>>().join(" | "))
        };
        let tasks = distinct(own().filter_map(|row| row.tasks));
        text += &table(&heads, &tasks.into_iter().map(line).collect::<Vec<_>>());
        text += "\n";
    }
    text
}

/// Ratios of improved to base.
fn changes(rows: &[&Row]) -> String {
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let (published, measured) = both(row);
            let points = row.off_points().map_or("-".into(), |points| format!("{points:+.1}"));
            let verdict = row.verdict.map_or("-", |verdict| verdict.name()).to_owned();
            let (of, quantity) = (row.experiment.clone(), row.named());
            let cells = [of, quantity, published, measured, off(row), points, verdict, spread(row)];
            format!("| {} |", cells.join(" | "))
        })
        .collect();
    let head = [
        "improved / base",
        "quantity",
        "published",
        "measured",
        "off",
        "points",
        "verdict",
        "spread",
    ];
    table(&head, &lines)
}

fn orders(rows: &[&Row]) -> String {
    let line = |row: &&Row| {
        let pairs = row.published.unwrap_or(0.0);
        format!("| {} | {:.0} of {pairs:.0} |", row.quantity, row.measured)
    };
    table(
        &["quantity", "pairs of variants in the published order"],
        &rows.iter().map(line).collect::<Vec<_>>(),
    )
}

/// The costs that the base fixes, residuals, and intervals of changes beside published ratios.
pub(super) fn calibration(found: &Calibration, results: &Results) -> String {
    let Calibration { simulations, scale, shorter, bound, .. } = found;
    let mut text = format!(
        "{simulations} points, scale {scale}, warm-up and time divided by {shorter}; a point fits \
         within {:.1} % of each base value:\n\n",
        bound * 100.0
    );
    let cost = |of: &CostRange| {
        let [search, allowed] = [of.search, of.allowed].map(|[a, b]| format!("{a} to {b}"));
        format!("| `{}` | {} | {search} | {allowed} | {} |", of.cost, of.best, of.verdict())
    };
    let lines: Vec<String> = found.costs.iter().map(cost).collect();
    text += &table(&["cost", "best fit", "searched", "allowed", "by the base"], &lines);
    let residuals = found.residuals.iter().map(|of| {
        let off = (of.best / of.published - 1.0) * 100.0;
        let [published, best] = [of.published, of.best].map(value);
        format!("| {} | {} | {published} | {best} | {off:+.1} % |", of.value, of.unit)
    });
    let residuals: Vec<String> = residuals.collect();
    let _ = write!(
        text,
        "\n{}",
        table(&["base value", "unit", "published", "best fit", "residual"], &residuals)
    );
    let predictions = found.predictions.iter().map(|of| {
        let published = ratio(results, &of.change);
        let verdict = published.map_or("-", |ratio| Verdict::of(ratio, of.best).name());
        let published = published.map_or("-".into(), |ratio| format!("{ratio:.3}"));
        format!(
            "| {} | {:.3} | {:.3} to {:.3} | {published} | {verdict} |",
            of.change, of.best, of.least, of.most
        )
    });
    let head = ["improved / base", "predicted", "interval", "published", "verdict"];
    let predictions: Vec<String> = predictions.collect();
    text + "\n" + &table(&head, &predictions)
}

/// The published ratio of a change, by the name that a prediction has.
fn ratio(results: &Results, change: &str) -> Option<f64> {
    let mut rows = results.experiments.values().flat_map(|outcome| &outcome.rows);
    let named = |row: &&Row| format!("{}: {}", row.experiment, row.named()) == change;
    rows.find(|row| row.role == Role::Change && named(row))?.published
}

fn both(row: &Row) -> (String, String) {
    let scale = Scale::of(row);
    let published = row.published.map_or("-".into(), |published| scale.show(published));
    (published, scale.show(row.measured))
}

fn off(row: &Row) -> String {
    row.off_percent().map_or("-".into(), |off| format!("{off:+.1} %"))
}

fn spread(row: &Row) -> String {
    let scale = Scale::of(row);
    row.spread.map_or("-".into(), |[a, b]| format!("{} to {}", scale.show(a), scale.show(b)))
}

/// A table; empty if there are no lines.
fn table(heads: &[&str], lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let rule = "---|".repeat(heads.len());
    format!("| {} |\n|{rule}\n{}\n", heads.join(" | "), lines.join("\n"))
}

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut seen, one| {
        if !seen.contains(&one) {
            seen.push(one);
        }
        seen
    })
}
