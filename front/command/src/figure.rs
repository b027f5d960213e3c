//! Numbers as text: the only module that formats counts, rates, times and shares.
//!
//! ```text
//! Unit::show   three digits and a unit    12.3 k    9.70 us    1.23 GB/s    7.91%
//! time         one decimal and a unit     9.7 us
//! elapsed      in words                   61 seconds
//! count        digits in groups           1,024
//! counted      a count with its noun      1 process, 1,024 processes
//! value        two decimals               2.96, 2000 k
//! short_size   a size for columns         37.3M
//! ```
//! Other sizes are [`Bytes`](highwater_units::Bytes), whose `Display` prints a binary unit.

use highwater_units::{Bytes, Nanos};
use indicatif::{HumanCount, HumanDuration};
use std::time::Duration;

/// The unit in which a figure is shown.
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

/// Sizes and names of units, the largest first; the last one is used for all smaller figures.
type Scale = [(f64, &'static str); 4];

const PREFIXES: Scale = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, "")];
const TIMES: Scale = [(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")];

impl Unit {
    /// The figure, or a dash if there is none.
    pub fn show(self, figure: Option<f64>) -> String {
        let Some(figure) = figure else { return "-".into() };
        match self {
            Unit::Count if figure < 1e3 => format!("{figure:.0}"),
            Unit::Count | Unit::Rate => three_digits(figure, &PREFIXES),
            Unit::Time => three_digits(figure, &TIMES),
            Unit::Speed => format!("{figure:.2} GB/s"),
            Unit::Share => format!("{:.2}%", figure * 100.0),
        }
    }
}

fn three_digits(figure: f64, scale: &Scale) -> String {
    let (value, unit) = scaled(figure, scale);
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}{unit}")
}

/// The figure in the largest unit that is not larger than the figure.
fn scaled(figure: f64, scale: &Scale) -> (f64, &'static str) {
    let fitting = scale.iter().find(|(size, _)| figure >= *size);
    let (size, unit) = fitting.unwrap_or(&scale[scale.len() - 1]);
    (figure / size, unit)
}

/// "999 ns", "9.7 us", "1.5 ms", "2.0 s".
pub fn time(time: Nanos) -> String {
    let (value, unit) = scaled(time.0 as f64, &TIMES);
    let decimals = usize::from(time.0 >= 1000);
    format!("{value:.decimals$}{unit}")
}

/// "61 seconds", "2 minutes": whole units, rounded.
pub fn elapsed(time: Duration) -> String {
    HumanDuration(Duration::from_secs(time.as_secs())).to_string()
}

/// "1,024".
pub fn count(count: u64) -> String {
    HumanCount(count).to_string()
}

/// "1 process", "2 processes", "1,024 processes".
pub fn counted(number: u64, one: &str, many: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{} {many}", count(number)),
    }
}

/// "37.3M", "512K", "0": a size in at most six characters.
pub fn short_size(size: Bytes) -> String {
    size.to_string().replace([' ', 'i', 'B'], "")
}

/// A value of any unit: two decimals, or thousands from 100,000.
pub fn value(value: f64) -> String {
    if value.abs() >= 1e5 { format!("{:.0} k", value / 1e3) } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        for (unit, figure, text) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 12.0, "12"),
            (Unit::Count, 12_345.0, "12.3 k"),
            (Unit::Rate, 0.004, "0.00"),
            (Unit::Rate, 1_234_567.0, "1.23 M"),
            (Unit::Rate, 12.34, "12.3"),
            (Unit::Time, 0.0, "0.00 ns"),
            (Unit::Time, 854.0, "854 ns"),
            (Unit::Time, 9_700.0, "9.70 us"),
            (Unit::Speed, 1.234, "1.23 GB/s"),
            (Unit::Share, 0.0791, "7.91%"),
        ] {
            assert_eq!(unit.show(Some(figure)), text);
        }
        assert_eq!(Unit::Time.show(None), "-");
    }

    #[test]
    fn times_have_their_unit() {
        for (nanos, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (9_700, "9.7 us"),
            (999_999, "1000.0 us"),
            (1_500_000, "1.5 ms"),
            (2_000_000_000, "2.0 s"),
        ] {
            assert_eq!(time(Nanos(nanos)), text);
        }
        assert_eq!(elapsed(Duration::from_millis(61_900)), "61 seconds");
    }

    #[test]
    fn short_sizes_have_a_letter() {
        for (bytes, text) in
            [(0, "0"), (999, "999"), (1023 << 10, "1023K"), (64 << 20, "64M"), (3 << 29, "1.5G")]
        {
            assert_eq!(short_size(Bytes(bytes)), text);
        }
    }

    #[test]
    fn counts_are_grouped_and_take_their_noun() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!([0, 1, 1024].map(|n| counted(n, "seed", "seeds")).join(", "), {
            "0 seeds, 1 seed, 1,024 seeds"
        });
    }

    #[test]
    fn values_have_two_decimals_until_they_are_large() {
        for (number, text) in [(2.961, "2.96"), (99_999.0, "99999.00"), (-2e6, "-2000 k")] {
            assert_eq!(value(number), text);
        }
    }
}
