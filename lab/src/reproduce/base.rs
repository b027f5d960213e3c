//! Published values of bases, for calibration: values of variants in the role of a base, from their
//! own tables. Values of later versions are in other tables, which nothing here parses.

use super::rows::Role;
use super::study::{Compared, Known, Presentation, Quantity, Study, Variant};
use super::{ALL, runs::Point};
use crate::report::simulation::SimulationFigures;
use crate::simulate::{self, BadSetting};
use highwater_sim::Machine;

/// A published value of a base.
#[derive(Clone, Copy, Debug)]
pub struct BaseValue {
    study: &'static Study,
    variant: &'static Variant,
    quantity: &'static Quantity,
    tasks: usize,
    /// The published value.
    pub published: f64,
}

/// A variant with a number of tasks: one simulation gives all its quantities.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    study: &'static Study,
    variant: &'static Variant,
    tasks: usize,
}

/// The ratio of an improved variant's quantity to its base's, which will be measured.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    quantity: &'static Quantity,
    /// The run of the base.
    pub base: Run,
    /// The run of the improved variant.
    pub improved: Run,
}

/// All values of bases that were published for experiments on a machine.
pub fn base_values(machine: &str) -> Vec<BaseValue> {
    studies(machine).flat_map(Study::base_values).collect()
}

/// The ratios that experiments on a machine measure. `tasks` are those of sweeps.
pub fn ratios(machine: &str, tasks: &[usize]) -> Vec<Ratio> {
    studies(machine).flat_map(|study| study.ratios(tasks)).collect()
}

fn studies(machine: &str) -> impl Iterator<Item = &'static Study> {
    let all = ALL.iter().flat_map(|experiment| experiment.studies);
    all.filter(move |study| study.machine == machine)
}

impl Study {
    /// The published values of its bases.
    pub fn base_values(&'static self) -> Vec<BaseValue> {
        let is_base =
            |v: &&Variant| (v.role, v.known) == (Role::Base, Known::Published) && !v.csv.is_empty();
        let mut found = Vec::new();
        for variant in self.variants.iter().filter(is_base) {
            for tasks in self.tasks_of(variant) {
                let value = |quantity: &'static Quantity| {
                    let published = self.published(variant, quantity, tasks)?;
                    Some(BaseValue { study: self, variant, quantity, tasks, published })
                };
                found.extend(self.quantities.iter().filter_map(value));
            }
        }
        found
    }

    /// Ratios of published variants to their base, without the published values.
    pub fn ratios(&'static self, tasks: &[usize]) -> Vec<Ratio> {
        let mut found = Vec::new();
        let Some(base) = self.variants.iter().rfind(|v| v.role == Role::Base) else { return found };
        let after = |v: &&Variant| (v.role, v.known) == (Role::Improved, Known::Published);
        for variant in self.variants.iter().filter(after) {
            let of_base = self.tasks_of(base);
            let each = of_base.iter().filter(|n| of_base.len() == 1 || tasks.contains(n));
            for &tasks in each {
                let run = |variant| Run { study: self, variant, tasks };
                let compared = self.quantities.iter().filter(|q| q.compared != Compared::Published);
                let of = |quantity| Ratio { quantity, base: run(base), improved: run(variant) };
                found.extend(compared.map(of));
            }
        }
        found
    }
}

impl BaseValue {
    /// Its name: of the variant, the quantity, and in sweeps the number of tasks.
    pub fn name(&self) -> String {
        let name = format!("{}: {}", self.variant.name, self.quantity.name);
        match self.study.presentation {
            Presentation::Sweep(_) => format!("{name}, {} tasks", self.tasks),
            Presentation::Comparison(_) | Presentation::Matrix { .. } => name,
        }
    }

    /// Its unit.
    pub fn unit(&self) -> &'static str {
        self.quantity.unit
    }

    /// The simulation that measures it.
    pub fn run(&self) -> Run {
        Run { study: self.study, variant: self.variant, tasks: self.tasks }
    }

    /// Takes it from that simulation's figures.
    pub fn take(&self, figures: &SimulationFigures) -> f64 {
        (self.quantity.take)(figures)
    }
}

impl Run {
    /// Its name: equal names, equal runs.
    pub fn name(&self) -> String {
        let Run { study, variant, tasks } = self;
        format!("{} {} on {}, {tasks} tasks", study.workload.name(), variant.title(), study.machine)
    }

    /// The simulation on a machine that stands for the study's, with further settings.
    ///
    /// # Errors
    /// A setting is not possible.
    pub fn at(
        &self,
        machine: Machine,
        scale: u64,
        settings: &[String],
    ) -> Result<simulate::Experiment, BadSetting> {
        let point = Point { tasks: self.tasks, scale, seed: 1 };
        let mut experiment = self.study.at(self.variant, point)?;
        settings.iter().try_for_each(|text| experiment.settings.set(text))?;
        Ok(simulate::Experiment { machine, ..experiment })
    }

    /// How many tasks run.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    /// The coarsest scale that its study is run at.
    pub fn scale(&self) -> u64 {
        *self.study.scales.last().expect("a study has a scale")
    }
}

impl Ratio {
    /// Its name.
    pub fn name(&self) -> String {
        let Ratio { quantity, improved: Run { study, variant, tasks }, .. } = self;
        match study.presentation {
            Presentation::Sweep(_) => format!("{}: {}, {tasks} tasks", variant.name, quantity.name),
            Presentation::Comparison(_) | Presentation::Matrix { .. } => {
                format!("{}: {}", variant.name, quantity.name)
            }
        }
    }

    /// Takes the ratio from the figures of both runs; `None` if the base's value is 0.
    pub fn take(&self, base: &SimulationFigures, improved: &SimulationFigures) -> Option<f64> {
        let (was, is) = ((self.quantity.take)(base), (self.quantity.take)(improved));
        (was > 0.0).then(|| is / was)
    }
}
