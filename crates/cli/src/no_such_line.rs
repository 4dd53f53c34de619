//! A line, domain or label that does not exist: its name, and names that do exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use nowserving_client::{Admin, ApiError, Code, Error, ListLines};

use nowserving_insight::pages::all_lines;
use nowserving_terminal::global::Global;
use nowserving_terminal::nearest::{Names, names_for};
use nowserving_terminal::output::Explained;

/// The look-up must not delay the error, and a caller without operators' rights gets no answer at
/// all.
const PATIENCE: Duration = Duration::from_secs(1);
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
    let names = names.map(|names| format!("; {}", names_for(name, names)));
    let message = format!("there is no {kind} {name}{}", names.unwrap_or_default());
    Explained { error, message }.into()
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

#[cfg(test)]
mod tests {
    use super::*;

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
