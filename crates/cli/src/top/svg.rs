//! A drawn screen as a picture for the docs.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// A character, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
/// Around the screen.
const MARGIN: f64 = 12.0;
const GROUND: &str = "#1e1e1e";
const TEXT: &str = "#d4d4d4";

/// How cells look that are written as one piece of text.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Look {
    colour: &'static str,
    bold: bool,
    reversed: bool,
}

pub fn svg(buffer: &Buffer) -> String {
    let area = buffer.area;
    let width = f64::from(area.width) * WIDTH + 2.0 * MARGIN;
    let height = f64::from(area.height) * HEIGHT + 2.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{GROUND}\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"14\">\n"
    );
    for y in 0..area.height {
        for (x, look, piece) in pieces(buffer, y) {
            write_piece(&mut text, (x, y), look, &piece);
        }
    }
    text.push_str("</g>\n</svg>\n");
    text
}

/// The cells of a row, those beside each other that look alike together.
fn pieces(buffer: &Buffer, y: u16) -> Vec<(u16, Look, String)> {
    let mut pieces: Vec<(u16, Look, String)> = Vec::new();
    for x in 0..buffer.area.width {
        let cell = &buffer[(x, y)];
        let look = look(cell);
        match pieces.last_mut() {
            Some((_, last, piece)) if *last == look => piece.push_str(cell.symbol()),
            _ => pieces.push((x, look, cell.symbol().to_owned())),
        }
    }
    pieces
}

fn look(cell: &Cell) -> Look {
    let colour = match cell.fg {
        Color::Red => "#f48771",
        Color::Green => "#73c991",
        Color::Yellow => "#e2c08d",
        Color::Cyan => "#6cb6ff",
        Color::DarkGray => "#8b949e",
        _ => TEXT,
    };
    Look {
        colour,
        bold: cell.modifier.contains(Modifier::BOLD),
        reversed: cell.modifier.contains(Modifier::REVERSED),
    }
}

fn write_piece(text: &mut String, (x, y): (u16, u16), look: Look, piece: &str) {
    let (left, top) = (
        MARGIN + f64::from(x) * WIDTH,
        MARGIN + f64::from(y) * HEIGHT,
    );
    let width = piece.chars().count() as f64 * WIDTH;
    let mut colour = look.colour;
    if look.reversed {
        let _ = writeln!(
            text,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" \
             fill=\"{colour}\"/>"
        );
        colour = GROUND;
    }
    if piece.trim().is_empty() {
        return;
    }
    let bold = if look.bold {
        " font-weight=\"bold\""
    } else {
        ""
    };
    let escaped = piece
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let base = top + HEIGHT - 5.0;
    let _ = writeln!(
        text,
        "<text x=\"{left:.1}\" y=\"{base:.1}\" textLength=\"{width:.1}\" fill=\"{colour}\"{bold} \
         xml:space=\"preserve\">{escaped}</text>"
    );
}
