//! Bars for the requests a second of each system, as SVG.

use super::race::OURS;
use super::report::{Cell, Section};
use super::spread::shown;

const WIDTH: usize = 760;
/// Left of the bars are the names, right of them the numbers.
const NAMES: usize = 240;
const NUMBERS: usize = 170;
const BAR: usize = 18;
const ROW: usize = 24;
const GAP: usize = 34;
const STYLE: &str = "text{font:13px sans-serif;fill:#24292f}.group{font-weight:bold}.bar{fill:#8c959f}\
    .ours{fill:#0969da}.range{stroke:#24292f;stroke-width:1.5}";

/// None if the row compares no systems.
pub fn of(section: &Section) -> Option<String> {
    let cells = &section.cells;
    cells.iter().find(|it| it.system != cells[0].system)?;
    let most = cells.iter().map(|it| it.timed.requests_per_s.max);
    let most = most.fold(0.0, f64::max);
    if most <= 0.0 {
        return None;
    }
    let (mut y, mut in_flight, mut body) = (0, None, String::new());
    for cell in cells {
        if in_flight != Some(cell.in_flight) {
            in_flight = Some(cell.in_flight);
            y += GAP;
            let text = format!("{} in flight", cell.in_flight);
            body.push_str(&format!(
                "<text class=\"group\" x=\"4\" y=\"{}\">{text}</text>\n",
                y - 8
            ));
        }
        body.push_str(&row(cell, y, most));
        y += ROW;
    }
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{name}: \
         requests a second, median and range of the rounds</title>\n<style>{STYLE}</style>\n<rect width=\"{WIDTH}\" \
         height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        height = y + 8,
        name = section.name,
    ))
}

fn row(cell: &Cell, y: usize, most: f64) -> String {
    let room = (WIDTH - NAMES - NUMBERS) as f64;
    let x = |rate: f64| NAMES as f64 + rate / most * room;
    let rate = cell.timed.requests_per_s;
    let class = if cell.system == OURS {
        "bar ours"
    } else {
        "bar"
    };
    let (middle, text_y) = (y + BAR / 2, y + BAR - 4);
    format!(
        "<text x=\"4\" y=\"{text_y}\">{system}</text><rect class=\"{class}\" x=\"{NAMES}\" y=\"{y}\" width=\"{:.1}\" \
         height=\"{BAR}\"/><line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/><text \
         x=\"{:.1}\" y=\"{text_y}\">{}/s</text>\n",
        x(rate.median) - NAMES as f64,
        x(rate.min),
        x(rate.max),
        x(rate.max) + 6.0,
        shown(rate.median),
        system = cell.system,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::spread::{Spread, Timed};
    use super::*;

    #[test]
    fn the_fastest_system_has_the_longest_bar() {
        let spread = |value: f64| Spread::of([value].into_iter(), 0).unwrap();
        let cell = |system: &str, rate: f64| Cell {
            system: system.to_owned(),
            in_flight: 1,
            timed: Timed {
                requests_per_s: spread(rate),
                median_us: spread(1.0),
                p99_us: spread(1.0),
                max_us: spread(1.0),
                failed: 0,
            },
            servers_cpu_us: None,
            nats_cpu_us: None,
            requester_cpu_us: None,
            requester_cores: None,
        };
        let cells = vec![cell(OURS, 500.0), cell("other", 1_000.0)];
        let section = Section {
            cells,
            ..Section::default()
        };
        let svg = of(&section).unwrap();
        assert!(
            svg.contains("class=\"bar ours\" x=\"240\" y=\"34\" width=\"175.0\""),
            "{svg}"
        );
        assert!(
            svg.contains("class=\"bar\" x=\"240\" y=\"58\" width=\"350.0\""),
            "{svg}"
        );
        assert!(of(&Section::default()).is_none());
    }
}
