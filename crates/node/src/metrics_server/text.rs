//! Prometheus's text format, for the metrics that are written at each scrape. The exporter's own could only be
//! registered, for ever: a line that another node leads by now would keep its last values here.

use std::fmt::{Display, Write as _};

use super::table::{self, Kind};

/// Labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics as text.
#[derive(Debug, Default)]
pub struct Text(pub String);

/// The samples of one metric. The format wants them next to each other.
#[derive(Debug)]
pub struct Family<'a> {
    name: &'static str,
    out: &'a mut String,
}

impl Text {
    /// Begins a metric of the table. It is as if it were not there while it has no samples.
    pub fn family(&mut self, name: &'static str) -> Family<'_> {
        let out = &mut self.0;
        if let Some(metric) = table::find(name) {
            let (kind, text) = (metric.kind.as_str(), metric.text);
            // Writing to a string does not fail.
            let _ = writeln!(out, "# HELP {name} {text}\n# TYPE {name} {kind}");
        }
        Family { name, out }
    }
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// The samples of a histogram with the buckets of the table: `classes` are how many values fell into each, and
    /// how many into none.
    pub fn histogram(&mut self, labels: Labels<'_>, classes: &[u64], sum: Option<f64>) {
        let metric = table::find(self.name);
        let Some(Kind::Histogram(bounds)) = metric.map(|metric| metric.kind) else {
            return;
        };
        let ends = bounds.iter().map(f64::to_string);
        let mut count: u64 = 0;
        for (end, class) in ends.chain(["+Inf".to_owned()]).zip(classes) {
            count += class;
            let end = [("le", end.as_str())];
            let labels = [labels, &end[..]].concat();
            self.suffixed("_bucket", &labels, count);
        }
        if let Some(sum) = sum {
            self.suffixed("_sum", labels, sum);
        }
        self.suffixed("_count", labels, count);
    }

    fn suffixed(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        for (nth, (name, value)) in labels.iter().enumerate() {
            self.out.push(if nth == 0 { '{' } else { ',' });
            self.out.push_str(name);
            self.out.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    // Some readers take it for the end of a line.
                    '\r' => self.out.push(' '),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut text = Text::default();
        let mut family = text.family("nowserving_label_lines");
        family.sample(&[("label", "ci\"ty"), ("value", "a\\b\nc, 上海")], 3);
        let lines: Vec<&str> = text.0.lines().collect();
        assert_eq!(
            lines,
            [
                "# HELP nowserving_label_lines Lines with this label.",
                "# TYPE nowserving_label_lines gauge",
                r#"nowserving_label_lines{label="ci\"ty",value="a\\b\nc, 上海"} 3"#,
            ]
        );
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        let mut text = Text::default();
        let mut family = text.family("nowserving_forecast_off_ratio");
        family.histogram(&[("line", "shop")], &[1, 0, 2, 0, 0, 4], None);
        let samples: Vec<&str> = text.0.lines().skip(2).collect();
        assert_eq!(
            samples,
            [
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="0.05"} 1"#,
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="0.15"} 1"#,
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="0.3"} 3"#,
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="0.5"} 3"#,
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="1"} 3"#,
                r#"nowserving_forecast_off_ratio_bucket{line="shop",le="+Inf"} 7"#,
                r#"nowserving_forecast_off_ratio_count{line="shop"} 7"#,
            ]
        );
    }

    #[test]
    fn without_labels_there_are_no_braces() {
        let mut text = Text::default();
        text.family("process_open_fds").sample(&[], 1.5);
        assert!(text.0.ends_with("\nprocess_open_fds 1.5\n"), "{}", text.0);
    }
}
