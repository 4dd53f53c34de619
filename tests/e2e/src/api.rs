//! Requests as a client without our SDK makes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_nats::Subscriber;
use async_nats::client::RequestErrorKind;
use bytes::Bytes;
use nowserving_line::OperatorNote;
use nowserving_protocol::error::Code;
use nowserving_protocol::header::{
    ERROR_CODE_HEADER, ERROR_HEADER, REQUEST_ID_HEADER, TIMEOUT_DEFAULT_MS, TIMEOUT_HEADER,
};
use nowserving_protocol::note;
use nowserving_protocol::subject::shard_of;
use serde_json::{Value, json};

use crate::wait::eventually;

/// An answer may come later than the request's deadline by this, on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// For how long [`Api::call`] repeats a request that had no effect.
const PATIENCE: Duration = Duration::from_secs(120);
/// In place of a code: no node listens on the subject.
const NO_RESPONDERS: &str = "no responders";
/// The write may or may not have taken effect.
const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// For timeouts of tokens that must not expire, however slow the machine.
pub const HOUR_MS: u64 = 3_600_000;

/// Times are cut to whole milliseconds: an interval on one clock can differ from the same interval on
/// another by this.
pub const CLOCKS_APART_MS: u64 = 2;

/// The encoding of payloads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    MsgPack,
}

/// Which subjects users' requests go to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `nowserving.line.<line>.<op>`: any node takes it.
    Plain,
    /// `nowserving.shard.<n>.<line>.<op>`: the leader takes it. The value is the number of shards.
    Shard(u32),
}

/// No answer in time: the node that had the request may be dead, or very slow.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{subject}: no answer after {took:?}: {why}")]
pub struct NoAnswer {
    subject: String,
    took: Duration,
    why: String,
}

#[derive(Clone, Debug)]
pub struct Api {
    client: async_nats::Client,
    format: Format,
    route: Route,
    timeout_ms: Option<u64>,
    request_id: Option<String>,
    note: OperatorNote,
}

/// An answer, or nats-server's word that no node listens.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The error's code; none if it is not an error.
    pub code: Option<String>,
    pub body: Value,
    /// Whether the payload is JSON.
    pub format: Format,
    /// Time from the request to the answer.
    pub took: Duration,
}

impl Api {
    /// JSON, to plain subjects, without a deadline header.
    #[must_use]
    pub fn new(client: async_nats::Client) -> Api {
        Api {
            client,
            format: Format::Json,
            route: Route::Plain,
            timeout_ms: None,
            request_id: None,
            note: OperatorNote::default(),
        }
    }

    /// The same, in this format and by this route.
    #[must_use]
    pub fn by(&self, format: Format, route: Route) -> Api {
        Api {
            format,
            route,
            ..self.clone()
        }
    }

    /// The same, with a deadline of its own for each request.
    #[must_use]
    pub fn within(&self, timeout_ms: u64) -> Api {
        Api {
            timeout_ms: Some(timeout_ms),
            ..self.clone()
        }
    }

    /// The same, as one call: each of its requests is a copy of the first.
    #[must_use]
    pub fn with_request_id(&self, id: impl Into<String>) -> Api {
        Api {
            request_id: Some(id.into()),
            ..self.clone()
        }
    }

    /// The same, for requests of which this is noted.
    #[must_use]
    pub fn noted(&self, by: &str, reason: &str) -> Api {
        let text = |text: &str| (!text.is_empty()).then(|| text.into());
        let note = OperatorNote {
            by: text(by),
            reason: text(reason),
        };
        Api {
            note,
            ..self.clone()
        }
    }

    #[must_use]
    pub fn client(&self) -> &async_nats::Client {
        &self.client
    }

    /// A subscription that is in place when this returns.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn subscribe(&self, subject: impl Into<String>) -> Result<Subscriber> {
        let incoming = self.client.subscribe(subject.into()).await?;
        self.settle().await?;
        Ok(incoming)
    }

    /// Returns once the server has taken all that was sent before. `flush` of the client only
    /// hands it to the system.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn settle(&self) -> Result<()> {
        // The server answers "no responders" itself, after it has handled everything sent before.
        match self.client.request("no.node.listens.here", "".into()).await {
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            other => bail!("not no responders: {other:?}"),
        }
    }

    /// Asks once for an operation of users.
    ///
    /// # Errors
    /// No answer by the deadline, or one that is not a map.
    pub async fn ask(&self, line: &str, op: &str, body: &Value) -> Result<Reply> {
        let subject = match self.route {
            Route::Plain => format!("nowserving.line.{line}.{op}"),
            Route::Shard(shards) => {
                format!("nowserving.shard.{}.{line}.{op}", shard_of(line, shards))
            }
        };
        self.ask_subject(&subject, self.encode(body)?).await
    }

    /// Asks, and repeats the request after an answer that nothing happened for a temporary reason. A
    /// request that has one effect however often it is sent is also repeated after `outcome_unknown`
    /// and after no answer.
    ///
    /// # Errors
    /// The answer is still the same after two minutes.
    pub async fn call(&self, line: &str, op: &str, body: &Value) -> Result<Reply> {
        let repeatable = op != "enter" || body.get("key").is_some();
        repeat(repeatable, async || self.ask(line, op, body).await).await
    }

    /// [`Api::call`], and the answer must not be an error.
    ///
    /// # Errors
    /// It is one.
    pub async fn ok(&self, line: &str, op: &str, body: Value) -> Result<Value> {
        let reply = self.call(line, op, &body).await?;
        reply
            .accepted(self.format)
            .with_context(|| format!("{op} {line} {:.200}", body.to_string()))
    }

    /// [`Api::call`], and the answer must be this error, in the form of the contract. Returns the value
    /// of `error`.
    ///
    /// # Errors
    /// It is none, or another one.
    pub async fn refused(&self, line: &str, op: &str, body: Value, code: Code) -> Result<Value> {
        let reply = self.call(line, op, &body).await?;
        reply
            .refused(self.format, code)
            .with_context(|| format!("{op} {line} {:.200}", body.to_string()))
    }

    /// An operator's request about a line; must not be answered with an error.
    ///
    /// # Errors
    /// It is.
    pub async fn admin(&self, line: &str, op: &str, body: Value) -> Result<Value> {
        let reply = self.call_admin(line, op, &body).await?;
        reply
            .accepted(self.format)
            .with_context(|| format!("admin {op} {line} {:.200}", body.to_string()))
    }

    /// An operator's request about a line; must be answered with this error.
    ///
    /// # Errors
    /// It is not.
    pub async fn admin_refused(
        &self,
        line: &str,
        op: &str,
        body: Value,
        code: Code,
    ) -> Result<Value> {
        let reply = self.call_admin(line, op, &body).await?;
        reply
            .refused(self.format, code)
            .with_context(|| format!("admin {op} {line} {:.200}", body.to_string()))
    }

    /// One call: it has one effect, however often it is sent.
    async fn call_admin(&self, line: &str, op: &str, body: &Value) -> Result<Reply> {
        let subject = format!("nowserving.admin.line.{line}.{op}");
        let call = match self.request_id {
            Some(_) => self.clone(),
            None => self.with_request_id(new_request_id()),
        };
        call.call_subject(&subject, self.encode(body)?).await
    }

    /// An operator's request about the cluster; must not be answered with an error.
    ///
    /// # Errors
    /// It is.
    pub async fn cluster(&self, op: &str, body: Value) -> Result<Value> {
        let reply = self.call_cluster(op, &body).await?;
        reply
            .accepted(self.format)
            .with_context(|| format!("admin cluster {op}"))
    }

    /// The same; must be answered with this error.
    ///
    /// # Errors
    /// It is not.
    pub async fn cluster_refused(&self, op: &str, body: Value, code: Code) -> Result<Value> {
        let reply = self.call_cluster(op, &body).await?;
        reply
            .refused(self.format, code)
            .with_context(|| format!("admin cluster {op} {:.200}", body.to_string()))
    }

    async fn call_cluster(&self, op: &str, body: &Value) -> Result<Reply> {
        let subject = format!("nowserving.admin.cluster.{op}");
        let ask = async || self.ask_subject(&subject, self.encode(body)?).await;
        repeat(true, ask).await
    }

    /// Asks for one hit, or as the body says, on the rate limits of a domain.
    ///
    /// # Errors
    /// No answer by the deadline, or one that is not a map.
    pub async fn check(&self, domain: &str, body: &Value) -> Result<Reply> {
        self.ask_at(&format!("nowserving.limit.{domain}.check"), body)
            .await
    }

    /// A request without an id on any subject, repeated as long as nothing happened.
    ///
    /// # Errors
    /// No answer by the deadline, or one that is not a map.
    pub async fn ask_at(&self, subject: &str, body: &Value) -> Result<Reply> {
        let ask = async || self.ask_subject(subject, self.encode(body)?).await;
        repeat(true, ask).await
    }

    /// An operator's request about rate limits; must not be answered with an error.
    ///
    /// # Errors
    /// It is.
    pub async fn limit(&self, op: &str, body: Value) -> Result<Value> {
        let reply = self.call_limit(op, &body).await?;
        reply
            .accepted(self.format)
            .with_context(|| format!("admin limit {op} {:.200}", body.to_string()))
    }

    /// The same; must be answered with this error.
    ///
    /// # Errors
    /// It is not.
    pub async fn limit_refused(&self, op: &str, body: Value, code: Code) -> Result<Value> {
        let reply = self.call_limit(op, &body).await?;
        reply
            .refused(self.format, code)
            .with_context(|| format!("admin limit {op} {:.200}", body.to_string()))
    }

    /// Applies the rules of a domain, and waits until all nodes know them.
    ///
    /// # Errors
    /// They are refused, or a node does not learn of them.
    pub async fn apply_rules(&self, domain: &str, rules: &str) -> Result<()> {
        let applied = self.limit("apply", json!({"rules": rules})).await?;
        ensure!(applied["domain"] == domain, "{applied}");
        let ask = json!({"descriptors": [[{"key": "none"}]], "dry_run": true});
        eventually("all nodes know the rules", PATIENCE, async || {
            let mut know = true;
            // Without the mapping line each is answered by any one node.
            for _ in 0..12 {
                let reply = self.check(domain, &ask).await?.accepted(self.format)?;
                know &= reply.get("unmatched").is_none();
            }
            Ok(know.then_some(()))
        })
        .await
    }

    async fn call_limit(&self, op: &str, body: &Value) -> Result<Reply> {
        let subject = format!("nowserving.admin.limit.{op}");
        let ask = async || self.ask_subject(&subject, self.encode(body)?).await;
        repeat(true, ask).await
    }

    /// The format of requests and answers.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Takes a number for `key`.
    ///
    /// # Errors
    /// It is refused.
    pub async fn enter(&self, line: &str, key: &str) -> Result<Value> {
        self.ok(line, "enter", json!({"key": key})).await
    }

    /// Asks where a ticket stands.
    ///
    /// # Errors
    /// It is refused.
    pub async fn status(&self, line: &str, ticket: &Value) -> Result<Value> {
        self.ok(line, "status", json!({"ticket": ticket})).await
    }

    /// [`Api::ask_subject`], and again as [`Api::call`] does; with one effect however often.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub async fn call_subject(&self, subject: &str, payload: impl Into<Bytes>) -> Result<Reply> {
        let payload = payload.into();
        repeat(true, async || {
            self.ask_subject(subject, payload.clone()).await
        })
        .await
    }

    /// Sends these bytes to this subject, once.
    ///
    /// # Errors
    /// No answer by the deadline, or one that is not a map.
    pub async fn ask_subject(&self, subject: &str, payload: impl Into<Bytes>) -> Result<Reply> {
        let timeout_ms = self.timeout_ms.unwrap_or(TIMEOUT_DEFAULT_MS);
        let mut headers = async_nats::HeaderMap::new();
        if let Some(timeout_ms) = self.timeout_ms {
            headers.insert(TIMEOUT_HEADER, timeout_ms.to_string());
        }
        if let Some(id) = &self.request_id {
            headers.insert(REQUEST_ID_HEADER, id.as_str());
        }
        for (name, value) in note::headers(&self.note) {
            headers.insert(name, value);
        }
        let mut request = async_nats::Request::new()
            .payload(payload.into())
            .timeout(Some(Duration::from_millis(timeout_ms) + SLACK));
        if !headers.is_empty() {
            request = request.headers(headers);
        }
        let start = Instant::now();
        let answer = self.client.send_request(subject.to_owned(), request).await;
        let took = start.elapsed();
        match answer {
            Ok(message) => Reply::read(&message, took).with_context(|| subject.to_owned()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(Reply {
                code: Some(NO_RESPONDERS.to_owned()),
                body: Value::Null,
                format: self.format,
                took,
            }),
            Err(error) => bail!(NoAnswer {
                subject: subject.to_owned(),
                took,
                why: error.to_string(),
            }),
        }
    }

    fn encode(&self, body: &Value) -> Result<Vec<u8>> {
        Ok(match self.format {
            Format::Json => serde_json::to_vec(body)?,
            Format::MsgPack => rmp_serde::to_vec_named(body)?,
        })
    }
}

impl Reply {
    fn read(message: &async_nats::Message, took: Duration) -> Result<Reply> {
        let (format, body): (_, Value) = match message.payload.first() {
            Some(b'{') => (Format::Json, serde_json::from_slice(&message.payload)?),
            _ => (Format::MsgPack, rmp_serde::from_slice(&message.payload)?),
        };
        ensure!(body.is_object(), "the answer is not a map: {body}");
        let code = body["error"]["code"].as_str().map(str::to_owned);
        ensure!(
            code.is_some() == body.get("error").is_some(),
            "an error without a code: {body}"
        );

        // For NATS's own tools the error stands in the headers too, and only then.
        let header = |name| {
            message
                .headers
                .as_ref()?
                .get(name)
                .map(|value| value.as_str())
        };
        match &code {
            Some(code) => {
                let known = Code::parse(code).with_context(|| format!("unknown code {code}"))?;
                let expected = known.http().to_string();
                ensure!(
                    header(ERROR_CODE_HEADER) == Some(expected.as_str()),
                    "headers of {body}"
                );
                ensure!(
                    header(ERROR_HEADER).is_some_and(|text| !text.is_empty()),
                    "no {body}"
                );
                ensure!(
                    body["error"]["message"]
                        .as_str()
                        .is_some_and(|text| !text.is_empty())
                );
            }
            None => ensure!(
                header(ERROR_CODE_HEADER).is_none(),
                "an error header on {body}"
            ),
        }
        Ok(Reply {
            code,
            body,
            format,
            took,
        })
    }

    /// The answer, if it is not an error and in the format of the request.
    ///
    /// # Errors
    /// It is not so.
    pub fn accepted(self, format: Format) -> Result<Value> {
        ensure!(
            self.code.is_none(),
            "refused: {:?} {}",
            self.code,
            self.body
        );
        ensure!(self.format == format, "answered in {:?}", self.format);
        Ok(self.body)
    }

    /// The error, if it is this one and in the format of the request.
    ///
    /// # Errors
    /// It is not so.
    pub fn refused(self, format: Format, code: Code) -> Result<Value> {
        ensure!(
            self.code.as_deref() == Some(code.as_str()),
            "want {code}: {}",
            self.body
        );
        ensure!(self.format == format, "answered in {:?}", self.format);
        Ok(self.body["error"].clone())
    }

    /// Whether the outcome is unknown.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.code.as_deref() == Some(OUTCOME_UNKNOWN)
    }

    /// Whether no node listens on the subject.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.code.as_deref() == Some(NO_RESPONDERS)
    }

    /// Whether nothing happened, for a temporary reason.
    #[must_use]
    pub fn passes(&self) -> bool {
        let passing = ["unavailable", "not_leader", "overloaded", NO_RESPONDERS];
        self.code
            .as_deref()
            .is_some_and(|code| passing.contains(&code))
    }
}

/// `unknown_too`: also a request that may have taken effect.
async fn repeat(unknown_too: bool, mut ask: impl AsyncFnMut() -> Result<Reply>) -> Result<Reply> {
    let start = Instant::now();
    loop {
        let reply = ask().await;
        let again = match &reply {
            Ok(reply) => reply.passes() || (unknown_too && reply.is_unknown()),
            Err(error) => unknown_too && error.is::<NoAnswer>(),
        };
        if !again {
            return reply;
        }
        if start.elapsed() > PATIENCE {
            bail!("still so after {PATIENCE:?}: {reply:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// No other call to the same cluster has it: a test's processes all have clusters of their own, or other numbers.
fn new_request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("e2e-{}-{nth}", std::process::id())
}

/// A number that a reply must have.
///
/// # Errors
/// It has not.
pub fn number(value: &Value, field: &str) -> Result<u64> {
    value[field]
        .as_u64()
        .with_context(|| format!("no number {field} in {value}"))
}

/// The four pointers of a board's first lane: done, admitted, accepts, next.
///
/// # Errors
/// One is missing.
pub fn pointers(board: &Value) -> Result<[u64; 4]> {
    let lane = &board["lanes"][0];
    let fields = [
        "done_through",
        "admitted_through",
        "accepts_through",
        "next_token",
    ];
    let mut found = [0; 4];
    for (place, field) in found.iter_mut().zip(fields) {
        *place = number(lane, field)?;
    }
    Ok(found)
}

/// A name beginning with `prefix` of a line in this shard.
#[must_use]
pub fn line_in(shard: u32, shards: u32, prefix: &str) -> String {
    let names = (0u64..).map(|number| format!("{prefix}-{number}"));
    names
        .into_iter()
        .find(|name| shard_of(name, shards) == shard)
        .unwrap_or_default()
}
