//! Curves over a number that doubles from step to step, as SVG.
//!
//! Text is SVG text: the viewer has the fonts, and none is loaded here. Text widths are estimates,
//! and margins allow for them.

use highwater_command::Unit;
use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::drawing::{DrawingAreaErrorKind, IntoDrawingArea};
use plotters::prelude::*;

/// What goes wrong while drawing into a string: nothing but a defect of the layout.
type Error = DrawingAreaErrorKind<std::io::Error>;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (800, 500);
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
];

/// What to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// What the numbers below are.
    pub x_label: String,
    /// What the numbers at the side are.
    pub y_label: String,
    /// The curves.
    pub series: Vec<Series>,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Points from left to right; x at least 1, y at least 0.
    pub points: Vec<(f64, f64)>,
}

impl Plot {
    /// The plot as a file of its own.
    ///
    /// # Errors
    /// It cannot be drawn: there are no points.
    pub fn svg(&self) -> Result<String, String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| format!("the plot cannot be drawn: {error}"))?;
        Ok(text)
    }

    fn draw(&self, into: &mut String) -> Result<(), Error> {
        let area = SVGBackend::with_string(into, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let xs = self.xs();
        let (least, most) = xs.first().zip(xs.last()).map_or((1.0, 2.0), |(a, b)| (*a, *b));
        let x_axis = (least / 1.2..most * 1.2).log_scale().base(2.0).with_key_points(xs);
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, (FONT, 20))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(88)
            .build_cartesian_2d(x_axis, 0.0..self.top())?;
        chart
            .configure_mesh()
            .x_desc(&self.x_label)
            .y_desc(&self.y_label)
            .x_label_formatter(&f64::to_string)
            .y_label_formatter(&|y| Unit::Rate.show(Some(*y)))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 16))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (series, color) in self.series.iter().zip(COLORS.iter().cycle()) {
            let points = series.points.iter().copied();
            let line = LineSeries::new(points.clone(), color.stroke_width(2));
            chart
                .draw_series(line)?
                .label(&series.name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
            chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.4))
            .label_font((FONT, 14))
            .draw()?;
        area.present()
    }

    /// All x, ascending, each once.
    fn xs(&self) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut xs: Vec<f64> = points.map(|(x, _)| *x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// Where the vertical axis ends.
    fn top(&self) -> f64 {
        let points = self.series.iter().flat_map(|series| &series.points);
        let highest = points.map(|(_, y)| *y).fold(0.0, f64::max);
        if highest > 0.0 { highest * 1.1 } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let measured = vec![(1.0, 1e5), (2.0, 1.9e5), (4.0, 3.5e5), (8.0, 4.0e5), (48.0, 4.1e5)];
        let series = |name: &str, points| Series { name: name.into(), points };
        Plot {
            title: "pmbench <on> a machine".into(),
            x_label: "tasks".into(),
            y_label: "accesses per second".into(),
            series: vec![series("base", measured), series("linear", vec![(1.0, 1e5), (2.0, 2e5)])],
        }
    }

    /// The texts of an SVG, in order.
    fn texts(svg: &str) -> Vec<&str> {
        let after = svg.split("<text ").skip(1).filter_map(|rest| rest.split_once('>'));
        after.filter_map(|(_, rest)| rest.split_once("</text>")).map(|(t, _)| t.trim()).collect()
    }

    /// The number of an attribute of an element.
    fn number(element: &str, name: &str) -> f64 {
        let (_, rest) = element.split_once(&format!("{name}=\"")).expect(name);
        rest.split('"').next().expect("quoted").parse().expect("a number")
    }

    #[test]
    fn everything_is_labelled() {
        let svg = plot().svg().expect("points");
        let found = texts(&svg);
        for text in ["tasks", "accesses per second", "pmbench &lt;on&gt; a machine", "base"] {
            assert!(found.contains(&text), "{text}: {found:?}");
        }
        for text in ["1", "2", "4", "8", "48", "100 k", "400 k"] {
            assert!(found.contains(&text), "{text}: {found:?}");
        }
    }

    #[test]
    fn doublings_are_equally_far_apart_and_more_is_higher() {
        let svg = plot().svg().expect("points");
        let circles: Vec<&str> = svg.split("<circle ").skip(1).take(5).collect();
        let at = |circle: &&str| (number(circle, "cx"), number(circle, "cy"));
        let [one, two, four, eight, most] = circles.iter().map(at).collect::<Vec<_>>()[..] else {
            panic!("five points: {circles:?}");
        };
        assert!(((two.0 - one.0) - (four.0 - two.0)).abs() < 2.0);
        assert!(((two.0 - one.0) * 3.0 - (eight.0 - one.0)).abs() < 3.0);
        assert!(one.1 > two.1 && two.1 > four.1 && eight.1 > most.1, "y grows downwards");
    }

    #[test]
    fn nothing_measured_is_an_empty_plot() {
        let empty = Plot { series: Vec::new(), ..plot() };
        assert!(texts(&empty.svg().expect("axes")).contains(&"tasks"));
    }
}
