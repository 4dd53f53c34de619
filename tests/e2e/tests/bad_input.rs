//! Invalid payloads and tickets: each is answered with an error that names the fault,
//! and other clients notice nothing.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, Format, HOUR_MS};
use nowserving_protocol::error::Code;
use serde_json::json;

pub async fn payloads(cluster: &Cluster) -> Result<()> {
    let line = "bad-payloads";
    let api = cluster.api();
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 100}))
        .await?;
    let ticket = api.enter(line, "somebody").await?["ticket"].clone();
    let ticket = ticket.as_str().context("ticket")?;
    let epoch = api.ok(line, "claim", json!({"ticket": ticket})).await?["epoch"].clone();

    for (op, payload) in bad_json(ticket).into_iter().chain(bad_msgpack(ticket)) {
        // As the contract says it.
        let format = match payload.first() {
            Some(0x80..=0x8f | 0xde | 0xdf) => Format::MsgPack,
            _ => Format::Json,
        };
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(80)]).into_owned();
        let subject = format!("nowserving.line.{line}.{op}");
        let reply = api.call_subject(&subject, payload).await;
        let error = reply.and_then(|reply| reply.refused(format, Code::BadRequest));
        error.with_context(|| format!("{op} {shown:?}"))?;
    }

    // An empty payload is an empty map: enough to ask about the line, but not to enter it.
    let subject = format!("nowserving.line.{line}.info");
    let info = api.call_subject(&subject, Vec::new()).await?;
    ensure!(info.code.is_none(), "{}", info.body);
    ensure!(info.format == Format::Json);
    let subject = format!("nowserving.line.{line}.enter");
    let entered = api.call_subject(&subject, Vec::new()).await?;
    ensure!(
        entered.code.as_deref() == Some("bad_request"),
        "{}",
        entered.body
    );
    // At the limit of NATS's payload size, nearly all of it in a field of its own.
    let mut large = br#"{"key":"large","x_filling":""#.to_vec();
    large.resize(1024 * 1024 - 2, b'x');
    large.extend_from_slice(b"\"}");
    let entered = api.call_subject(&subject, large).await?;
    ensure!(entered.code.is_none() || entered.code.as_deref() == Some("bad_request"));

    // None of it has changed the token that was there.
    let status = api.status(line, &json!(ticket)).await?;
    ensure!(
        status["state"] == "in_checkout" && status["epoch"] == epoch,
        "{status}"
    );
    Ok(())
}

fn bad_json(ticket: &str) -> Vec<(&'static str, Vec<u8>)> {
    let deep = format!(
        "{{\"key\":\"a\",\"x\":{}{}}}",
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    let texts = [
        ("enter", "{".to_owned()),
        ("enter", "{}{}".to_owned()),
        ("enter", "key=a".to_owned()),
        ("enter", "[1]".to_owned()),
        ("enter", " \n".to_owned()),
        ("enter", "{\"key\":\"a\"} trailing".to_owned()),
        ("enter", deep),
        ("enter", "{\"key\":\"a\",\"key\":\"b\"}".to_owned()),
        ("enter", "{\"key\":\"\"}".to_owned()),
        ("enter", format!("{{\"key\":\"{}\"}}", "k".repeat(129))),
        ("enter", "{\"key\":1}".to_owned()),
        ("enter", "{\"key\":[\"a\"]}".to_owned()),
        ("enter", "{}".to_owned()),
        ("enter", "{\"kee\":\"a\"}".to_owned()),
        ("enter", "{\"key\":\"a\",\"lanes\":\"vip\"}".to_owned()),
        ("enter", "{\"key\":\"a\",\"anonymous\":true}".to_owned()),
        ("enter", "{\"key\":\"a\",\"lane\":\"nope\"}".to_owned()),
        ("enter", "{\"key\":\"a\",\"lane\":\"a.b\"}".to_owned()),
        ("enter", "{\"key\":\"\\ud800\"}".to_owned()),
        ("find", "{}".to_owned()),
        ("status", "{}".to_owned()),
        ("status", "{\"ticket\":7}".to_owned()),
        (
            "status",
            format!("{{\"ticket\":\"{ticket}\",\"consistency\":\"psychic\"}}"),
        ),
        (
            "status",
            format!("{{\"ticket\":\"{ticket}\",\"holes\":\"yes\"}}"),
        ),
        ("renew", format!("{{\"ticket\":\"{ticket}\"}}")),
        ("renew", format!("{{\"ticket\":\"{ticket}\",\"epoch\":-1}}")),
        (
            "renew",
            format!("{{\"ticket\":\"{ticket}\",\"epoch\":1.5}}"),
        ),
        (
            "renew",
            format!("{{\"ticket\":\"{ticket}\",\"epoch\":NaN}}"),
        ),
        (
            "renew",
            format!("{{\"ticket\":\"{ticket}\",\"epoch\":9007199254740993}}"),
        ),
        (
            "renew",
            format!("{{\"ticket\":\"{ticket}\",\"epoch\":1e400}}"),
        ),
        (
            "renew",
            format!("{{\"ticket\":\"{ticket}\",\"epoch\":\"1\"}}"),
        ),
    ];
    let mut all: Vec<_> = texts
        .into_iter()
        .map(|(op, text)| (op, text.into_bytes()))
        .collect();
    all.push(("enter", b"{\"key\":\"\xff\xfe\"}".to_vec()));
    all
}

fn bad_msgpack(ticket: &str) -> Vec<(&'static str, Vec<u8>)> {
    // {"key": …, …}: a map of one and its key, ready for a value.
    let key = |value: &[u8]| [b"\x81\xa3key", value].concat();
    let epoch = |value: &[u8]| {
        let length = u8::try_from(ticket.len()).unwrap_or(u8::MAX);
        [
            b"\x82\xa6ticket\xd9",
            [length].as_slice(),
            ticket.as_bytes(),
            b"\xa5epoch",
            value,
        ]
        .concat()
    };
    let mut deep = b"\x82\xa3key\xa1a\xa1x".to_vec();
    deep.extend(std::iter::repeat_n(0x91, 50_000));
    deep.push(0xc0);
    vec![
        ("enter", vec![0xc1]),
        ("enter", b"[]".to_vec()),
        ("enter", b"\x00".to_vec()),
        ("enter", b"\xc0".to_vec()),
        ("enter", b"\x90".to_vec()),
        // An array and a map that claim 2³² − 1 elements.
        ("enter", b"\xdd\xff\xff\xff\xff".to_vec()),
        ("enter", b"\xdf\xff\xff\xff\xff".to_vec()),
        ("enter", key(b"\xdd\xff\xff\xff\xff")),
        (
            "enter",
            [b"\x82\xa3key\xa1a\xa1x".as_slice(), b"\xdd\xff\xff\xff\xff"].concat(),
        ),
        // A string and a binary that claim 4 GiB.
        ("enter", key(b"\xdb\xff\xff\xff\xffa")),
        ("enter", key(b"\xc6\xff\xff\xff\xffa")),
        ("enter", deep),
        ("enter", b"\x82\xa3key\xa1a\xa3key\xa1b".to_vec()),
        ("enter", [key(b"\xa1a").as_slice(), b"\xc0"].concat()),
        ("enter", key(b"\xa1\xff\xff")),
        ("enter", key(b"\xc4\x00")),
        ("renew", epoch(b"\xff")),
        ("renew", epoch(b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00")),
        ("renew", epoch(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff")),
    ]
}

pub async fn tickets(cluster: &Cluster) -> Result<()> {
    let (line, other) = ("bad-tickets", "bad-tickets-2");
    let api = cluster.api();
    let settings = json!({"seats": 1, "queue_limit": 100, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings.clone()).await?;
    api.admin(other, "create", settings).await?;
    let good = api.enter(line, "a").await?["ticket"].clone();
    let good = good.as_str().context("ticket")?;
    let foreign = api.enter(other, "a").await?["ticket"].clone();
    let foreign = foreign.as_str().context("ticket")?;

    let mut bad = vec![
        String::new(),
        "nonsense".to_owned(),
        "A".repeat(10_000),
        format!("{good}="),
        format!("{good}A"),
        format!(" {good}"),
        good[..good.len() - 1].to_owned(),
        good.to_ascii_lowercase(),
        foreign.to_owned(),
    ];
    // Each character replaced by another of the alphabet.
    for at in 0..good.len() {
        let mut altered = good.as_bytes().to_vec();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        bad.push(String::from_utf8(altered)?);
    }
    for ticket in &bad {
        for op in ["status", "claim"] {
            let refused = api.refused(line, op, json!({"ticket": ticket}), Code::TicketInvalid);
            refused
                .await
                .with_context(|| format!("{op} with {ticket:.100}"))?;
        }
    }
    // Any node answers `local`, and checks as well.
    let body = json!({"ticket": foreign, "consistency": "local"});
    api.refused(line, "status", body, Code::TicketInvalid)
        .await?;
    // No place has changed.
    ensure!(api.status(line, &json!(good)).await?["state"] == "admitted");
    Ok(())
}
