//! What an experiment consists of.
//!
//! ```text
//! Study: machine, workload, settings
//!   |- Variant: settings, published values     a run for each variant, number of tasks and seed
//!   |- Quantity: taken from a run's figures    a row for each, by variant and tasks
//!   \- Presentation: Comparison, Sweep or Matrix: order of rows, changes, plots
//! ```

use super::options::Options;
use super::published::Table;
use super::rows::{Role, ratio};
use crate::report::simulation::SimulationFigures;
use crate::simulate::Workload;
use highwater_units::Nanos;

/// Runs of one workload on one machine.
#[derive(Debug)]
pub struct Study {
    /// The simulated machine.
    pub machine: &'static str,
    /// The workload.
    pub workload: Workload,
    /// How many tasks run.
    pub tasks: Tasks,
    /// How long the tasks are measured, in virtual time; `None` for workloads that end.
    pub time: Option<Nanos>,
    /// Divisors of memory and devices, the preferred one first: the first that fits into this
    /// machine's memory is used.
    pub scales: &'static [u64],
    /// Settings of all variants, as `key=value`.
    pub settings: &'static [&'static str],
    /// What is compared, the base first.
    pub variants: &'static [Variant],
    /// What is measured.
    pub quantities: &'static [Quantity],
    /// How the results are arranged.
    pub presentation: Presentation,
}

/// The number of tasks of a study's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// This many, in all runs.
    Fixed(usize),
    /// One run for each row of the variant's published table, which names the number of tasks.
    PerRow,
}

/// How results are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presentation {
    /// Each variant's quantities, with their ratios to the base's. The plot shows the first
    /// quantity by number of tasks, which takes further runs.
    Comparison(Latency),
    /// Quantities by number of tasks, with their ratios to the base before.
    Sweep(Changes),
    /// As a comparison, and whether the variants are in the published order.
    Matrix {
        /// Quantities that the plot shows.
        plot: &'static [&'static str],
    },
}

/// Whether the text shows a histogram of access latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Figures only.
    Hidden,
    /// A histogram for each variant.
    Shown,
}

/// Where a sweep compares with the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// At each number of tasks, and the highest values of all.
    Peak,
    /// At each number of tasks.
    Each,
}

/// One way to run a study.
#[derive(Debug)]
pub struct Variant {
    /// The name in rows. Several variants may share it, in different roles.
    pub name: &'static str,
    /// What it is compared as.
    pub role: Role,
    /// Whether it was published.
    pub known: Known,
    /// The published table, as CSV: a row for each number of tasks in a sweep, else for each
    /// quantity. A sweep takes numbers of tasks from it, even where no values were published.
    pub csv: &'static str,
    /// The column of its values. In a sweep, the prefix of the columns, empty for none.
    pub column: &'static str,
    /// Numbers of tasks of its curve in a comparison; empty for no curve.
    pub curve: &'static [usize],
    /// Its settings, as `key=value`; later ones override earlier ones.
    pub settings: &'static [&'static [&'static str]],
}

/// Whether a variant was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its values are in the file.
    Published,
    /// It goes beyond the document.
    Beyond,
}

/// Something that is measured.
#[derive(Debug)]
pub struct Quantity {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The rows of the published table whose sum is comparable. In a sweep, the column; empty if
    /// the variant's prefix is the whole heading.
    pub published: &'static [&'static str],
    /// Where its ratio to the base's is shown.
    pub compared: Compared,
    /// Takes it from the figures of a run.
    pub take: fn(&SimulationFigures) -> f64,
    /// In a sweep: the suffix of the file name of its plot; `None` for no plot.
    pub plot: Option<&'static str>,
}

/// Where the ratio of a quantity to the base's is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Where both values were published.
    Published,
    /// Everywhere; the published ratio follows from both values.
    Always,
    /// Everywhere; the change was published in percent, in a row of its own.
    PublishedPercent(&'static str),
    /// Everywhere, and in plots of ratios.
    Plotted,
}

impl Quantity {
    /// Has the defaults of the fields that are rarely set.
    pub const DEFAULT: Quantity = Quantity {
        name: "",
        unit: "",
        published: &[],
        compared: Compared::Published,
        take: |_| 0.0,
        plot: None,
    };

    /// Whether its ratio to the base's is shown where nothing was published.
    pub(super) fn is_compared(&self) -> bool {
        self.compared != Compared::Published
    }
}

impl Variant {
    /// Has the defaults of the fields that are rarely set.
    pub const DEFAULT: Variant = Variant {
        name: "",
        role: Role::Base,
        known: Known::Published,
        csv: "",
        column: "",
        curve: &[],
        settings: &[],
    };

    /// Its published table.
    pub(super) fn table(&self) -> Table {
        Table::parse(self.csv)
    }

    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.name, self.role.name())
    }
}

impl Study {
    pub(super) fn base(&self) -> &'static Variant {
        self.variants.first().expect("a study has a base")
    }

    /// The numbers of tasks of a variant's runs.
    ///
    /// # Panics
    /// If the variant's table has rows without a number of tasks.
    pub(super) fn tasks_of(&self, variant: &Variant) -> Vec<usize> {
        match self.tasks {
            Tasks::Fixed(tasks) => vec![tasks],
            Tasks::PerRow => {
                let number = |row: &str| row.parse().expect("a row begins with its tasks");
                variant.table().rows().map(number).collect()
            }
        }
    }

    /// Those of them that are asked for.
    pub(super) fn rows_of(&self, variant: &Variant, options: Options<'_>) -> Vec<usize> {
        let is_wanted = |tasks: &usize| match (self.tasks, options.tasks) {
            (Tasks::PerRow, Some(wanted)) => wanted.contains(tasks),
            (Tasks::PerRow, None) | (Tasks::Fixed(_), _) => true,
        };
        self.tasks_of(variant).into_iter().filter(is_wanted).collect()
    }

    /// The published value of a quantity, if there is one.
    pub(super) fn published(
        &self,
        variant: &Variant,
        quantity: &Quantity,
        tasks: usize,
    ) -> Option<f64> {
        match (variant.known, self.presentation) {
            (Known::Beyond, _) => None,
            (Known::Published, Presentation::Sweep(_)) => {
                let words = [variant.column].into_iter().chain(quantity.published.iter().copied());
                let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
                variant.table().value(&tasks.to_string(), &words.join(" "))
            }
            (Known::Published, Presentation::Comparison(_) | Presentation::Matrix { .. }) => {
                variant.table().sum(quantity.published, variant.column)
            }
        }
    }

    /// The published ratio of a quantity to the base's, if there is one.
    pub(super) fn published_ratio(
        &self,
        quantity: &Quantity,
        base: &Variant,
        variant: &Variant,
        tasks: usize,
    ) -> Option<f64> {
        match (quantity.compared, variant.known) {
            (Compared::PublishedPercent(name), Known::Published) => {
                let percent = variant.table().value(name, variant.column)?;
                Some(1.0 + percent / 100.0)
            }
            _ => {
                let was = self.published(base, quantity, tasks)?;
                ratio(was, self.published(variant, quantity, tasks)?)
            }
        }
    }
}
