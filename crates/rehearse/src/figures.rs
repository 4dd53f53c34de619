//! The page's figures: the curves and the caption of each.

use std::collections::BTreeMap;

use nowserving_line::{LaneSettings, Opening};

use crate::palette::{BLUE, Colour, GREEN, GREY, GRID, INK, LANES, ORANGE, PURPLE, RED};
use crate::plots::{Axis, Mark, Points, Shape, mark};
use crate::queue::Pointers;
use crate::report::{Report, Row, Run, Stages, Visit};
use crate::text::{count, duration, many, whole_percent};

/// More dots cannot be distinguished in a picture, and make the page large.
const COLUMNS: usize = 300;
const DOTS_MAX: usize = 800;
/// The wait is averaged over the newcomers of so many stretches of time.
const STRETCHES: u64 = 120;
/// Numbers beyond those given are drawn up to this many times as high.
const ACCEPTS_IN_SIGHT: u64 = 2;

/// The name of the compared algorithm in captions and legends.
pub(crate) const ARTICLE: &str = "the article's algorithm";
/// The name of the run whose seats do not follow the service.
pub(crate) const FIXED: &str = "fixed seats";

const POINTERS_LOOK: &str = "From given down to admitted are the people who wait, from admitted \
down to finished those who hold a seat; finished moves in steps, as it waits for the slowest. Look \
for long flat stretches of admitted: there the lane stands still. Where admitted is above given, \
there is a seat for the next to come.";

/// A picture with its captions. Without marks nothing is drawn, and the caption says why.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// Caption for any run: the quantities drawn, and the signs of trouble.
    pub(crate) look: String,
    /// Caption for this run.
    pub(crate) run: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) marks: Vec<Mark>,
}

/// All figures, in the order of the page.
pub(crate) fn all(report: &Report) -> Vec<Figure> {
    let clock = Clock::of(report);
    let mut figures = vec![people(report, &clock), seats(report, &clock)];
    figures.extend(report.naive.as_ref().map(|naive| excess(naive, &clock)));
    if !report.real.took.is_empty() {
        figures.push(checkouts(report));
    }
    if report.config.settings.opening == Opening::Draw {
        figures.push(draw(report));
    }
    figures.push(losses(&report.real, &clock));
    figures.push(waits(report));
    let lanes = 0..report.config.settings.lanes.len();
    figures.extend(lanes.map(|no| pointers(report, &clock, no)));
    figures.push(forecasts(&report.real));
    figures
}

/// The unit in which an axis shows times.
#[derive(Debug, Clone, Copy)]
struct Unit {
    name: &'static str,
    ms: f64,
}

impl Unit {
    /// The unit that gives an axis up to `max_ms` a few ticks.
    fn of(max_ms: u64) -> Self {
        let (name, ms) = match max_ms {
            0..180_000 => ("seconds", 1e3),
            180_000..10_800_000 => ("minutes", 60e3),
            10_800_000..259_200_000 => ("hours", 3_600e3),
            _ => ("days", 86_400e3),
        };
        Self { name, ms }
    }

    fn value(self, ms: u64) -> f64 {
        ms as f64 / self.ms
    }

    /// An axis up to `max_ms`; `{}` in its words is the unit.
    fn axis(self, words: &str, max_ms: u64) -> Axis {
        Axis {
            words: words.replace("{}", self.name),
            end: end(self.value(max_ms.max(5_000))),
        }
    }
}

/// The axis of virtual time, the same in all figures.
struct Clock {
    unit: Unit,
    end: f64,
}

impl Clock {
    fn of(report: &Report) -> Self {
        let runs = report.naive.iter().chain(&report.fixed);
        let runs = runs.chain([&report.real]);
        let end_ms = runs.map(|run| run.summary.virtual_ms).max().unwrap_or(0);
        let unit = Unit::of(end_ms);
        let end = unit.value(end_ms.max(1_000));
        Self { unit, end }
    }

    fn axis(&self) -> Axis {
        Axis {
            words: format!("{} since the start", self.unit.name),
            end: self.end,
        }
    }

    fn curve(&self, name: &str, colour: Colour, rows: &[Row], value: impl Fn(&Row) -> u64) -> Mark {
        let points = rows
            .iter()
            .map(|row| (self.unit.value(row.at_ms), value(row) as f64));
        curve(name, colour, thinned(points.collect()))
    }
}

fn people(report: &Report, clock: &Clock) -> Figure {
    let rows = &report.real.rows;
    let mut marks: Vec<Mark> = (0..)
        .zip(lanes(report))
        .map(|(no, (name, colour))| clock.curve(&name, colour, rows, |row| row.lane(no).waiting))
        .collect();
    let mut run = format!("{}.", how_many_waited(rows));
    if let Some(naive) = &report.naive {
        marks.push(clock.curve(ARTICLE, ORANGE, &naive.rows, |row| row.waiting));
        run += &format!(" With {ARTICLE}, {}.", how_many_waited(&naive.rows));
    }
    if let Some(fixed) = &report.fixed {
        marks.push(clock.curve(FIXED, ORANGE, &fixed.rows, |row| row.waiting));
        run += &format!(" With {FIXED}, {}.", how_many_waited(&fixed.rows));
    }
    if let Some(open_at_ms) = report.config.open_at_ms {
        run += &format!(" The line opened {} after the start.", duration(open_at_ms));
    }
    Figure {
        title: "People waiting".to_owned(),
        look: "Look at how high the peak is, and how long it takes until nobody waits any more."
            .to_owned(),
        run,
        x: clock.axis(),
        y: counts("people", &marks),
        marks,
    }
}

/// The name and colour of each lane in a legend.
fn lanes(report: &Report) -> Vec<(String, Colour)> {
    let lanes = report.config.settings.lanes.as_slice();
    let name = |lane: &LaneSettings| match lanes {
        [_] => "nowserving".to_owned(),
        _ => format!("lane {}", lane.name),
    };
    lanes.iter().map(name).zip(LANES).collect()
}

fn how_many_waited(rows: &[Row]) -> String {
    // The first of equals.
    let peak = rows.iter().rev().max_by_key(|row| row.waiting);
    let Some(peak) = peak.filter(|row| row.waiting > 0) else {
        return "nobody waited".to_owned();
    };
    let at_end = rows.last().map_or(0, |row| row.waiting);
    let last_ms = rows.iter().rev().find(|row| row.waiting > 0);
    let last_ms = last_ms.map_or(0, |row| row.at_ms);
    let ending = match at_end {
        0 => format!("nobody did after {}", duration(last_ms)),
        _ => format!("{} still did at the end", count(at_end)),
    };
    format!(
        "at most {} waited, {} after the start; {ending}",
        count(peak.waiting),
        duration(peak.at_ms)
    )
}

fn seats(report: &Report, clock: &Clock) -> Figure {
    let (rows, summary) = (&report.real.rows, &report.real.summary);
    let marks = vec![
        clock.curve("in checkout", BLUE, rows, |row| row.in_checkout),
        clock.curve("held (admitted or in checkout)", GREEN, rows, held),
        clock.curve("seats there are", INK, rows, |row| row.seats),
    ];
    let run = match (summary.seat_held_percent, summary.seat_busy_percent) {
        (Some(held), Some(busy)) => format!(
            "while people waited, {} of the seats were held and {} were in checkout.",
            whole_percent(held),
            whole_percent(busy)
        ),
        _ => format!(
            "nobody waited; at most {} of {} were held at once.",
            count(summary.seats_held_max),
            many(report.config.settings.seats.into(), "seat")
        ),
    };
    Figure {
        title: "Seats".to_owned(),
        look: "While people wait, the seats held should reach the seats there are, and never \
               exceed them. Look for a gap between held and in checkout: seats of people who have \
               not come yet."
            .to_owned(),
        run,
        x: clock.axis(),
        y: counts("seats", &marks),
        marks,
    }
}

fn held(row: &Row) -> u64 {
    row.in_checkout + row.admitted
}

/// A figure of its own: thirty seats too many don't show beside five hundred.
fn excess(naive: &Run, clock: &Clock) -> Figure {
    let name = format!("seats too many, {ARTICLE}");
    let mut area = clock.curve(&name, RED, &naive.rows, |row| row.over_limit);
    area.shape = Shape::Area;
    // Along the bottom back to the start.
    let bottom = |point: Option<&(f64, f64)>| point.map(|(x, _)| (*x, 0.0));
    let ends = [bottom(area.points.last()), bottom(area.points.first())];
    area.points.extend(ends.into_iter().flatten());
    let seats = naive.rows.last().map_or(0, |row| row.seats);
    let marks = vec![area];
    let run = match naive.summary.over_limit_max {
        0 => format!(
            "{ARTICLE} never held more than the {} on this crowd.",
            many(seats, "seat")
        ),
        most => format!(
            "{ARTICLE} held up to {} more than the {} there are, and was over the limit for {}.",
            many(most, "seat"),
            count(seats),
            duration(naive.over_limit_ms())
        ),
    };
    Figure {
        title: format!("Seats too many: {ARTICLE}"),
        look: format!(
            "How many seats {ARTICLE} held beyond those there are, on the same crowd. All that is \
             red is people let in for whom there was no seat; nowserving has none."
        ),
        run,
        x: clock.axis(),
        y: counts("seats too many", &marks),
        marks,
    }
}

/// How long checkouts took, by when they were done.
fn checkouts(report: &Report) -> Figure {
    let runs = [("nowserving", BLUE, Some(&report.real))];
    let runs = runs.into_iter().chain([
        (ARTICLE, RED, report.naive.as_ref()),
        (FIXED, ORANGE, report.fixed.as_ref()),
    ]);
    let groups: Vec<(&str, Colour, Means)> = runs
        .filter_map(|(name, colour, run)| Some((name, colour, means(&run?.took))))
        .collect();
    let longest_ms = groups.iter().flat_map(|(_, _, means)| means.values()).max();
    let longest_ms = longest_ms.copied().unwrap_or(0);
    let last_ms = groups.iter().flat_map(|(_, _, means)| means.keys()).max();
    let last_ms = last_ms.copied().unwrap_or(0);
    let (unit, clock) = (Unit::of(longest_ms), Unit::of(last_ms));
    let point = |(at_ms, took_ms)| (clock.value(at_ms), unit.value(took_ms));
    let marks = groups
        .into_iter()
        .map(|(name, colour, means)| curve(name, colour, means.into_iter().map(point).collect()));
    let median = report.real.summary.service_p50_ms;
    let median = median.map_or("none was done".to_owned(), |ms| {
        format!("half of them took {} and less", duration(ms))
    });
    Figure {
        title: "Mean time of checkouts, by when they were done".to_owned(),
        look: "How slow the service is under its load. Seats that follow it keep this at their target while people \
               wait; look at how soon they find it, and how much it goes up and down then."
            .to_owned(),
        run: format!("{median}."),
        x: clock.axis("done, {} after the start", last_ms),
        y: unit.axis("{} in checkout", longest_ms),
        marks: marks.collect(),
    }
}

/// When those who waited for the opening came, and in which order they were let in.
fn draw(report: &Report) -> Figure {
    let drawn = report.real.visits.iter().filter(|visit| visit.is_drawn);
    let mut drawn: Vec<&Visit> = drawn.filter(|visit| visit.admitted_ms.is_some()).collect();
    drawn.sort_by_key(|visit| visit.entered_ms);
    let last_ms = drawn.last().map_or(0, |visit| visit.entered_ms);
    let unit = Unit::of(last_ms);
    let step = drawn.len().div_ceil(DOTS_MAX).max(1);
    let dots = drawn.iter().step_by(step);
    let dots = dots.map(|visit| (unit.value(visit.entered_ms), visit.admitted_with as f64));
    let marks = match drawn.is_empty() {
        true => Vec::new(),
        false => vec![mark("one person", BLUE, Shape::Dots, dots.collect())],
    };
    let mean = |of: &[&Visit]| {
        let sum: u64 = of.iter().map(|visit| visit.admitted_with).sum();
        count(sum / (of.len() as u64).max(1))
    };
    let tenth = drawn.len().div_ceil(10);
    let run = match drawn.len() {
        0 => "nobody waited for the opening and was let in.".to_owned(),
        all => format!(
            "of {} who waited for the opening and were let in, the tenth that came first was let in as number {} \
             on average, the tenth that came last as number {}.",
            count(all as u64),
            mean(&drawn[..tenth]),
            mean(&drawn[all - tenth..])
        ),
    };
    Figure {
        title: "The draw at the opening".to_owned(),
        look: "One dot for each person that waited for the opening and was let in later (of many, a sample). By a draw \
               the dots are spread evenly, whenever somebody came; in the order of coming they would be a line."
            .to_owned(),
        run,
        x: unit.axis("entered, {} after the start", last_ms),
        y: counts("let in as number", &marks),
        marks,
    }
}

/// Those who were not served, by the stage at which they were lost.
fn losses(run: &Run, clock: &Clock) -> Figure {
    let of = |name, colour, value: fn(&Row) -> u64| clock.curve(name, colour, &run.rows, value);
    let marks = vec![
        of("turned away without a number", INK, |row| row.turned_away),
        of("gone while waiting", BLUE, |row| row.gone.waiting),
        of("gone before checkout", GREEN, |row| row.gone.admitted),
        of("gone from checkout", PURPLE, |row| row.gone.in_checkout),
    ];
    let gone = run.summary.gone_from.values();
    let gone = gone.fold(Stages::default(), Stages::plus);
    let words = match gone.sum() + run.summary.turned_away {
        0 => "all who came were served, or are still in the line.".to_owned(),
        _ => format!(
            "{} turned away; {} gone while they waited, {} with a seat that they never claimed, \
             {} from checkout.",
            count(run.summary.turned_away),
            count(gone.waiting),
            count(gone.admitted),
            count(gone.in_checkout)
        ),
    };
    Figure {
        title: "Not served".to_owned(),
        look: "How many were lost so far, by the stage at which they were. People turned away ask \
               for a longer queue, people gone while waiting for shorter waits or better news; a \
               seat that is not claimed or left in checkout stands empty until its timeout."
            .to_owned(),
        run: words,
        x: clock.axis(),
        y: counts("people", &marks),
        marks,
    }
}

fn waits(report: &Report) -> Figure {
    let visits = &report.real.visits;
    let mut groups: Vec<(String, Colour, Means)> = (0..)
        .zip(lanes(report))
        .map(|(no, (name, colour))| {
            let of_lane = visits.iter().filter(|visit| visit.lane == no);
            (name, colour, mean_waits(of_lane))
        })
        .collect();
    if let Some(naive) = &report.naive {
        let means = mean_waits(naive.visits.iter());
        groups.push((ARTICLE.to_owned(), ORANGE, means));
    }
    if let Some(fixed) = &report.fixed {
        let means = mean_waits(fixed.visits.iter());
        groups.push((FIXED.to_owned(), ORANGE, means));
    }
    let longest_ms = groups.iter().flat_map(|(_, _, means)| means.values()).max();
    let longest_ms = longest_ms.copied().unwrap_or(0);
    let unit = Unit::of(longest_ms);
    let last_ms = groups.iter().flat_map(|(_, _, means)| means.keys()).max();
    let last_ms = last_ms.copied().unwrap_or(0);
    let clock = Unit::of(last_ms);
    let point = |(at_ms, wait_ms)| (clock.value(at_ms), unit.value(wait_ms));
    let marks = groups
        .into_iter()
        .map(|(name, colour, means)| curve(&name, colour, means.into_iter().map(point).collect()));
    Figure {
        title: "Mean wait, by when people came".to_owned(),
        look: "From entering to admission, of those who were admitted. Look at who waits longest, \
               and whether lanes that go first are below the others."
            .to_owned(),
        run: median_waits(report),
        x: clock.axis("entered, {} after the start", last_ms),
        y: unit.axis("{} waited", longest_ms),
        marks: marks.collect(),
    }
}

fn median_waits(report: &Report) -> String {
    let median = |whose: &str, ms: Option<u64>| match ms {
        None => format!("{whose}nobody was admitted"),
        Some(ms) => format!("{whose}the median wait was {}", duration(ms)),
    };
    let summary = &report.real.summary;
    let mut words: Vec<String> = match summary.lanes.as_slice() {
        [_] => vec![median("", summary.wait_p50_ms)],
        lanes => lanes
            .iter()
            .map(|lane| median(&format!("in lane {} ", lane.lane), lane.wait_p50_ms))
            .collect(),
    };
    if let Some(naive) = &report.naive {
        words.push(median(
            &format!("with {ARTICLE} "),
            naive.summary.wait_p50_ms,
        ));
    }
    format!("{}.", words.join("; "))
}

/// Mean times by the time at which somebody entered, or was done; both in milliseconds.
type Means = BTreeMap<u64, u64>;

fn mean_waits<'a>(visits: impl Iterator<Item = &'a Visit>) -> Means {
    let waits = visits.map(|visit| (visit.entered_ms, visit.wait_ms()));
    means_of(&waits.collect::<Vec<_>>())
}

fn means(times: &[(u64, u64)]) -> Means {
    let times = times.iter().map(|(at_ms, ms)| (*at_ms, Some(*ms)));
    means_of(&times.collect::<Vec<_>>())
}

/// Means over stretches of time; times that are not known count for how long the stretches are.
fn means_of(times: &[(u64, Option<u64>)]) -> Means {
    let last_ms = times.iter().map(|(at_ms, _)| *at_ms).max();
    let stretch_ms = (last_ms.unwrap_or(0) / STRETCHES).max(1);
    let mut sums = BTreeMap::<u64, (u64, u64)>::new();
    for (at_ms, ms) in times {
        if let Some(ms) = ms {
            let begin_ms = at_ms / stretch_ms * stretch_ms;
            let (sum_ms, people) = sums.entry(begin_ms).or_default();
            *sum_ms += ms;
            *people += 1;
        }
    }
    let means = sums.into_iter();
    let means = means.map(|(begin_ms, (sum_ms, people))| (begin_ms, sum_ms / people));
    means.collect()
}

/// The four pointers of a lane.
fn pointers(report: &Report, clock: &Clock, no: usize) -> Figure {
    let rows = &report.real.rows;
    let highest = |value: fn(Pointers) -> u64| {
        let values = rows.iter().map(|row| value(row.lane(no).pointers));
        values.max().unwrap_or(0)
    };
    let of = |name, colour, value: fn(Pointers) -> u64| {
        clock.curve(name, colour, rows, |row| value(row.lane(no).pointers))
    };
    let mut marks = vec![
        of("next to be given (next_token)", BLUE, |at| at.next_token),
        of("admitted (admitted_through)", GREEN, |at| {
            at.admitted_through
        }),
        of("finished (done_through)", GREY, |at| at.done_through),
    ];
    let came = |visit: &&Visit| usize::from(visit.lane) == no;
    let entered = report.real.visits.iter().filter(came).count() as u64;
    let admitted = report.real.visits.iter().filter(came);
    let admitted = admitted.filter(|v| v.admitted_ms.is_some()).count() as u64;
    let mut run = match entered {
        0 => "nobody asked for this lane.".to_owned(),
        _ => format!(
            "{} given, {} of their holders admitted.",
            many(entered, "number"),
            count(admitted)
        ),
    };
    let accepts = highest(|at| at.accepts_through);
    if accepts <= highest(|at| at.next_token) * ACCEPTS_IN_SIGHT {
        let name = "the most that would be given (accepts_through)";
        marks.push(of(name, PURPLE, |at| at.accepts_through));
    } else {
        run += &format!(
            " Up to {} would have been given: far above the picture.",
            count(accepts)
        );
    }
    let lane = report.config.settings.lanes.get(no);
    Figure {
        title: format!(
            "Numbers of lane {}",
            lane.map_or(String::new(), |lane| lane.name.to_string())
        ),
        look: match no {
            0 => POINTERS_LOOK,
            _ => "To be read as the first lane's.",
        }
        .to_owned(),
        run,
        x: clock.axis(),
        y: counts("number", &marks),
        marks,
    }
}

fn forecasts(run: &Run) -> Figure {
    let known = run.visits.iter().filter_map(|visit| {
        let (eta_ms, wait_ms) = (visit.eta_ms?, visit.wait_ms()?);
        Some((eta_ms, wait_ms))
    });
    let known: Vec<(u64, u64)> = known.collect();
    let longest_ms = known.iter().map(|(eta, waited)| *eta.max(waited)).max();
    let longest_ms = longest_ms.unwrap_or(0);
    let unit = Unit::of(longest_ms);
    let step = known.len().div_ceil(DOTS_MAX).max(1);
    let dots = known.iter().step_by(step);
    let dots = dots.map(|(eta_ms, wait_ms)| (unit.value(*eta_ms), unit.value(*wait_ms)));
    let (x, y) = (
        unit.axis("{} told on entering", longest_ms),
        unit.axis("{} waited", longest_ms),
    );
    let marks = match known.is_empty() {
        true => Vec::new(),
        false => forecast_marks(x.end, dots.collect()),
    };
    let summary = &run.summary;
    Figure {
        title: "Forecasts against the truth".to_owned(),
        look:
            "One dot for each person that was told a wait on entering and was admitted later (of \
               many, a sample). Dots above the band waited longer than they were told, dots below \
               it less."
                .to_owned(),
        run: match summary.eta_within_15_percent {
            None if summary.eta_told == 0 => "nobody was told a forecast on entering.".to_owned(),
            None => "none of those who were told a forecast on entering were admitted.".to_owned(),
            Some(within) => format!(
                "of {}, {} were at most 15 % of the true wait off, inside the band.",
                many(summary.eta_known, "forecast"),
                whole_percent(within)
            ),
        },
        x,
        y,
        marks,
    }
}

fn forecast_marks(far: f64, dots: Points) -> Vec<Mark> {
    // A forecast counts as right if it is at most 15 % of the true wait off.
    let band = vec![(0.0, 0.0), (far, far / 1.15), (far, far), (far * 0.85, far)];
    vec![
        mark("at most 15 % off", GRID, Shape::Area, band),
        curve("as told", GREY, vec![(0.0, 0.0), (far, far)]),
        mark("one person", BLUE, Shape::Dots, dots),
    ]
}

fn curve(name: &str, colour: Colour, points: Points) -> Mark {
    mark(name, colour, Shape::Curve, points)
}

/// The axis for marks that count something.
fn counts(words: &str, marks: &[Mark]) -> Axis {
    let points = marks.iter().flat_map(|mark| &mark.points);
    let highest = points.map(|point| point.1).fold(0.0, f64::max);
    Axis {
        words: words.to_owned(),
        end: end(highest.max(5.0)),
    }
}

/// Where an axis ends: a little past the largest.
fn end(largest: f64) -> f64 {
    largest * 1.05
}

/// The lowest and the highest point of each column of the picture, so that no peak is lost, and
/// the first and the last of all.
fn thinned(points: Points) -> Points {
    let width = points.len().div_ceil(COLUMNS).max(1);
    let (first, last) = (points.first().copied(), points.last().copied());
    let columns = points.chunks(width).flat_map(|column| {
        let by_height = |a: &(f64, f64), b: &(f64, f64)| a.1.total_cmp(&b.1);
        let low = column.iter().copied().min_by(by_height);
        let high = column.iter().copied().max_by(by_height);
        let low_first = low.map(|point| point.0) <= high.map(|point| point.0);
        let ends = if low_first { [low, high] } else { [high, low] };
        ends.into_iter().flatten()
    });
    let mut kept: Points = first.into_iter().chain(columns).chain(last).collect();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests;
