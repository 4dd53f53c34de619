//! A nats-server of one's own, and a node that answers as the test says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use nowserving_client::Code;
use nowserving_protocol::header::{
    ERROR_CODE_HEADER, ERROR_HEADER, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_HEADER,
};
use nowserving_testkit::nats::{Nats, free_port};
use serde_json::{Value, json};

/// All steps take milliseconds; an event that does not come at all must fail the test.
pub async fn timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("too slow")
}

pub struct Stage {
    nats: Nats,
    monitor_port: u16,
}

impl Stage {
    pub fn open() -> Stage {
        let monitor_port = free_port();
        let nats = Nats::start(&["--http_port", &monitor_port.to_string()]);
        Stage { nats, monitor_port }
    }

    pub fn url(&self) -> String {
        self.nats.url()
    }

    /// The server dies, and is back on the same port after a moment.
    pub async fn restart(&mut self) {
        self.nats.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.nats.start_again();
    }

    /// A node; `shards`: what it tells service discovery, if it answers that at all.
    pub fn node(
        &self,
        shards: Option<u32>,
        answer: impl Fn(usize, &Value) -> Answer + Send + 'static,
    ) -> Node {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ready_tx, ready) = tokio::sync::watch::channel(None);
        tokio::spawn(play(
            self.url(),
            shards,
            answer,
            Arc::clone(&seen),
            ready_tx,
        ));
        Node {
            seen,
            ready,
            monitor_port: self.monitor_port,
        }
    }
}

/// A payload, or a code with `retry_after_ms`.
pub type Answer = Result<Value, (Code, Option<u64>)>;

#[derive(Clone)]
pub struct Seen {
    pub subject: String,
    pub body: Value,
    pub timeout_ms: u64,
    pub sent_ms: Option<u64>,
    pub request_id: Option<String>,
}

pub struct Node {
    seen: Arc<Mutex<Vec<Seen>>>,
    ready: tokio::sync::watch::Receiver<Option<async_nats::Client>>,
    monitor_port: u16,
}

impl Node {
    /// Its subscriptions are in place, on the server as it is now.
    pub async fn listens(&self) {
        let mut ready = self.ready.clone();
        let nats = timeout(ready.wait_for(Option::is_some))
            .await
            .unwrap()
            .clone()
            .unwrap();
        for _ in 0..200 {
            let asked = nats.request("stage.ready", "".into());
            if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(500), asked).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the node does not listen");
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub async fn publish(&self, board: Value) {
        self.publish_to("board", board).await;
    }

    pub async fn publish_to(&self, what: &str, event: Value) {
        let nats = self.ready.borrow().clone().unwrap();
        let subject = format!("nowserving.event.shop-1.{what}");
        nats.publish(subject, event.to_string().into())
            .await
            .unwrap();
        nats.flush().await.unwrap();
    }

    /// How many subscriptions the server has.
    pub async fn subscribers(&self) -> u64 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let address = ("127.0.0.1", self.monitor_port);
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /subsz HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let body = &answer[answer.find('{').unwrap()..];
        let body: Value = serde_json::from_str(body).unwrap();
        body["num_subscriptions"].as_u64().unwrap()
    }
}

async fn play(
    url: String,
    shards: Option<u32>,
    answer: impl Fn(usize, &Value) -> Answer + Send + 'static,
    seen: Arc<Mutex<Vec<Seen>>>,
    ready: tokio::sync::watch::Sender<Option<async_nats::Client>>,
) {
    let nats = async_nats::connect(url).await.unwrap();
    let mut streams = Vec::new();
    for subject in [
        "stage.ready",
        "$SRV.INFO.nowserving",
        "nowserving.line.>",
        "nowserving.shard.7.>",
    ] {
        streams.push(nats.subscribe(subject).await.unwrap());
    }
    nats.flush().await.unwrap();
    ready.send(Some(nats.clone())).unwrap();
    let mut requests = futures::stream::select_all(streams);
    while let Some(message) = requests.next().await {
        let Some(reply) = message.reply.clone() else {
            continue;
        };
        let is_discovery = message.subject.starts_with("$SRV");
        let (headers, payload) = match shards {
            None if is_discovery => continue,
            Some(shards) if is_discovery => {
                let metadata = json!({"shards": shards.to_string(), "prefix": "nowserving"});
                (None, json!({"name": "nowserving", "metadata": metadata}))
            }
            _ if message.subject.as_str() == "stage.ready" => (None, json!({})),
            _ => {
                let request = read(&message);
                let count = seen.lock().unwrap().len();
                let answer = answer(count, &request.body);
                seen.lock().unwrap().push(request);
                write(answer)
            }
        };
        let payload = payload.to_string().into();
        let headers = headers.unwrap_or_default();
        nats.publish_with_headers(reply, headers, payload)
            .await
            .unwrap();
    }
}

fn read(message: &async_nats::Message) -> Seen {
    let headers = message.headers.as_ref().unwrap();
    let header = |name| headers.get(name).map(|value| value.to_string());
    Seen {
        subject: message.subject.to_string(),
        body: rmp_serde::from_slice(&message.payload).unwrap(),
        timeout_ms: header(TIMEOUT_HEADER).unwrap().parse().unwrap(),
        sent_ms: header(SENT_MS_HEADER).map(|ms| ms.parse().unwrap()),
        request_id: header(REQUEST_ID_HEADER),
    }
}

fn write(answer: Answer) -> (Option<async_nats::HeaderMap>, Value) {
    match answer {
        Ok(payload) => (None, payload),
        Err((code, retry_after_ms)) => {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert(ERROR_HEADER, code.as_str());
            headers.insert(ERROR_CODE_HEADER, code.http().to_string());
            let mut error = json!({"code": code.as_str(), "message": "as the test says"});
            if let Some(ms) = retry_after_ms {
                error["retry_after_ms"] = json!(ms);
            }
            (Some(headers), json!({ "error": error }))
        }
    }
}

pub fn status(token: u64, position: u64, version: u64) -> Value {
    json!({
        "line": "shop-1", "incarnation": 7, "lane": "normal", "token": token, "state": "waiting",
        "position": position, "ahead": position - 1, "eta_ms": null, "eta_p90_ms": null,
        "admitted_through": token - position, "poll_after_ms": 10_000, "version": version,
        "at_ms": version, "ticket": "T", "holes": []
    })
}

pub fn admitted(token: u64, version: u64) -> Value {
    json!({
        "line": "shop-1", "incarnation": 7, "lane": "normal", "token": token, "state": "admitted",
        "admitted_through": token, "expires_at_ms": 9_999, "poll_after_ms": 100,
        "version": version, "at_ms": version
    })
}

pub fn gone(token: u64, version: u64) -> Value {
    json!({
        "line": "shop-1", "incarnation": 7, "lane": "normal", "token": token, "state": "gone",
        "reason": "no_show", "admitted_through": token, "poll_after_ms": 100,
        "version": version, "at_ms": version
    })
}

pub fn board(version: u64, prev_version: u64, admitted_through: u64, holes: Value) -> Value {
    let mut board = info(version);
    board["prev_version"] = json!(prev_version);
    board["lanes"][0]["admitted_through"] = json!(admitted_through);
    board["lanes"][0]["holes"] = holes;
    board
}

pub fn info(version: u64) -> Value {
    json!({
        "line": "shop-1", "incarnation": 7, "version": version, "at_ms": version, "phase": "open",
        "seats": 7, "admitted": 0, "in_checkout": 7,
        "shard": 3, "leader": 1, "held_back_by": { "by": "seats" },
        "lanes": [{
            "lane": "normal", "next_token": 30, "done_through": 3, "admitted_through": 10,
            "accepts_through": 40, "waiting": 19
        }],
        "settings": {
            "seats": 7, "queue_limit": 15, "waiting_idle_timeout_ms": 300_000,
            "claim_timeout_ms": 120_000, "checkout_timeout_ms": 600_000,
            "checkout_max_ms": 3_600_000, "token_events": true
        }
    })
}

pub fn line_event(event: &str) -> Value {
    json!({
        "line": "shop-1", "incarnation": 7, "version": 101, "prev_version": 90, "at_ms": 101,
        "event": event
    })
}
