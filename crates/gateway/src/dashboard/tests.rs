#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use ::http::Request as HttpRequest;
use ::http::header::{CONTENT_TYPE, HOST, HeaderValue, ORIGIN};
use ::http::request::Parts;
use axum::extract::ConnectInfo;
use nowserving_client::{ClientOptions, LineReply, LineSummary};
use nowserving_insight::fetch::Answers;
use nowserving_insight::pace::Detail;
use tower_service::Service as _;

use super::*;
use crate::config::{Config, LineRule, Secret};
use crate::page::Pages;
use crate::{Gateway, dashboard};

const LISTEN: &str = "127.0.0.1:8091";

/// The made-up answer of this name.
fn preview(name: &str) -> Value {
    let path = format!(
        "{}/dashboard/preview/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A cluster as in `preview/`: its lines, and details of one.
fn answers(at: Instant, more_issued: u64) -> Answers {
    let list = preview("overview")["lines"].as_array().unwrap().clone();
    let list = list.into_iter().map(|mut line| {
        line["version"] = 4_000.into();
        serde_json::from_value::<LineSummary>(line).unwrap()
    });
    let mut shown = preview("line")["shown"].clone();
    let issued = shown["counts"]["issued"].as_u64().unwrap() + more_issued;
    shown["counts"]["issued"] = issued.into();
    for lane in shown["settings"]["lanes"].as_array_mut().unwrap() {
        lane["name"] = lane["lane"].take();
    }
    let shown: LineReply = serde_json::from_value(shown).unwrap();
    Answers {
        at,
        cluster: serde_json::from_value(preview("cluster")["status"].clone()).unwrap(),
        list: list.collect(),
        more: false,
        details: vec![Detail {
            at,
            shown,
            newcomer_eta_ms: Some(1_100_000),
            newcomer_eta_from: Some("measured".into()),
        }],
    }
}

fn known(now: Instant) -> Known {
    let mut known = Known::default();
    let name: LineName = "tickets-tour-7".parse().unwrap();
    known.look(now, std::slice::from_ref(&name), POLL);
    for nth in 0..3_u32 {
        let at = now + history::STEP * nth;
        known.take(answers(at, u64::from(nth) * 10), &[]);
        known.histories.sample(at, 1_000);
    }
    known
}

/// All names of fields in `ours` are in `theirs`, as far as objects have the same place.
fn compare(ours: &Value, theirs: &Value, at: &str) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in ours {
                // Names of labels, reasons and settings are data.
                let is_data = matches!(name.as_str(), "labels" | "counts" | "settings");
                let place = format!("{at}.{name}");
                match theirs.get(name) {
                    Some(_) if is_data => {}
                    Some(other) => compare(value, other, &place),
                    None => panic!("{place} is not in preview/"),
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            if let (Some(ours), Some(theirs)) = (ours.first(), theirs.first()) {
                compare(ours, theirs, &format!("{at}[]"));
            }
        }
        _ => {}
    }
}

fn names(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn answers_have_the_fields_of_the_contract() {
    let (now, reader) = (Instant::now(), Reader::default());
    let known = known(now);
    let name: LineName = "tickets-tour-7".parse().unwrap();
    let (mut overview, lines) = known.overview(&Wanted::of("first=3&sort=waiting").unwrap());
    assert_eq!((lines.len(), lines[0].as_str()), (3, "tickets-tour-7"));
    overview.insert(
        "gateway".to_owned(),
        json!({"streams": 0, "streams_max": 9}),
    );
    for (name, made) in [
        ("overview", overview),
        ("line", known.line(&name, &reader, &[]).unwrap()),
        ("history", known.history(&name).unwrap()),
        ("cluster", known.cluster().unwrap()),
    ] {
        let mut made = Value::Object(made);
        made["head"] = known.head(&reader, now);
        let expected = preview(name);
        assert_eq!(names(&made), names(&expected), "{name}");
        for part in ["head", "line", "samples", "totals", "health"] {
            if let Some(expected) = expected.get(part).filter(|it| it.is_object()) {
                assert_eq!(names(&made[part]), names(expected), "{name}.{part}");
            }
        }
        if name != "cluster" && name != "line" {
            compare(&made, &expected, name);
        }
    }
}

#[test]
fn a_line_moves_in_its_history() {
    let known = known(Instant::now());
    let name: LineName = "tickets-tour-7".parse().unwrap();
    let history = Value::Object(known.history(&name).unwrap());
    assert_eq!(history["samples"]["waiting"].as_array().unwrap().len(), 3);
    assert_eq!(history["samples"]["entered_per_minute"][2], 60.0);
    assert_eq!(history["step_ms"], 10_000);
    let line = Value::Object(known.line(&name, &Reader::default(), &[]).unwrap());
    assert_eq!(line["may"], json!([]));
    assert_eq!(line["line"]["per_second"]["entered"], 1.0);
    let reader = Reader {
        changes: true,
        by: None,
    };
    let line = known.line(&name, &reader, &[]).unwrap();
    assert_eq!(line["may"], json!(answers::CHANGES));
    assert_eq!(line["shown"]["newcomer_eta_from"], "measured");
    let none = known
        .line(&"none".parse().unwrap(), &reader, &[])
        .unwrap_err();
    assert_eq!(
        (none.status.as_u16(), none.code.as_str()),
        (404, "line_not_found")
    );
}

#[test]
fn what_is_not_permitted_is_said() {
    let mut known = Known::default();
    let text = "not permitted: this NATS user may not publish to x".to_owned();
    let now = Instant::now();
    let own = answers(now, 0).list.into_iter().take(1);
    known.take_instead(now, own.map(|line| (line, Some(5))).collect());
    known.fail(
        now,
        known::Trouble {
            is_forbidden: true,
            text: text.clone(),
        },
    );
    let (overview, lines) = known.overview(&Wanted::of("").unwrap());
    assert_eq!(overview["health"]["wrong"], json!([text]));
    assert_eq!(known.head(&Reader::default(), now)["trouble"], text);
    assert_eq!(known.cluster().unwrap_err().code, "forbidden");
    let line = known.line(&lines[0], &Reader::default(), &[]);
    assert_eq!(line.unwrap_err().status, StatusCode::FORBIDDEN);
    assert_eq!(known.history(&lines[0]).unwrap()["line"], lines[0].as_str());
}

#[test]
fn bad_queries_are_refused_by_name() {
    for (query, word) in [
        ("first=0", "first"),
        ("first=501", "first"),
        ("first=-1", "first"),
        ("first=x", "first"),
        ("sort=seats", "sort"),
        ("sort=", "sort"),
    ] {
        assert!(
            Wanted::of(query).unwrap_err().detail.contains(word),
            "{query}"
        );
    }
    let long = format!("filter={}", "x".repeat(201));
    assert!(Wanted::of(&long).is_err());
    assert!(Wanted::of("other=1&filter=city%3DTaipei&first=500&sort=eta").is_ok());
}

fn config() -> Config {
    let rule = LineRule::new("sale".parse().unwrap());
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(listen, Secret::from([7; 32]), vec![rule]);
    config.admin_listen = Some(LISTEN.parse().unwrap());
    config.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
    config
}

fn parts(method: &str, path: &str, peer: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = HttpRequest::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header(HOST, LISTEN);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let peer: SocketAddr = format!("{peer}:1").parse().unwrap();
    let request = request.extension(ConnectInfo(peer)).body(()).unwrap();
    request.into_parts().0
}

#[test]
fn only_the_own_page_asks() {
    type Headers = &'static [(&'static str, &'static str)];
    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
    let mut config = config();
    config.admin.hosts = vec!["ops.example".to_owned()];
    let cases: [(&str, &str, Headers, u16); 22] = [
        ("GET", "/", &[], 200),
        ("GET", "/", &[("host", "localhost:9000")], 200),
        ("GET", "/", &[("host", "LOCALHOST")], 200),
        ("GET", "/", &[("host", "[::1]:8091")], 200),
        ("GET", "/", &[("host", "OPS.example:443")], 200),
        ("GET", "/", &[("host", "evil.example:8091")], 421),
        ("GET", "/", &[("host", "127.0.0.1.evil.example")], 421),
        ("GET", "/", &[("host", "localhost@evil.example")], 421),
        (
            "GET",
            "/",
            &[("host", "localhost"), ("host", "evil.example")],
            421,
        ),
        ("GET", "/", &[("host", "")], 421),
        ("GET", "/", &[("sec-fetch-site", "cross-site")], 200),
        ("GET", "/api/overview", &[], 200),
        ("GET", "/api/overview", &[("sec-fetch-site", "none")], 200),
        (
            "GET",
            "/api/overview",
            &[("sec-fetch-site", "same-origin")],
            200,
        ),
        (
            "GET",
            "/api/overview",
            &[("sec-fetch-site", "same-site")],
            403,
        ),
        (
            "GET",
            "/api/overview",
            &[("sec-fetch-site", "cross-site")],
            403,
        ),
        ("POST", "/api/lines/x/why", &[JSON], 403),
        (
            "POST",
            "/api/lines/x/why",
            &[JSON, ("sec-fetch-site", "none")],
            403,
        ),
        (
            "POST",
            "/api/lines/x/why",
            &[JSON, ("sec-fetch-site", "same-origin")],
            200,
        ),
        (
            "POST",
            "/api/lines/x/why",
            &[JSON, ("origin", "http://127.0.0.1:8091")],
            200,
        ),
        (
            "POST",
            "/api/lines/x/why",
            &[JSON, ("origin", "http://127.0.0.1:8092")],
            403,
        ),
        (
            "POST",
            "/api/lines/x/why",
            &[
                ("sec-fetch-site", "same-origin"),
                ("content-type", "text/plain"),
            ],
            415,
        ),
    ];
    for (method, path, headers, status) in cases {
        let parts = parts(method, path, "127.0.0.1", headers);
        let checked = checks::check(&parts, LISTEN.parse().unwrap(), &config);
        let got = checked.map_or_else(|it| it.status.as_u16(), |()| 200);
        assert_eq!(got, status, "{method} {path} {headers:?}");
    }
    // On another address than loopback, loopback's names are nobody's.
    let open = "192.0.2.1:8091".parse().unwrap();
    let asked = parts("GET", "/", "192.0.2.7", &[("host", "localhost:8091")]);
    assert!(checks::check(&asked, open, &config).is_err());
}

#[test]
fn a_proxy_is_believed_if_it_is_trusted() {
    let mut config = config();
    config.admin.hosts = vec!["gateway.internal".to_owned()];
    config.admin.user_header = Some("X-Forwarded-User".to_owned());
    let headers = [
        ("host", "gateway.internal"),
        ("x-forwarded-host", "ops.example"),
        ("x-forwarded-user", "ann"),
        ("origin", "https://ops.example"),
        ("content-type", "application/json"),
    ];
    for (peer, is_believed) in [("10.1.1.1", true), ("192.0.2.7", false)] {
        let parts = parts("POST", "/api/lines/x/why", peer, &headers);
        let checked = checks::check(&parts, LISTEN.parse().unwrap(), &config);
        assert_eq!(checked.is_ok(), is_believed, "{peer}");
        let user = checks::user(&parts, &config);
        assert_eq!(user.as_deref(), is_believed.then_some("ann"), "{peer}");
    }
    let two = [("x-forwarded-user", "ann"), ("x-forwarded-user", "eve")];
    assert_eq!(
        checks::user(&parts("GET", "/", "10.1.1.1", &two), &config),
        None
    );
}

/// A dashboard of a gateway without a cluster.
async fn alone(change: impl FnOnce(&mut Config)) -> Router {
    let mut config = config();
    config.patience_ms = 50;
    change(&mut config);
    let mut options = ClientOptions::default();
    options.connect_in_background = true;
    options.deadline = Duration::from_millis(50);
    let client = Client::connect_with("nats://127.0.0.1:1", options)
        .await
        .unwrap();
    let gateway = Gateway::start(config, client.clone(), Pages::load(None).unwrap()).unwrap();
    dashboard::routes(Dashboard::new(gateway, &client, LISTEN.parse().unwrap()))
}

async fn ask(routes: &mut Router, method: &str, path: &str, body: &[u8]) -> (u16, Answer) {
    let mut request = HttpRequest::builder().method(method).uri(path);
    request = request
        .header(HOST, LISTEN)
        .header("sec-fetch-site", "same-origin");
    if method == "POST" {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let peer: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let request = request.extension(ConnectInfo(peer));
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let answer = routes.call(request).await.unwrap();
    (answer.status().as_u16(), answer)
}

#[tokio::test(start_paused = true)]
async fn every_answer_has_the_headers() {
    let mut routes = alone(|_| {}).await;
    for (method, path, status) in [
        ("GET", "/", 200),
        ("GET", "/assets/dashboard.js", 200),
        ("GET", "/assets/none.js", 404),
        ("GET", "/preview/line.json", 404),
        ("POST", "/", 405),
        ("GET", "/api/overview", 200),
        ("GET", "/api/overview?first=0", 400),
        ("GET", "/api/none", 404),
        ("GET", "/api/cluster", 503),
        ("GET", "/api/lines/sale", 503),
        ("GET", "/api/lines/a%20b", 404),
        ("GET", "/api/lines/sale/why", 405),
        ("POST", "/api/lines/sale/why", 400),
        ("POST", "/api/lines/sale/delete", 400),
    ] {
        let (got, answer) = ask(&mut routes, method, path, b"{").await;
        assert_eq!(got, status, "{method} {path}");
        for (name, value) in SECURITY {
            assert_eq!(
                answer.headers()[name],
                HeaderValue::from_static(value),
                "{path}"
            );
        }
        let expected = if got == 200 && !path.starts_with("/api/") {
            "no-cache"
        } else {
            "no-store"
        };
        assert_eq!(answer.headers()[CACHE_CONTROL], expected, "{path}");
        assert!(!answer.headers().contains_key("set-cookie"));
        if got >= 400 {
            assert_eq!(
                answer.headers()[CONTENT_TYPE],
                "application/problem+json",
                "{path}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changes_need_to_be_allowed_and_bodies_are_bounded() {
    let body = json!({"by": "ann", "reason": "x", "incarnation": 1, "if_version": 1, "seats": 1,
        "request_id": "0123456789abcdef0123456789abcdef"});
    let body = body.to_string().into_bytes();
    let path = "/api/lines/sale/seats";
    let mut routes = alone(|_| {}).await;
    let (status, answer) = ask(&mut routes, "POST", path, &body).await;
    let problem = to_bytes(answer.into_body(), 10_000).await.unwrap();
    let problem: Value = serde_json::from_slice(&problem).unwrap();
    assert_eq!((status, &problem["code"]), (403, &json!("read_only")));
    let long = vec![b' '; BODY_BYTES_MAX + 1];
    assert_eq!(ask(&mut routes, "POST", path, &long).await.0, 413);
    let mut routes = alone(|config| config.admin.allow_changes = true).await;
    assert_eq!(ask(&mut routes, "POST", path, &body).await.0, 503);
}

#[test]
fn fuzz_queries_and_bodies() {
    let seeds = [
        "first=50&sort=pressure&filter=city%3DTaipei",
        r#"{"lane": "normal", "token": 4718}"#,
        r#"{"by":"ann","reason":"x","request_id":"00","incarnation":1,"n":2,"lane":"vip"}"#,
    ];
    let seeds = seeds.map(|text| text.as_bytes().to_vec());
    static KNOWN: LazyLock<Known> = LazyLock::new(|| known(Instant::now()));
    nowserving_testkit::target!(seeds.into(), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(wanted) = Wanted::of(&text) {
            let (answer, _) = KNOWN.overview(&wanted);
            assert!(answer["lines"].as_array().is_some());
        }
        change::fuzz(bytes);
        why::fuzz(bytes);
        if let Ok(value) = HeaderValue::from_bytes(bytes) {
            let mut parts = parts("POST", "/api/lines/x/why", "10.0.0.1", &[]);
            for name in [HOST, ORIGIN] {
                parts.headers.insert(name, value.clone());
            }
            let _ = checks::check(&parts, LISTEN.parse().unwrap(), &config());
        }
    });
}
