//! Key-values, by raw requests in both formats and by the command.

pub mod crash;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::HeaderMap;
use futures::StreamExt;
use nowserving_e2e::{Api, Cli, Options, Scenarios, eventually, number, run};
use nowserving_line::LineName;
use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{ERROR_CODE_HEADER, REQUEST_ID_HEADER};
use nowserving_protocol::kv::{
    KvGet, KvGetReply, KvKey, KvPut, KvReply, KvValue, key_hash, kv_shard_of,
};
use nowserving_protocol::user::Consistency;
use serde::Serialize;
use serde_json::{Value, json};

/// All that needs no trouble, in one cluster, side by side.
#[tokio::test]
async fn key_values() -> Result<()> {
    run(Options::default(), async |cluster| {
        let cluster = &*cluster;
        let shards = cluster.options().shards;
        let api = cluster.api();
        let plain = |bucket| Kv::new(api, Format::Json, None, bucket);
        let on_shard = |bucket| Kv::new(api, Format::MsgPack, Some(shards), bucket);
        Scenarios::default()
            .with("kv_json", every_operation(plain("json")?))
            .with("kv_msgpack", every_operation(on_shard("msgpack")?))
            .with(
                "kv_expiry",
                expiry_and_events(api.clone(), on_shard("expiry")?),
            )
            .with("kv_command", by_command(Cli::new(cluster.nats.url())))
            .run()
            .await
    })
    .await
}

/// A leader dies, and few entries make a snapshot.
#[tokio::test]
async fn key_values_survive_a_crash() -> Result<()> {
    let options = Options {
        shards: 1,
        snapshot_entries: 100,
        ..Options::default()
    };
    run(options, crash::of_a_leader).await
}

#[tokio::test]
async fn key_values_come_back_from_a_backup() -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, crash::backup).await
}

const PATIENCE: Duration = Duration::from_secs(30);

/// The key-values of a bucket, asked for by hand.
#[derive(Clone)]
pub struct Kv {
    nats: async_nats::Client,
    format: Format,
    bucket: LineName,
    /// Requests go to the leader of the key's shard, of so many; `None`: to any node.
    shards: Option<u32>,
}

impl Kv {
    pub fn new(api: &Api, format: Format, shards: Option<u32>, bucket: &str) -> Result<Kv> {
        Ok(Kv {
            nats: api.client().clone(),
            format,
            bucket: LineName::try_from(bucket).ok().context("a bucket")?,
            shards,
        })
    }

    fn subject(&self, key: &str, op: &str) -> String {
        let bucket = self.bucket.as_str();
        match self.shards.filter(|_| op != "list") {
            Some(shards) => {
                let shard = kv_shard_of(&self.bucket, key, shards);
                format!("nowserving.shard.{shard}.kv.{bucket}.{op}")
            }
            None => format!("nowserving.kv.{bucket}.{op}"),
        }
    }

    /// One request; `None`: no answer, or none that says what happened.
    async fn ask_once(
        &self,
        subject: &str,
        payload: &[u8],
        id: &str,
    ) -> Result<Option<Result<Vec<u8>, ApiError>>> {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID_HEADER, id);
        let request = async_nats::Request::new()
            .payload(payload.to_vec().into())
            .headers(headers)
            .timeout(Some(Duration::from_secs(3)));
        let Ok(message) = self.nats.send_request(subject.to_owned(), request).await else {
            return Ok(None);
        };
        let is_error = message.headers.as_ref();
        let is_error = is_error.is_some_and(|it| it.get(ERROR_CODE_HEADER).is_some());
        ensure!(
            Format::of(&message.payload) == self.format,
            "another format: {message:?}"
        );
        if !is_error {
            return Ok(Some(Ok(message.payload.to_vec())));
        }
        let ErrorReply { error } = decode(&message.payload)?;
        let passes = matches!(
            error.code,
            Code::Unavailable | Code::NotLeader | Code::Overloaded | Code::OutcomeUnknown
        );
        Ok((!passes).then_some(Err(error)))
    }

    pub async fn call<R: Payload>(
        &self,
        key: &str,
        op: &str,
        body: &impl Serialize,
    ) -> Result<Result<R, ApiError>> {
        Ok(match self.ask(key, op, body).await? {
            Ok(payload) => Ok(decode(&payload)?),
            Err(error) => Err(error),
        })
    }

    /// Repeats the request until it is answered, with one id.
    async fn ask(
        &self,
        key: &str,
        op: &str,
        body: &impl Serialize,
    ) -> Result<Result<Vec<u8>, ApiError>> {
        let subject = self.subject(key, op);
        let (payload, id) = (encode(body, self.format), unique());
        let answer = eventually(&subject, PATIENCE, async || {
            self.ask_once(&subject, &payload, &id).await
        });
        answer.await
    }

    async fn refused(&self, key: &str, op: &str, body: Value, code: Code) -> Result<ApiError> {
        match self.call::<KvReply>(key, op, &body).await? {
            Err(error) if error.code == code => Ok(error),
            other => bail!("{op} {key}: {other:?} instead of {code}"),
        }
    }

    pub async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<u64> {
        Ok(self.put_if(key, value, None).await??)
    }

    pub async fn put_if(
        &self,
        key: &str,
        value: impl Into<Vec<u8>>,
        if_revision: Option<u64>,
    ) -> Result<Result<u64, ApiError>> {
        let put = KvPut {
            key: KvKey::new(key)?,
            value: KvValue::new(value.into())?,
            if_revision,
            ttl_ms: None,
        };
        let done = self.call::<KvReply>(key, "put", &put).await?;
        Ok(done.map(|done| done.revision))
    }

    pub async fn get(&self, key: &str, consistency: Option<Consistency>) -> Result<KvGetReply> {
        let get = KvGet {
            key: KvKey::new(key)?,
            consistency,
        };
        Ok(self.call(key, "get", &get).await??)
    }
}

fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "kv-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

pub async fn every_operation(kv: Kv) -> Result<()> {
    let first = kv.put("order", "one").await?;
    for consistency in [None, Some(Consistency::Linearizable)] {
        let got = kv.get("order", consistency).await?;
        let shown = (got.key.as_str(), got.value.as_bytes(), got.revision);
        ensure!(shown == ("order", &b"one"[..], first), "{got:?}");
        ensure!(got.expires_in_ms.is_none(), "{got:?}");
    }
    eventually("any node has it", PATIENCE, async || {
        let get = json!({"key": "order", "consistency": "local"});
        let got = kv.call::<KvGetReply>("order", "get", &get).await?;
        Ok(got.ok().filter(|got| got.revision == first))
    })
    .await?;
    let second = kv.put_if("order", "two", Some(first)).await??;
    ensure!(second > first, "{second} after {first}");
    kv.refused(
        "order",
        "put",
        json!({"key": "order", "value": "", "if_revision": first}),
        Code::VersionConflict,
    )
    .await?;
    kv.refused(
        "order",
        "put",
        json!({"key": "order", "value": "", "if_revision": 0}),
        Code::VersionConflict,
    )
    .await?;
    kv.refused(
        "order",
        "delete",
        json!({"key": "order", "if_revision": first}),
        Code::VersionConflict,
    )
    .await?;
    let deleted: KvReply = kv
        .call(
            "order",
            "delete",
            &json!({"key": "order", "if_revision": second}),
        )
        .await??;
    ensure!(deleted.revision > second, "{deleted:?}");
    for op in ["get", "delete"] {
        kv.refused("order", op, json!({"key": "order"}), Code::KeyNotFound)
            .await?;
    }
    let again = kv.put_if("order", "three", Some(0)).await??;
    ensure!(again > deleted.revision, "{again} after {deleted:?}");
    let bytes = json!({"key": "bytes", "value_base64": "/wA="});
    kv.call::<KvReply>("bytes", "put", &bytes).await??;
    let got = kv.get("bytes", None).await?;
    ensure!(got.value.as_bytes() == [0xff, 0], "{got:?}");
    // Bytes that are no text, and the longest there may be.
    let longest: Vec<u8> = (0..10_240_u32).map(|n| n as u8).collect();
    if kv.format == Format::MsgPack {
        kv.put("binary", longest.clone()).await?;
        let got = kv.get("binary", None).await?;
        ensure!(got.value.as_bytes() == longest, "another value");
        let in_json = Kv {
            format: Format::Json,
            ..kv.clone()
        };
        let get = json!({"key": "binary"});
        let got = in_json.ask("binary", "get", &get).await??;
        let json: Value = serde_json::from_slice(&got)?;
        ensure!(
            json.get("value").is_none() && json["value_base64"].is_string(),
            "{json}"
        );
    }
    let long_key = "k".repeat(512);
    kv.put(&long_key, "\u{1}".repeat(10_240)).await?;
    ensure!(kv.get(&long_key, None).await?.value.as_bytes().len() == 10_240);
    Ok(())
}

/// Keys expire without any other request, and subscribers are told.
pub async fn expiry_and_events(api: Api, kv: Kv) -> Result<()> {
    let bucket = kv.bucket.as_str();
    let subject = format!("nowserving.event.kv.{bucket}.{}", key_hash("short"));
    let mut events = api.subscribe(subject).await?;
    let put = json!({"key": "short", "value": "secret", "ttl_ms": 400});
    let done: KvReply = kv.call("short", "put", &put).await??;
    kv.put("other", "v").await?;
    let mut seen = Vec::new();
    for expected in ["put", "expired"] {
        let message = tokio::time::timeout(PATIENCE, events.next()).await?;
        let event: Value = serde_json::from_slice(&message.context("an event")?.payload)?;
        ensure!(event["event"] == expected, "{event}");
        let of = (&event["bucket"], &event["key"]);
        ensure!(of == (&json!(bucket), &json!("short")), "{event}");
        ensure!(event.get("value").is_none() && number(&event, "at_ms")? > 0);
        seen.push(number(&event, "revision")?);
    }
    ensure!(seen[0] == done.revision && seen[1] > seen[0], "{seen:?}");
    kv.refused("short", "get", json!({"key": "short"}), Code::KeyNotFound)
        .await?;
    let again = kv.put_if("short", "v", Some(0)).await??;
    ensure!(again > seen[1], "{again} after {seen:?}");
    let deleted: KvReply = kv
        .call("short", "delete", &json!({"key": "short"}))
        .await??;
    for (expected, revision) in [("put", again), ("deleted", deleted.revision)] {
        let message = tokio::time::timeout(PATIENCE, events.next()).await?;
        let event: Value = serde_json::from_slice(&message.context("an event")?.payload)?;
        let shown = (event["event"].as_str(), event["revision"].as_u64());
        ensure!(shown == (Some(expected), Some(revision)), "{event}");
    }
    // A key that has long to live shows what is left.
    let long = json!({"key": "long", "value": "", "ttl_ms": 3_600_000});
    kv.call::<KvReply>("long", "put", &long).await??;
    let left = kv.get("long", None).await?.expires_in_ms;
    ensure!(
        left.is_some_and(|ms| (3_000_000..=3_600_000).contains(&ms)),
        "{left:?}"
    );
    Ok(())
}

/// `nowserving kv put|get|delete|list`, and by way of it the SDK.
pub async fn by_command(cli: Cli) -> Result<()> {
    let run = async |words: &str| cli.run(&words.split(' ').collect::<Vec<_>>()).await;
    let put = run("kv put cli k one --ttl 1h").await?.done()?;
    let got = run("kv get cli k").await?.done()?;
    ensure!(
        got["value"] == "one" && got["revision"] == put["revision"],
        "{got}"
    );
    ensure!(number(&got, "expires_in_ms")? <= 3_600_000, "{got}");
    let got = run("kv get cli k --consistency linearizable")
        .await?
        .done()?;
    ensure!(got["value"] == "one", "{got}");
    let text = cli.run_as_text(&["kv", "put", "cli", "k", "two"]).await?;
    ensure!(text.stderr.is_empty() && text.code == 0, "{}", text.stderr);
    run("kv put cli k three --if-revision 1")
        .await?
        .failed(1, "version_conflict")?;
    run("kv put cli k three --if-revision 0")
        .await?
        .failed(1, "version_conflict")?;
    eventually("any node lists it", PATIENCE, async || {
        let listed = run("kv list cli k").await?.done()?;
        Ok((listed["entries"][0]["key"] == "k").then_some(()))
    })
    .await?;
    let deleted = run("kv delete cli k").await?.done()?;
    ensure!(
        number(&deleted, "revision")? > number(&put, "revision")?,
        "{deleted}"
    );
    for words in ["kv get cli k", "kv delete cli k"] {
        run(words).await?.failed(1, "key_not_found")?;
    }
    let long = "v".repeat(10_241);
    run(&format!("kv put cli k {long}"))
        .await?
        .failed(2, "bad_request")?;
    run("kv get a.b k").await?.failed(2, "bad_request")?;
    Ok(())
}
