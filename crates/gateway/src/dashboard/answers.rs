//! The answers that need no question: what is known, as JSON. `dashboard/README.md` has the contract.

use std::collections::BTreeMap;
use std::time::Instant;

use ::http::StatusCode;
use nowserving_client::{HeldBackReply, LineName};
use nowserving_insight::diagnosis::diagnosis;
use nowserving_insight::facts::Facts;
use nowserving_insight::finding::Finding;
use nowserving_insight::line::{LineFacts, Seated};
use nowserving_insight::lines::{self, Sort};
use nowserving_insight::pace::Pace;
use nowserving_insight::words;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::history::STEP;
use super::known::{Known, wall_ms};
use super::{Failure, POLL};
use crate::http::query;

const FIRST: usize = 50;
const FIRST_MAX: usize = 500;
const FILTER_BYTES_MAX: usize = 200;

/// What the reader may do, and who that is.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    pub changes: bool,
    pub by: Option<String>,
}

/// The operations that somebody may ask for.
pub const CHANGES: [&str; 4] = ["phase", "seats", "call-next", "kick"];

/// Which lines the overview has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    first: usize,
    sort: Sort,
    filter: String,
}

impl Wanted {
    pub fn of(asked: &str) -> Result<Wanted, Failure> {
        let first = match query::value(asked, "first") {
            None => FIRST,
            Some(text) => {
                let first = text.parse().ok().filter(|it| (1..=FIRST_MAX).contains(it));
                first.ok_or_else(|| Failure::bad("first: 1 to 500"))?
            }
        };
        let sort = match query::value(asked, "sort") {
            None => Sort::default(),
            Some(name) => {
                let sort = Sort::ALL.into_iter().find(|it| it.name() == name);
                sort.ok_or_else(|| Failure::bad("sort: no such column"))?
            }
        };
        let filter = query::value(asked, "filter").unwrap_or_default();
        if filter.len() > FILTER_BYTES_MAX {
            return Err(Failure::bad("filter: at most 200 bytes"));
        }
        Ok(Wanted {
            first,
            sort,
            filter,
        })
    }
}

/// A line as `top --json` has it, without its lanes.
#[derive(Debug, Serialize)]
struct LineAnswer<'a> {
    line: &'a str,
    incarnation: u64,
    phase: &'a str,
    pressure: f64,
    stuck: bool,
    /// Newcomers are refused.
    full: bool,
    seats: u32,
    queue_limit: u32,
    waiting: u64,
    admitted: u64,
    in_checkout: u64,
    labels: &'a BTreeMap<String, String>,
    held_back_by: Option<&'a HeldBackReply>,
    open_gate: Option<&'a str>,
    newcomer_eta_ms: Option<u64>,
    refused: Option<u64>,
    per_second: Option<Pace>,
    /// How many waited at each minute of the last hour.
    recent: Vec<Option<u32>>,
}

impl<'a> LineAnswer<'a> {
    fn of(it: &'a lines::Known, known: &Known) -> LineAnswer<'a> {
        let line = &it.summary;
        let shown = it.detail.as_ref().map(|detail| &detail.shown);
        LineAnswer {
            line: line.line.as_str(),
            incarnation: line.incarnation,
            phase: &line.phase,
            pressure: it.pressure(),
            stuck: it.is_stuck(),
            full: it.full() >= 1.0 && it.open_gate().is_none(),
            seats: line.seats,
            queue_limit: line.queue_limit,
            waiting: line.waiting,
            admitted: line.admitted,
            in_checkout: line.in_checkout,
            labels: &line.labels,
            held_back_by: shown.map(|shown| &shown.held_back_by),
            open_gate: it.open_gate(),
            newcomer_eta_ms: it.newcomer_eta_ms(),
            refused: it.refused(),
            per_second: it.pace,
            recent: known.histories.recent(&line.line, line.incarnation),
        }
    }
}

impl Known {
    /// Of every answer.
    pub fn head(&self, reader: &Reader, now: Instant) -> Value {
        let asked_ms_ago = self
            .refreshed
            .map(|at| now.saturating_duration_since(at).as_millis() as u64);
        json!({
            "cluster": self.cluster.as_ref().map_or("", |it| &it.cluster),
            "at_ms": wall_ms(),
            "asked_ms_ago": asked_ms_ago,
            "trouble": self.trouble.as_ref().map(|it| &it.text),
            "poll_ms": POLL.as_millis() as u64,
            "changes": reader.changes,
            "by": reader.by,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// The first lines, and which they are.
    pub fn overview(&self, wanted: &Wanted) -> (Map<String, Value>, Vec<LineName>) {
        let all = self.lines.sorted(wanted.sort, false, &wanted.filter);
        let sum = |of: fn(&lines::Known) -> u64| all.iter().map(|it| of(it)).sum::<u64>();
        let totals = json!({
            "lines": all.len(),
            "more": self.lines.more,
            "waiting": sum(|it| it.summary.waiting),
            "held": sum(lines::Known::held),
            "seats": sum(|it| u64::from(it.summary.seats)),
            "stuck": sum(|it| u64::from(it.is_stuck())),
        });
        let first = &all[..all.len().min(wanted.first)];
        let lines: Vec<_> = first.iter().map(|it| LineAnswer::of(it, self)).collect();
        let answer = object(json!({
            "health": self.health(),
            "totals": totals,
            "lines": lines,
        }));
        let names = first.iter().map(|it| it.summary.line.clone());
        (answer, names.collect())
    }

    fn health(&self) -> Value {
        let Some(status) = &self.cluster else {
            let wrong = self.trouble.iter().filter(|it| it.is_forbidden);
            let wrong: Vec<&str> = wrong.map(|it| it.text.as_str()).collect();
            return json!({"nodes": 0, "alive": 0, "shards": 0, "leads": [], "wrong": wrong});
        };
        json!({
            "nodes": status.nodes.len(),
            "alive": status.nodes.iter().filter(|node| node.alive).count(),
            "shards": status.shards.len(),
            "leads": status.nodes.iter().map(|node| node.leads).collect::<Vec<_>>(),
            "wrong": words::wrong(status),
        })
    }

    /// One line, with what can be said of it without reading tokens and journal.
    pub fn line(
        &self,
        name: &LineName,
        reader: &Reader,
        options: &[String],
    ) -> Result<Map<String, Value>, Failure> {
        let it = self.lines.get(name).ok_or_else(|| self.unknown())?;
        let detail = it.detail.as_ref().ok_or_else(|| self.unanswered())?;
        let shown = &detail.shown;
        let facts = Facts {
            line: Some(LineFacts {
                at_ms: shown.board.at_ms,
                line: shown.clone(),
                seated: Seated::default(),
                journal: Vec::new(),
            }),
            ..Facts::default()
        };
        let findings: Vec<Finding> = diagnosis(None, &facts, options).findings;
        let may: &[&str] = if reader.changes { &CHANGES } else { &[] };
        let mut shown = object(json!(shown));
        shown.insert(
            "newcomer_eta_from".to_owned(),
            json!(detail.newcomer_eta_from),
        );
        Ok(object(json!({
            "line": LineAnswer::of(it, self),
            "shown": shown,
            "findings": findings,
            "may": may,
        })))
    }

    pub fn history(&self, name: &LineName) -> Result<Map<String, Value>, Failure> {
        let it = self.lines.get(name).ok_or_else(|| self.unknown())?;
        let (at_ms, samples) = self.histories.columns(name);
        Ok(object(json!({
            "line": name.as_str(),
            "incarnation": it.summary.incarnation,
            "at_ms": at_ms,
            "step_ms": STEP.as_millis() as u64,
            "samples": samples,
        })))
    }

    pub fn cluster(&self) -> Result<Map<String, Value>, Failure> {
        let status = self.cluster.as_ref().ok_or_else(|| self.unanswered())?;
        Ok(object(json!({ "status": status })))
    }

    /// The line is not there, or nothing is known of any.
    fn unknown(&self) -> Failure {
        match (self.refreshed, &self.trouble) {
            (Some(_), None) => Failure::no_such_line(),
            // Those of the gateway alone are known.
            (Some(_), Some(trouble)) if !trouble.is_forbidden => Failure::no_such_line(),
            _ => self.unanswered(),
        }
    }

    fn unanswered(&self) -> Failure {
        let (status, code, detail) = match &self.trouble {
            Some(it) if it.is_forbidden => (StatusCode::FORBIDDEN, "forbidden", it.text.clone()),
            Some(it) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                it.text.clone(),
            ),
            None => {
                let text = "the cluster has not answered yet, or does not permit this";
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "unavailable",
                    text.to_owned(),
                )
            }
        };
        Failure {
            status,
            code: code.to_owned(),
            detail,
        }
    }
}

/// The fields of an answer; `json!` makes an object of one.
pub fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
