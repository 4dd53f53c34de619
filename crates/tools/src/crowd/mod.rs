//! A crowd of shoppers in front of one line: what each of them does, and a record of all their answers,
//! from which follows whether the cluster kept its promises. `nowserving demo` and `nowserving crowd`
//! are built on it.

pub mod audit;
mod command;
pub mod ledger;
pub mod plan;
pub mod report;
pub mod shopper;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nowserving_client::{Change, Client, Code, Create, Error, Line, SettingsPatch, StatusReply};
use serde::Serialize;

pub use self::command::{CrowdArgs, run};
use self::ledger::{At, Ledger, Number};
use self::plan::{Size, Times};
use self::report::Report;

/// Some shoppers may fail for one reason: these many are kept to be shown.
const TROUBLES_SHOWN: usize = 5;

/// The crowd in front of one line.
pub struct Crowd {
    /// The line they stand in.
    pub line: Line,
    /// Its times, and those of the show.
    pub times: Times,
    opened: Instant,
    book: Mutex<Ledger>,
    visits: Mutex<Vec<Visit>>,
    troubles: Mutex<Troubles>,
}

/// A number that was acknowledged, to be asked about again in the end.
#[derive(Debug, Clone)]
pub struct Visit {
    pub number: Number,
    pub ticket: String,
}

/// Shoppers that had to stop because of errors that lost nothing.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Troubles {
    pub count: u64,
    /// The first few, in words.
    pub first: Vec<String>,
}

impl Crowd {
    /// A crowd that arrives from now on.
    pub fn new(line: Line, times: Times, book: Ledger) -> Crowd {
        Crowd {
            line,
            times,
            opened: Instant::now(),
            book: Mutex::new(book),
            visits: Mutex::default(),
            troubles: Mutex::default(),
        }
    }

    /// Time since the crowd opened.
    pub fn now(&self) -> At {
        self.opened.elapsed()
    }

    /// That moment on the crowd's clock.
    pub fn at(&self, moment: Instant) -> At {
        moment.saturating_duration_since(self.opened)
    }

    /// Writes into the book. The time is read under its lock, so that entries are in order.
    pub fn note<R>(&self, entry: impl FnOnce(&mut Ledger, At) -> R) -> R {
        let mut book = lock(&self.book);
        let at = self.now();
        entry(&mut book, at)
    }

    /// Remembers an acknowledged number for the audit.
    pub fn remember(&self, number: Number, ticket: String) {
        lock(&self.visits).push(Visit { number, ticket });
    }

    /// All numbers acknowledged so far.
    pub fn visits(&self) -> Vec<Visit> {
        lock(&self.visits).clone()
    }

    /// Notes that something did not work that should.
    pub fn trouble(&self, text: String) {
        let mut troubles = lock(&self.troubles);
        troubles.count += 1;
        if troubles.first.len() < TROUBLES_SHOWN {
            troubles.first.push(text);
        }
    }

    /// A shopper could not play to the end. `may_have_expired`: whether its token's timeout for this reason may have passed.
    pub fn broke_off(
        &self,
        number: &Number,
        verdict: Verdict,
        may_have_expired: impl FnOnce(&str) -> bool,
    ) {
        match verdict {
            Verdict::Gone(reason) if may_have_expired(&reason) => self.note(|book, at| {
                book.leaving(at, number);
                book.gone(number, &reason);
            }),
            Verdict::Gone(reason) => self.note(|book, at| book.found_gone(at, number, &reason)),
            Verdict::Unknown => self.note(|book, at| book.lost(at, number)),
            Verdict::Trouble(text) => {
                self.note(|book, at| book.leaving(at, number));
                self.trouble(format!("token {}: {text}", number.token));
            }
        }
    }

    /// The errors so far.
    pub fn troubles(&self) -> Troubles {
        lock(&self.troubles).clone()
    }
}

/// The consequence of an error for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is gone, for this reason.
    Gone(String),
    /// The coordinator does not know it.
    Unknown,
    /// Something else is wrong.
    Trouble(String),
}

impl From<&Error> for Verdict {
    fn from(error: &Error) -> Verdict {
        match error.code() {
            Some(Code::TicketInvalid | Code::TokenNotFound | Code::LineNotFound) => {
                Verdict::Unknown
            }
            Some(Code::TokenGone) => {
                let reason = error.api().and_then(|api| api.reason.clone());
                Verdict::Gone(reason.unwrap_or_else(|| "unknown".to_owned()))
            }
            _ => Verdict::Trouble(error.to_string()),
        }
    }
}

/// The token that an answer is about.
pub fn number(status: &StatusReply) -> Number {
    Number {
        incarnation: status.incarnation,
        lane: status.lane.as_str().to_owned(),
        token: status.token,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates the line of a crowd: room for all of them, as a refused shopper would show nothing.
///
/// # Errors
/// It exists, or the cluster cannot create it.
pub async fn create_line(
    client: &Client,
    name: &str,
    size: Size,
    times: Times,
) -> anyhow::Result<Line> {
    let settings = SettingsPatch {
        seats: Some(Change::Set(size.seats)),
        queue_limit: Some(Change::Set(size.shoppers)),
        waiting_idle_timeout_ms: set_ms(times.waiting_idle),
        claim_timeout_ms: set_ms(times.claim),
        checkout_timeout_ms: set_ms(times.checkout),
        ..SettingsPatch::default()
    };
    let create = Create { settings };
    let created = client.admin().line(name)?.create(&create).await;
    created.with_context(|| format!("cannot create the line {name}"))?;
    Ok(client.line(name)?)
}

fn set_ms(duration: Duration) -> Option<Change<u64>> {
    u64::try_from(duration.as_millis()).ok().map(Change::Set)
}

/// What became of a crowd.
pub struct Outcome {
    /// What was counted.
    pub report: Report,
    /// Who could not go on.
    pub troubles: Troubles,
}

impl Outcome {
    /// After everybody has gone and the audit is done.
    pub fn of(crowd: &Crowd) -> Outcome {
        Outcome {
            report: crowd.note(|book, at| book.report(at)),
            troubles: crowd.troubles(),
        }
    }

    /// No promise was broken, and every shopper got through.
    pub fn is_well(&self) -> bool {
        self.report.faults().is_empty() && self.troubles.count == 0
    }

    /// Prints the table, or with `json` the line of JSON. The exit code is 1 unless all is well.
    ///
    /// # Errors
    /// stdout is closed.
    pub fn tell(&self, json: bool) -> anyhow::Result<ExitCode> {
        let Outcome { report, troubles } = self;
        let mut out = std::io::stdout().lock();
        match json {
            true => writeln!(out, "{}", serde_json::to_string(report)?)?,
            false => writeln!(out, "{}", report.table())?,
        }
        for fault in &report.faults() {
            eprintln!("FAULT: {fault}");
        }
        if troubles.count > 0 {
            eprintln!("{} shoppers could not go on, among them:", troubles.count);
            for text in &troubles.first {
                eprintln!("  {text}");
            }
        }
        Ok(match self.is_well() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}
