//! Whole screens.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::cell::Palette;
use super::model::{Key, Model, Update};
use super::{report, scenes, screen, svg};

/// Set to any value, it has the pictures of the docs drawn again.
const DRAW: &str = "NOWSERVING_DRAW";

fn drawn(model: &Model, colour: bool, now: Instant) -> Buffer {
    let (width, height) = model.size;
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| screen::draw(frame, model, Palette { colour }, now);
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn rows_of(buffer: &Buffer) -> Vec<String> {
    let row = |y: u16| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..buffer.area.height).map(row).collect()
}

/// The screen as text, which is that of `--once` as well.
fn text(model: &Model, now: Instant) -> String {
    let rows = rows_of(&drawn(model, true, now)).join("\n");
    assert_eq!(rows.trim_end(), report::text(model, now).trim_end());
    rows
}

fn has(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

fn sized(mut model: Model, size: (u16, u16)) -> Model {
    model.size = size;
    model
}

fn line_of(model: &mut Model) {
    model.press(Key::Enter);
    let (line, page) = model.want().look_into.unwrap();
    model.looked_into = Some(scenes::looked_into(line.as_str(), page));
}

#[test]
fn a_terminal_of_80_columns_has_what_matters() {
    let now = Instant::now();
    let text = text(&scenes::busy_day(now), now);
    has(
        &text,
        &[
            "nowserving top  shop  lines by pressure",
            "0s old",
            "9 lines: 25522 waiting",
            "1 stuck",
            "3 nodes alive and caught up, 16 shards led 6/5/5",
            "PRESS",
            "ADM+CHK/OF",
            "REFUSED",
            "! sneaker-d",
            "F tickets-t",
            "20+180/200",
            "q quit",
        ],
    );
    assert_eq!(text.lines().count(), 24, "{text}");
    let first = text.lines().nth(4).unwrap();
    assert!(first.starts_with("! sneaker-d"), "{text}");
    assert!(!text.contains("ACCEPTS"), "{text}");
}

#[test]
fn a_wide_terminal_has_pointers_and_nodes() {
    let now = Instant::now();
    let text = text(&sized(scenes::busy_day(now), (120, 40)), now);
    has(
        &text,
        &[
            "NEXT",
            "ADMITTED",
            "ACCEPTS",
            "! sneaker-drop",
            "NODE",
            "this one",
            "65 ms ago",
        ],
    );
    let wider = sized(scenes::busy_day(now), (160, 40));
    has(&self::text(&wider, now), &["HELD BY", "phase", "seats"]);
}

#[test]
fn a_tiny_terminal_says_so() {
    let now = Instant::now();
    for size in [(40, 10), (59, 24), (80, 9)] {
        let text = text(&sized(scenes::busy_day(now), size), now);
        assert!(
            text.starts_with('t') && text.trim_end().lines().count() == 1,
            "{text}"
        );
    }
    has(
        &text(&sized(scenes::busy_day(now), (40, 10)), now),
        &["too small: at least 60 x 10"],
    );
    // Nothing fits, and nothing fails.
    text(&sized(scenes::busy_day(now), (1, 1)), now);
    // The smallest one that is shown has the columns that fit.
    let least = text(&sized(scenes::busy_day(now), (60, 10)), now);
    has(&least, &["WAITING", "ETA", "! sneaker-drop"]);
    assert!(!least.contains("REFUSED"), "{least}");
}

#[test]
fn one_line_shows_board_tokens_and_journal() {
    let now = Instant::now();
    for size in [(80, 24), (120, 40)] {
        let mut model = sized(scenes::busy_day(now), size);
        model.press(Key::Down);
        line_of(&mut model);
        let tokens = text(&model, now);
        has(
            &tokens,
            &[
                "tickets-tour-7",
                "shard 3 led by node 1",
                "200 of 200: 20 admitted, 180 in checkout",
                "20018 of 20000; a newcomer: 18 min 20 s",
                "8.0 are admitted",
                "held back by: the seats",
                "2001 line_full",
                "DONE THR.",
                "vip",
                "TOKENS by number, page 1, n: next",
                "in_checkout",
                "order-88120",
            ],
        );
        let shown = tokens
            .lines()
            .filter(|line| line.contains("order-"))
            .count();
        let (_, page) = model.want().look_into.unwrap();
        assert_eq!(shown as u64, page.limit, "{tokens}");
        model.press(Key::Tab);
        let journal = text(&model, now);
        has(
            &journal,
            &[
                "11-12 12:00:00",
                "normal 2003 claimed, epoch 1",
                "normal 1987 gone, completed",
                "configured: seats 150 → 200, by ann, the second counter is open",
                // On 80 columns in the second row.
                "repaired",
                "JOURNAL, newest first, page 1",
            ],
        );
    }
}

#[test]
fn nodes_and_shards_can_be_scrolled() {
    let now = Instant::now();
    let mut model = scenes::busy_day(now);
    model.press(Key::Tab);
    let top = text(&model, now);
    has(
        &top,
        &["nodes and shards", "alive", "SHARD", "node 2", "0.1.0"],
    );
    for _ in 0..50 {
        model.press(Key::Down);
    }
    let bottom = text(&model, now);
    assert_ne!(top, bottom);
    has(&bottom, &["81219", "1 2 3"]);
    model.press(Key::Esc);
    has(&text(&model, now), &["lines by pressure"]);
}

#[test]
fn faults_are_in_sight() {
    let now = Instant::now();
    let mut model = scenes::busy_day(now);
    let mut cluster = model.cluster.take().unwrap();
    cluster.nodes[2].alive = false;
    cluster.shards[4].leader = None;
    model.cluster = Some(cluster);
    has(
        &text(&model, now),
        &["without a leader: shards 4; node 3 silent"],
    );
    model.take(Update::Trouble("unavailable: no node answers".to_owned()));
    let later = now + Duration::from_secs(7);
    has(
        &text(&model, later),
        &["OLD, 7s old", "no contact: unavailable: no node answers"],
    );
    model.press(Key::Char('p'));
    has(&text(&model, later), &["paused, 7s old"]);
}

#[test]
fn help_and_filter_have_their_place() {
    let now = Instant::now();
    let mut model = scenes::busy_day(now);
    model.press(Key::Char('?'));
    let help = text(&model, now);
    has(&help, &["ADM+CHK/OF", "the four pointers", "any key: back"]);
    model.press(Key::Esc);
    for key in ['/', 'n', 'o', 'n', 'e'] {
        model.press(Key::Char(key));
    }
    has(
        &text(&model, now),
        &["/none", "no line fits the filter", "filter: none"],
    );
}

#[test]
fn thousands_of_lines_are_one_screen() {
    let now = Instant::now();
    let mut model = scenes::many(5_000, now);
    has(&text(&model, now), &["5000 lines"]);
    model.press(Key::Char('S'));
    model.press(Key::End);
    has(&text(&model, now), &["lines by name", "line-04999"]);
}

#[test]
fn without_colours_there_are_none() {
    let now = Instant::now();
    let model = scenes::busy_day(now);
    let coloured = |colour| {
        let buffer = drawn(&model, colour, now);
        buffer.content.iter().any(|cell| cell.fg != Color::Reset)
    };
    assert!(coloured(true) && !coloured(false));
}

#[test]
fn the_report_has_all_lines() {
    let now = Instant::now();
    let model = scenes::busy_day(now);
    let report = serde_json::to_value(report::Report::of(&model)).unwrap();
    let lines = report["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 9);
    let (first, second) = (&lines[0], &lines[1]);
    assert_eq!(first["line"], "sneaker-drop");
    assert_eq!(
        (&first["stuck"], &second["stuck"]),
        (&true.into(), &false.into())
    );
    assert_eq!(second["per_second"]["done"], 8.0);
    assert_eq!(second["lanes"][0]["waiting"], 20_018);
    assert_eq!(report["cluster"]["cluster"], "shop");
    assert_eq!(report["more_lines"], false);
}

/// The pictures that docs/operations.md shows; written only if [`DRAW`] is set.
#[test]
fn pictures_for_the_docs() {
    let now = Instant::now();
    let list = sized(scenes::busy_day(now), (100, 26));
    let mut line = sized(scenes::busy_day(now), (100, 30));
    line.press(Key::Down);
    line_of(&mut line);
    let mut cluster = sized(scenes::busy_day(now), (100, 26));
    cluster.press(Key::Tab);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/top");
    for (name, model) in [("list", list), ("line", line), ("cluster", cluster)] {
        let picture = svg::svg(&drawn(&model, true, now));
        assert!(picture.starts_with("<svg") && picture.contains("nowserving top"));
        if std::env::var_os(DRAW).is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("{name}.svg")), picture).unwrap();
        }
    }
}
