//! Figures as people read them: three digits and a unit.

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number, with a decimal prefix when it is large: 1.23 M.
    Count,
    /// Per second, with a decimal prefix: 1.23 M.
    Rate,
    /// Nanoseconds, or a larger unit of time.
    Time,
    /// 10^9 bytes per second.
    Speed,
    /// A share of 1, as a percentage.
    Share,
}

impl Unit {
    /// The figure, or a dash where there is none.
    pub fn show(self, figure: Option<f64>) -> String {
        let Some(figure) = figure else { return "-".into() };
        match self {
            Unit::Count if figure < 1e3 => format!("{figure:.0}"),
            Unit::Count | Unit::Rate => {
                scaled(figure, &[(1e9, " G"), (1e6, " M"), (1e3, " k")], "")
            }
            Unit::Time => scaled(figure, &[(1e9, " s"), (1e6, " ms"), (1e3, " us")], " ns"),
            Unit::Speed => format!("{figure:.2} GB/s"),
            Unit::Share => format!("{:.2}%", figure * 100.0),
        }
    }
}

/// Three digits in the largest unit that is not above the figure.
fn scaled(figure: f64, units: &[(f64, &str)], least: &str) -> String {
    let fitting = units.iter().find(|(size, _)| figure >= *size);
    let (size, name) = fitting.copied().unwrap_or((1.0, least));
    let value = figure / size;
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(Unit::Count.show(Some(12.0)), "12");
        assert_eq!(Unit::Count.show(Some(12_345.0)), "12.3 k");
        assert_eq!(Unit::Rate.show(Some(1_234_567.0)), "1.23 M");
        assert_eq!(Unit::Rate.show(Some(12.34)), "12.3");
        assert_eq!(Unit::Time.show(Some(854.0)), "854 ns");
        assert_eq!(Unit::Time.show(Some(9_700.0)), "9.70 us");
        assert_eq!(Unit::Speed.show(Some(1.234)), "1.23 GB/s");
        assert_eq!(Unit::Share.show(Some(0.0791)), "7.91%");
        assert_eq!(Unit::Time.show(None), "-");
    }
}
