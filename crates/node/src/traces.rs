//! Spans of requests whose sender records a trace (`traceparent`), sent to a collector by OTLP.
//!
//! One span a request and node: from reading it to handing its answer to NATS. A node that forwards a request is the
//! parent of the leader's span. There is one exporter a process, as there is one recorder of metrics. It has a thread and
//! a bounded queue of its own: when that is full, spans are dropped.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use async_nats::HeaderMap;
use nowserving_engine::ReplyTo;
use nowserving_protocol::header::{TRACEPARENT_HEADER, TraceContext};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfig, BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor as _,
};
use tokio::sync::oneshot;

use crate::clock::monotonic_us;
use crate::config::Config;
use crate::data_dir::random_u64;

/// A node that ends waits this long for a collector.
const FLUSH_MAX: Duration = Duration::from_secs(2);

static PROCESSOR: OnceLock<BatchSpanProcessor> = OnceLock::new();

/// Which node has answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    Here,
    /// This node has forwarded it.
    ByLeader,
}

/// From now on spans are recorded and sent to the collector at `endpoint`. A collector that is away is tried again
/// with the next spans; those meanwhile are lost.
///
/// # Errors
/// The endpoint is no URL.
pub fn install(endpoint: &str, config: &Config) -> anyhow::Result<()> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .with_context(|| format!("otlp {endpoint}"))?;
    let mut processor = BatchSpanProcessor::new(exporter, BatchConfig::default());
    let resource = Resource::builder_empty()
        .with_service_name("nowserving")
        .with_attributes([
            KeyValue::new("service.namespace", config.cluster.clone()),
            KeyValue::new("service.instance.id", config.id.to_string()),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ])
        .build();
    processor.set_resource(&resource);
    // Only the first node of a process: tests run several.
    let _ = PROCESSOR.set(processor);
    Ok(())
}

/// The trace of a request with these headers; `None` if it has none that is recorded, or if none are recorded here.
#[must_use]
pub fn begun(headers: Option<&HeaderMap>) -> Option<Box<TraceContext>> {
    PROCESSOR.get()?;
    let parent = headers?.get(TRACEPARENT_HEADER)?;
    TraceContext::read(parent.as_str(), random_u64().ok()?).map(Box::new)
}

/// The request's span is over: it is answered with this error code, or `ok`.
pub fn ended(reply: &ReplyTo, code: &'static str, answered: Answered) {
    if let (Some(trace), Some(processor)) = (&reply.trace, PROCESSOR.get()) {
        let took = Duration::from_micros(monotonic_us().saturating_sub(reply.taken));
        processor.on_end(span(trace, reply, code, answered, SystemTime::now(), took));
    }
}

/// Sends the spans that wait to be sent, as the node ends.
pub async fn flush() {
    let Some(processor) = PROCESSOR.get() else {
        return;
    };
    let (flushed, result) = oneshot::channel();
    // It may wait for longer than the node does: a thread of the runtime would hold up the process.
    let thread = std::thread::Builder::new().name("flush spans".into());
    let spawned = thread.spawn(move || {
        // Nobody waits any more.
        let _ = flushed.send(processor.force_flush());
    });
    let sent = match spawned {
        Ok(_) => tokio::time::timeout(FLUSH_MAX, result).await,
        Err(error) => return tracing::warn!(%error, "the last spans are lost"),
    };
    match sent {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the last spans are lost"),
        Ok(Err(_)) | Err(_) => tracing::warn!("the last spans are lost: the collector is too slow"),
    }
}

/// No attribute names a line, a key or a token: spans leave the cluster.
fn span(
    trace: &TraceContext,
    reply: &ReplyTo,
    code: &'static str,
    answered: Answered,
    now: SystemTime,
    took: Duration,
) -> SpanData {
    let span_context = SpanContext::new(
        TraceId::from_bytes(trace.trace_id.to_be_bytes()),
        SpanId::from_bytes(trace.span.to_be_bytes()),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    SpanData {
        span_context,
        parent_span_id: SpanId::from_bytes(trace.parent_span.to_be_bytes()),
        parent_span_is_remote: true,
        span_kind: SpanKind::Server,
        name: format!("nowserving {}", reply.op).into(),
        start_time: now.checked_sub(took).unwrap_or(now),
        end_time: now,
        attributes: vec![
            KeyValue::new("rpc.system", "nats"),
            KeyValue::new("rpc.method", reply.op.name()),
            KeyValue::new("nowserving.code", code),
            KeyValue::new("nowserving.admin", reply.op.is_admin()),
            KeyValue::new("nowserving.forwarded", answered == Answered::ByLeader),
        ],
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: match code {
            "ok" => Status::Unset,
            code => Status::error(code),
        },
        instrumentation_scope: InstrumentationScope::builder("nowserving").build(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::Inbox;
    use nowserving_protocol::codec::Format;

    use super::*;

    #[test]
    fn a_span_is_a_child_of_the_senders() {
        let trace = TraceContext {
            trace_id: 7,
            parent_span: 8,
            span: 9,
        };
        let reply = ReplyTo {
            inbox: Inbox::None,
            format: Format::Json,
            op: nowserving_protocol::operation::Operation::Enter,
            pass: false,
            taken: 0,
            trace: Some(Box::new(trace)),
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        let took = Duration::from_secs(2);
        let it = span(&trace, &reply, "line_full", Answered::Here, now, took);
        assert_eq!(
            it.span_context.trace_id(),
            TraceId::from_bytes(7_u128.to_be_bytes())
        );
        assert_eq!(
            it.span_context.span_id(),
            SpanId::from_bytes(9_u64.to_be_bytes())
        );
        assert_eq!(it.parent_span_id, SpanId::from_bytes(8_u64.to_be_bytes()));
        assert_eq!(it.end_time.duration_since(it.start_time).unwrap(), took);
        assert_eq!(it.status, Status::error("line_full"));
        assert_eq!(it.name, "nowserving enter");
    }

    #[test]
    fn without_a_collector_no_trace_begins() {
        let mut headers = HeaderMap::new();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        headers.insert(TRACEPARENT_HEADER, parent);
        assert_eq!(begun(Some(&headers)), None);
    }
}
