//! A line, domain or label that does not exist: its name, and names that do exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use nowserving_client::{Admin, ApiError, Code, Error, ListLines};

use crate::args::Global;
use crate::line::all_lines;

/// The look-up must not delay the error, and a caller without operators' rights gets no answer at
/// all.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most this many names are suggested.
const NAMES_MAX: usize = 3;
/// Names that are less similar (1 is the same name) are not called near.
const SIMILARITY_MIN: f64 = 0.8;

/// `line_not_found` or `domain_not_found`, in words.
#[derive(Debug)]
pub struct NoSuchLine {
    /// The cluster's own error.
    pub error: Error,
    /// `line` or `domain`.
    kind: &'static str,
    name: String,
    /// `None` if the names of the others are not known.
    names: Option<Names>,
}

/// Names that exist, [`NAMES_MAX`] at most.
#[derive(Debug, PartialEq)]
pub enum Names {
    /// Those that are similar, best first.
    Near(Vec<String>),
    /// None is similar: some of the names, and how many more there are.
    Others(Vec<String>, usize),
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Names::Near(names) => write!(f, "the nearest: {}", names.join(", ")),
            Names::Others(names, _) if names.is_empty() => write!(f, "there are none"),
            Names::Others(names, 0) => write!(f, "there are: {}", names.join(", ")),
            Names::Others(names, more) => {
                write!(f, "there are: {} and {more} more", names.join(", "))
            }
        }
    }
}

impl NoSuchLine {
    /// The error without its code.
    pub fn message(&self) -> String {
        let names = self.names.as_ref();
        let names = names.map_or_else(String::new, |names| format!("; {names}"));
        format!("there is no {} {}{names}", self.kind, self.name)
    }
}

impl std::fmt::Display for NoSuchLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.error.kind(), self.message())
    }
}

impl std::error::Error for NoSuchLine {}

/// The error of a command about the line or domain `name`; if that does not exist, with its name and others.
pub async fn explained(error: anyhow::Error, name: &str, global: &Global) -> anyhow::Error {
    let error = match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => return error,
    };
    let (kind, names) = match error.code() {
        Some(Code::LineNotFound) => {
            let names = tokio::time::timeout(PATIENCE, lines(global)).await;
            ("line", names)
        }
        Some(Code::DomainNotFound) => {
            let names = tokio::time::timeout(PATIENCE, domains(global)).await;
            ("domain", names)
        }
        _ => return error.into(),
    };
    let names = names.ok().and_then(Result::ok);
    NoSuchLine {
        error,
        kind,
        name: name.to_owned(),
        names: names.map(|names| names_for(name, names)),
    }
    .into()
}

/// The names of all lines.
async fn lines(global: &Global) -> anyhow::Result<Vec<String>> {
    let admin = global.connect().await?.admin();
    let all = all_lines(&admin, ListLines::default(), u64::MAX).await?;
    let names = all.lines.into_iter().map(|line| line.line.to_string());
    Ok(names.collect())
}

/// The names of all domains of rate limits.
async fn domains(global: &Global) -> anyhow::Result<Vec<String>> {
    let admin = global.connect().await?.admin();
    let all = admin.show_limits(None).await?;
    let names = all.domains.into_iter().map(|it| it.domain.to_string());
    Ok(names.collect())
}

/// The refusal of a command about all lines with these labels, when there are none.
pub async fn no_line_with(labels: &BTreeMap<String, String>, admin: &Admin) -> ApiError {
    let all = all_lines(admin, ListLines::default(), u64::MAX);
    let all = tokio::time::timeout(PATIENCE, all).await;
    let lines = all.ok().and_then(Result::ok);
    let known = lines.map(|all| all.lines.into_iter().flat_map(|line| line.labels).collect());
    ApiError::new(Code::LineNotFound, no_labels(labels, known.as_ref()))
}

/// `known`: the labels of all lines, `None` if they are not known.
fn no_labels(
    wanted: &BTreeMap<String, String>,
    known: Option<&BTreeSet<(String, String)>>,
) -> String {
    let pairs: Vec<String> = wanted.iter().map(label_text).collect();
    let labels = if pairs.len() == 1 { "label" } else { "labels" };
    let mut text = format!("no line has the {labels} {}", pairs.join(" and "));
    for (name, value) in wanted {
        let pair = (name.clone(), value.clone());
        if let Some(known) = known.filter(|known| !known.contains(&pair)) {
            let near = labels_for(name, value, known);
            match wanted.len() {
                1 => text.push_str(&format!("; {near}")),
                _ => text.push_str(&format!("; instead of {name}={value}, {near}")),
            }
        }
    }
    text
}

/// Of the labels of that name those with the nearest values; if there are none of that name, of all labels.
fn labels_for(name: &str, value: &str, known: &BTreeSet<(String, String)>) -> Names {
    let values = known.iter().filter(|(known, _)| known == name);
    let values: Vec<String> = values.map(|(_, value)| value.clone()).collect();
    if values.is_empty() {
        let all = known.iter().map(|(name, value)| label_text((name, value)));
        return names_for(&label_text((name, value)), all.collect());
    }
    let named = |values: Vec<String>| {
        let all = values.iter().map(|value| label_text((name, value)));
        all.collect()
    };
    match names_for(value, values) {
        Names::Near(values) => Names::Near(named(values)),
        Names::Others(values, more) => Names::Others(named(values), more),
    }
}

fn label_text((name, value): (impl Display, impl Display)) -> String {
    format!("{name}={value}")
}

/// Of these names the nearest, or some if none is near.
pub fn names_for(wanted: &str, mut names: Vec<String>) -> Names {
    let similarity = |name: &String| strsim::jaro_winkler(wanted, name);
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
    use super::*;

    #[test]
    fn near_names_come_first_and_others_only_if_none_is_near() {
        let names =
            |list: &str| -> Vec<String> { list.split_whitespace().map(str::to_owned).collect() };
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

    #[test]
    fn labels_that_no_line_has_are_answered_with_the_nearest_values() {
        let pairs = |list: &str| -> Vec<(String, String)> {
            let pairs = list.split_whitespace().filter_map(|it| it.split_once('='));
            pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };
        let known = pairs("city=Taipei city=Kaohsiung event=7")
            .into_iter()
            .collect();
        for (wanted, says) in [
            (
                "city=Taipe",
                "no line has the label city=Taipe; the nearest: city=Taipei",
            ),
            (
                "city=Oslo",
                "no line has the label city=Oslo; there are: city=Kaohsiung, city=Taipei",
            ),
            (
                "citi=Taipei",
                "no line has the label citi=Taipei; the nearest: city=Taipei",
            ),
            (
                "city=Taipei event=7",
                "no line has the labels city=Taipei and event=7",
            ),
            (
                "city=Taipe event=7",
                "no line has the labels city=Taipe and event=7; instead of city=Taipe, the nearest: city=Taipei",
            ),
        ] {
            let wanted = pairs(wanted).into_iter().collect();
            assert_eq!(no_labels(&wanted, Some(&known)), says);
        }
        let wanted = pairs("a=b").into_iter().collect();
        assert_eq!(no_labels(&wanted, None), "no line has the label a=b");
    }
}
