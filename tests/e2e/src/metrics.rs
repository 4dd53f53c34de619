//! Reads a node's metrics endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};

use crate::http::get;

#[derive(Debug)]
pub struct Metrics {
    /// By the whole of `name{labels}`.
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Scrapes once.
    ///
    /// # Errors
    /// No answer in time, or not one in Prometheus's text form.
    pub async fn scrape(addr: SocketAddr) -> Result<Metrics> {
        let (status, text) = get(addr, "/metrics").await?;
        ensure!(status == 200, "metrics: {status} {text}");
        Metrics::parse(&text)
    }

    fn parse(text: &str) -> Result<Metrics> {
        let mut samples = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        {
            let (name, value) = line
                .rsplit_once(' ')
                .with_context(|| format!("sample {line:?}"))?;
            let value = value
                .parse()
                .with_context(|| format!("value in {line:?}"))?;
            samples.insert(name.to_owned(), value);
        }
        Ok(Metrics { samples })
    }

    /// The sum over all samples of `name` that have each of `labels` (as in `op="status"`). Zero if
    /// there is none: a counter that was never touched may not be listed.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let wanted = |key: &str| {
            let (its_name, its_labels) = key.split_once('{').unwrap_or((key, ""));
            its_name == name && labels.iter().all(|label| its_labels.contains(label))
        };
        self.samples
            .iter()
            .filter(|(key, _)| wanted(key))
            .map(|(_, value)| value)
            .sum()
    }

    /// Whether there is any sample of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.count(name) > 0
    }

    /// How many samples of this name have this label.
    #[must_use]
    pub fn count_with(&self, name: &str, label: &str) -> usize {
        let keys = self.samples.keys();
        let keys = keys.filter(|key| key.split('{').next() == Some(name) && key.contains(label));
        keys.count()
    }

    /// How many samples of this name there are.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        let keys = self.samples.keys();
        let keys = keys.filter(|key| key.split('{').next() == Some(name));
        keys.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_labels() -> Result<()> {
        let text = "# TYPE a counter\na{op=\"x\",code=\"ok\"} 3\na{op=\"y\"} 4.5\nab 100\n\n";
        let metrics = Metrics::parse(text)?;
        assert_eq!(metrics.sum("a", &[]), 7.5);
        assert_eq!(metrics.sum("a", &["op=\"x\""]), 3.0);
        assert_eq!(metrics.sum("ab", &[]), 100.0);
        assert_eq!(metrics.sum("b", &[]), 0.0);
        assert!(metrics.has("ab") && !metrics.has("b"));
        assert_eq!(metrics.count("a"), 2);
        Ok(())
    }
}
