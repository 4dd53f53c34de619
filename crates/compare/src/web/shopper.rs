//! One visitor with a browser: arrives at the shop, waits on the page, is let in, buys; or gives up, or vanishes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nowserving_tools::crowd::ledger::{At, Number};
use nowserving_tools::crowd::plan::{Mood, Part};
use nowserving_tools::crowd::{Crowd, Verdict};
use rand::RngExt as _;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::browser::{Browser, Gateways, LetIn, Page};
use super::stage::SHOP;
use super::wire::{Event, EventReader};

/// A page in the shop asks for more, by its script.
const ACTIVE_EVERY: Duration = Duration::from_secs(1);
/// After an answer that is none.
const RETRY_MS: std::ops::Range<u64> = 500..2_000;
/// After a stream that was refused, as the page's script does.
pub const REFUSED_MS: std::ops::Range<u64> = 2_000..10_000;

/// Plays one part from arrival to end. What happened stands in the crowd's book.
pub async fn visit(crowd: Arc<Crowd>, gateways: Arc<Gateways>, part: Part) {
    sleep(part.arrives.saturating_sub(crowd.now())).await;
    let browser = Browser::new(gateways, crowd.line.name().as_str(), part.shopper);
    let mut shopper = Shopper {
        browser,
        crowd: &crowd,
        part: &part,
        number: None,
        heard: crowd.now(),
        seated: false,
        position: None,
    };
    let Err(verdict) = shopper.play().await else {
        return;
    };
    let Some(number) = shopper.number.clone() else {
        return crowd.trouble(format!("a visitor without a number: {verdict:?}"));
    };
    crowd.broke_off(&number, verdict, |reason| shopper.may_have_expired(reason));
}

struct Shopper<'a> {
    browser: Browser,
    crowd: &'a Crowd,
    part: &'a Part,
    number: Option<Number>,
    /// When the visitor was last surely there for the line: asked for the status, or heard of the stream.
    heard: At,
    seated: bool,
    /// As the stream said it last.
    position: Option<u64>,
}

/// How waiting ends.
enum Waited {
    Called,
    OutOfPatience,
}

impl Shopper<'_> {
    async fn play(&mut self) -> Result<(), Verdict> {
        if !self.enter().await? {
            self.crowd.note(|book, _| book.refused());
            return Ok(());
        }
        let patience = matches!(self.part.mood, Mood::LeavesWaiting | Mood::VanishesWaiting);
        let end = match patience {
            true => self.crowd.now() + self.part.patience,
            false => self.crowd.times.deadline,
        };
        match self.wait(end).await? {
            Waited::OutOfPatience if !patience => {
                return Err(Verdict::Trouble("still waits at the end".to_owned()));
            }
            Waited::OutOfPatience if self.part.mood == Mood::LeavesWaiting => {
                return self.leave().await;
            }
            Waited::OutOfPatience => return self.vanish(),
            Waited::Called if self.part.mood == Mood::NeverClaims => return self.vanish(),
            Waited::Called => {}
        }
        let epoch = self.go_in().await?;
        match self.part.mood {
            Mood::VanishesCheckout => self.vanish(),
            Mood::LeavesCheckout => {
                self.shop(self.part.service / 2).await?;
                self.leave().await
            }
            _ => {
                self.shop(self.part.service).await?;
                self.complete(epoch).await
            }
        }
    }

    /// Until a number is known. False: turned away for good.
    async fn enter(&mut self) -> Result<bool, Verdict> {
        while self.crowd.now() < self.crowd.times.deadline {
            if self.take_number().await.is_ok()
                && let Some(status) = self.status().await?
            {
                match status["page"].as_str() {
                    Some("full" | "sold_out" | "closed" | "draining") => return Ok(false),
                    _ if self.number.is_some() => return Ok(true),
                    _ => {}
                }
            }
            pause(RETRY_MS).await;
        }
        Err(Verdict::Trouble("no number until the end".to_owned()))
    }

    /// The first answer sets the pre-cookie; the form brings it back.
    async fn take_number(&mut self) -> io::Result<()> {
        if self.browser.ticket().is_none() {
            let sent = self.crowd.now();
            self.browser.visit(SHOP).await?;
            let entered = self.browser.enter(SHOP).await?;
            if entered.status == 303 && self.browser.ticket().is_some() {
                self.crowd.note(|book, at| book.wrote(sent, at));
            }
            if self.part.double_clicks {
                self.browser.enter(SHOP).await?;
            }
        }
        Ok(())
    }

    async fn wait(&mut self, end: At) -> Result<Waited, Verdict> {
        loop {
            if self.crowd.now() >= end {
                return Ok(Waited::OutOfPatience);
            }
            let mut poll_after = None;
            if let Some(status) = self.status().await? {
                if is_called(&status) {
                    return Ok(Waited::Called);
                }
                poll_after = status["poll_after_ms"].as_u64();
            }
            let called = match self.part.watches {
                true => self.watch(end).await?,
                false => {
                    let pause = Duration::from_millis(poll_after.unwrap_or(2_000));
                    sleep(pause.min(end.saturating_sub(self.crowd.now()))).await;
                    false
                }
            };
            if called {
                return Ok(Waited::Called);
            }
        }
    }

    /// Follows the stream until it ends. Whether the visitor was called.
    async fn watch(&mut self, end: At) -> Result<bool, Verdict> {
        let mut wire = match self.browser.stream().await {
            Ok(Ok((wire, _))) => wire,
            // It is over: the status says how.
            Ok(Err(204)) => return Ok(false),
            Ok(Err(_)) => {
                pause(REFUSED_MS).await;
                return Ok(false);
            }
            Err(_) => {
                pause(RETRY_MS).await;
                return Ok(false);
            }
        };
        let mut reader = EventReader::default();
        loop {
            let left = end.saturating_sub(self.crowd.now());
            let Ok(more) = timeout(left, wire.more()).await else {
                return Ok(false);
            };
            let Ok(Some(bytes)) = more else {
                let retry_ms = reader.retry_ms.unwrap_or(3_000);
                sleep(Duration::from_millis(retry_ms).min(end.saturating_sub(self.crowd.now())))
                    .await;
                return Ok(false);
            };
            self.heard = self.crowd.now();
            for event in reader.take(&bytes) {
                if self.take(&event)? {
                    return Ok(true);
                }
            }
        }
    }

    /// Whether the event says that the visitor is called.
    fn take(&mut self, event: &Event) -> Result<bool, Verdict> {
        let odd = |_| Verdict::Trouble(format!("an event {} without JSON", event.name));
        let data: Value = serde_json::from_str(&event.data).map_err(odd)?;
        match event.name.as_str() {
            "place" => {
                self.placed(&data)?;
                Ok(false)
            }
            "phase" | "admitted" | "gone" => {
                self.placed(&data)?;
                self.judged(&data)
            }
            _ => Ok(false),
        }
    }

    /// A place never grows.
    fn placed(&mut self, data: &Value) -> Result<(), Verdict> {
        let Some(position) = data["position"].as_u64() else {
            return Ok(());
        };
        match self.position.replace(position) {
            Some(before) if before < position => Err(Verdict::Trouble(format!(
                "the place grew from {before} to {position}"
            ))),
            _ => Ok(()),
        }
    }

    /// Asks as the page's script does. `None`: no answer, or the line does not answer.
    async fn status(&mut self) -> Result<Option<Value>, Verdict> {
        let lane = self.number.as_ref().map(|number| number.lane.clone());
        let (sent, highest) = self.crowd.note(|book, at| {
            let highest = lane
                .as_deref()
                .map_or(0, |lane| book.highest_admitted(lane));
            (at, highest)
        });
        let Ok(status) = self.browser.status().await else {
            return Ok(None);
        };
        if matches!(
            status["page"].as_str(),
            Some("unavailable" | "unavailable_new" | "uncertain") | None
        ) {
            return Ok(None);
        }
        self.judged(&status)?;
        if let Some(number) = self
            .number
            .as_ref()
            .filter(|_| status["state"] == "waiting")
        {
            self.crowd
                .note(|book, _| book.still_waiting(number, highest));
            self.heard = sent;
        }
        Ok(Some(status))
    }

    /// What a visit says of the number. Whether it is called.
    fn judged(&mut self, visit: &Value) -> Result<bool, Verdict> {
        if visit["page"] == "forgotten" {
            return Err(Verdict::Unknown);
        }
        let Some(number) = number(visit) else {
            return Ok(false);
        };
        let shopper = self.part.shopper;
        match &self.number {
            Some(known) if *known != number => {
                return Err(Verdict::Trouble(format!("the number became {number:?}")));
            }
            Some(_) => {}
            None => {
                self.crowd
                    .note(|book, at| book.entered(at, shopper, &number));
                let ticket = self.browser.ticket().unwrap_or_default().to_owned();
                self.crowd.remember(number.clone(), ticket);
                self.number = Some(number.clone());
            }
        }
        if visit["state"] == "gone" {
            let reason = visit["reason"].as_str().unwrap_or("unknown");
            return Err(Verdict::Gone(reason.to_owned()));
        }
        let called = is_called(visit);
        if called {
            self.crowd.note(|book, at| book.admitted(at, &number));
        }
        Ok(called)
    }

    /// "Enter now". While the line does not answer, the page is shown again.
    async fn go_in(&mut self) -> Result<u64, Verdict> {
        loop {
            let sent = self.crowd.now();
            match self.browser.visit(SHOP).await {
                Ok(Page::LetIn(let_in)) => {
                    self.crowd.note(|book, at| book.wrote(sent, at));
                    let epoch = let_in.claims.epoch;
                    self.held(&let_in, sent)?;
                    return Ok(epoch);
                }
                Ok(Page::Redirected(_) | Page::Held) | Err(_) => {
                    self.status().await?;
                    pause(RETRY_MS).await;
                }
            }
        }
    }

    /// The pass says which seat it is, and until when.
    fn held(&mut self, let_in: &LetIn, sent: At) -> Result<(), Verdict> {
        let claims = &let_in.claims;
        let of = Number {
            incarnation: claims.incarnation,
            lane: claims.lane.clone(),
            token: claims.token,
        };
        let Some(number) = self.number.clone().filter(|number| *number == of) else {
            return Err(Verdict::Trouble(format!("let in with the pass of {of:?}")));
        };
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Rounded up.
        let left = Duration::from_secs(claims.exp.saturating_sub(1)).saturating_sub(wall);
        let is_first = !std::mem::replace(&mut self.seated, true);
        self.crowd.note(|book, at| match is_first {
            true => book.seated(at, &number, claims.epoch, at + left),
            false => book.renewed(at, &number, at + left),
        });
        self.heard = sent;
        Ok(())
    }

    /// Stays in the shop, and asks for something each second.
    async fn shop(&mut self, service: Duration) -> Result<(), Verdict> {
        let until = Instant::now() + service;
        while Instant::now() < until {
            sleep(ACTIVE_EVERY.min(until - Instant::now())).await;
            let sent = self.crowd.now();
            match self.browser.visit(SHOP).await {
                Ok(Page::LetIn(let_in)) => self.held(&let_in, sent)?,
                Ok(Page::Redirected(to)) => {
                    return Err(Verdict::Trouble(format!("sent to {to} out of the shop")));
                }
                // The line does not answer, or the seat is lost: the status says which.
                Ok(Page::Held) | Err(_) => drop(self.status().await?),
            }
        }
        Ok(())
    }

    /// By the shop, which has the ticket from the cookie.
    async fn complete(&mut self, epoch: u64) -> Result<(), Verdict> {
        let Some(number) = self.number.clone() else {
            return Ok(());
        };
        let sent = self.crowd.note(|book, at| {
            book.leaving(at, &number);
            at
        });
        let ticket = self.browser.ticket().unwrap_or_default().to_owned();
        let answer = self.crowd.line.complete(&ticket, Some(epoch), None).await;
        let status = answer.map_err(|error| Verdict::from(&error))?;
        let reason = status.reason.unwrap_or_default();
        self.crowd.note(|book, at| {
            book.wrote(sent, at);
            book.gone(&number, &reason);
        });
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Verdict> {
        let Some(number) = self.number.clone() else {
            return Ok(());
        };
        self.crowd.note(|book, at| book.leaving(at, &number));
        for _ in 0..5 {
            let left = self.browser.leave().await;
            // The button leads to the page, which says what came of it.
            if left.is_ok_and(|head| head.status == 303)
                && let Ok(status) = self.browser.status().await
                && status["state"] == "gone"
            {
                let reason = status["reason"].as_str().unwrap_or("unknown");
                self.crowd.note(|book, _| book.gone(&number, reason));
                return Ok(());
            }
            pause(RETRY_MS).await;
        }
        Err(Verdict::Trouble("could not leave".to_owned()))
    }

    fn vanish(&self) -> Result<(), Verdict> {
        if let Some(number) = &self.number {
            self.crowd.note(|book, at| book.vanished(at, number));
        }
        Ok(())
    }

    fn may_have_expired(&self, reason: &str) -> bool {
        let passed = self.crowd.now().saturating_sub(self.heard);
        self.crowd.times.may_expire_in(passed, reason, self.seated)
    }
}

fn is_called(visit: &Value) -> bool {
    matches!(visit["state"].as_str(), Some("admitted" | "in_checkout"))
}

fn number(visit: &Value) -> Option<Number> {
    Some(Number {
        incarnation: visit["incarnation"].as_u64()?,
        lane: visit["lane"].as_str()?.to_owned(),
        token: visit["token"].as_u64()?,
    })
}

pub async fn pause(ms: std::ops::Range<u64>) {
    let ms = rand::rng().random_range(ms);
    sleep(Duration::from_millis(ms)).await;
}
