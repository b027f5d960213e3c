//! The marks of an axis: their positions and their text. Locks: none.

use highwater_command::Unit;
use highwater_units::Bytes;

/// Most intervals between the marks of a vertical axis.
const INTERVALS_MAX: f64 = 4.0;
/// Part of the largest value that an axis has to reach; the rest is drawn beyond its end. Memory
/// may be a little more than the budget, and the axis still ends at the budget.
const REACHED: f64 = 0.98;
/// Most intervals on the axis of time, so that they fit on the screen of a phone.
const TIMES_MAX: f64 = 5.0;

/// The unit of the numbers of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Bytes,
    BytesPerSecond,
    PerSecond,
    /// Percent of the time.
    Percent,
}

impl Scale {
    /// Its name in the page's script.
    pub(super) fn name(self) -> &'static str {
        match self {
            Scale::Bytes => "bytes",
            Scale::BytesPerSecond => "bytes/s",
            Scale::PerSecond => "/s",
            Scale::Percent => "%",
        }
    }

    /// A number as text.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Scale::Bytes => Bytes(value as u64).to_string(),
            Scale::BytesPerSecond => format!("{}/s", Bytes(value as u64)),
            Scale::PerSecond => format!("{}/s", short(&Unit::Rate.show(Some(value)))),
            Scale::Percent => format!("{value:.0} %"),
        }
    }

    /// The marks of an axis from 0 to about `most`; the last mark is the end of the axis.
    pub(super) fn marks(self, most: f64) -> Vec<f64> {
        let step = match self {
            Scale::Percent if most <= 100.0 => 25.0,
            Scale::Bytes | Scale::BytesPerSecond => power_of_two(most * REACHED / INTERVALS_MAX),
            Scale::PerSecond | Scale::Percent => round(most * REACHED / INTERVALS_MAX),
        };
        let intervals = match self {
            Scale::Percent if most <= 100.0 => 4,
            _ => (most * REACHED / step).ceil().max(1.0) as u32,
        };
        (0..=intervals).map(|mark| f64::from(mark) * step).collect()
    }
}

/// A number with its unit, without a fraction that is 0.
pub(super) fn short(text: &str) -> String {
    let (number, unit) = text.split_once(' ').map_or((text, ""), |(number, unit)| (number, unit));
    let number = match number.split_once('.') {
        Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => whole,
        _ => number,
    };
    let unit = unit.replace("us", "µs");
    if unit.is_empty() { number.to_owned() } else { format!("{number} {unit}") }
}

/// The power of two that is not below `least`, at least 1.
fn power_of_two(least: f64) -> f64 {
    least.max(1.0).log2().ceil().exp2()
}

/// The number 1, 2 or 5 times a power of ten that is not below `least`.
fn round(least: f64) -> f64 {
    let power = 10f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
    let fits = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power).find(|it| *it >= least);
    fits.unwrap_or(10.0 * power)
}

/// Steps of one second and more, in seconds.
const STEPS: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0,
    21_600.0, 43_200.0,
];
const DAY: f64 = 86_400.0;

/// The marks on an axis of time from 0 to `end` seconds, with their text.
pub(super) fn times(end: f64) -> Vec<(f64, String)> {
    let least = end / TIMES_MAX;
    let step = match least {
        least if least <= 0.5 => round(least),
        least if least > DAY / 2.0 => DAY * round(least / DAY).max(1.0),
        least => STEPS.into_iter().find(|step| *step >= least).unwrap_or(DAY),
    };
    let unit = [(DAY, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];
    let (size, name) = unit.into_iter().find(|(size, _)| step % size == 0.0).unwrap_or((1.0, "s"));
    let decimals = if step < 1.0 { (-step.log10()).ceil() as usize } else { 0 };
    let marks = (0..).map(|mark| f64::from(mark) * step).take_while(|at| *at <= end * 1.0001);
    marks.map(|at| (at, format!("{:.decimals$} {name}", at / size))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_reach_the_largest_value() {
        let m = f64::from(1 << 20);
        for (scale, most, expected) in [
            (Scale::Bytes, 100.0 * m, vec![0.0, 32.0 * m, 64.0 * m, 96.0 * m, 128.0 * m]),
            (Scale::Bytes, 64.0 * m, vec![0.0, 16.0 * m, 32.0 * m, 48.0 * m, 64.0 * m]),
            (Scale::Bytes, 65.0 * m, vec![0.0, 16.0 * m, 32.0 * m, 48.0 * m, 64.0 * m]),
            (Scale::PerSecond, 730.0, vec![0.0, 200.0, 400.0, 600.0, 800.0]),
            (Scale::PerSecond, 0.3, vec![0.0, 0.1, 0.2, 0.3]),
            (Scale::Percent, 3.0, vec![0.0, 25.0, 50.0, 75.0, 100.0]),
            (Scale::Percent, 390.0, vec![0.0, 100.0, 200.0, 300.0, 400.0]),
            (Scale::BytesPerSecond, 0.0, vec![0.0, 1.0]),
        ] {
            let found = scale.marks(most);
            assert_eq!(found.len(), expected.len(), "{scale:?} {most}: {found:?}");
            let pairs = found.iter().zip(&expected);
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-6), "{most}: {found:?}");
            assert!(*found.last().unwrap() >= most * REACHED, "{scale:?} {most}: {found:?}");
        }
    }

    #[test]
    fn times_are_in_the_unit_of_their_step() {
        for (end, expected) in [
            (0.6, "0.0 s|0.2 s|0.4 s|0.6 s"),
            (0.13, "0.00 s|0.05 s|0.10 s"),
            (19.3, "0 s|5 s|10 s|15 s"),
            (100.0, "0 s|30 s|60 s|90 s"),
            (900.0, "0 min|5 min|10 min|15 min"),
            (9000.0, "0 min|30 min|60 min|90 min|120 min|150 min"),
            (40_000.0, "0 h|4 h|8 h"),
            (1_000_000.0, "0 d|5 d|10 d"),
        ] {
            let texts: Vec<String> = times(end).into_iter().map(|(_, text)| text).collect();
            assert_eq!(texts.join("|"), expected, "{end}");
        }
        for end in [1e-9, 0.25, 1.0, 3.0, 59.0, 61.0, 3599.0, 86_399.0, 1e7] {
            let marks = times(end).len();
            assert!((1..=6).contains(&marks), "{marks} marks up to {end}");
        }
    }

    #[test]
    fn values_have_their_unit() {
        for (scale, value, text) in [
            (Scale::Bytes, 1_048_576.0, "1 MiB"),
            (Scale::BytesPerSecond, 0.0, "0 B/s"),
            (Scale::PerSecond, 12_345.0, "12.3 k/s"),
            (Scale::PerSecond, 20_000.0, "20 k/s"),
            (Scale::PerSecond, 0.0, "0/s"),
            (Scale::Percent, 46.4, "46 %"),
        ] {
            assert_eq!(scale.text(value), text);
        }
    }
}
