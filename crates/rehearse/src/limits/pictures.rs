//! The pictures of a run: what comes and what goes on in each second, and all limits side by side.

use std::fmt::Write as _;

use super::traffic::{PER_MINUTE, Run, SECOND_US, SHOW_S, arrivals, in_the_last, runs};
use crate::palette::{self, BLUE, Colour, GRID, INK, LANES, ORANGE, PAPER};
use crate::plots::{self, Axis, BadPlot, HEIGHT, Mark, Points, Shape, WIDTH, mark};

const MINUTE_US: u64 = 60 * SECOND_US;
/// One colour for each limit of the comparison; every second curve is dashed, so that colours are not all that tells them
/// apart.
const COLOURS: [Colour; 6] = [ORANGE, LANES[2], LANES[1], BLUE, LANES[4], LANES[3]];
const DASHES: &str = "stroke-dasharray=\"28 16\"";
/// Of the key: somewhat smaller than at the axes, so that two names fit beside each other in any font.
const TEXT: u32 = 42;
/// The key below it: two names in a row.
const KEY_ROW: u32 = 68;
const KEY_COLUMNS: [u32; 2] = [40, 700];
/// How wide the sample beside a name is, and where the name begins.
const SAMPLE: u32 = 88;
const NAME: u32 = 112;

/// A picture that stands alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// With `.svg`.
    pub file: String,
    /// It follows the reader's light or dark mode.
    pub svg: String,
}

/// A picture of each limit, and one of all of them.
///
/// # Errors
/// A picture could not be drawn.
pub fn limit_pictures() -> Result<Vec<Picture>, BadPlot> {
    let runs = runs().map_err(|bad| BadPlot(bad.to_string()))?;
    let mut pictures: Vec<Picture> = runs
        .iter()
        .map(second_by_second)
        .collect::<Result<_, _>>()?;
    pictures.push(in_any_minute(&runs)?);
    Ok(pictures)
}

fn second_by_second(run: &Run) -> Result<Picture, BadPlot> {
    let each_second = |times: &[u64]| steps(&in_the_last(times, SECOND_US));
    let allowed = f64::from(PER_MINUTE) / 60.0;
    let marks = [
        mark("comes", GRID, Shape::Area, each_second(&arrivals())),
        mark("goes on", BLUE, Shape::Area, each_second(&run.went_on())),
        mark(
            "one a second",
            INK,
            Shape::Curve,
            vec![(0.0, allowed), (minutes(SHOW_S), allowed)],
        ),
    ];
    let y = Axis {
        words: "requests a second".to_owned(),
        end: 13.0,
    };
    Ok(Picture {
        file: format!("{}.svg", run.file),
        svg: standalone(&plots::svg(&time(), &y, &marks)?, &marks),
    })
}

fn in_any_minute(runs: &[Run]) -> Result<Picture, BadPlot> {
    let last_minute = |times: &[u64]| {
        let counts = in_the_last(times, MINUTE_US).into_iter();
        counts.map(|(second, count)| (minutes(second), count as f64))
    };
    let limit = f64::from(PER_MINUTE);
    let mut asked: Points = last_minute(&arrivals()).collect();
    asked.push((minutes(SHOW_S), 0.0));
    let mut marks = vec![
        mark("came", GRID, Shape::Area, asked),
        mark(
            "the limit",
            INK,
            Shape::Curve,
            vec![(0.0, limit), (minutes(SHOW_S), limit)],
        ),
    ];
    marks.extend(runs.iter().zip(COLOURS).map(|(run, colour)| {
        let points = last_minute(&run.went_on()).collect();
        mark(&run.name, colour, Shape::Curve, points)
    }));
    let y = Axis {
        words: "went on in the last minute".to_owned(),
        end: 130.0,
    };
    Ok(Picture {
        file: "in_any_minute.svg".to_owned(),
        svg: standalone(&plots::svg(&time(), &y, &marks)?, &marks),
    })
}

fn time() -> Axis {
    Axis {
        words: "minutes".to_owned(),
        end: minutes(SHOW_S),
    }
}

fn minutes(seconds: u64) -> f64 {
    seconds as f64 / 60.0
}

/// The outline of columns, one for each second, from the bottom back to the bottom. Seconds without a change add no
/// points.
fn steps(counts: &[(u64, u64)]) -> Points {
    let mut points: Points = vec![(0.0, 0.0)];
    let mut height = 0;
    // The count of a second is known at its end.
    for (second, count) in counts.iter().skip(1) {
        if *count != height {
            let at = minutes(second - 1);
            points.push((at, height as f64));
            points.push((at, *count as f64));
            height = *count;
        }
    }
    points.push((minutes(SHOW_S), height as f64));
    points.push((minutes(SHOW_S), 0.0));
    points
}

/// With a size, a ground, a key and both modes of colours: a page gives those to its pictures, a file has nobody to.
fn standalone(svg: &str, marks: &[Mark]) -> String {
    let rows = marks.len().div_ceil(KEY_COLUMNS.len()) as u32;
    let key = rows * KEY_ROW + KEY_ROW / 2;
    let height = HEIGHT + key;
    let view = format!("viewBox=\"0 0 {WIDTH} {HEIGHT}\"");
    let higher = format!("viewBox=\"0 0 {WIDTH} {height}\"");
    let (head, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let head = head.replacen(&view, &higher, 1);
    let size = format!("<svg width=\"540\" height=\"{}\" ", height * 540 / WIDTH);
    let head = head.replacen("<svg ", &size, 1);
    let mut rest = rest.trim_end().trim_end_matches("</svg>").to_owned();
    for mark in marks.iter().filter(|mark| is_dashed(mark)) {
        let stroke = format!("stroke=\"{}\"", mark.colour.hex());
        rest = rest.replace(&stroke, &format!("{stroke} {DASHES}"));
    }
    let css = palette::css();
    let paper = PAPER.hex();
    let key = key_of(marks);
    format!(
        "{head}>\n<style>\n{css}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"{paper}\"/>{rest}{key}</svg>\n"
    )
}

fn is_dashed(mark: &Mark) -> bool {
    let place = COLOURS.iter().position(|colour| *colour == mark.colour);
    mark.shape == Shape::Curve && place.is_some_and(|place| place % 2 == 1)
}

/// What each colour stands for, below the picture.
fn key_of(marks: &[Mark]) -> String {
    let mut key = String::new();
    for (nth, mark) in marks.iter().enumerate() {
        let x = KEY_COLUMNS[nth % KEY_COLUMNS.len()];
        let row = (nth / KEY_COLUMNS.len()) as u32;
        let y = HEIGHT + KEY_ROW / 2 + row * KEY_ROW + KEY_ROW / 4;
        let (colour, end) = (mark.colour.hex(), x + SAMPLE);
        // Writing to a string can't fail.
        let _ = match mark.shape {
            Shape::Area => writeln!(
                key,
                "<rect x=\"{x}\" y=\"{}\" width=\"{SAMPLE}\" height=\"32\" fill=\"{colour}\"/>",
                y - 16
            ),
            Shape::Curve | Shape::Dots => {
                let dashes = if is_dashed(mark) {
                    format!(" {DASHES}")
                } else {
                    String::new()
                };
                writeln!(
                    key,
                    "<polyline fill=\"none\" stroke=\"{colour}\"{dashes} stroke-width=\"8\" points=\"{x},{y} {end},{y}\"/>"
                )
            }
        };
        let (x, ink, name) = (x + NAME, INK.hex(), &mark.name);
        let _ = writeln!(
            key,
            "<text x=\"{x}\" y=\"{y}\" dy=\"0.5ex\" font-family=\"sans-serif\" font-size=\"{TEXT}\" fill=\"{ink}\">{name}</text>"
        );
    }
    key
}
