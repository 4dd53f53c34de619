//! Envoy's authorization service v3 over gRPC (its filter `ext_authz`, and all that is built on it): one question for each
//! request, answered by "go on" with the pass, or by the whole response that the client gets.
//!
//! Envoy says whom it talks to and what was asked; nothing but Envoy may say so. A connection that does not come from
//! `trusted_proxies` is closed at once.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::header::{CONNECTION, CONTENT_LENGTH, DATE, HOST, TRANSFER_ENCODING};
use ::http::request::Parts;
use ::http::uri::PathAndQuery;
use ::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::body::Body;
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tracing::warn;

use self::pb::attribute_context::HttpRequest;
use self::pb::authorization_server::{Authorization, AuthorizationServer};
use self::pb::check_response::HttpResponse;
use self::pb::{CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse};
use self::pb_core::header_value_option::HeaderAppendAction;
use super::{Decision, PASS, answers_until, decide, note, passed, unadmitted};
use crate::Shared;
use crate::access_log::Logged;
use crate::address::{self, Asked, BadRequest, FORWARDED_HOST};
use crate::http::{self, About, Answer};
use crate::metrics;

/// The messages and the service, as generated from `proto/envoy`.
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/envoy.rs"));
}

use generated::envoy::config::core::v3 as pb_core;
use generated::envoy::config::core::v3::address::Address;
use generated::envoy::service::auth::v3 as pb;
use generated::envoy::r#type::v3::HttpStatus;
use generated::google::rpc;

/// All headers of a request, and more than a browser sends.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// More than the page has.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Requests of one connection at the same time; Envoy has one connection for each of its threads.
const STREAMS_MAX: u32 = 4_096;
/// Open connections. One more is closed.
const CONNECTIONS_MAX: usize = 1_000;
/// A connection whose other side is gone is found by this.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Requests that are being answered at the stop have this long. Envoy's watches of the health would last forever.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
/// Of `google.rpc.Code`: the request may go on; it may not.
const OK: i32 = 0;
const PERMISSION_DENIED: i32 = 7;

/// Answers Envoy until `stop` ends, and then what is under way, for some seconds.
///
/// # Errors
/// The server fails.
pub(crate) async fn serve(
    gateway: Shared,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), tonic::transport::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    // Also while the cluster is away: the gateway then answers as `on_unavailable` says, and nobody does it better.
    reporter.set_serving::<AuthorizationServer<Service>>().await;
    let (stops, stopping) = oneshot::channel();
    let stop = async move {
        stop.await;
        reporter
            .set_service_status("", ServingStatus::NotServing)
            .await;
        reporter
            .set_not_serving::<AuthorizationServer<Service>>()
            .await;
        let _ = stops.send(());
    };
    let taken = taken(gateway.clone(), listener);
    let service = AuthorizationServer::new(Service { gateway });
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .add_service(health)
        .add_service(service.max_decoding_message_size(REQUEST_BYTES_MAX))
        .serve_with_incoming_shutdown(taken, stop);
    let late = async {
        // Without an end it is not late.
        if stopping.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(STOPS_WITHIN).await;
    };
    tokio::select! {
        served = served => served,
        () = late => Ok(()),
    }
}

/// Connections of trusted proxies, as many as may be open.
fn taken(gateway: Shared, listener: TcpListener) -> impl futures::Stream<Item = io::Result<Taken>> {
    let open = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    incoming.filter_map(move |stream| {
        let taken = stream.and_then(|stream| {
            let peer = stream.peer_addr()?.ip();
            if !gateway.config.trusts(peer) {
                gateway.strangers.note(peer);
                return Ok(None);
            }
            let place = open.clone().try_acquire_owned().ok();
            if place.is_none() {
                metrics::connection_closed("full");
            }
            Ok(place.map(|place| Taken {
                stream,
                _place: place,
            }))
        });
        std::future::ready(taken.transpose())
    })
}

/// A connection that is open.
struct Taken {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Taken {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Taken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

struct Service {
    gateway: Shared,
}

#[tonic::async_trait]
impl Authorization for Service {
    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        let from = request.remote_addr().map(|addr: SocketAddr| addr.ip());
        let from = from.ok_or_else(|| Status::permission_denied("it is not known who asks"))?;
        let gateway = self.gateway.clone();
        // In a task of its own: Envoy may give up, and a claim that was begun is still made known.
        let answered = tokio::spawn(async move { answer(&gateway, from, request.get_ref()).await });
        let answered = answered.await.map_err(|error| {
            warn!(%error, "a request was not answered");
            Status::internal("the request was not answered")
        })?;
        answered.map(Response::new)
    }
}

async fn answer(
    gateway: &Shared,
    envoy: IpAddr,
    request: &CheckRequest,
) -> Result<CheckResponse, Status> {
    let asked = request
        .attributes
        .as_ref()
        .and_then(|it| it.request.as_ref())
        .and_then(|it| it.http.as_ref())
        .ok_or_else(|| Status::invalid_argument("attributes.request.http: missing"))?;
    if asked.headers.is_empty() {
        let raw =
            "attributes.request.http.headers: empty; leave encode_raw_headers of ext_authz off";
        return Err(Status::invalid_argument(raw));
    }
    let source = source(request).unwrap_or(envoy);
    let parts = parts(asked);
    let client = match &parts {
        Some(parts) => address::client(&parts.headers, source, &gateway.config),
        None => source,
    };
    let logged = Logged::of_envoy(client);
    let decided = decided(gateway, source, asked, parts.as_ref()).await;
    match decided {
        Decided::Through(pass) => {
            logged.answered(&passed(StatusCode::OK, None));
            Ok(through(pass.as_ref()))
        }
        Decided::Denied(answer) => {
            logged.answered(&answer);
            denied(answer).await
        }
    }
}

enum Decided {
    /// With this pass.
    Through(Option<HeaderValue>),
    /// The client gets this.
    Denied(Answer),
}

/// `parts`: of the question, if they can be read. Notes for the access log what was asked for.
async fn decided(
    gateway: &Shared,
    source: IpAddr,
    asked: &HttpRequest,
    parts: Option<&Parts>,
) -> Decided {
    let until = answers_until();
    let refused = |mut answer: Answer| {
        let [host, path] = [&asked.host, &asked.path].map(|it| str::from_utf8(it));
        let about = host.ok().zip(path.ok());
        let about = about.and_then(|(host, path)| About::said(&asked.method, host, path));
        note(&mut answer, about, None);
        Decided::Denied(answer)
    };
    let Some(parts) = parts else {
        return refused(bad_request("the request target cannot be read"));
    };
    let mut as_asked = match Asked::direct(parts, source, &gateway.config) {
        Ok(asked) => asked,
        Err(bad) => return refused(http::bad(&bad)),
    };
    // Envoy is trusted, and knows.
    as_asked.https |= asked.scheme == "https";
    match decide(gateway, &as_asked, until).await {
        Decision::Through { pass } => Decided::Through(pass),
        Decision::Unadmitted { rule, visit } => {
            let mut answer = unadmitted(gateway, &as_asked, rule, visit, until).await;
            note(&mut answer, Some(About::of(&as_asked)), Some(&rule.line));
            Decided::Denied(answer)
        }
        Decision::UnknownHost => refused(http::bad(&BadRequest::UNKNOWN_HOST)),
    }
}

/// The address of the client, or of the proxy before Envoy.
fn source(request: &CheckRequest) -> Option<IpAddr> {
    let source = request.attributes.as_ref()?.source.as_ref()?;
    let Address::SocketAddress(socket) = source.address.as_ref()?.address.as_ref()?;
    socket.address.parse().ok()
}

/// The request that Envoy got, without its body. None if its target is not a path.
fn parts(asked: &HttpRequest) -> Option<Parts> {
    let target = asked.path.as_slice();
    if !target.starts_with(b"/") {
        return None;
    }
    let target = PathAndQuery::try_from(target).ok()?;
    let method = Method::from_bytes(asked.method.as_bytes()).ok()?;
    let host = HeaderValue::from_bytes(&asked.host).ok()?;
    let mut request = ::http::Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from(target);
    let headers = request.headers_mut();
    let sorted: BTreeMap<_, _> = asked.headers.iter().collect();
    for (name, value) in sorted {
        // HTTP/2's own, as `:path`, are no names; they are fields of the question.
        let name = HeaderName::try_from(name.as_str());
        let value = HeaderValue::from_bytes(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
    }
    headers.insert(HOST, host);
    // The source may be a trusted proxy, but the header the client's: Envoy routes by the host alone.
    headers.remove(FORWARDED_HOST);
    Some(request.into_parts().0)
}

/// The request goes on to the shop, with this pass or without one.
fn through(pass: Option<&HeaderValue>) -> CheckResponse {
    let pass = pass.and_then(|pass| pass.to_str().ok());
    let headers = pass.map(|pass| option(PASS, pass, HeaderAppendAction::OverwriteIfExistsOrAdd));
    let headers: Vec<_> = headers.into_iter().collect();
    // Envoy removes after it has set: never both.
    let headers_to_remove = match headers.is_empty() {
        true => vec![PASS.to_owned()],
        false => Vec::new(),
    };
    CheckResponse {
        status: Some(status(OK)),
        http_response: Some(HttpResponse::OkResponse(OkHttpResponse {
            headers,
            headers_to_remove,
        })),
    }
}

/// The client gets this response.
async fn denied(response: ::http::Response<Body>) -> Result<CheckResponse, Status> {
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    let body = body.map_err(|error| Status::internal(error.to_string()))?;
    let body = String::from_utf8(body.into());
    let body = body.map_err(|error| Status::internal(error.to_string()))?;
    let mut headers = Vec::with_capacity(parts.headers.len());
    for name in parts.headers.keys() {
        // Envoy's own.
        if [CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING].contains(name) {
            continue;
        }
        let mut action = HeaderAppendAction::OverwriteIfExistsOrAdd;
        for value in parts.headers.get_all(name) {
            if let Ok(value) = value.to_str() {
                headers.push(option(name.as_str(), value, action));
                // Several cookies.
                action = HeaderAppendAction::AppendIfExistsOrAdd;
            }
        }
    }
    Ok(CheckResponse {
        status: Some(status(PERMISSION_DENIED)),
        http_response: Some(HttpResponse::DeniedResponse(DeniedHttpResponse {
            status: Some(HttpStatus {
                code: parts.status.as_u16().into(),
            }),
            headers,
            body,
        })),
    })
}

fn bad_request(detail: &str) -> ::http::Response<Body> {
    http::problem(StatusCode::BAD_REQUEST, "Bad request", detail)
}

fn status(code: i32) -> rpc::Status {
    rpc::Status {
        code,
        message: String::new(),
    }
}

fn option(name: &str, value: &str, action: HeaderAppendAction) -> pb_core::HeaderValueOption {
    pb_core::HeaderValueOption {
        header: Some(pb_core::HeaderValue {
            key: name.to_owned(),
            value: value.to_owned(),
        }),
        append_action: action.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ::http::header::{CACHE_CONTROL, CONTENT_TYPE, COOKIE, SET_COOKIE};
    use prost::Message as _;

    use super::*;

    fn asked(path: &[u8]) -> HttpRequest {
        let headers: [(&str, &[u8]); 6] = [
            (":path", path),
            ("x-forwarded-host", b"elsewhere.example"),
            ("cookie", b"__Host-nowserving-sale=abc; other=1"),
            ("x-name", b"J\xfcrgen"),
            ("x-broken", b"a\nb"),
            ("host", b"elsewhere.example"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_vec()));
        HttpRequest {
            method: "POST".to_owned(),
            headers: headers.into(),
            path: path.to_vec(),
            host: b"shop.example".to_vec(),
            scheme: "https".to_owned(),
        }
    }

    #[test]
    fn the_request_is_as_envoy_got_it() {
        let parts = parts(&asked(b"/buy/%C3%BC?a=1&b=%2F")).unwrap();
        assert_eq!(parts.method, Method::POST);
        assert_eq!(parts.uri.to_string(), "/buy/%C3%BC?a=1&b=%2F");
        assert_eq!(parts.headers[HOST], "shop.example", "of the request line");
        assert_eq!(parts.headers[COOKIE], "__Host-nowserving-sale=abc; other=1");
        assert_eq!(parts.headers["x-name"].as_bytes(), b"J\xfcrgen");
        assert_eq!(parts.headers.len(), 3);
    }

    #[test]
    fn targets_that_are_no_path_are_refused() {
        let long = [b"/".as_slice(), &[b'x'; 70_000]].concat();
        for target in [b"".as_slice(), b"*", b"shop:443", b"/a b", &long] {
            assert!(parts(&asked(target)).is_none(), "{target:?}");
        }
        let mut unnamed = asked(b"/");
        unnamed.host = b"a\r\nb".to_vec();
        assert!(parts(&unnamed).is_none());
    }

    #[test]
    fn a_pass_replaces_what_the_client_sent() {
        let with = through(Some(&HeaderValue::from_static("ey.ey.sig")));
        assert_eq!(with.status.unwrap().code, OK);
        let Some(HttpResponse::OkResponse(with)) = with.http_response else {
            panic!("it may go on");
        };
        let [set] = with.headers.try_into().unwrap();
        assert_eq!(
            set.append_action(),
            HeaderAppendAction::OverwriteIfExistsOrAdd
        );
        let set = set.header.unwrap();
        assert_eq!((set.key.as_str(), set.value.as_str()), (PASS, "ey.ey.sig"));
        assert!(with.headers_to_remove.is_empty());
        let Some(HttpResponse::OkResponse(without)) = through(None).http_response else {
            panic!("it may go on");
        };
        assert!(without.headers.is_empty());
        assert_eq!(without.headers_to_remove, [PASS]);
    }

    #[tokio::test]
    async fn a_page_is_the_whole_response() {
        let response = ::http::Response::builder()
            .status(503)
            .header(CONTENT_TYPE, "text/html; charset=utf-8")
            .header(SET_COOKIE, "a=1")
            .header(SET_COOKIE, "b=2")
            .header(CACHE_CONTROL, "no-store")
            .header(CONTENT_LENGTH, 9)
            .body(Body::from("您好"))
            .unwrap();
        let answer = denied(response).await.unwrap();
        assert_eq!(answer.status.as_ref().unwrap().code, PERMISSION_DENIED);
        let Some(HttpResponse::DeniedResponse(page)) = answer.http_response else {
            panic!("it may not go on");
        };
        assert_eq!(
            (page.status.unwrap().code, page.body.as_str()),
            (503, "您好")
        );
        let headers = page.headers.iter().map(|it| {
            let header = it.header.as_ref().unwrap();
            let append = it.append_action() == HeaderAppendAction::AppendIfExistsOrAdd;
            (header.key.as_str(), header.value.as_str(), append)
        });
        let mut headers: Vec<_> = headers.collect();
        headers.sort();
        let expected = [
            ("cache-control", "no-store", false),
            ("content-type", "text/html; charset=utf-8", false),
            ("set-cookie", "a=1", false),
            ("set-cookie", "b=2", true),
        ];
        assert_eq!(headers, expected);
    }

    /// Whatever is sent, a request is made of it or refused.
    #[test]
    fn fuzz_a_question() {
        let question = |path: &[u8]| {
            let http = Some(asked(path));
            let request = Some(pb::attribute_context::Request { http });
            let attributes = Some(pb::AttributeContext {
                source: None,
                request,
            });
            CheckRequest { attributes }.encode_to_vec()
        };
        let seeds = vec![question(b"/a?b=c"), question(b"/\xff/%zz")];
        nowserving_testkit::target!(seeds, |bytes| {
            let Ok(request) = CheckRequest::decode(bytes) else {
                return;
            };
            let _ = source(&request);
            let http = request.attributes.and_then(|it| it.request?.http);
            if let Some(parts) = http.as_ref().and_then(parts) {
                assert!(parts.uri.path().starts_with('/') && parts.headers.contains_key(HOST));
            }
        });
    }
}
