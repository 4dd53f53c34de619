//! A line that does not exist: its name, and the nearest names that do.

use std::time::Duration;

use nowserving_client::{Code, Error, LineName, ListLines};

use crate::args::Global;
use crate::line::all_lines;

/// The look-up must not delay the error, and a caller without operators' rights gets no answer at
/// all.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most this many names are suggested.
const NEAREST_MAX: usize = 3;

/// `line_not_found`, in words.
#[derive(Debug)]
pub struct NoSuchLine {
    /// The cluster's own error.
    pub error: Error,
    line: String,
    /// Best first; `None` if the names of the lines are not known.
    nearest: Option<Vec<LineName>>,
}

impl std::fmt::Display for NoSuchLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no line {}", self.line)?;
        match self.nearest.as_deref() {
            None => Ok(()),
            Some([]) => write!(f, "; there are none"),
            Some(names) => {
                let names: Vec<&str> = names.iter().map(LineName::as_str).collect();
                write!(f, "; the nearest: {}", names.join(", "))
            }
        }
    }
}

impl std::error::Error for NoSuchLine {}

/// The error of a command about `line`; if that does not exist, with its name and the nearest ones.
pub async fn explained(error: anyhow::Error, line: &str, global: &Global) -> anyhow::Error {
    match error.downcast::<Error>() {
        Ok(error) if error.code() == Some(Code::LineNotFound) => {
            let names = tokio::time::timeout(PATIENCE, lines(global)).await;
            let nearest = names.ok().and_then(Result::ok);
            NoSuchLine {
                error,
                line: line.to_owned(),
                nearest: nearest.map(|names| nearest_to(line, names)),
            }
            .into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

/// The names of all lines.
async fn lines(global: &Global) -> anyhow::Result<Vec<LineName>> {
    let admin = global.connect().await?.admin();
    let all = all_lines(&admin, ListLines::default(), u64::MAX).await?;
    Ok(all.lines.into_iter().map(|line| line.line).collect())
}

fn nearest_to(line: &str, mut names: Vec<LineName>) -> Vec<LineName> {
    let distance = |name: &LineName| 1.0 - strsim::jaro_winkler(line, name.as_str());
    names.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.cmp(b)));
    names.truncate(NEAREST_MAX);
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_nearest_names_come_first() {
        let names = |list: &str| -> Vec<LineName> {
            list.split_whitespace()
                .map(|name| name.parse().unwrap())
                .collect()
        };
        let found = nearest_to("shp-1", names("concert shop-2 shop-1 booth-1 a"));
        assert_eq!(found[..2], names("shop-1 shop-2"));
        assert_eq!(found.len(), NEAREST_MAX);
        assert_eq!(nearest_to("x", names("b a")), names("a b"));
        assert_eq!(nearest_to("x", vec![]), []);
    }
}
