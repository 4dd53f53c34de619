//! The report as one page that needs nothing else: no script, no font, no network.

use std::fmt::Write as _;

use crate::plots::{self, BadPlot};
use crate::report::Report;

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>nowserving: a rehearsal</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .15em 1em .15em 0; text-align: left; border-bottom: 1px solid #ddd }
td:first-child { white-space: nowrap }
pre { background: #f4f4f4; padding: .5em 1em; white-space: pre-wrap }
svg { max-width: 100%; height: auto; margin: 1em 0 }
</style></head><body>
<h1>A rehearsal</h1>
";

const ARTICLE: &str = "<p>“The article” is the algorithm of the article that nowserving began \
with, as written, on the same crowd: four numbers, where every departure, also from the middle of \
the line, lets in the next.</p>
";

impl Report {
    /// The report as one self-contained HTML page with pictures. `command` is what was asked for,
    /// as it was typed; it is shown as text.
    ///
    /// # Errors
    /// A picture could not be drawn.
    pub fn html(&self, command: &str) -> Result<String, BadPlot> {
        let mut page = String::from(HEAD);
        // Writing to a string can't fail.
        let _ = writeln!(page, "<pre>{}</pre>", escaped(command));
        let _ = writeln!(page, "<table>");
        for (name, value) in self.config.rows() {
            let _ = writeln!(page, "<tr><td>{name}</td><td>{}</td></tr>", escaped(&value));
        }
        let _ = writeln!(page, "</table>");
        if self.naive.is_some() {
            page.push_str(ARTICLE);
        }
        self.write_table(&mut page);
        for picture in plots::all(self)? {
            let _ = writeln!(page, "<div>{picture}</div>");
        }
        page.push_str("</body></html>\n");
        Ok(page)
    }

    fn write_table(&self, page: &mut String) {
        page.push_str("<table><tr><th></th><th>nowserving</th>");
        if self.naive.is_some() {
            page.push_str("<th>the article's algorithm</th>");
        }
        page.push_str("</tr>\n");
        let others = self.naive.as_ref().map(|run| run.summary.rows());
        for (no, (name, value)) in self.real.summary.rows().into_iter().enumerate() {
            let _ = write!(page, "<tr><td>{name}</td><td>{value}</td>");
            if let Some((_, other)) = others.as_ref().and_then(|rows| rows.get(no)) {
                let _ = write!(page, "<td>{other}</td>");
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</table>\n");
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
