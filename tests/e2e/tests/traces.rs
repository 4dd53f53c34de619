//! Requests with a `traceparent`: nodes send their spans to a collector, which is a small gRPC server here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::{Client, HeaderMap, Request};
use nowserving_e2e::{Options, eventually, run};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const LAST_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4737";
const PARENT: &str = "00f067aa0ba902b7";
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps all spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> std::result::Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.flat_map(|scope| scope.spans);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(spans);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn spans(&self) -> Vec<Span> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// Without the mapping line, followers get requests too: their spans are the parents of the leader's, and have its code.
/// A node that ends sends its last spans.
#[tokio::test]
async fn spans_reach_a_collector() -> Result<()> {
    let collector = Collector::default();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(collector.clone()))
        .serve_with_incoming(TcpIncoming::from(listener));
    let server = tokio::spawn(server);
    let options = Options {
        mapping: false,
        otlp: Some(url),
        ..Options::default()
    };
    run(options, async |cluster| {
        let api = cluster.api().clone();
        let settings = json!({"seats": 1, "queue_limit": 0});
        api.admin("traced", "create", settings).await?;
        let nats = async_nats::connect(cluster.nats.url()).await?;
        enter(&nats, TRACE).await?;
        eventually("a forwarded span", PATIENCE, async || {
            enter(&nats, TRACE).await?;
            let spans = collector.spans();
            let leaders = spans.iter().find(|span| {
                let forwarder = spans.iter().find(|it| it.span_id == span.parent_span_id);
                forwarder.is_some_and(|it| {
                    hex(&it.parent_span_id) == PARENT
                        && [it, span].map(code) == ["line_full", "line_full"]
                })
            });
            Ok(leaders.cloned())
        })
        .await?;
        for span in collector.spans() {
            ensure!(hex(&span.trace_id) == TRACE, "{span:?}");
            ensure!(span.name == "nowserving enter", "{span:?}");
            ensure!(
                span.end_time_unix_nano >= span.start_time_unix_nano,
                "{span:?}"
            );
        }
        enter(&nats, LAST_TRACE).await?;
        for id in cluster.ids() {
            cluster.process(id)?.signal(Signal::TERM)?;
        }
        for id in cluster.ids() {
            cluster.process(id)?.ended(PATIENCE).await?;
        }
        let spans = collector.spans();
        let has_last = spans.iter().any(|span| hex(&span.trace_id) == LAST_TRACE);
        ensure!(has_last, "the last span is lost");
        Ok(())
    })
    .await?;
    server.abort();
    Ok(())
}

async fn enter(nats: &Client, trace: &str) -> Result<()> {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", format!("00-{trace}-{PARENT}-01").as_str());
    let payload = json!({"anonymous": true}).to_string();
    let request = Request::new().payload(payload.into()).headers(headers);
    let subject = "nowserving.line.traced.enter";
    nats.send_request(subject, request).await?;
    Ok(())
}

fn code(span: &Span) -> &str {
    let mut attributes = span.attributes.iter();
    let code = attributes.find(|it| it.key == "nowserving.code");
    let value = code.and_then(|it| it.value.as_ref()?.value.as_ref());
    match value {
        Some(Value::StringValue(code)) => code,
        _ => "",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
