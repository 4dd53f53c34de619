//! The dashboard over HTTP: with a made-up cluster, and with a login that may ask for little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{CallNext, Client, ClientOptions, Configure, Journal, Kick};
use nowserving_gateway::{Config, LineRule, Secret, Server};
use nowserving_protocol::codec;
use nowserving_testkit::nats::Nats;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

const PATIENCE: Duration = Duration::from_secs(20);
const OWN: &str = "Sec-Fetch-Site: same-origin\r\n";

/// A nats-server whose user `few` may send requests of users alone.
struct Logins {
    nats: Nats,
    _folder: tempfile::TempDir,
}

impl Logins {
    fn start() -> Logins {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("nats.conf");
        let users = "authorization { users = [
            { user: all, password: all }
            { user: few, password: few, permissions: { publish: { deny: \"nowserving.admin.>\" } } }
        ] }\n";
        std::fs::write(&config, users).unwrap();
        let nats = Nats::start(&["-c", config.to_str().unwrap()]);
        Logins {
            nats,
            _folder: folder,
        }
    }

    fn url(&self, user: &str) -> String {
        format!("nats://{user}:{user}@127.0.0.1:{}", self.nats.port())
    }
}

/// What the made-up cluster was asked to change, with who asked and why.
type Changes = Arc<Mutex<Vec<(String, Value, String, String)>>>;

/// Answers as `dashboard/preview/` has it, with the line `tickets-tour-7`.
async fn cluster(logins: &Logins) -> Changes {
    let name = "all".to_owned();
    let all = async_nats::ConnectOptions::with_user_and_password(name.clone(), name);
    let client = all.connect(logins.nats.url()).await.unwrap();
    let changes = Changes::default();
    let mut requests = client.subscribe("nowserving.>").await.unwrap();
    client.flush().await.unwrap();
    let noted = changes.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let Some(reply) = request.reply.clone() else {
                continue;
            };
            let op = request.subject.rsplit('.').next().unwrap().to_owned();
            let answer = answer(&op, &request, &noted);
            let mut headers = async_nats::HeaderMap::new();
            if let Some(code) = answer["error"]["code"].as_str() {
                headers.insert("Nats-Service-Error", code);
                headers.insert("Nats-Service-Error-Code", "409");
            }
            let payload = answer.to_string().into();
            let _ = client.publish_with_headers(reply, headers, payload).await;
        }
    });
    changes
}

fn preview(name: &str) -> Value {
    let path = format!(
        "{}/dashboard/preview/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn shown() -> Value {
    let mut shown = preview("line")["shown"].clone();
    for lane in shown["settings"]["lanes"].as_array_mut().unwrap() {
        lane["name"] = lane["lane"].take();
    }
    shown
}

fn answer(op: &str, request: &async_nats::Message, changes: &Changes) -> Value {
    let note = |body: Value| {
        let headers = request.headers.as_ref();
        let header = |name: &str| {
            let value = headers.and_then(|headers| headers.get(name));
            value.map_or("", |it| it.as_str()).to_owned()
        };
        let entry = (
            op.to_owned(),
            body,
            header("Nowserving-By"),
            header("Nowserving-Reason"),
        );
        changes.lock().unwrap().push(entry);
    };
    let payload = &request.payload;
    match op {
        "status" => preview("cluster")["status"].clone(),
        "list_lines" => {
            let mut lines = preview("overview")["lines"].clone();
            for line in lines.as_array_mut().unwrap() {
                line["version"] = 1.into();
            }
            json!({"lines": lines, "next": null})
        }
        "show" => shown(),
        "journal" => {
            let asked: Journal = codec::decode(payload).unwrap();
            let answer = preview(if asked.of_line { "changes" } else { "why" });
            let mut entries = answer["entries"].as_array().unwrap().clone();
            entries.sort_by_key(|it| it["version"].as_u64());
            json!({"line": "tickets-tour-7", "incarnation": 4096, "entries": entries, "next": null,
                "explain": answer["explain"]})
        }
        "list_tokens" => {
            json!({"line": "tickets-tour-7", "incarnation": 4096, "version": 1, "at_ms": 1,
            "tokens": [preview("why")["token"]], "next": null})
        }
        "configure" => {
            let asked: Configure = codec::decode(payload).unwrap();
            note(serde_json::to_value(&asked).unwrap());
            shown()
        }
        "call_next" => {
            let asked: CallNext = codec::decode(payload).unwrap();
            note(serde_json::to_value(&asked).unwrap());
            json!({"admitted": [{"lane": "normal", "token": 2037}]})
        }
        "kick" => {
            let asked: Kick = codec::decode(payload).unwrap();
            note(serde_json::to_value(&asked).unwrap());
            json!({"kicked": 1, "sample": [], "dry_run": false})
        }
        _ => json!({"error": {"code": "bad_request", "message": "made up"}}),
    }
}

/// A gateway with a dashboard.
struct Dashboard {
    port: u16,
    _stop: oneshot::Sender<()>,
}

impl Dashboard {
    async fn start(nats: &Logins, user: &str, allow_changes: bool) -> Dashboard {
        let rule = LineRule::new("tickets-tour-7".parse().unwrap());
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(any, Secret::from([7; 32]), vec![rule]);
        config.insecure_cookies = true;
        config.patience_ms = 500;
        config.admin_listen = Some(any);
        config.admin.allow_changes = allow_changes;
        let connect = async |user: &str| {
            let mut options = ClientOptions::default();
            options.deadline = Duration::from_secs(2);
            Client::connect_with(&nats.url(user), options)
                .await
                .unwrap()
        };
        let server = Server::bind(config, connect("few").await).await.unwrap();
        let server = server.with_operator(connect(user).await);
        let port = server.admin_addr().unwrap().unwrap().port();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Dashboard { port, _stop: stop }
    }

    /// Status, headers in lower case, and JSON or null.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (u16, String, Value) {
        let Dashboard { port, .. } = self;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(("127.0.0.1", *port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await;
        read.expect("an answer").unwrap();
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (
            status,
            head.to_lowercase(),
            serde_json::from_str(body).unwrap_or_default(),
        )
    }

    async fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.ask("GET", path, OWN, "").await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let headers = format!("{OWN}Content-Type: application/json\r\n");
        let (status, _, body) = self.ask("POST", path, &headers, &body.to_string()).await;
        (status, body)
    }
}

#[tokio::test]
async fn the_dashboard_shows_what_the_cluster_says() {
    let nats = Logins::start();
    cluster(&nats).await;
    let dashboard = Dashboard::start(&nats, "all", false).await;
    let overview = dashboard.get("/api/overview?first=2&sort=waiting").await;
    assert_eq!(overview["totals"]["lines"], 9);
    assert_eq!(overview["lines"][0]["line"], "tickets-tour-7");
    assert_eq!(overview["lines"].as_array().unwrap().len(), 2);
    assert_eq!(overview["head"]["cluster"], "shop");
    assert_eq!(overview["head"]["trouble"], Value::Null);
    let line = dashboard.get("/api/lines/tickets-tour-7").await;
    assert_eq!(
        (&line["may"], &line["shown"]["shard"]),
        (&json!([]), &json!(3))
    );
    assert_eq!(line["findings"][0]["code"], "line_full");
    assert_eq!(
        dashboard.get("/api/cluster").await["status"]["answered_by"],
        1
    );
    let findings = dashboard.get("/api/findings").await;
    // The clock of the made-up node stands still.
    let codes = findings["findings"].as_array().unwrap().iter();
    let codes: Vec<_> = codes.filter_map(|it| it["code"].as_str()).collect();
    assert_eq!(codes[0], "clock_skew", "{codes:?}");
    assert!(codes.contains(&"line_stuck"), "{codes:?}");
    let changes = dashboard.get("/api/lines/tickets-tour-7/changes").await;
    let versions = changes["entries"].as_array().unwrap().iter();
    let versions: Vec<_> = versions.map(|it| it["version"].as_u64().unwrap()).collect();
    assert!(versions.is_sorted_by(|a, b| a > b), "{versions:?}");
    let closer = dashboard.get("/api/lines/tickets-tour-7/findings").await;
    assert!(closer["in_order"].as_array().is_some());
    let asked = json!({"lane": "normal", "token": 4718});
    let (status, why) = dashboard.post("/api/lines/tickets-tour-7/why", asked).await;
    assert_eq!(
        (status, &why["token"]["position"]),
        (200, &json!(2702)),
        "{why}"
    );
    assert_eq!(why["explain"]["overtakers_total"], 14);
    let history = dashboard.get("/api/lines/tickets-tour-7/history").await;
    assert_eq!(history["step_ms"], 10_000);
    let page = dashboard.ask("GET", "/", "", "").await;
    assert_eq!(page.0, 200);
    assert!(page.1.contains("require-trusted-types-for"), "{}", page.1);
}

#[tokio::test]
async fn changes_have_a_name_and_a_reason() {
    let nats = Logins::start();
    let changes = cluster(&nats).await;
    let body = json!({
        "by": "ann", "reason": "the printer", "request_id": "0123456789abcdef0123456789abcdef",
        "incarnation": 4096, "if_version": 4000, "phase": "paused", "n": 2, "lane": "normal", "token": 7,
    });
    let closed = Dashboard::start(&nats, "all", false).await;
    let (status, problem) = closed
        .post("/api/lines/tickets-tour-7/phase", body.clone())
        .await;
    assert_eq!((status, &problem["code"]), (403, &json!("read_only")));
    let dashboard = Dashboard::start(&nats, "all", true).await;
    for (op, field) in [
        ("phase", "version"),
        ("call-next", "admitted"),
        ("kick", "kicked"),
    ] {
        let path = format!("/api/lines/tickets-tour-7/{op}");
        let (status, answer) = dashboard.post(&path, body.clone()).await;
        assert_eq!(status, 200, "{op}: {answer}");
        assert!(!answer[field].is_null(), "{op}: {answer}");
    }
    let other = json!({"incarnation": 1});
    let mut again = body.clone();
    again["incarnation"] = other["incarnation"].clone();
    let (status, problem) = dashboard
        .post("/api/lines/tickets-tour-7/call-next", again)
        .await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("version_conflict"))
    );
    let changes = changes.lock().unwrap();
    let made: Vec<_> = changes
        .iter()
        .map(|(op, body, by, reason)| {
            assert_eq!((by.as_str(), reason.as_str()), ("ann", "the printer"));
            (op.as_str(), body.clone())
        })
        .collect();
    let id = "0123456789abcdef0123456789abcdef";
    assert_eq!(
        made,
        [
            (
                "configure",
                json!({"phase": "paused", "if_version": 4000, "incarnation": 4096})
            ),
            (
                "call_next",
                json!({"n": 2, "lane": "normal", "call_id": id})
            ),
            (
                "kick",
                json!({"tokens": [{"lane": "normal", "token": 7}], "incarnation": 4096})
            ),
        ]
    );
}

#[tokio::test]
async fn what_the_login_may_not_ask_is_not_permitted() {
    let nats = Logins::start();
    cluster(&nats).await;
    let dashboard = Dashboard::start(&nats, "few", true).await;
    let overview = dashboard.get("/api/overview").await;
    let trouble = overview["head"]["trouble"].as_str().unwrap();
    assert!(trouble.starts_with("not permitted"), "{trouble}");
    assert_eq!(overview["health"]["wrong"][0], trouble);
    let (status, _, problem) = dashboard.ask("GET", "/api/cluster", OWN, "").await;
    assert_eq!((status, &problem["code"]), (403, &json!("forbidden")));
    let findings = dashboard.get("/api/findings").await;
    assert_eq!(findings["findings"][0]["code"], "nats_rights");
    let asked = json!({"lane": "normal", "token": 4718});
    let (status, problem) = dashboard.post("/api/lines/tickets-tour-7/why", asked).await;
    assert_eq!((status, &problem["code"]), (403, &json!("forbidden")));
}
