//! Published and measured values, and how they compare.
//!
//! One measure for all experiments: how the ratio of improved to base compares with the published
//! ratio ([`Verdict`]). Rows of the role [`Role::Change`] have it, and no others.

use serde::{Deserialize, Serialize};

/// What a value is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// How it was.
    Base,
    /// How it is.
    Improved,
    /// The ratio of improved to base.
    Change,
    /// The number of pairs of variants that differ in the published direction, and the number of
    /// all pairs.
    Order,
}

impl Role {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Base => "base",
            Role::Improved => "improved",
            Role::Change => "change",
            Role::Order => "order",
        }
    }
}

/// How far a measured ratio is from the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// At most 10 %.
    #[serde(rename = "met")]
    Met,
    /// At most 25 %.
    #[serde(rename = "within 25 %")]
    Near,
    /// More.
    #[serde(rename = "not met")]
    NotMet,
}

impl Verdict {
    /// Of two ratios of improved to base.
    pub fn of(published: f64, measured: f64) -> Verdict {
        match (measured / published - 1.0).abs() {
            off if off <= 0.10 => Verdict::Met,
            off if off <= 0.25 => Verdict::Near,
            _ => Verdict::NotMet,
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Near => "within 25 %",
            Verdict::NotMet => "not met",
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Of which experiment.
    pub experiment: String,
    /// What was measured.
    pub quantity: String,
    /// With how many tasks, where there are several numbers of them.
    pub tasks: Option<usize>,
    /// Its unit.
    pub unit: String,
    /// Of what.
    pub role: Role,
    /// The value in the document, if it has one.
    pub published: Option<f64>,
    /// The value measured here: the median of all seeds.
    pub measured: f64,
    /// The least and the most, where there were several seeds.
    pub spread: Option<[f64; 2]>,
    /// Of a change that was published.
    pub verdict: Option<Verdict>,
}

/// The values of a quantity over several seeds.
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
        experiment: &str,
        quantity: &str,
        unit: &str,
        role: Role,
        published: Option<f64>,
        Values { median: measured, spread }: Values,
    ) -> Row {
        let [experiment, quantity, unit] = [experiment, quantity, unit].map(String::from);
        let tasks = None;
        let verdict = None;
        Row { experiment, quantity, tasks, unit, role, published, measured, spread, verdict }
    }

    /// The row of the ratio of a quantity's value to the base's.
    pub(super) fn change(&self, published: Option<f64>, ratio: Values) -> Row {
        let verdict = published.map(|published| Verdict::of(published, ratio.median));
        let row =
            Row::new(&self.experiment, &self.quantity, "ratio", Role::Change, published, ratio);
        Row { tasks: self.tasks, verdict, ..row }
    }

    pub(super) fn with(self, tasks: usize) -> Row {
        Row { tasks: Some(tasks), ..self }
    }

    /// How far the measured value is from the published one, in percent of it; none of nothing.
    pub fn off_percent(&self) -> Option<f64> {
        let published = self.published.filter(|published| *published > 0.0)?;
        (self.role != Role::Order).then(|| (self.measured / published - 1.0) * 100.0)
    }

    /// Of a change: how many points of the base the measured change is above the published one.
    pub fn off_points(&self) -> Option<f64> {
        let published = self.published.filter(|_| self.role == Role::Change)?;
        Some((self.measured - published) * 100.0)
    }
}

/// The ratio of one value to another; none to nothing.
pub(super) fn ratio(base: f64, improved: f64) -> Option<f64> {
    (base > 0.0).then(|| improved / base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(role: Role, published: Option<f64>, measured: f64) -> Row {
        Row::new("swap", "swap in", "GB/s", role, published, Values::exactly(measured))
    }

    #[test]
    fn one_measure_says_whether_a_change_is_met() {
        for (published, measured, verdict) in [
            (1.185, 1.191, Verdict::Met),
            (1.0, 1.099, Verdict::Met),
            (0.27, 0.30, Verdict::Near),
            (2.0, 1.5, Verdict::Near),
            (2.0, 1.49, Verdict::NotMet),
            (0.5, 1.0, Verdict::NotMet),
        ] {
            assert_eq!(Verdict::of(published, measured), verdict, "{published} {measured}");
        }
        let base = row(Role::Base, Some(2.0), 2.5);
        let change = base.change(Some(1.5), Values::exactly(1.2));
        assert_eq!((base.verdict, change.verdict), (None, Some(Verdict::Near)));
        assert_eq!(base.change(None, Values::exactly(1.2)).verdict, None, "nothing was published");
    }

    #[test]
    fn differences_are_percent_and_of_changes_also_points() {
        let base = row(Role::Base, Some(2.0), 2.5);
        assert_eq!((base.off_percent(), base.off_points()), (Some(25.0), None));
        let change = base.change(Some(1.25), Values::exactly(1.5));
        assert!((change.off_percent().expect("published") - 20.0).abs() < 1e-9);
        assert_eq!(change.off_points(), Some(25.0));
        assert_eq!(row(Role::Improved, Some(0.0), 1.0).off_percent(), None, "of nothing");
    }

    #[test]
    fn several_seeds_become_their_median_and_spread() {
        let of = |values: &[f64]| Values::of(values.iter().copied());
        let summary = |values| of(values).map(|found| (found.median, found.spread));
        assert_eq!(summary(&[3.0]), Some((3.0, None)));
        assert_eq!(summary(&[3.0, 1.0, 9.0]), Some((3.0, Some([1.0, 9.0]))));
        assert_eq!(summary(&[4.0, 1.0]), Some((2.5, Some([1.0, 4.0]))));
        assert_eq!(summary(&[]), None);
    }

    #[test]
    fn rows_have_the_keys_that_programs_read() {
        let row = row(Role::Base, None, 1.0).change(Some(2.0), Values::exactly(1.5)).with(8);
        let json = serde_json::to_value(&row).expect("JSON");
        assert_eq!(
            json,
            serde_json::json!({"experiment": "swap", "quantity": "swap in", "tasks": 8,
                "unit": "ratio", "role": "change", "published": 2.0, "measured": 1.5,
                "spread": null, "verdict": "within 25 %"})
        );
        assert_eq!(serde_json::from_value::<Row>(json).expect("as it was written"), row);
    }
}
