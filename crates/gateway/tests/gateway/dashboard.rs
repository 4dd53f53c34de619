//! The dashboard over HTTP: with a made-up cluster, and with a login that may ask for little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{CallNext, Client, ClientOptions, Configure, Journal, Kick};
use nowserving_gateway::{AddressLimitsConfig, Config, LineRule, Secret, Server};
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
            let answer = match request.subject.contains(".no-such-line.") {
                true => json!({"error": {"code": "line_not_found", "message": "made up"}}),
                false => answer(&op, &request, &noted),
            };
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
        "info" => {
            let shown = shown();
            let mut info = shown["board"].clone();
            for name in ["shard", "leader", "held_back_by"] {
                info[name] = shown[name].clone();
            }
            info["settings"] = json!({
                "seats": 200, "queue_limit": 20_000, "waiting_idle_timeout_ms": 300_000, "claim_timeout_ms": 120_000,
                "checkout_timeout_ms": 600_000, "checkout_max_ms": 600_000, "phase": "open", "token_events": true,
            });
            info
        }
        "check" => json!({
            "allowed": true, "limit": null, "remaining": null, "reset_ms": null, "retry_after_ms": null,
            "unmatched": true, "descriptors": [{"allowed": true, "limit": null, "unmatched": true}],
        }),
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
        let change = |config: &mut Config| config.admin.allow_changes = allow_changes;
        Dashboard::start_with(nats, user, change).await
    }

    async fn start_with(nats: &Logins, user: &str, change: impl FnOnce(&mut Config)) -> Dashboard {
        let rule = LineRule::new("tickets-tour-7".parse().unwrap());
        let any = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(any, Secret::from([7; 32]), vec![rule]);
        config.insecure_cookies = true;
        config.patience_ms = 500;
        config.admin_listen = Some(any);
        change(&mut config);
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

    /// Asks until the answer is as wanted.
    async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut body = Value::Null;
        let asks = async {
            loop {
                body = self.get(path).await;
                if wanted(&body) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asks).await;
        asked.unwrap_or_else(|_| panic!("{path}: {body}"));
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
    // The clock of the made-up node stands still.
    let is_first = |it: &Value| it["findings"][0]["code"] == "clock_skew";
    let findings = dashboard.until("/api/findings", is_first).await;
    assert!(finding(&findings, "line_stuck").is_some(), "{findings}");
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
    let is_first = |it: &Value| it["findings"][0]["code"] == "nats_rights";
    dashboard.until("/api/findings", is_first).await;
    let asked = json!({"lane": "normal", "token": 4718});
    let (status, problem) = dashboard.post("/api/lines/tickets-tour-7/why", asked).await;
    assert_eq!((status, &problem["code"]), (403, &json!("forbidden")));
}

fn finding<'a>(answer: &'a Value, code: &str) -> Option<&'a Value> {
    let mut findings = answer["findings"].as_array().unwrap().iter();
    findings.find(|it| it["code"] == code)
}

#[tokio::test]
async fn mistakes_of_the_set_up_are_findings_with_what_mends_them() {
    let nats = Logins::start();
    cluster(&nats).await;
    let dashboard = Dashboard::start_with(&nats, "all", |config| {
        let rule = LineRule::new("no-such-line".parse().unwrap());
        config.lines.insert(0, rule);
        config.address_limits = Some(AddressLimitsConfig {
            domain: "wbe".to_owned(),
            requests: vec!["enter".to_owned()],
        });
    })
    .await;
    let is_found = |answer: &Value| {
        let codes = ["line_missing", "limits_missing"];
        codes.iter().all(|code| finding(answer, code).is_some())
    };
    let answer = dashboard.until("/api/findings", is_found).await;
    let missing = finding(&answer, "line_missing").unwrap();
    assert_eq!(missing["severity"], "problem");
    let text = missing["text"].as_str().unwrap();
    assert!(
        text.starts_with("the line no-such-line does not exist"),
        "{text}"
    );
    let command = missing["mend"][0]["command"].as_str().unwrap();
    assert!(command.starts_with("nowserving line create no-such-line --seats "));
    // Of the gateway's NATS, without its login.
    let at = format!(" --nats nats://127.0.0.1:{}", nats.nats.port());
    assert!(command.ends_with(&at), "{command}");
    let unlimited = finding(&answer, "limits_missing").unwrap();
    assert_eq!(unlimited["severity"], "warning");
    assert!(
        unlimited["text"]
            .as_str()
            .unwrap()
            .contains("the domain wbe ")
    );
}

#[tokio::test]
async fn without_nats_it_says_at_once_what_is_the_matter() {
    let mut nats = Logins::start();
    cluster(&nats).await;
    let dashboard = Dashboard::start(&nats, "all", false).await;
    dashboard.get("/api/overview").await;
    nats.nats.kill();
    let is_told = |answer: &Value| {
        let trouble = answer["head"]["trouble"].as_str().unwrap_or_default();
        trouble.starts_with("there is no connection to NATS at nats://127.0.0.1:")
    };
    dashboard.until("/api/overview", is_told).await;
    let answer = dashboard.get("/api/findings").await;
    let codes = answer["findings"].as_array().unwrap().iter();
    let codes: Vec<_> = codes.filter_map(|it| it["code"].as_str()).collect();
    assert_eq!(codes[0], "nats_unreachable", "{answer}");
    // Nodes have no part in it.
    assert!(!codes.contains(&"no_answer"), "{answer}");
    assert!(answer["findings"][0]["mend"][0]["remark"].is_string());
}
