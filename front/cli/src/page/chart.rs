//! Plots over time.
//!
//! ```text
//! Samples --- charts ---> Chart --- draw ---> figure: legend | axis | SVG, stretched | axis
//!                                                     caption
//! ```
//! The SVG has only lines and areas, and is stretched to the width of the page. Text is HTML beside
//! the SVG, so its size does not change. A value holds for an interval, so lines have steps.
//! Locks: none.

use super::axis::{Scale, times};
use crate::series::Sample;
use maud::{Markup, html};
use serde::Serialize;
use std::fmt::Write;

/// Width and height of the SVG's own coordinates.
const SIDE: f64 = 1000.0;

/// How the values of a line are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Filled down to the line before: the values are added to those of that line.
    Stacked,
    /// Filled down to the axis.
    Area,
    Line,
    Dashed,
}

/// A line of a plot.
struct Line {
    name: &'static str,
    look: Look,
    values: Vec<f64>,
}

/// A plot.
pub(super) struct Chart {
    id: &'static str,
    title: &'static str,
    note: &'static str,
    scale: Scale,
    lines: Vec<Line>,
}

/// The value of a line for a sample; the number is the length of the interval in seconds.
type Value = fn(&Sample, f64) -> f64;

/// The plots of a run.
pub(super) fn charts(samples: &[Sample]) -> Vec<Chart> {
    let lengths = lengths(samples);
    let line = |(name, look, value): (&'static str, Look, Value)| {
        let values = samples.iter().zip(&lengths).map(|(sample, length)| value(sample, *length));
        Line { name, look, values: values.collect() }
    };
    let chart = |id, title, note, scale, lines: &[(&'static str, Look, Value)]| {
        let lines = lines.iter().copied().map(line).collect();
        Chart { id, title, note, scale, lines }
    };
    let memory: [(&str, Look, Value); 3] = [
        ("pages", Look::Stacked, |it, _| it.resident_bytes as f64),
        ("not paged", Look::Stacked, |it, _| it.unpaged_bytes as f64),
        ("budget", Look::Dashed, |it, _| it.budget_bytes as f64),
    ];
    let swap: [(&str, Look, Value); 1] =
        [("in swap", Look::Area, |it, _| it.swap_used_bytes as f64)];
    let faults: [(&str, Look, Value); 2] = [
        ("minor", Look::Area, |it, length| it.faults_minor as f64 / length),
        ("major", Look::Line, |it, length| it.faults_major as f64 / length),
    ];
    let traffic: [(&str, Look, Value); 2] = [
        ("read", Look::Area, |it, length| it.swapped_in_bytes as f64 / length),
        ("written", Look::Line, |it, length| it.swapped_out_bytes as f64 / length),
    ];
    let reclaim: [(&str, Look, Value); 2] = [
        ("by kswapd", Look::Area, |it, length| it.reclaimed_kswapd_bytes as f64 / length),
        ("by the program's threads", Look::Line, |it, length| {
            it.reclaimed_direct_bytes as f64 / length
        }),
    ];
    let pressure: [(&str, Look, Value); 2] = [
        ("a thread", Look::Area, |it, length| percent(it, it.stalled_some_seconds, length)),
        ("all threads", Look::Line, |it, length| percent(it, it.stalled_full_seconds, length)),
    ];
    vec![
        chart("memory", "Memory", "What counts towards the budget.", Scale::Bytes, &memory),
        chart("swap", "Swap in use", "Slots of all swap devices.", Scale::Bytes, &swap),
        chart(
            "faults",
            "Page faults",
            "Minor: served from memory. Major: waited for a read from swap.",
            Scale::PerSecond,
            &faults,
        ),
        chart("traffic", "Swap traffic", "", Scale::BytesPerSecond, &traffic),
        chart(
            "reclaim",
            "Memory freed",
            "A thread frees memory itself, and waits, where kswapd is too slow.",
            Scale::BytesPerSecond,
            &reclaim,
        ),
        chart(
            "pressure",
            "Time stalled",
            "Part of the time in which threads waited for memory or swap; of several processes \
             the sum.",
            Scale::Percent,
            &pressure,
        ),
    ]
}

/// Stalls in percent of an interval, limited to 100 per process. Processes that get no CPU publish
/// late, so that an interval may be charged with more time than it has.
fn percent(sample: &Sample, stalled_seconds: f64, length: f64) -> f64 {
    (stalled_seconds * 100.0 / length).min(100.0 * sample.processes.max(1) as f64)
}

/// The lengths of the intervals in seconds.
fn lengths(samples: &[Sample]) -> Vec<f64> {
    let begins = [0.0].into_iter().chain(samples.iter().map(|it| it.end_seconds));
    let length = |(begin, sample): (f64, &Sample)| (sample.end_seconds - begin).max(1e-3);
    begins.zip(samples).map(length).collect()
}

/// The numbers behind the plots, for the page's script.
#[derive(Serialize)]
struct Data<'a> {
    ends: Vec<f64>,
    charts: Vec<ChartData<'a>>,
}

#[derive(Serialize)]
struct ChartData<'a> {
    id: &'a str,
    scale: &'a str,
    /// The values of each line.
    values: Vec<Vec<f64>>,
}

/// The numbers behind plots, as JSON.
pub(super) fn data(samples: &[Sample], charts: &[Chart]) -> String {
    let rounded = |value: &f64| (value * 10.0).round() / 10.0;
    let of = |chart: &Chart| {
        let values = chart.lines.iter().map(|line| line.values.iter().map(rounded).collect());
        values.collect()
    };
    let charts = charts.iter().map(|chart| ChartData {
        id: chart.id,
        scale: chart.scale.name(),
        values: of(chart),
    });
    let ends = samples.iter().map(|it| (it.end_seconds * 1e3).round() / 1e3).collect();
    // Only numbers, and names from this file: no text that could end the script element.
    serde_json::to_string(&Data { ends, charts: charts.collect() }).unwrap_or_default()
}

impl Chart {
    /// The figure.
    pub(super) fn draw(&self, samples: &[Sample]) -> Markup {
        let drawn = self.drawn();
        let most = drawn.iter().flatten().fold(0.0f64, |most, it| most.max(*it));
        html! {
            figure.card id=(self.id) {
                figcaption {
                    h3 { (self.title) }
                    ul.legend {
                        @for (number, line) in self.lines.iter().enumerate() {
                            li class=(format!("s{number} {}", line.look.class())) {
                                span.key aria-hidden="true" {} (line.name) " "
                                output { (self.peak(line)) }
                            }
                        }
                    }
                }
                @if most > 0.0 { (self.plot(samples, &drawn, most)) }
                @else { p.nothing { "None in this run." } }
                @if !self.note.is_empty() { p.note { (self.note) } }
            }
        }
    }

    fn peak(&self, line: &Line) -> String {
        let most = line.values.iter().copied().fold(0.0, f64::max);
        format!("up to {}", self.scale.text(most))
    }

    /// The values as they are drawn: those of stacked lines summed.
    fn drawn(&self) -> Vec<Vec<f64>> {
        let mut below: Vec<f64> = Vec::new();
        let drawn = |line: &Line| {
            let mut values = line.values.clone();
            if line.look == Look::Stacked {
                values.iter_mut().zip(&below).for_each(|(value, below)| *value += below);
                below.clone_from(&values);
            }
            values
        };
        self.lines.iter().map(drawn).collect()
    }

    fn plot(&self, samples: &[Sample], drawn: &[Vec<f64>], most: f64) -> Markup {
        let marks = self.scale.marks(most);
        let top = marks.last().copied().unwrap_or(1.0);
        let end = samples.last().map_or(1.0, |last| last.end_seconds);
        let xs: Vec<f64> = samples.iter().map(|it| it.end_seconds / end * SIDE).collect();
        // Later lines of a stack lie behind earlier ones.
        let order = (0..self.lines.len()).rev();
        let peaks = self.lines.iter().map(|line| format!("{} {}", line.name, self.peak(line)));
        let label = format!("{} over time: {}", self.title, peaks.collect::<Vec<_>>().join(", "));
        html! {
            div.plot data-chart=(self.id) role="img" aria-label=(label) {
                (rows(&marks, top, |mark| self.scale.text(mark)))
                svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true" {
                    path.grid d=(grid(&marks, top)) {}
                    @for line in order {
                        path class=(format!("s{line} {}", self.lines[line].look.class()))
                            d=(steps(&xs, &drawn[line], top, self.lines[line].look)) {}
                    }
                }
                (columns(end))
            }
        }
    }
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Look::Stacked | Look::Area => "area",
            Look::Line => "line",
            Look::Dashed => "dashed",
        }
    }
}

/// The text of a vertical axis. The page may hide every other mark where there is little room.
pub(super) fn rows(marks: &[f64], top: f64, text: impl Fn(f64) -> String) -> Markup {
    html! {
        div.y aria-hidden="true" {
            @for mark in marks {
                span style=(format!("bottom:{:.2}%", mark / top * 100.0)) { (text(*mark)) }
            }
        }
    }
}

/// The text of the axis of time.
pub(super) fn columns(end: f64) -> Markup {
    let class = |at: f64| match at / end {
        share if share < 0.04 => "first",
        share if share > 0.97 => "last",
        _ => "",
    };
    html! {
        div.x aria-hidden="true" {
            @for (at, text) in times(end) {
                span class=(class(at)) style=(format!("left:{:.2}%", at / end * 100.0)) { (text) }
            }
        }
    }
}

/// Horizontal lines at the marks, except at the mark 0.
fn grid(marks: &[f64], top: f64) -> String {
    let ys = marks.iter().skip(1).map(|mark| SIDE - mark / top * SIDE);
    ys.map(|y| format!("M0 {y:.0}H1000")).collect()
}

/// A line with steps: each value holds until its `x`. Areas are closed at the bottom.
fn steps(xs: &[f64], values: &[f64], top: f64, look: Look) -> String {
    let mut path = String::new();
    for (at, (x, value)) in xs.iter().zip(values).enumerate() {
        let y = SIDE - value / top * SIDE;
        let to = if at == 0 { "M0 " } else { "V" };
        let _ = write!(path, "{to}{y:.0}H{x:.0}");
    }
    match look {
        Look::Stacked | Look::Area => path + "V1000H0Z",
        Look::Line | Look::Dashed => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        let sample = |end_seconds, faults_minor, resident_bytes| Sample {
            end_seconds,
            faults_minor,
            resident_bytes,
            unpaged_bytes: 1 << 20,
            budget_bytes: 4 << 20,
            ..Sample::default()
        };
        vec![sample(0.5, 100, 1 << 20), sample(1.0, 0, 3 << 20)]
    }

    fn drawn(id: &str) -> String {
        let samples = samples();
        let chart = charts(&samples).into_iter().find(|chart| chart.id == id).unwrap();
        chart.draw(&samples).into_string()
    }

    #[test]
    fn a_line_has_a_step_for_each_sample_and_rates_are_per_second() {
        let page = drawn("faults");
        // 200 faults per second, then none, on an axis that ends at 200.
        assert!(page.contains(r#"d="M0 0H500V1000H1000V1000H0Z""#), "{page}");
        assert!(page.contains("up to 200/s"), "{page}");
        assert!(page.contains(">0.4 s<") && page.contains(">150/s<"), "{page}");
    }

    #[test]
    fn what_is_not_paged_stands_on_pages() {
        let page = drawn("memory");
        for path in ["M0 750H500V250H1000V1000H0Z", "M0 500H500V0H1000V1000H0Z", "M0 0H500V0H1000"]
        {
            assert!(page.contains(path), "{path}: {page}");
        }
    }

    #[test]
    fn a_process_is_not_stalled_for_longer_than_it_runs() {
        let late = [Sample { stalled_some_seconds: 2.0, ..samples().remove(0) }];
        let chart = charts(&late).pop().unwrap();
        assert!(chart.draw(&late).into_string().contains("a thread <output>up to 100 %"));
    }

    #[test]
    fn a_plot_without_values_says_so() {
        assert!(drawn("traffic").contains("None in this run."));
        for chart in charts(&[]) {
            assert!(chart.draw(&[]).into_string().contains("None in this run."));
        }
    }

    #[test]
    fn the_script_gets_all_values() {
        let samples = samples();
        let data: serde_json::Value =
            serde_json::from_str(&data(&samples, &charts(&samples))).unwrap();
        assert_eq!(data["ends"], serde_json::json!([0.5, 1.0]));
        assert_eq!(data["charts"][2]["values"][0], serde_json::json!([200.0, 0.0]));
    }
}
