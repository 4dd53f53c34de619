//! The report as one page that needs nothing else: no script, no font, no network.
//!
//! The verdict comes first, then the figures with their captions, then the numbers. Its text is as wide
//! as the screen, its pictures are drawn for a phone, its colours follow the reader's light or
//! dark mode.

use std::fmt::Write as _;

use crate::figures::{self, Figure};
use crate::palette;
use crate::plots::{self, BadPlot, Shape};
use crate::report::Report;
use crate::verdict::Tone;

const STYLE: &str = include_str!("page.css");

const ABOUT: &str = "The crowd is simulated; the line is the code that nowserving's nodes run. \
Failing nodes, lost messages and slow servers are not part of a rehearsal.";

const ABOUT_ARTICLE: &str = "The article's algorithm is the one of the article that nowserving \
began with, as written, on the same crowd: four numbers and one lane, where every departure, also \
from the middle of the line, lets in the next.";

impl Report {
    /// The report as one self-contained HTML page with pictures. `command` is what was asked for,
    /// as it was typed; it is shown as text.
    ///
    /// # Errors
    /// A picture could not be drawn.
    pub fn html(&self, command: &str) -> Result<String, BadPlot> {
        let mut page = String::new();
        self.write_head(&mut page);
        self.write_verdict(&mut page);
        page.push_str("<main>\n<div class=\"figures\">\n");
        for figure in figures::all(self) {
            write_figure(&mut page, &figure)?;
        }
        page.push_str("</div>\n");
        self.write_numbers(&mut page);
        self.write_setup(&mut page, command);
        page.push_str("</main>\n");
        write_foot(&mut page);
        Ok(page)
    }

    // Writing to a string can't fail.

    fn write_head(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>A rehearsal of {}</title>\n<style>\n{}{STYLE}</style></head><body>",
            escaped(&self.headline()),
            palette::css()
        );
    }

    fn write_verdict(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "<header>\n<p class=\"kicker\">A rehearsal with nowserving</p>\n<h1>{}</h1>\n\
             <ul class=\"findings\">",
            prose(&self.headline())
        );
        for finding in self.findings() {
            let (class, word) = match finding.tone {
                Tone::Bad => ("bad", "Failed: "),
                Tone::Caution => ("caution", "Note: "),
                Tone::Good => ("good", ""),
                Tone::Compared => ("compared", ""),
            };
            let text = prose(&finding.text);
            let _ = writeln!(page, "<li class=\"{class}\"><b>{word}</b>{text}</li>");
        }
        page.push_str("</ul>\n</header>\n");
    }

    fn write_numbers(&self, page: &mut String) {
        page.push_str("<h2>The numbers</h2>\n<table>\n");
        let columns = self.columns();
        if columns.len() > 1 {
            page.push_str("<tr><th></th>");
            for column in columns {
                let _ = write!(page, "<th>{}</th>", escaped(column));
            }
            page.push_str("</tr>\n");
        }
        for row in self.rows() {
            write_row(page, &row);
        }
        page.push_str("</table>\n");
        if self.naive.is_some() {
            let _ = writeln!(page, "<p>{}</p>", escaped(ABOUT_ARTICLE));
        }
    }

    fn write_setup(&self, page: &mut String, command: &str) {
        page.push_str("<h2>What was rehearsed</h2>\n<table>\n");
        for (name, value) in self.config.rows() {
            write_row(page, &[name, value]);
        }
        let _ = writeln!(page, "</table>\n<pre>{}</pre>", escaped(command));
    }
}

fn write_figure(page: &mut String, figure: &Figure) -> Result<(), BadPlot> {
    let title = escaped(&figure.title);
    let _ = writeln!(page, "<figure>\n<h2>{title}</h2>");
    if !figure.marks.is_empty() {
        let picture = plots::svg(&figure.x, &figure.y, &figure.marks)?;
        let _ = writeln!(
            page,
            "<div role=\"img\" aria-label=\"{title}\">{picture}</div>\n<ul class=\"legend\">"
        );
        for mark in &figure.marks {
            let shape = match mark.shape {
                Shape::Curve => "curve",
                Shape::Area => "area",
                Shape::Dots => "dots",
            };
            let (colour, name) = (mark.colour.var(), escaped(&mark.name));
            let _ = writeln!(
                page,
                "<li><i class=\"{shape}\" style=\"background:{colour}\"></i>{name}</li>"
            );
        }
        page.push_str("</ul>\n");
    }
    let _ = writeln!(
        page,
        "<figcaption><p>{}</p><p><b>This run:</b> {}</p></figcaption>\n</figure>",
        prose(&figure.look),
        prose(&figure.run)
    );
    Ok(())
}

fn write_row(page: &mut String, cells: &[String]) {
    page.push_str("<tr>");
    for cell in cells {
        let _ = write!(page, "<td>{}</td>", escaped(cell));
    }
    page.push_str("</tr>\n");
}

fn write_foot(page: &mut String) {
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(
        page,
        "<footer>nowserving {version}. {}</footer>\n</body></html>",
        escaped(ABOUT)
    );
}

/// For a line of prose: a number stays with its unit.
fn prose(text: &str) -> String {
    let mut after_digit = false;
    let text = escaped(text);
    let glued = text.chars().map(|c| {
        let glue = c == ' ' && after_digit;
        after_digit = c.is_ascii_digit();
        if glue { '\u{a0}' } else { c }
    });
    glued.collect()
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
