//! The people of the line that the operator changes, and an account of what they were told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, stream};
use serde::Serialize;
use serde_json::{Value, json};

use super::LINE;
use crate::api::{Api, HOUR_MS, number};

/// More than there are ever seats: somebody always waits.
const VISITORS: usize = 45;
/// People that take a number and are not heard of again, each time. Visitors go first, so they stay in line.
pub const SLEEPERS: usize = 20;
const VISITORS_LANE: &str = "visitors";
pub const SLEEPERS_LANE: &str = "sleepers";
/// Between two polls of one visitor.
const POLL: Duration = Duration::from_millis(500);
/// In checkout.
const STAY: Duration = Duration::from_secs(2);
/// Between two looks at the line.
const LOOK: Duration = Duration::from_millis(100);
/// Tokens that are asked about at once in the end.
const ASKED_AT_ONCE: usize = 32;

/// What they were told, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Audit {
    pub entered: u64,
    pub completed: u64,
    /// People that took a number and were not heard of again.
    pub asleep: u64,
    /// Of these: all should be.
    pub kicked: u64,
    /// Visitors, who always were: none should be.
    pub wrongly_kicked: u64,
    /// Tokens that were acknowledged, and are not there or not as they should be.
    pub lost: u64,
    /// Numbers that were given twice.
    pub doubled: u64,
    /// Seats held at once beyond those that there are.
    pub oversold: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    Completed,
    Kicked,
}

/// One number that was acknowledged.
#[derive(Clone, Debug)]
pub struct Visit {
    lane: &'static str,
    token: u64,
    ticket: Value,
    end: End,
}

#[derive(Debug, Default)]
struct Book {
    /// The most seats that there are.
    seats: u64,
    /// The most that there were since the line was asked about.
    seats_since: u64,
    /// In checkout, as visitors know.
    held: u64,
    oversold: u64,
    doubled: u64,
    numbers: BTreeSet<(&'static str, u64)>,
    visits: Vec<Visit>,
}

/// The line at one moment.
#[derive(Debug)]
struct Shown {
    settings_version: u64,
    seats: u64,
    /// Admitted or in checkout.
    held: u64,
}

/// Everybody, until they are told to stop.
#[derive(Debug)]
pub struct People {
    api: Api,
    book: RefCell<Book>,
    stopped: Cell<bool>,
}

impl People {
    /// Creates the line, which nobody is in yet.
    ///
    /// # Errors
    /// The line cannot be created.
    pub async fn create(api: &Api, seats: u64) -> Result<People> {
        let settings = json!({
            "seats": seats,
            "queue_limit": 1_000_000,
            "lanes": [{"name": VISITORS_LANE, "absolute": true}, {"name": SLEEPERS_LANE}],
            "waiting_idle_timeout_ms": HOUR_MS,
            "claim_timeout_ms": HOUR_MS,
            "checkout_timeout_ms": HOUR_MS,
        });
        api.admin(LINE, "create", settings).await?;
        let people = People {
            api: api.clone(),
            book: RefCell::default(),
            stopped: Cell::new(false),
        };
        people.allow(seats);
        Ok(people)
    }

    /// Lets visitors come and go until [`People::stop`], and waits for the last one.
    ///
    /// # Errors
    /// A visitor cannot go on.
    pub async fn come_and_go(&self) -> Result<()> {
        let visitor = |visitor: usize| async move {
            for nth in 0.. {
                if self.stopped.get() {
                    break;
                }
                self.visit(&format!("visitor-{visitor}-{nth}")).await?;
            }
            anyhow::Ok(())
        };
        try_join_all((0..VISITORS).map(visitor)).await.map(drop)
    }

    /// Nobody comes any more.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// From now on so many seats may be held: before they are raised, and after the last one too many was given back.
    pub fn allow(&self, seats: u64) {
        let mut book = self.book.borrow_mut();
        book.seats = seats;
        book.seats_since = book.seats_since.max(seats);
    }

    /// Looks at the line until [`People::stop`]: visitors do not know of seats that are admitted and not claimed yet.
    ///
    /// # Errors
    /// It is not shown.
    pub async fn watch_seats(&self) -> Result<()> {
        let subject = format!("nowserving.admin.line.{LINE}.show");
        let mut before = None;
        while !self.stopped.get() {
            let seats = self.book.borrow().seats;
            self.book.borrow_mut().seats_since = seats;
            let reply = self.api.call_subject(&subject, "{}").await?;
            ensure!(reply.code.is_none(), "{}", reply.body);
            let now = Shown::read(&reply.body)?;
            self.book.borrow_mut().look(before.as_ref(), &now);
            before = Some(now);
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Lets people enter that are not heard of again.
    ///
    /// # Errors
    /// They may not.
    pub async fn fall_asleep(&self) -> Result<()> {
        let before = self.book.borrow().visits.len();
        for nth in 0..SLEEPERS {
            let key = format!("sleeper-{before}-{nth}");
            let body = json!({"key": key, "lane": SLEEPERS_LANE});
            let entered = self.api.ok(LINE, "enter", body).await?;
            self.book.borrow_mut().note(SLEEPERS_LANE, &entered)?;
        }
        Ok(())
    }

    /// The operator has kicked all that were asleep.
    pub fn sleepers_are_kicked(&self) {
        let mut book = self.book.borrow_mut();
        let asleep = book.visits.iter_mut();
        for visit in asleep.filter(|visit| visit.lane == SLEEPERS_LANE) {
            visit.end = End::Kicked;
        }
    }

    /// Everything that was acknowledged so far.
    #[must_use]
    pub fn visits(&self) -> Vec<Visit> {
        self.book.borrow().visits.clone()
    }

    /// Asks about each number once more, after the last visit.
    ///
    /// # Errors
    /// No answer, or an error that says nothing about the number.
    pub async fn audit(&self) -> Result<Audit> {
        let visits = self.visits();
        let lost = lost(&self.api, &visits, true).await?;
        let ended = |lane: &str, end: End| {
            let such = visits.iter().filter(|it| it.lane == lane && it.end == end);
            such.count() as u64
        };
        let book = self.book.borrow();
        Ok(Audit {
            entered: visits.len() as u64,
            completed: ended(VISITORS_LANE, End::Completed),
            asleep: visits.iter().filter(|it| it.lane == SLEEPERS_LANE).count() as u64,
            kicked: ended(SLEEPERS_LANE, End::Kicked),
            wrongly_kicked: ended(VISITORS_LANE, End::Kicked),
            lost,
            doubled: book.doubled,
            oversold: book.oversold,
        })
    }

    /// Takes a number, waits, goes into checkout and completes.
    async fn visit(&self, key: &str) -> Result<()> {
        let api = &self.api;
        let entered = api.ok(LINE, "enter", json!({"key": key})).await?;
        let nth = self.book.borrow_mut().note(VISITORS_LANE, &entered)?;
        let ticket = json!({"ticket": entered["ticket"]});
        let mut status = entered;
        loop {
            match status["state"].as_str() {
                Some("admitted") => break,
                Some("waiting") => tokio::time::sleep(POLL).await,
                // The audit counts it.
                Some("gone") if status["reason"] == "kicked" => {
                    self.book.borrow_mut().end(nth, End::Kicked);
                    return Ok(());
                }
                _ => bail!("{key}: {status}"),
            }
            status = api.ok(LINE, "status", ticket.clone()).await?;
        }
        api.ok(LINE, "claim", ticket.clone()).await?;
        self.book.borrow_mut().hold();
        tokio::time::sleep(STAY).await;
        // Before the seat is given back: this account never has more than there are.
        self.book.borrow_mut().held -= 1;
        let done = api.ok(LINE, "complete", ticket).await?;
        ensure!(done["reason"] == "completed", "{key}: {done}");
        self.book.borrow_mut().end(nth, End::Completed);
        Ok(())
    }
}

/// Of these numbers, how many are not there or have not ended as they did; with `all_ended`, also those that have not
/// ended at all.
///
/// # Errors
/// No answer, or an error that says nothing about the number.
pub async fn lost(api: &Api, visits: &[Visit], all_ended: bool) -> Result<u64> {
    let mut asked = stream::iter(visits)
        .map(|visit| is_lost(api, visit, all_ended))
        .buffer_unordered(ASKED_AT_ONCE);
    let mut lost = 0;
    while let Some(is_lost) = asked.next().await {
        lost += u64::from(is_lost?);
    }
    Ok(lost)
}

async fn is_lost(api: &Api, visit: &Visit, all_ended: bool) -> Result<bool> {
    let body = json!({"ticket": visit.ticket});
    let reply = api.call(LINE, "status", &body).await?;
    let found = match reply.code.as_deref() {
        None => reply.body["token"] == visit.token && reply.body["lane"] == visit.lane,
        Some("ticket_invalid" | "token_not_found" | "line_not_found") => false,
        Some(code) => bail!("{visit:?}: {code}"),
    };
    let reason = match visit.end {
        End::NotYet => None,
        End::Completed => Some("completed"),
        End::Kicked => Some("kicked"),
    };
    let as_ended = match reason {
        Some(_) => reply.body["reason"].as_str() == reason,
        None => !all_ended,
    };
    if !(found && as_ended) {
        eprintln!("lost: {visit:?}: {}", reply.body);
    }
    Ok(!(found && as_ended))
}

impl Shown {
    fn read(line: &Value) -> Result<Shown> {
        let counts = &line["counts"];
        Ok(Shown {
            settings_version: number(line, "settings_version")?,
            seats: number(&line["board"], "seats")?,
            held: number(counts, "admitted")? + number(counts, "in_checkout")?,
        })
    }
}

impl Book {
    fn note(&mut self, lane: &'static str, entered: &Value) -> Result<usize> {
        let token = number(entered, "token")?;
        self.doubled += u64::from(!self.numbers.insert((lane, token)));
        self.visits.push(Visit {
            lane,
            token,
            ticket: entered["ticket"].clone(),
            end: End::NotYet,
        });
        Ok(self.visits.len() - 1)
    }

    fn end(&mut self, nth: usize, end: End) {
        if let Some(visit) = self.visits.get_mut(nth) {
            visit.end = end;
        }
    }

    fn look(&mut self, before: Option<&Shown>, now: &Shown) {
        let mut most = self.seats_since;
        // Nobody was admitted beyond the seats since then, which an operator has not changed.
        if let Some(before) = before.filter(|it| it.settings_version == now.settings_version) {
            most = most.min(now.seats.max(before.held));
        }
        if now.held > most {
            eprintln!("oversold, at most {most}: {now:?} after {before:?}");
            self.oversold = self.oversold.max(now.held - most);
        }
    }

    fn hold(&mut self) {
        self.held += 1;
        self.oversold = self.oversold.max(self.held.saturating_sub(self.seats));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_that_were_lowered_are_given_back_and_not_admitted_again() {
        let shown = |settings_version, seats, held| Shown {
            settings_version,
            seats,
            held,
        };
        let mut book = Book {
            seats_since: 30,
            ..Book::default()
        };
        let raised = shown(2, 30, 30);
        book.look(Some(&shown(1, 20, 20)), &raised);
        book.look(Some(&raised), &shown(3, 20, 30));
        book.look(Some(&shown(3, 20, 30)), &shown(3, 20, 25));
        assert_eq!(book.oversold, 0);
        book.look(Some(&shown(3, 20, 25)), &shown(3, 20, 27));
        assert_eq!(book.oversold, 2);
        book.seats_since = 20;
        book.look(Some(&shown(3, 20, 20)), &shown(4, 20, 23));
        assert_eq!(book.oversold, 3, "after another change");
    }
}
