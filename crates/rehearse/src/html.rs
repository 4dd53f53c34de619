//! The report as one page that needs nothing else: no script, no font, no network.

use std::fmt::Write as _;

use crate::plots::{self, BadPlot};
use crate::report::{Report, Summary};

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>nowserving: a rehearsal</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .15em 1em .15em 0; text-align: left; border-bottom: 1px solid #ddd }
svg { max-width: 100%; height: auto; margin: 1em 0 }
</style></head><body>
<h1>A rehearsal</h1>
";

impl Report {
    /// The report as one self-contained HTML page with pictures.
    ///
    /// # Errors
    /// A picture could not be drawn.
    pub fn html(&self) -> Result<String, BadPlot> {
        let mut page = String::from(HEAD);
        let crowd = &self.config.crowd;
        // Writing to a string can't fail.
        let _ = writeln!(
            page,
            "<p>{} shoppers, {} seats, seed {}; a message takes {} ms each way.</p>",
            crowd.shoppers, self.config.settings.seats, self.config.seed, self.config.net_delay_ms
        );
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

impl Summary {
    /// Names and values, in order, for a table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let percent = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v} %"));
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1_000.0);
        let wait = |ms: Option<u64>| ms.map_or("-".to_owned(), seconds);
        let gone = self.gone.iter();
        let gone: Vec<String> = gone.map(|(reason, n)| format!("{reason} {n}")).collect();
        vec![
            (
                "seats held while anybody waits",
                percent(self.seat_held_percent),
            ),
            (
                "seats in checkout while anybody waits",
                percent(self.seat_busy_percent),
            ),
            ("overtakes", self.overtakes.to_string()),
            ("most seats over the limit", self.over_limit_max.to_string()),
            ("wait, median", wait(self.wait_p50_ms)),
            ("wait, 99 %", wait(self.wait_p99_ms)),
            (
                "told a forecast on entering",
                percent(self.eta_told_percent),
            ),
            (
                "forecast within 15 % of the truth",
                percent(self.eta_within_15_percent),
            ),
            (
                "wait within the 90 % forecast",
                percent(self.eta_p90_coverage_percent),
            ),
            ("completed", self.completed.to_string()),
            ("gone otherwise", gone.join(", ")),
            ("turned away", self.turned_away.to_string()),
            ("still in the line at the end", self.still_live.to_string()),
            ("polls a second, mean", self.polls_per_second.to_string()),
            (
                "polls a second, most",
                self.polls_per_second_max.to_string(),
            ),
            ("virtual time", seconds(self.virtual_ms)),
        ]
    }
}
