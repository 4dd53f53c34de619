//! The pictures of a run: what comes and what goes on in each second, and all limits side by side.

use std::fmt::Write as _;

use super::traffic::{PER_MINUTE, Run, SECOND_US, SHOW_S, arrivals, in_the_last, runs};
use crate::palette::{self, BLUE, Colour, GRID, INK, LANES, ORANGE, PAPER};
use crate::plots::{self, Axis, BadPlot, Mark, Points, Shape};

const MINUTE_US: u64 = 60 * SECOND_US;
/// One colour for each limit of the comparison.
const COLOURS: [Colour; 6] = [ORANGE, LANES[2], LANES[1], BLUE, LANES[4], LANES[3]];

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
        mark(GRID, Shape::Area, each_second(&arrivals())),
        mark(BLUE, Shape::Area, each_second(&run.went_on())),
        mark(
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
        svg: standalone(&plots::svg(&time(), &y, &marks)?),
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
        mark(GRID, Shape::Area, asked),
        mark(
            INK,
            Shape::Curve,
            vec![(0.0, limit), (minutes(SHOW_S), limit)],
        ),
    ];
    marks.extend(runs.iter().zip(COLOURS).map(|(run, colour)| {
        let points = last_minute(&run.went_on()).collect();
        mark(colour, Shape::Curve, points)
    }));
    let y = Axis {
        words: "went on in the last minute".to_owned(),
        end: 130.0,
    };
    Ok(Picture {
        file: "in_any_minute.svg".to_owned(),
        svg: standalone(&plots::svg(&time(), &y, &marks)?),
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

fn mark(colour: Colour, shape: Shape, points: Points) -> Mark {
    Mark {
        // Read by nobody: what colours mean stands beside the picture.
        name: String::new(),
        colour,
        shape,
        points,
    }
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

/// With a size, a ground and both modes of colours: a page gives those to its pictures, a file has nobody to.
fn standalone(svg: &str) -> String {
    let mut whole = String::new();
    let (head, rest) = svg.split_once('>').unwrap_or((svg, ""));
    let head = head.replacen("<svg ", "<svg width=\"540\" height=\"345\" ", 1);
    // Writing to a string can't fail.
    let _ = writeln!(whole, "{head}>\n<style>\n{}</style>", palette::css());
    let _ = write!(
        whole,
        "<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>{rest}",
        PAPER.hex()
    );
    if !whole.ends_with('\n') {
        whole.push('\n');
    }
    whole
}
