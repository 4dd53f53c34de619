//! A line that does not exist: its name, and names that do exist.

use std::time::Duration;

use nowserving_client::{Code, Error, LineName, ListLines};

use crate::args::Global;
use crate::line::all_lines;

/// The look-up must not delay the error, and a caller without operators' rights gets no answer at
/// all.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most this many names are suggested.
const NAMES_MAX: usize = 3;
/// Names that are less similar (1 is the same name) are not called near.
const SIMILARITY_MIN: f64 = 0.8;

/// `line_not_found`, in words.
#[derive(Debug)]
pub struct NoSuchLine {
    /// The cluster's own error.
    pub error: Error,
    line: String,
    /// `None` if the names of the lines are not known.
    names: Option<Names>,
}

/// Names of lines that exist, [`NAMES_MAX`] at most.
#[derive(Debug, PartialEq)]
enum Names {
    /// Those that are similar, best first.
    Near(Vec<LineName>),
    /// None is similar: some of the names, and how many more there are.
    Others(Vec<LineName>, usize),
}

impl NoSuchLine {
    /// The error without its code.
    pub fn message(&self) -> String {
        let list = |names: &[LineName]| {
            let names: Vec<&str> = names.iter().map(LineName::as_str).collect();
            names.join(", ")
        };
        let names = match &self.names {
            None => String::new(),
            Some(Names::Near(names)) => format!("; the nearest: {}", list(names)),
            Some(Names::Others(names, _)) if names.is_empty() => "; there are none".to_owned(),
            Some(Names::Others(names, 0)) => format!("; there are: {}", list(names)),
            Some(Names::Others(names, more)) => {
                format!("; there are: {} and {more} more", list(names))
            }
        };
        format!("there is no line {}{names}", self.line)
    }
}

impl std::fmt::Display for NoSuchLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.error.kind(), self.message())
    }
}

impl std::error::Error for NoSuchLine {}

/// The error of a command about `line`; if that does not exist, with its name and others.
pub async fn explained(error: anyhow::Error, line: &str, global: &Global) -> anyhow::Error {
    match error.downcast::<Error>() {
        Ok(error) if error.code() == Some(Code::LineNotFound) => {
            let names = tokio::time::timeout(PATIENCE, lines(global)).await;
            let names = names.ok().and_then(Result::ok);
            NoSuchLine {
                error,
                line: line.to_owned(),
                names: names.map(|names| names_for(line, names)),
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

fn names_for(line: &str, mut names: Vec<LineName>) -> Names {
    let similarity = |name: &LineName| strsim::jaro_winkler(line, name.as_str());
    names.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)).then(a.cmp(b)));
    let near = names
        .iter()
        .take_while(|name| similarity(name) >= SIMILARITY_MIN)
        .count();
    if near > 0 {
        names.truncate(near.min(NAMES_MAX));
        return Names::Near(names);
    }
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    Names::Others(names, more)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn near_names_come_first_and_others_only_if_none_is_near() {
        let names = |list: &str| -> Vec<LineName> {
            list.split_whitespace()
                .map(|name| name.parse().unwrap())
                .collect()
        };
        let all = || names("concert shop-2 shop-1 booth-1 a");
        assert_eq!(
            names_for("shp-1", all()),
            Names::Near(names("shop-1 shop-2"))
        );
        assert_eq!(
            names_for("shop-9", all()),
            Names::Near(names("shop-1 shop-2"))
        );
        assert_eq!(names_for("x", names("b a")), Names::Others(names("a b"), 0));
        assert_eq!(
            names_for("x", names("d c b a")),
            Names::Others(names("a b c"), 1)
        );
        assert_eq!(names_for("x", vec![]), Names::Others(vec![], 0));
    }
}
