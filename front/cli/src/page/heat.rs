//! Latencies of faults over time, as a heat map: a column for each interval, a row for each power
//! of two of nanoseconds. A cell is the darker the more faults it stands for. Locks: none.

use super::axis::short;
use super::chart::{columns, rows};
use crate::series::{Sample, grouped};
use highwater_command::{Unit, count, time};
use highwater_units::Nanos;
use maud::{Markup, html};
use std::fmt::Write;

/// Most columns.
const COLUMNS_MAX: usize = 120;
/// Shades.
const LEVELS: usize = 7;
const WIDTH: f64 = 1000.0;

/// The rows of a map: powers of two, from the first to the last with faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    first: u32,
    last: u32,
}

impl Rows {
    fn of(samples: &[Sample]) -> Option<Rows> {
        let rows = samples.iter().flat_map(|it| it.fault_latency_ns.keys()).map(|it| row(*it));
        let (first, last) = (rows.clone().min()?, rows.max()?);
        Some(Rows { first, last })
    }

    fn count(self) -> u32 {
        self.last - self.first + 1
    }

    /// Powers of ten within the rows, as numbers of rows from the lower end.
    fn marks(self) -> Vec<f64> {
        let powers = (0..12).map(|power| 10f64.powi(power).log2() - f64::from(self.first));
        powers.filter(|at| (0.0..=f64::from(self.count())).contains(at)).collect()
    }

    fn text(self, mark: f64) -> String {
        let nanos = (mark + f64::from(self.first)).exp2().round() as u64;
        short(&time(Nanos(nanos)))
    }
}

/// The row of the faults that took at least `least` nanoseconds, and less than twice as long.
fn row(least: u64) -> u32 {
    least.max(1).ilog2()
}

/// The shade of a cell: 0 to LEVELS - 1, on a logarithmic scale.
fn level(faults: u64, most: u64) -> usize {
    let share = (faults as f64).ln_1p() / (most as f64).ln_1p();
    ((share * LEVELS as f64).ceil() as usize).clamp(1, LEVELS) - 1
}

/// The figure.
pub(super) fn map(samples: &[Sample]) -> Markup {
    let samples = grouped(samples, COLUMNS_MAX);
    let Some(rows_of) = Rows::of(&samples) else {
        return html! { p.nothing { "No page fault in this run." } };
    };
    let most = samples.iter().flat_map(|it| it.fault_latency_ns.values()).max().copied();
    let most = most.unwrap_or(1);
    let end = samples.last().map_or(1.0, |last| last.end_seconds);
    let height = rows_of.count();
    let label = format!(
        "Latencies of page faults over time, from {} to {}",
        rows_of.text(0.0),
        rows_of.text(f64::from(height))
    );
    html! {
        figure.card.heat {
            div.plot role="img" aria-label=(label) {
                (rows(&rows_of.marks(), f64::from(height), |mark| rows_of.text(mark)))
                svg viewBox=(format!("0 0 1000 {height}")) preserveAspectRatio="none"
                    shape-rendering="crispEdges" aria-hidden="true" {
                    @for (level, path) in cells(&samples, rows_of, most).iter().enumerate() {
                        path class=(format!("h{level}")) d=(path) {}
                    }
                }
                (columns(end))
            }
            figcaption {
                p.shades {
                    "1 fault "
                    @for level in 0..LEVELS {
                        span class=(format!("h{level}")) aria-hidden="true" {}
                    }
                    " " (count(most)) " in " (interval(&samples))
                }
                p.note {
                    "Each column is an interval, each row the faults that took up to twice as long \
                     as those of the row below. Minor faults are served from memory, in the lower \
                     rows; major ones wait for a device."
                }
            }
        }
    }
}

/// The length of most columns.
fn interval(samples: &[Sample]) -> String {
    let seconds = samples.first().map_or(0.0, |first| first.end_seconds);
    short(&Unit::Time.show(Some(seconds * 1e9)))
}

/// The cells of each shade, as a path.
fn cells(samples: &[Sample], rows: Rows, most: u64) -> [String; LEVELS] {
    let mut paths = [const { String::new() }; LEVELS];
    let end = samples.last().map_or(1.0, |last| last.end_seconds);
    let mut begin = 0.0;
    for sample in samples {
        let x = (sample.end_seconds / end * WIDTH).round();
        for (least, faults) in &sample.fault_latency_ns {
            let y = rows.last - row(*least);
            let path = &mut paths[level(*faults, most)];
            let width = x - begin;
            let _ = write!(path, "M{begin} {y}h{width}v1h-{width}z");
        }
        begin = x;
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        let sample = |end_seconds, cells: &[(u64, u64)]| Sample {
            end_seconds,
            fault_latency_ns: cells.iter().copied().collect(),
            ..Sample::default()
        };
        vec![sample(1.0, &[(1024, 1), (131_072, 1000)]), sample(2.0, &[]), sample(4.0, &[(512, 9)])]
    }

    #[test]
    fn a_cell_is_where_its_time_and_latency_are() {
        let rows = Rows::of(&samples()).unwrap();
        assert_eq!(rows, Rows { first: 9, last: 17 });
        let cells = cells(&samples(), rows, 1000);
        assert_eq!(cells[LEVELS - 1], "M0 0h250v1h-250z");
        assert_eq!(cells[0], "M0 7h250v1h-250z");
        assert_eq!(cells[2], "M500 8h500v1h-500z");
        assert_eq!(cells.iter().filter(|path| !path.is_empty()).count(), 3);
    }

    #[test]
    fn shades_are_logarithmic() {
        assert_eq!([1, 30, 1_000_000].map(|faults| level(faults, 1_000_000)), [0, 1, 6]);
        assert_eq!(level(1, 1), LEVELS - 1);
    }

    #[test]
    fn marks_are_powers_of_ten() {
        let rows = Rows { first: 9, last: 17 };
        let texts: Vec<String> = rows.marks().into_iter().map(|mark| rows.text(mark)).collect();
        assert_eq!(texts, ["1 µs", "10 µs", "100 µs"]);
    }

    #[test]
    fn a_run_without_faults_has_no_map() {
        assert!(map(&[]).into_string().contains("No page fault"));
        let page = map(&samples()).into_string();
        assert!(page.contains("1,000") && page.contains("100 µs"), "{page}");
    }
}
