//! A made-up cluster: a nats-server, and a task that answers for one line.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use nowserving_client::{Claim, Code, Complete, Enter, Leave, StatusRequest, TokenBy};
use nowserving_protocol::codec;
use nowserving_testkit::nats::Nats;
use serde_json::{Value, json};

/// The line `sale`, which has as many seats as a test gives it.
#[derive(Default)]
pub struct Sale {
    pub seats: usize,
    /// Enters are refused with this.
    pub refuses: Option<Code>,
    /// Nothing is answered.
    pub is_silent: bool,
    /// There is no such line.
    pub is_missing: bool,
    /// The answer about rate limits.
    pub check: Value,
    /// By number; the first one is 1.
    tokens: Vec<Token>,
    by_key: BTreeMap<Vec<u8>, usize>,
    /// Requests by name.
    pub asked: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Token {
    state: &'static str,
    reason: &'static str,
}

pub struct Cluster {
    nats: Nats,
    pub sale: Arc<Mutex<Sale>>,
}

impl Cluster {
    pub async fn start(seats: usize) -> Cluster {
        let nats = Nats::start(&[]);
        let client = async_nats::connect(nats.url()).await.unwrap();
        let sale = Arc::new(Mutex::new(Sale {
            seats,
            ..Sale::default()
        }));
        let of_line = client.subscribe("nowserving.line.sale.*").await.unwrap();
        let of_limits = client.subscribe("nowserving.limit.*.check").await.unwrap();
        let mut requests = futures::stream::select(of_line, of_limits);
        client.flush().await.unwrap();
        let answers = sale.clone();
        tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                let Some(reply) = request.reply else { continue };
                if answers.lock().unwrap().is_silent {
                    continue;
                }
                let op = request
                    .subject
                    .rsplit('.')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                let answer = answers.lock().unwrap().answer(&op, &request.payload);
                let mut headers = async_nats::HeaderMap::new();
                if let Some(code) = answer["error"]["code"].as_str() {
                    headers.insert("Nats-Service-Error", code);
                    headers.insert("Nats-Service-Error-Code", "400");
                }
                let payload = answer.to_string().into();
                let _ = client.publish_with_headers(reply, headers, payload).await;
            }
        });
        Cluster { nats, sale }
    }

    pub fn url(&self) -> String {
        self.nats.url()
    }

    /// Ends the nats-server.
    pub fn stop_nats(&mut self) {
        self.nats.kill();
    }

    /// How often an operation was asked.
    pub fn asked(&self, op: &str) -> usize {
        self.sale
            .lock()
            .unwrap()
            .asked
            .get(op)
            .copied()
            .unwrap_or(0)
    }

    pub fn entered(&self) -> usize {
        self.sale.lock().unwrap().tokens.len()
    }

    /// Ends a token.
    pub fn end(&self, token: usize, reason: &'static str) {
        self.sale.lock().unwrap().tokens[token - 1] = Token {
            state: "gone",
            reason,
        };
    }
}

fn refused(code: Code) -> Value {
    json!({"error": {"code": code.as_str(), "message": "made up"}})
}

impl Sale {
    fn answer(&mut self, op: &str, payload: &[u8]) -> Value {
        *self.asked.entry(op.to_owned()).or_default() += 1;
        match op {
            "check" => self.check.clone(),
            _ if self.is_missing => refused(Code::LineNotFound),
            "info" => self.info(),
            "enter" => {
                let enter: Enter = codec::decode(payload).unwrap();
                self.enter(enter.key.unwrap().as_bytes().to_vec())
            }
            "status" => {
                let request: StatusRequest = codec::decode(payload).unwrap();
                let TokenBy::Ticket(ticket) = request.token else {
                    return refused(Code::BadRequest);
                };
                self.of(&ticket, |_| {}, request.pass)
            }
            "claim" => {
                let claim: Claim = codec::decode(payload).unwrap();
                let claims = |token: &mut Token| {
                    if token.state == "admitted" {
                        token.state = "in_checkout";
                    }
                };
                self.of(&claim.ticket, claims, claim.pass)
            }
            "complete" => {
                let complete: Complete = codec::decode(payload).unwrap();
                let completes = |token: &mut Token| {
                    token.state = "gone";
                    token.reason = "completed";
                };
                self.of(&complete.ticket, completes, false)
            }
            "leave" => {
                let leave: Leave = codec::decode(payload).unwrap();
                let leaves = |token: &mut Token| {
                    token.state = "gone";
                    token.reason = "left";
                };
                self.of(&leave.ticket, leaves, false)
            }
            _ => refused(Code::BadRequest),
        }
    }

    fn enter(&mut self, key: Vec<u8>) -> Value {
        if let Some(code) = self.refuses {
            return refused(code);
        }
        let live = self.by_key.get(&key).copied();
        let live = live.filter(|token| self.tokens[token - 1].state != "gone");
        let token = live.unwrap_or_else(|| {
            let seated = self
                .tokens
                .iter()
                .filter(|it| matches!(it.state, "admitted" | "in_checkout"));
            let state = if seated.count() < self.seats {
                "admitted"
            } else {
                "waiting"
            };
            self.tokens.push(Token { state, reason: "" });
            self.by_key.insert(key, self.tokens.len());
            self.tokens.len()
        });
        let mut status = self.status(token, false);
        status["ticket"] = format!("T{token}").into();
        status
    }

    fn of(&mut self, ticket: &str, change: impl Fn(&mut Token), with_pass: bool) -> Value {
        let token = ticket
            .strip_prefix('T')
            .and_then(|text| text.parse::<usize>().ok());
        let token = token.filter(|token| (1..=self.tokens.len()).contains(token));
        let Some(token) = token else {
            return refused(Code::TicketInvalid);
        };
        change(&mut self.tokens[token - 1]);
        self.status(token, with_pass)
    }

    fn status(&self, token: usize, with_pass: bool) -> Value {
        let Token { state, reason } = self.tokens[token - 1].clone();
        let mut status = json!({
            "line": "sale", "incarnation": 1, "lane": "normal", "token": token, "state": state,
            "call_ahead": false, "admitted_through": 0, "poll_after_ms": 3_000, "version": 1, "at_ms": 1,
        });
        let more = match state {
            "waiting" => {
                json!({"position": 3, "ahead": 2, "phase": "open", "eta_ms": null, "eta_p90_ms": null,
                "held_back_by": {"by": "seats"}})
            }
            "gone" => json!({"reason": reason}),
            _ => json!({"expires_at_ms": 60_001, "expires_in_ms": 60_000, "epoch": 7}),
        };
        let object = status.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        if with_pass && matches!(state, "admitted" | "in_checkout") {
            object.insert("pass".to_owned(), format!("pass.of.{token}").into());
            object.insert("pass_expires_in_ms".to_owned(), 60_000.into());
        }
        status
    }

    fn info(&self) -> Value {
        let next = self.tokens.len() + 1;
        json!({
            "line": "sale", "incarnation": 1, "version": 1, "at_ms": 1, "phase": "open", "seats": self.seats,
            "admitted": 0, "in_checkout": 0, "shard": 0, "leader": 1, "held_back_by": {"by": "seats"},
            "lanes": [{"lane": "normal", "next_token": next, "done_through": 0, "admitted_through": 0,
                "accepts_through": 1_000, "waiting": 0}],
            "settings": {"seats": self.seats, "queue_limit": 1_000, "waiting_idle_timeout_ms": 300_000,
                "claim_timeout_ms": 120_000, "checkout_timeout_ms": 60_000, "checkout_max_ms": 600_000,
                "lanes": ["normal"], "default_lane": "normal", "phase": "open", "token_events": true},
        })
    }
}
