//! Pictures of a run, as SVG: text and shapes only, no font is needed to draw them.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::queue::Pointers;
use crate::report::{Report, Row, Run, Visit};

const SIZE: (u32, u32) = (960, 420);
/// More points than this can't be told apart in a picture, and make it large.
const POINTS_MAX: usize = 800;
const DOTS_MAX: usize = 2_000;
/// What part of the curves' height the legend's frame and each of its lines take: so much is left
/// free above them.
const LEGEND_FRAME: f64 = 0.06;
const LEGEND_LINE: f64 = 0.08;
/// The wait is averaged over the newcomers of so many stretches of time.
const STRETCHES: u64 = 120;

const BLUE: RGBColor = RGBColor(31, 119, 180);
const ORANGE: RGBColor = RGBColor(230, 120, 10);
const GREEN: RGBColor = RGBColor(40, 140, 60);
const RED: RGBColor = RGBColor(200, 40, 40);
const PURPLE: RGBColor = RGBColor(130, 90, 180);
const GREY: RGBColor = RGBColor(140, 140, 140);
const LANES: [RGBColor; 8] = [
    BLUE,
    ORANGE,
    GREEN,
    RED,
    PURPLE,
    RGBColor(120, 80, 60),
    RGBColor(220, 110, 180),
    GREY,
];

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw: {0}")]
pub struct BadPlot(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Points = Vec<(f64, f64)>;

struct Series {
    name: String,
    color: RGBColor,
    points: Points,
}

/// A picture's words: what it shows, and its axes.
struct Words {
    title: String,
    x: &'static str,
    y: &'static str,
}

/// All of them, each with its heading.
pub(crate) fn all(report: &Report) -> Result<Vec<String>, BadPlot> {
    Ok(vec![
        people(report)?,
        seats(report)?,
        pointers(report)?,
        waits(report)?,
        forecasts(&report.real)?,
    ])
}

fn people(report: &Report) -> Result<String, BadPlot> {
    let rows = &report.real.rows;
    let mut series = vec![
        over_time("waiting", BLUE, rows, |row| row.waiting),
        over_time("in checkout", GREEN, rows, |row| row.in_checkout),
    ];
    if let Some(naive) = &report.naive {
        let (waiting, in_checkout) = ("waiting (the article)", "in checkout (the article)");
        let rows = &naive.rows;
        series.push(over_time(waiting, ORANGE, rows, |row| row.waiting));
        series.push(over_time(in_checkout, RED, rows, |row| row.in_checkout));
    }
    let words = Words {
        title: "People waiting and in checkout".to_owned(),
        x: "seconds",
        y: "people",
    };
    drawn(|area| lines(area, &words, &series))
}

/// Of its own, as a few seats too many don't show beside thousands who wait.
fn seats(report: &Report) -> Result<String, BadPlot> {
    let held = |row: &Row| row.in_checkout + row.admitted;
    let rows = &report.real.rows;
    let mut series = Vec::new();
    if let Some(naive) = &report.naive {
        series.push(over_time("held (the article)", RED, &naive.rows, held));
    }
    series.push(over_time("held", GREEN, rows, held));
    series.push(over_time("seats there are", BLACK, rows, |row| row.seats));
    let words = Words {
        title: "Seats held, and how many there are".to_owned(),
        x: "seconds",
        y: "seats",
    };
    drawn(|area| lines(area, &words, &series))
}

/// Of the lane with most people.
fn pointers(report: &Report) -> Result<String, BadPlot> {
    let lanes = report.config.settings.lanes.iter().enumerate();
    let visits = &report.real.visits;
    let came = |no: usize| visits.iter().filter(|v| usize::from(v.lane) == no).count();
    // The first of those with as many.
    let busiest = lanes.rev().max_by_key(|(no, _)| came(*no));
    let (no, name) = busiest.map_or((0, String::new()), |(no, lane)| (no, lane.name.to_string()));
    let rows = &report.real.rows;
    let of = |name, color, value: fn(Pointers) -> u64| {
        over_time(name, color, rows, |row| value(row.lane(no).pointers))
    };
    let series = [
        of("accepts_through", PURPLE, |at| at.accepts_through),
        of("next_token", RED, |at| at.next_token),
        of("admitted_through", ORANGE, |at| at.admitted_through),
        of("done_through", GREY, |at| at.done_through),
    ];
    let words = Words {
        title: format!("The four pointers of lane {name}"),
        x: "seconds",
        y: "number",
    };
    drawn(|area| lines(area, &words, &series))
}

fn waits(report: &Report) -> Result<String, BadPlot> {
    let lanes = report.config.settings.lanes.iter().zip(LANES);
    let series = (0..).zip(lanes).map(|(lane, (set, color))| Series {
        name: set.name.to_string(),
        color,
        points: mean_waits(&report.real.visits, lane),
    });
    let series: Vec<Series> = series.collect();
    let words = Words {
        title: "Time waited by lane, by the time of entering".to_owned(),
        x: "entered at, seconds",
        y: "mean wait, seconds",
    };
    drawn(|area| lines(area, &words, &series))
}

fn forecasts(run: &Run) -> Result<String, BadPlot> {
    let known = run.visits.iter().filter_map(|visit| {
        let (told_ms, wait_ms) = (visit.eta_ms?, visit.wait_ms()?);
        Some((seconds(told_ms), seconds(wait_ms)))
    });
    let dots = thinned(known.collect(), DOTS_MAX);
    let title = match dots.is_empty() {
        true => "Forecast against truth: nobody was told one on entering",
        false => "Forecast against truth, of those told one on entering",
    };
    let words = Words {
        title: title.to_owned(),
        x: "eta_ms told, seconds",
        y: "waited, seconds",
    };
    drawn(|area| scatter(area, &words, &dots))
}

fn over_time(name: &str, color: RGBColor, rows: &[Row], value: impl Fn(&Row) -> u64) -> Series {
    let points = rows
        .iter()
        .map(|row| (seconds(row.at_ms), value(row) as f64));
    Series {
        name: name.to_owned(),
        color,
        points: thinned(points.collect(), POINTS_MAX),
    }
}

fn mean_waits(visits: &[Visit], lane: u8) -> Points {
    let last_ms = visits.iter().map(|visit| visit.entered_ms).max();
    let stretch_ms = (last_ms.unwrap_or(0) / STRETCHES).max(1);
    let mut sums = std::collections::BTreeMap::<u64, (f64, f64)>::new();
    for visit in visits.iter().filter(|visit| visit.lane == lane) {
        if let Some(wait_ms) = visit.wait_ms() {
            let sum = sums.entry(visit.entered_ms / stretch_ms).or_default();
            sum.0 += seconds(wait_ms);
            sum.1 += 1.0;
        }
    }
    let means = sums.into_iter();
    let means = means.map(|(no, (sum, count))| (seconds(no * stretch_ms), sum / count));
    means.collect()
}

/// Every nth point, and the last.
fn thinned(points: Points, most: usize) -> Points {
    let step = points.len().div_ceil(most).max(1);
    let last = points.last().copied();
    let mut kept: Points = points.into_iter().step_by(step).collect();
    if kept.last() != last.as_ref() {
        kept.extend(last);
    }
    kept
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

fn drawn<E: std::fmt::Display>(
    draw: impl for<'a> FnOnce(&Area<'a>) -> Result<(), E>,
) -> Result<String, BadPlot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area).map_err(|error| BadPlot(error.to_string()))?;
        area.present().map_err(|error| BadPlot(error.to_string()))?;
    }
    Ok(svg)
}

type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn lines<'a>(area: &Area<'a>, words: &Words, series: &[Series]) -> Result<(), DrawError<'a>> {
    let points = || series.iter().flat_map(|series| &series.points);
    let mut chart = ChartBuilder::on(area)
        .caption(&words.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(
            0.0..end(points().map(|point| point.0)),
            0.0..end(points().map(|point| point.1))
                * (1.0 + LEGEND_FRAME + LEGEND_LINE * series.len() as f64),
        )?;
    chart
        .configure_mesh()
        .x_desc(words.x)
        .y_desc(words.y)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .light_line_style(WHITE)
        .draw()?;
    for series in series {
        let color = series.color;
        chart
            .draw_series(LineSeries::new(
                series.points.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(GREY)
        .position(SeriesLabelPosition::UpperRight)
        .draw()
}

fn scatter<'a>(area: &Area<'a>, words: &Words, dots: &[(f64, f64)]) -> Result<(), DrawError<'a>> {
    let far = end(dots.iter().flat_map(|dot| [dot.0, dot.1]));
    let mut chart = ChartBuilder::on(area)
        .caption(&words.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..far, 0.0..far)?;
    chart
        .configure_mesh()
        .x_desc(words.x)
        .y_desc(words.y)
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .light_line_style(WHITE)
        .draw()?;
    let dot = |at: &(f64, f64)| Circle::new(*at, 2, BLUE.mix(0.5).filled());
    chart.draw_series(dots.iter().map(dot))?;
    // On the line it came as told.
    chart.draw_series([PathElement::new([(0.0, 0.0), (far, far)], GREY)])?;
    Ok(())
}

/// Axes show seconds and people: their marks are whole numbers.
#[allow(clippy::trivially_copy_pass_by_ref)] // as plotters wants it
fn whole(value: &f64) -> String {
    format!("{value:.0}")
}

/// Where an axis ends: a little past the largest, and never nowhere.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max).max(10.0) * 1.03
}
