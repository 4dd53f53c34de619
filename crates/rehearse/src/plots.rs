//! Draws one picture as SVG: shapes and text only, no font is needed to draw it.
//!
//! A picture is laid out for a phone: 360 pixels wide, with text of 12. It has no size of its own,
//! the page scales it to its column. Title and legend are left to the page, whose text wraps.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::palette::{Colour, FAINT, GRID, INK};
use crate::text::count;

/// plotters has whole coordinates only: so many of them make a pixel, or curves get steps.
const PIXEL: u32 = 4;
pub(crate) const WIDTH: u32 = 360 * PIXEL;
pub(crate) const HEIGHT: u32 = 230 * PIXEL;
/// plotters draws text smaller than requested, by a factor of 1.24.
const TEXT: f64 = 12.0 * 1.24 * PIXEL as f64;

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct BadPlot(pub(crate) String);

pub(crate) type Points = Vec<(f64, f64)>;

/// An axis from 0.
#[derive(Debug)]
pub(crate) struct Axis {
    pub(crate) words: String,
    pub(crate) end: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Curve,
    /// The points go around it.
    Area,
    Dots,
}

/// Marks of one colour.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) name: String,
    pub(crate) colour: Colour,
    pub(crate) shape: Shape,
    pub(crate) points: Points,
}

pub(crate) fn mark(name: &str, colour: Colour, shape: Shape, points: Points) -> Mark {
    Mark {
        name: name.to_owned(),
        colour,
        shape,
        points,
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// The marks, each over those before it.
pub(crate) fn svg(x: &Axis, y: &Axis, marks: &[Mark]) -> Result<String, BadPlot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&area, x, y, marks).map_err(|error| BadPlot(error.to_string()))?;
        area.present().map_err(|error| BadPlot(error.to_string()))?;
    }
    // Only its shape counts (`viewBox`): the page says how wide it is.
    let size = format!("width=\"{WIDTH}\" height=\"{HEIGHT}\" ");
    Ok(svg.replacen(&size, "", 1))
}

fn draw<'a>(area: &Area<'a>, x: &Axis, y: &Axis, marks: &[Mark]) -> Result<(), DrawError<'a>> {
    let text = |colour: Colour| ("sans-serif", TEXT).into_font().color(&colour.rgb());
    let mut chart = ChartBuilder::on(area)
        .margin_top(8 * PIXEL)
        .margin_right(10 * PIXEL)
        .x_label_area_size(38 * PIXEL)
        .y_label_area_size(60 * PIXEL)
        .build_cartesian_2d(0.0..x.end, 0.0..y.end)?;
    chart
        .configure_mesh()
        .x_labels(6)
        .y_labels(5)
        .x_desc(&x.words)
        .y_desc(&y.words)
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .label_style(text(INK))
        .axis_desc_style(text(FAINT))
        .axis_style(FAINT.rgb().stroke_width(PIXEL))
        .bold_line_style(GRID.rgb().stroke_width(PIXEL))
        .max_light_lines(0)
        .set_all_tick_mark_size(4 * PIXEL)
        .draw()?;
    for mark in marks {
        let colour = mark.colour.rgb();
        let points = mark.points.iter().copied();
        match mark.shape {
            Shape::Curve => {
                let line = LineSeries::new(points, colour.stroke_width(2 * PIXEL));
                chart.draw_series(line)?;
            }
            Shape::Area => {
                let area = Polygon::new(mark.points.clone(), colour.filled());
                chart.draw_series([area])?;
            }
            Shape::Dots => {
                let dot = |at| Circle::new(at, 3 * PIXEL / 2, colour.mix(0.5).filled());
                chart.draw_series(points.map(dot))?;
            }
        }
    }
    Ok(())
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as plotters wants it
fn tick(value: &f64) -> String {
    if (value - value.round()).abs() < 1e-6 {
        count(value.round() as u64)
    } else {
        format!("{value:.1}")
    }
}
