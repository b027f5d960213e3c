//! Published tables with a row for each number of tasks: a run for each, column by column.
//!
//! ```text
//! Table: settings, CSV ── a run for each row and seed ──> figures ── Column::take ──> rows, curves
//! ```
//! The first column of a CSV is the number of tasks; columns are found by their headings.

use super::rows::{Values, percent};
use super::{Asked, Drawn, Reproduced, Role, Row};
use crate::machines;
use crate::report::plot::{Plot, Series};
use crate::report::simulation::{SimulationFigures, Tasks};
use crate::simulate::{self, BadSetting, Settings, Trouble, Workload};
use highwater_sim::Traced;
use highwater_units::Nanos;
use std::sync::{Mutex, OnceLock};
use std::thread;

/// Rows that are run at once, at most: each takes memory of the host.
const RUNS_MAX: usize = 4;

/// What all tables of an experiment have in common.
#[derive(Debug)]
pub struct Tables {
    /// The machine, among the simulated ones.
    pub machine: &'static str,
    /// What runs on it.
    pub workload: Workload,
    /// How long it is measured.
    pub time: Nanos,
    /// What memory and devices are divided by: the first for which this machine has memory.
    pub scales: &'static [u64],
    /// Settings of all, as `key=value`.
    pub settings: &'static [&'static str],
    /// The tables.
    pub tables: &'static [Table],
    /// Where changes of the first column are told.
    pub changes: Changes,
    /// What is measured.
    pub columns: &'static [Column],
}

/// Where changes of the first column from the base before are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// At its peak.
    Peak,
    /// At every number of tasks.
    Rows,
}

/// One table.
#[derive(Debug)]
pub struct Table {
    /// The experiment that its rows are of.
    pub name: &'static str,
    /// What it is compared as: an improved one with the base before it.
    pub role: Role,
    /// Settings of its own; later ones count.
    pub settings: &'static [&'static str],
    /// As published; of one that goes beyond what was, only the numbers of tasks count.
    pub csv: &'static str,
    /// Whether the values are of it.
    pub known: super::Known,
    /// Where one file has several tables: the heading of its first column; those of others begin
    /// with it.
    pub heading: Option<&'static str>,
}

/// Something that is measured.
#[derive(Debug)]
pub struct Column {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its heading in the CSV.
    pub heading: &'static str,
    /// How it is taken from the figures.
    pub take: fn(&SimulationFigures) -> f64,
    /// Whether a plot shows it, and what its file's name then adds to that asked for.
    pub plot: Option<&'static str>,
}

/// What came of one row: its tasks, and what its seeds measured.
struct Measured {
    tasks: usize,
    runs: Vec<SimulationFigures>,
}

impl Tables {
    /// Runs all tables; rows, and plots if asked for, are added to `all`.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub(super) fn reproduce(
        &self,
        asked: Asked,
        all: &mut Reproduced,
        told: &(impl Fn(&str, usize) + Sync),
    ) -> Result<(), Trouble> {
        let scale = asked.scale.map_or_else(|| self.scale(), Ok).map_err(Trouble::Setup)?;
        let mut done = Vec::new();
        let mut all_measured = self.measure(asked, scale, told)?.into_iter();
        for table in self.tables {
            let measured: Vec<_> = all_measured.by_ref().take(rows_of(table).len()).collect();
            let first = &measured.first().expect("a table has rows").runs[0];
            all.conditions.push(format!("{}: {}", table.name, first.heading(Tasks::Several)));
            all.rows.extend(measured.iter().flat_map(|row| self.columns_of(table, row)));
            done.push((table, measured));
            match self.changes {
                Changes::Peak => all.rows.extend(self.peak(&done)),
                Changes::Rows => all.rows.extend(self.row_changes(&done)),
            }
        }
        if asked.curves == super::Curves::Yes {
            all.plots.extend(self.columns.iter().filter_map(|column| self.plot(column, &done)));
        }
        Ok(())
    }

    /// All rows of all tables, in order, several at once: a run is one thread of the host's, and
    /// nothing is shared between runs.
    fn measure(
        &self,
        asked: Asked,
        scale: u64,
        told: &(impl Fn(&str, usize) + Sync),
    ) -> Result<Vec<Measured>, Trouble> {
        let of = |table| rows_of(table).into_iter().map(move |tasks| (table, tasks));
        let rows: Vec<(&Table, usize)> = self.tables.iter().flat_map(of).collect();
        let done: Vec<OnceLock<_>> = rows.iter().map(|_| OnceLock::new()).collect();
        let left = Mutex::new(rows.iter().zip(&done));
        let take = || left.lock().expect("no panic").next();
        let run = || {
            while let Some(((table, tasks), place)) = take() {
                let drawn = Drawn { tasks: *tasks, scale, seed: asked.seeds };
                let measured = self.row(table, drawn, told);
                place.set(measured).unwrap_or_else(|_| unreachable!("a row is taken once"));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(RUNS_MAX);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
        done.into_iter().map(|row| row.into_inner().expect("all were run")).collect()
    }

    /// A row of a table, with as many seeds as `drawn` says.
    fn row(
        &self,
        table: &Table,
        drawn: Drawn,
        told: &impl Fn(&str, usize),
    ) -> Result<Measured, Trouble> {
        let Drawn { tasks, seed: seeds, .. } = drawn;
        told(&format!("{} on {}", table.name, self.machine), tasks);
        let run = |seed| {
            let experiment = self.at(table, Drawn { seed, ..drawn }).map_err(Trouble::Setup)?;
            simulate::run(&experiment).map(|simulation| simulation.figures)
        };
        let runs = (1..=seeds.max(1)).map(run).collect::<Result<Vec<_>, _>>()?;
        // All may take long: whoever ends it early has what was measured until then.
        for column in self.columns {
            let values = Values::of(runs.iter().map(column.take)).expect("a row was run");
            let (name, unit) = (column.name, column.unit);
            told(&format!("{}: {name} {:.2} {unit}", table.name, values.median), tasks);
        }
        Ok(Measured { tasks, runs })
    }

    fn columns_of(&self, table: &Table, row: &Measured) -> Vec<Row> {
        let of = |column: &Column| {
            let values = Values::of(row.runs.iter().map(column.take)).expect("a row was run");
            let published = published(table, row.tasks, column);
            let quantity = format!("{}, {} tasks", column.name, row.tasks);
            made(table, table.role, quantity, column.unit, published, values)
        };
        self.columns.iter().map(of).collect()
    }

    /// The change of the last table's first column from the base, for each number of tasks.
    fn row_changes(&self, done: &[(&Table, Vec<Measured>)]) -> Vec<Row> {
        let column = self.columns.first().expect("something is measured");
        let Some((table, rows)) = done.last() else { return Vec::new() };
        let base = done.iter().rev().find(|(base, _)| base.role == Role::Base);
        let Some((base_table, base_rows)) = base.filter(|_| table.role == Role::Improved) else {
            return Vec::new();
        };
        let of = |row: &Measured| {
            let was = base_rows.iter().find(|was| was.tasks == row.tasks)?;
            let pairs = was.runs.iter().zip(&row.runs);
            let change = Values::of(
                pairs.filter_map(|(was, is)| percent((column.take)(was), (column.take)(is))),
            )?;
            let known = |table| published(table, row.tasks, column);
            let published = known(*base_table).zip(known(*table));
            let published = published.and_then(|(was, is)| percent(was, is));
            let quantity = format!("{}, {} tasks", column.name, row.tasks);
            Some(made(table, Role::Change, quantity, "percent", published, change))
        };
        rows.iter().filter_map(of).collect()
    }

    /// The highest value of the last table's first column, and its change from the base.
    fn peak(&self, done: &[(&Table, Vec<Measured>)]) -> Vec<Row> {
        let column = self.columns.first().expect("something is measured");
        let highest = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
        let of = |(table, rows): &(&Table, Vec<Measured>)| {
            let median = |row: &Measured| {
                Values::of(row.runs.iter().map(column.take)).expect("a row was run").median
            };
            let known = rows.iter().filter_map(|row| published(table, row.tasks, column));
            (highest(rows.iter().map(median).collect()), highest(known.collect()))
        };
        let Some(last) = done.last() else { return Vec::new() };
        let (table, (Some(measured), known)) = (last.0, of(last)) else { return Vec::new() };
        let name = format!("{}, peak", column.name);
        let values = |median| Values { median, spread: None };
        let mut rows =
            vec![made(table, table.role, name.clone(), column.unit, known, values(measured))];
        let base = done.iter().rev().find(|(base, _)| base.role == Role::Base);
        if let (Role::Improved, Some((Some(was), was_known))) = (table.role, base.map(of)) {
            let published = was_known.zip(known).and_then(|(was, is)| percent(was, is));
            let change = percent(was, measured).map(values);
            let row = |change| made(table, Role::Change, name, "percent", published, change);
            rows.extend(change.map(row));
        }
        rows
    }

    /// A column of all tables that have it, beside what was published.
    fn plot(&self, column: &Column, done: &[(&Table, Vec<Measured>)]) -> Option<(String, Plot)> {
        let suffix = column.plot?;
        let mut series = Vec::new();
        for (table, rows) in done {
            let point = |row: &Measured| (row.tasks as f64, (column.take)(&row.runs[0]));
            let points = rows.iter().map(point).collect();
            series.push(Series { name: table.name.into(), points });
            let known = |row: &Measured| {
                published(table, row.tasks, column).map(|value| (row.tasks as f64, value))
            };
            let points: Vec<_> = rows.iter().filter_map(known).collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{}, published", table.name), points });
            }
        }
        let plot = Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: "tasks".into(),
            y_label: format!("{}, {}", column.name, column.unit),
            series,
        };
        Some((suffix.into(), plot))
    }

    /// The first scale that this machine has memory for.
    fn scale(&self) -> Result<u64, BadSetting> {
        let table = self.tables.first().expect("an experiment has a table");
        let mut last = None;
        for scale in self.scales {
            let drawn = Drawn { tasks: rows_of(table)[0], scale: *scale, seed: 1 };
            match self.at(table, drawn).and_then(|experiment| simulate::check(&experiment)) {
                Ok(()) => return Ok(*scale),
                Err(bad) => last = Some(bad),
            }
        }
        Err(last.expect("an experiment has a scale"))
    }

    /// A row of a table as something to simulate.
    pub(super) fn at(
        &self,
        table: &Table,
        drawn: Drawn,
    ) -> Result<simulate::Experiment, BadSetting> {
        let Drawn { tasks, scale, seed } = drawn;
        let mut settings = Settings::default();
        settings.set(&format!("scale={scale}"))?;
        self.settings.iter().chain(table.settings).try_for_each(|text| settings.set(text))?;
        Ok(simulate::Experiment {
            machine: machines::find(self.machine).expect("a test finds them all"),
            workload: self.workload,
            tasks,
            seed,
            time: Some(self.time),
            settings,
            traced: Traced::Off,
        })
    }
}

/// The numbers of tasks of a table.
///
/// # Panics
/// At a row without one: the files are part of the program.
pub(super) fn rows_of(table: &Table) -> Vec<usize> {
    let first = |line: &str| line.split(',').next().and_then(|cell| cell.parse().ok());
    let number = |line| first(line).unwrap_or_else(|| panic!("'{line}' has no number of tasks"));
    table.csv.lines().skip(1).map(number).collect()
}

/// A published value; none where there is no such column.
pub(super) fn published(table: &Table, tasks: usize, column: &Column) -> Option<f64> {
    if table.known == super::Known::Beyond {
        return None;
    }
    let wanted = match (table.heading, column.heading) {
        (Some(own), "") => own.to_owned(),
        (Some(own), further) => format!("{own} {further}"),
        (None, heading) => heading.to_owned(),
    };
    let mut lines = table.csv.lines();
    let at = lines.next()?.split(',').position(|heading| heading == wanted)?;
    let of_row = |line: &&str| line.split(',').next() == Some(&tasks.to_string());
    let cell = lines.find(of_row)?.split(',').nth(at).filter(|cell| !cell.is_empty())?;
    Some(cell.parse().unwrap_or_else(|_| panic!("'{cell}' in {}", table.name)))
}

fn made(
    table: &Table,
    role: Role,
    quantity: String,
    unit: &str,
    published: Option<f64>,
    values: Values,
) -> Row {
    Row {
        experiment: table.name.into(),
        quantity,
        unit: unit.into(),
        role,
        published,
        measured: values.median,
        spread: values.spread,
    }
}
