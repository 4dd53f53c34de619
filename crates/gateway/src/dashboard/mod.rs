//! The dashboard for operators, on an address of its own: the page, and the JSON that it asks for.
//!
//! `dashboard/README.md` of this crate is the contract. One task asks the cluster for all viewers ([`poll`]), answers are
//! made from what it has found ([`answers`]); journals and tokens are read only when somebody asks ([`why`]). It has no
//! login of its own and no state: [`checks`] keep other sites' pages out, the network or a proxy other people.

mod answers;
mod change;
mod checks;
mod files;
mod history;
mod known;
mod poll;
#[cfg(test)]
mod tests;
mod why;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::http::header::{CACHE_CONTROL, HeaderName};
use ::http::{HeaderValue, StatusCode, Uri};
use axum::Extension;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use nowserving_client::{Client, Code, Error, Line, LineName};
use nowserving_insight::diagnosis::{Diagnosis, diagnosis};
use nowserving_insight::facts;
use nowserving_insight::finding::Finding;
use nowserving_insight::same_cluster;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, watch};

use self::answers::{Reader, Wanted, object};
use self::checks::Refusal;
use self::known::Known;
use crate::Shared;
use crate::http::{self as answered, Answer};

/// How often the cluster is asked while somebody looks.
const POLL: Duration = Duration::from_secs(2);
/// An answer waits so long for the first one of the cluster.
const FRESH_WITHIN: Duration = Duration::from_secs(4);
/// A question has this long; the page waits 15 s.
const PATIENCE: Duration = Duration::from_secs(10);
/// Findings of the cluster are asked for again after this, whoever looks.
const FINDINGS_FOR: Duration = Duration::from_secs(10);
/// Journals and lists of tokens that are read at once.
const SCANS_MAX: usize = 4;
const BODY_BYTES_MAX: usize = 16 * 1024;
/// Lines of an overview whose details are asked for with the next round.
const SCREEN_MAX: usize = nowserving_insight::fetch::DETAILS_MAX;

const SECURITY: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; \
         base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// All of it.
pub(crate) struct Dashboard {
    gateway: Shared,
    /// With operators' rights, or what the gateway has.
    client: Client,
    /// Those that name its cluster, for the commands of findings.
    options: Vec<String>,
    listen: SocketAddr,
    /// The gateway's own lines, which have a history also while nobody looks.
    own: Vec<LineName>,
    known: Mutex<Known>,
    /// Grows with each round of questions.
    rounds: watch::Sender<u64>,
    /// Somebody looks, or something has changed.
    wake: Notify,
    findings: AsyncMutex<Option<(Instant, Arc<Diagnosis>)>>,
    scans: Arc<Semaphore>,
    scanned: Arc<Mutex<BTreeSet<LineName>>>,
}

/// Why there is no answer: `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    status: StatusCode,
    code: String,
    detail: String,
}

impl Failure {
    fn new(status: StatusCode, code: Code, detail: &str) -> Failure {
        Failure {
            status,
            code: code.as_str().to_owned(),
            detail: detail.to_owned(),
        }
    }

    fn bad(detail: &str) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, Code::BadRequest, detail)
    }

    fn not_found(detail: &str) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, Code::BadRequest, detail)
    }

    fn no_such_line() -> Failure {
        let detail = "there is no such line";
        Failure::new(StatusCode::NOT_FOUND, Code::LineNotFound, detail)
    }

    fn no_token() -> Failure {
        let detail = "there is no such token";
        Failure::new(StatusCode::NOT_FOUND, Code::TokenNotFound, detail)
    }

    fn conflict() -> Failure {
        let detail = "the line was deleted and created again";
        Failure::new(StatusCode::CONFLICT, Code::VersionConflict, detail)
    }

    fn overloaded() -> Failure {
        let detail = "journals and tokens are being read already; try again in a moment";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, detail)
    }

    fn answer(&self) -> Answer {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let body = json!({
            "title": title, "status": self.status.as_u16(), "code": self.code, "detail": self.detail,
        });
        answered::of_problem(self.status, &body)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure {
            status: refusal.status,
            code: refusal.code.to_owned(),
            detail: refusal.detail.to_owned(),
        }
    }
}

/// The cluster's codes and statuses are those of HTTP.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = error.kind().code();
        let status = StatusCode::from_u16(code.http());
        Failure::new(
            status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code,
            error.message(),
        )
    }
}

/// A journal that is being read.
struct Scan {
    line: LineName,
    scanned: Arc<Mutex<BTreeSet<LineName>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Scan {
    fn drop(&mut self) {
        lock(&self.scanned).remove(&self.line);
    }
}

impl Dashboard {
    /// `client`: with the rights of an operator, or the gateway's own. `listen`: where it is.
    pub fn new(gateway: Shared, client: &Client, listen: SocketAddr) -> Arc<Dashboard> {
        Arc::new(Dashboard {
            own: gateway.lines.keys().cloned().collect(),
            gateway,
            client: client.with_deadline(client.deadline().min(PATIENCE)),
            options: same_cluster::options(client),
            listen,
            known: Mutex::default(),
            rounds: watch::Sender::new(0),
            wake: Notify::new(),
            findings: AsyncMutex::default(),
            scans: Arc::new(Semaphore::new(SCANS_MAX)),
            scanned: Arc::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// For questions of users, which the gateway asks anyway.
    fn user_line(&self, line: &LineName) -> Result<Line, Failure> {
        let client = self.gateway.client.with_deadline(PATIENCE);
        Ok(client.line_by_name(line.clone()))
    }

    /// Begins to read a journal: one at a time of each line, and few in all.
    fn scan(&self, line: &LineName) -> Result<Scan, Failure> {
        let permit = Arc::clone(&self.scans).try_acquire_owned();
        let permit = permit.map_err(|_| Failure::overloaded())?;
        if !lock(&self.scanned).insert(line.clone()) {
            return Err(Failure::overloaded());
        }
        Ok(Scan {
            line: line.clone(),
            scanned: Arc::clone(&self.scanned),
            _permit: permit,
        })
    }

    fn answer(&self, made: Result<Map<String, Value>, Failure>, reader: &Reader) -> Answer {
        match made {
            Ok(mut answer) => {
                let head = self.known().head(reader, Instant::now());
                answer.insert("head".to_owned(), head);
                answered::json(StatusCode::OK, &Value::Object(answer))
            }
            Err(failure) => failure.answer(),
        }
    }

    /// What keeps the gateway itself from its work, as it is now, and findings of the whole cluster.
    async fn cluster_findings(&self) -> Result<Map<String, Value>, Failure> {
        let found = self.diagnosed().await?;
        let own = self.gateway.findings();
        // That NATS or the cluster is away is said once.
        let others = found.findings.iter();
        let others = others.filter(|it| own.iter().all(|own| own.code != it.code));
        let mut findings: Vec<&Finding> = own.iter().chain(others).collect();
        // Stable.
        findings.sort_by_key(|it| it.severity);
        Ok(object(
            json!({ "findings": findings, "in_order": found.in_order }),
        ))
    }

    /// What the doctor says of the cluster, asked for once for all who look.
    async fn diagnosed(&self) -> Result<Arc<Diagnosis>, Failure> {
        let mut kept = self.findings.lock().await;
        if let Some((at, found)) = &*kept
            && at.elapsed() < FINDINGS_FOR
        {
            return Ok(Arc::clone(found));
        }
        let facts = facts::gather(None, Ok(self.client.clone())).await?;
        let found = Arc::new(diagnosis(None, &facts, &self.options));
        // Without NATS nothing was asked, and it is over as soon as NATS is back.
        if self.client.is_connected() {
            *kept = Some((Instant::now(), Arc::clone(&found)));
        }
        Ok(found)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Shown = State<Arc<Dashboard>>;
type By = Extension<Reader>;

/// All paths of the admin listener.
pub(crate) fn routes(dashboard: Arc<Dashboard>) -> Router {
    let line = Router::new()
        .route("/", get(line))
        .route("/history", get(history))
        .route("/findings", get(line_findings))
        .route("/changes", get(changes))
        .route("/why", post(why))
        .route("/{op}", post(change));
    Router::new()
        .route("/api/overview", get(overview))
        .route("/api/cluster", get(cluster))
        .route("/api/findings", get(findings))
        .nest("/api/lines/{line}", line)
        .fallback(get(file))
        .with_state(dashboard.clone())
        .layer(middleware::from_fn_with_state(dashboard, guard))
}

/// Before and after every request.
async fn guard(State(dashboard): Shown, request: Request, next: Next) -> Answer {
    let config = &dashboard.gateway.config;
    let (parts, body) = request.into_parts();
    let mut answer = match checks::check(&parts, dashboard.listen, config) {
        Err(refusal) => Failure::from(refusal).answer(),
        Ok(()) => {
            let reader = Reader {
                changes: config.admin.allow_changes,
                by: checks::user(&parts, config),
            };
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(reader);
            next.run(request).await
        }
    };
    if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
        let detail = "this path has other methods";
        answer = Failure::new(answer.status(), Code::BadRequest, detail).answer();
    }
    for (name, value) in SECURITY {
        let name = HeaderName::from_static(name);
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    let headers = answer.headers_mut();
    let not_stored = HeaderValue::from_static("no-store");
    headers.entry(CACHE_CONTROL).or_insert(not_stored);
    answer
}

async fn overview(State(dashboard): Shown, Extension(reader): By, uri: Uri) -> Answer {
    let wanted = match Wanted::of(uri.query().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(failure) => return failure.answer(),
    };
    dashboard.look(&[]).await;
    let (mut answer, mut names) = dashboard.known().overview(&wanted);
    names.truncate(SCREEN_MAX);
    dashboard.known().look(Instant::now(), &names, POLL);
    let streams = &dashboard.gateway.streams;
    let gateway = json!({
        "streams": streams.open(), "streams_max": dashboard.gateway.config.streams_max,
    });
    answer.insert("gateway".to_owned(), gateway);
    dashboard.answer(Ok(answer), &reader)
}

/// The line of a path; one that has no such name does not exist.
fn named(line: &str) -> Result<LineName, Failure> {
    line.parse().map_err(|_| Failure::no_such_line())
}

async fn line(State(dashboard): Shown, Extension(reader): By, Path(name): Path<String>) -> Answer {
    let made = async {
        let name = named(&name)?;
        dashboard.look(std::slice::from_ref(&name)).await;
        dashboard.known().line(&name, &reader, &dashboard.options)
    };
    dashboard.answer(made.await, &reader)
}

async fn history(
    State(dashboard): Shown,
    Extension(reader): By,
    Path(name): Path<String>,
) -> Answer {
    let made = async {
        let name = named(&name)?;
        dashboard.look(std::slice::from_ref(&name)).await;
        dashboard.known().history(&name)
    };
    dashboard.answer(made.await, &reader)
}

async fn cluster(State(dashboard): Shown, Extension(reader): By) -> Answer {
    dashboard.look(&[]).await;
    let made = dashboard.known().cluster();
    dashboard.answer(made, &reader)
}

async fn findings(State(dashboard): Shown, Extension(reader): By) -> Answer {
    let made = dashboard.cluster_findings().await;
    dashboard.answer(made, &reader)
}

async fn line_findings(
    State(dashboard): Shown,
    Extension(reader): By,
    Path(name): Path<String>,
) -> Answer {
    let made = async { why::findings(&dashboard, &named(&name)?).await };
    dashboard.answer(made.await, &reader)
}

async fn changes(
    State(dashboard): Shown,
    Extension(reader): By,
    Path(name): Path<String>,
) -> Answer {
    let made = async { why::changes(&dashboard, &named(&name)?).await };
    dashboard.answer(made.await, &reader)
}

async fn why(
    State(dashboard): Shown,
    Extension(reader): By,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let made = async {
        let asked = read(body).await?;
        why::why(&dashboard, &named(&name)?, &asked).await
    };
    dashboard.answer(made.await, &reader)
}

async fn change(
    State(dashboard): Shown,
    Extension(reader): By,
    Path((name, op)): Path<(String, String)>,
    body: Body,
) -> Answer {
    let made = async {
        let asked = read(body).await?;
        change::change(&dashboard, &named(&name)?, &op, &asked, &reader).await
    };
    dashboard.answer(made.await, &reader)
}

/// A body of JSON. What is wrong with it may quote it.
async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let bytes = to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| Failure {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..Failure::bad("the body has at most 16 KiB")
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|_| Failure::bad("the body is not as dashboard/README.md says"))
}

async fn file(uri: Uri, headers: ::http::HeaderMap) -> Answer {
    let name = match uri.path() {
        "/" => "index.html",
        path => path.strip_prefix('/').unwrap_or(path),
    };
    let file = files::file(name, &headers);
    file.unwrap_or_else(|| Failure::not_found("the dashboard has nothing at this path").answer())
}
