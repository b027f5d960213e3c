//! The ratios of improved to base of an experiment as a picture: published and measured side by
//! side.
//!
//! ```text
//! variant: quantity
//!   16 tasks        ░░░▒▒▒|▒▒▒░░░          published |, and 10 % and 25 % around it
//!                     --o--                measured, with the spread of the seeds
//!             0.5      1       2           logarithmic
//! ```
//! It is as wide as a telephone's screen, so that text keeps its size there. A background rectangle
//! and colours for dark screens keep it readable on any page.

use crate::reproduce::{Role, Row};
use highwater_command::counted;
use plotters::coord::Shift;
use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::Ranged;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::io;

type Error = DrawingAreaErrorKind<io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: i32 = 440;
/// Where the axis begins and ends.
const AXIS: (i32, i32) = (180, WIDTH - 14);
const LEGEND_HEIGHT: i32 = 44;
const LINE_HEIGHT: i32 = 17;
const TICKS_HEIGHT: i32 = 22;
/// The axis ends at these ratios: a ratio beyond them is an arrow at the end.
const RATIOS: (f64, f64) = (1.0 / 16.0, 16.0);
/// Numbers at the axis, the more important ones first.
const TICKS: [f64; 15] =
    [1.0, 0.5, 2.0, 0.1, 10.0, 0.2, 5.0, 0.7, 1.5, 0.3, 3.0, 0.8, 1.2, 0.9, 1.1];
/// Pixels between two ticks, at least.
const TICKS_APART: i32 = 26;

const GROUND: RGBColor = RGBColor(0xff, 0xff, 0xff);
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xd8, 0xd8, 0xd8);
const PUBLISHED: RGBColor = RGBColor(0x2b, 0x6c, 0xb0);
const MEASURED: RGBColor = RGBColor(0xc0, 0x56, 0x21);
/// The colours on a dark screen, in place of those above.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {
[fill='#FFFFFF'] { fill: #1B1D22 } [fill='#222222'] { fill: #E2E2E2 }
[stroke='#D8D8D8'] { stroke: #454850 }
[fill='#2B6CB0'] { fill: #7FB2EA } [stroke='#2B6CB0'] { stroke: #7FB2EA }
[fill='#C05621'] { fill: #F6A15B } [stroke='#C05621'] { stroke: #F6A15B }
}</style>
";

/// A line of the picture.
enum Line<'a> {
    /// The variant or row that the next ratios belong to.
    Head(String),
    Ratio(String, &'a Row),
}

/// The picture as an SVG file; `None` if nothing is compared.
pub(super) fn ratios(rows: &[Row]) -> Option<String> {
    let compared: Vec<&Row> = shown(rows);
    let mut text = String::new();
    draw(&compared, &mut text).expect("a string takes all that is drawn");
    let (head, rest) = text.split_once('\n').expect("the first element is a line");
    (!compared.is_empty()).then(|| format!("{head}\n{DARK}{rest}"))
}

/// The ratios whose published value is known, or all ratios if no published value is known.
fn shown(rows: &[Row]) -> Vec<&Row> {
    let changes: Vec<&Row> = rows.iter().filter(|row| row.role == Role::Change).collect();
    match changes.iter().any(|row| row.published.is_some()) {
        true => changes.into_iter().filter(|row| row.published.is_some()).collect(),
        false => changes,
    }
}

fn lines<'a>(rows: &[&'a Row]) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    let mut last = String::new();
    for row in rows {
        let (head, label) = match row.tasks {
            Some(tasks) => (
                format!("{}: {}", row.experiment, row.quantity),
                counted(tasks as u64, "task", "tasks"),
            ),
            None => (row.experiment.clone(), row.quantity.clone()),
        };
        if head != last {
            lines.push(Line::Head(head.clone()));
            last = head;
        }
        lines.push(Line::Ratio(label, row));
    }
    lines
}

fn draw(rows: &[&Row], into: &mut String) -> Result<(), Error> {
    let lines = lines(rows);
    let height = LEGEND_HEIGHT + 2 * TICKS_HEIGHT + LINE_HEIGHT * lines.len() as i32;
    let area = SVGBackend::with_string(into, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&GROUND)?;
    legend(&area)?;
    let axis = Axis::of(rows);
    let top = LEGEND_HEIGHT + TICKS_HEIGHT;
    axis.draw(&area, (top, height - TICKS_HEIGHT))?;
    for (at, line) in lines.iter().enumerate() {
        let y = top + LINE_HEIGHT * at as i32 + LINE_HEIGHT / 2;
        match line {
            Line::Head(head) => text(&area, head, (8, y), HPos::Left, 15.0)?,
            Line::Ratio(label, row) => {
                text(&area, label, (AXIS.0 - 8, y), HPos::Right, 14.0)?;
                axis.ratio(&area, row, y)?;
            }
        }
    }
    area.present()
}

fn legend(area: &Area<'_>) -> Result<(), Error> {
    let (first, second) = (14, 34);
    band(area, (12, 46), first, 0.2)?;
    band(area, (21, 37), first, 0.35)?;
    line(area, (29, first - 6), (29, first + 6), PUBLISHED)?;
    text(
        area,
        "published ratio of improved to base, 10 % and 25 % around it",
        (54, first),
        HPos::Left,
        14.0,
    )?;
    area.draw(&Circle::new((29, second), 4, MEASURED.filled()))?;
    line(area, (16, second), (42, second), MEASURED)?;
    text(
        area,
        "measured, with the spread of seeds; an arrow: off the axis",
        (54, second),
        HPos::Left,
        14.0,
    )
}

/// Ratios from left to right.
struct Axis {
    ratios: LogCoord<f64>,
    ends: (f64, f64),
}

impl Axis {
    /// An axis with room for the ratios and the bands around them.
    fn of(rows: &[&Row]) -> Axis {
        let around = |row: &&Row| {
            let published = row.published.unwrap_or(row.measured);
            let spread = row.spread.unwrap_or([row.measured; 2]);
            [published * 0.7, published * 1.3, row.measured, spread[0], spread[1]]
        };
        let values = rows.iter().flat_map(around).map(|ratio| ratio.clamp(RATIOS.0, RATIOS.1));
        let (least, most) = values.fold((0.9, 1.1), |(a, b): (f64, f64), v| (a.min(v), b.max(v)));
        let ends = (least / 1.05, most * 1.05);
        Axis { ratios: (ends.0..ends.1).log_scale().base(2.0).into(), ends }
    }

    /// Where a ratio is; one that is off the axis at its end.
    fn at(&self, ratio: f64) -> i32 {
        self.ratios.map(&ratio.clamp(self.ends.0, self.ends.1), AXIS)
    }

    /// Ticks at both ends of the picture, and lines between them.
    fn draw(&self, area: &Area<'_>, (top, bottom): (i32, i32)) -> Result<(), Error> {
        for tick in self.ticks() {
            let x = self.at(tick);
            line(area, (x, top), (x, bottom), GRID)?;
            for y in [top - TICKS_HEIGHT / 2, bottom + TICKS_HEIGHT / 2] {
                text(area, &tick.to_string(), (x, y), HPos::Center, 14.0)?;
            }
        }
        Ok(())
    }

    fn ticks(&self) -> Vec<f64> {
        let inside = TICKS.into_iter().filter(|of| (self.ends.0..self.ends.1).contains(of));
        inside.fold(Vec::new(), |mut chosen, tick| {
            let apart = |other: &f64| (self.at(*other) - self.at(tick)).abs();
            if chosen.iter().all(|other| apart(other) >= TICKS_APART) {
                chosen.push(tick);
            }
            chosen
        })
    }

    /// Published and measured values of a row.
    fn ratio(&self, area: &Area<'_>, row: &Row, y: i32) -> Result<(), Error> {
        if let Some(published) = row.published {
            let around =
                |part: f64| (self.at(published * (1.0 - part)), self.at(published * (1.0 + part)));
            band(area, around(0.25), y, 0.2)?;
            band(area, around(0.10), y, 0.35)?;
            let x = self.at(published);
            line(area, (x, y - 6), (x, y + 6), PUBLISHED)?;
        }
        if let Some([least, most]) = row.spread {
            line(area, (self.at(least), y), (self.at(most), y), MEASURED)?;
        }
        let x = self.at(row.measured);
        match row.measured {
            off if off < self.ends.0 => arrow(area, (x, y), -8),
            off if off > self.ends.1 => arrow(area, (x, y), 8),
            _ => area.draw(&Circle::new((x, y), 4, MEASURED.filled())),
        }
    }
}

fn arrow(area: &Area<'_>, (x, y): (i32, i32), length: i32) -> Result<(), Error> {
    let points = [(x + length, y), (x, y - 5), (x, y + 5)];
    area.draw(&Polygon::new(points, MEASURED.filled()))
}

fn band(area: &Area<'_>, (from, to): (i32, i32), y: i32, opacity: f64) -> Result<(), Error> {
    let style = PUBLISHED.mix(opacity).filled();
    area.draw(&Rectangle::new([(from, y - 6), (to, y + 6)], style))
}

fn line(area: &Area<'_>, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Result<(), Error> {
    area.draw(&PathElement::new([from, to], color.stroke_width(2)))
}

fn text(area: &Area<'_>, text: &str, at: (i32, i32), side: HPos, size: f64) -> Result<(), Error> {
    let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(tasks: Option<usize>, published: Option<f64>, measured: f64) -> Row {
        Row {
            experiment: "swap & <slots>".into(),
            quantity: "speed".into(),
            tasks,
            unit: "ratio".into(),
            role: Role::Change,
            published,
            measured,
            spread: Some([measured, measured * 1.1]),
            verdict: None,
        }
    }

    /// The number of an attribute of the elements of a kind.
    fn numbers(svg: &str, element: &str, name: &str) -> Vec<f64> {
        let found = svg.lines().filter(|line| line.starts_with(&format!("<{element} ")));
        let number = |line: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).expect(name);
            rest.split('"').next().expect("quoted").parse().expect("a number")
        };
        found.map(number).collect()
    }

    #[test]
    fn a_measured_ratio_is_as_far_right_as_it_is_large() {
        let rows = [0.5, 1.0, 2.0].map(|measured| change(Some(4), Some(1.0), measured));
        let svg = ratios(&rows).expect("changes");
        let [_legend, half, one, two] = numbers(&svg, "circle", "cx")[..] else {
            panic!("a circle for each: {svg}");
        };
        assert!(((one - half) - (two - one)).abs() < 2.0 && half < one, "logarithmic");
        // The ground, two bands of the legend, then two of each row: 25 %, and 10 % inside.
        let (at, width) = (numbers(&svg, "rect", "x"), numbers(&svg, "rect", "width"));
        let [outer, inner] = [3, 4].map(|n| (at[n], at[n] + width[n]));
        assert!(outer.0 < inner.0 && inner.0 < one && one < inner.1 && inner.1 < outer.1);
        assert!(svg.contains("swap &amp; &lt;slots&gt;: speed") && svg.contains("4 tasks"));
    }

    #[test]
    fn what_is_off_the_axis_is_an_arrow() {
        let svg = ratios(&[change(None, Some(0.0), 40.0)]).expect("a change");
        assert_eq!(svg.matches("<polygon ").count(), 1);
        assert_eq!(numbers(&svg, "circle", "cx").len(), 1, "the legend's");
    }

    #[test]
    fn everything_that_is_drawn_has_a_colour_for_dark_screens() {
        let svg = ratios(&[change(None, Some(1.2), 1.1), change(None, Some(1.0), 90.0)]);
        let svg = svg.expect("changes");
        let (_, elements) = svg.split_once("</style>").expect("a style sheet");
        let mut colors: Vec<&str> = elements.split("=\"#").skip(1).map(|of| &of[..6]).collect();
        colors.sort_unstable();
        colors.dedup();
        assert!(colors.iter().all(|color| DARK.contains(color)), "{colors:?}");
        assert_eq!(colors.len(), 5);
    }

    #[test]
    fn without_published_ratios_all_are_shown() {
        let (known, unknown) = (change(None, Some(1.2), 1.1), change(None, None, 1.1));
        assert_eq!(shown(&[known, unknown.clone()]).len(), 1);
        assert_eq!(shown(&[unknown]).len(), 1);
        assert!(ratios(&[]).is_none());
    }
}
