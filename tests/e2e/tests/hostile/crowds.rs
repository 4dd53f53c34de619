//! Many connections that ask for nothing, for too much, or read nothing of their answers.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Process, allow_open_files, eventually, skipped};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::gates::front::{Gateway, PATIENCE, TICKETS, VIP};
use crate::gates::in_all_cases;
use crate::gates::visitor::{Answer, FROM, Visitor, connect};

/// The gateway takes so much more memory at most, whatever of these comes.
const MORE_KIB_MAX: u64 = 64 * 1024;
/// Of one address; a gateway takes 1,000.
const OF_ONE_ADDRESS: usize = 500;
const WAIT: &str = "/_nowserving/wait?line=vip&to=%2Fvip%2Fa";
const FORM: &str = "line=vip&to=%2Fvip%2Fa";

pub async fn all(gateway: &mut Gateway) -> Result<()> {
    let addr = gateway.addr();
    // What it needs once.
    others_are_served(addr).await?;
    let before = gateway.process().memory_kib()?;
    let bounded = |what: &str, process: &Process| {
        let more = process.memory_kib()?.saturating_sub(before);
        eprintln!("{what}: {more} KiB more");
        ensure!(more <= MORE_KIB_MAX, "{what}: {more} KiB more");
        anyhow::Ok(())
    };

    let open = half_open(addr).await.context("half-open")?;
    others_are_served(addr).await.context("while half-open")?;
    bounded("half-open", gateway.process())?;
    drop(open);

    large_headers(gateway).await.context("large headers")?;
    others_are_served(addr).await.context("large headers")?;
    bounded("large headers", gateway.process())?;

    let slow = slow_readers(addr).await.context("slow readers")?;
    others_are_served(addr).await.context("slow readers")?;
    bounded("slow readers", gateway.process())?;
    drop(slow);
    others_are_served(addr).await
}

/// Three come; the first one leaves, the second one gets the seat, and the third one's place moves, as its stream says.
async fn others_are_served(addr: SocketAddr) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..3 {
        let mut visitor = Visitor::new(addr);
        let answer = visitor.page(WAIT).await?;
        ensure!(answer.page().as_deref() == Some("enter"), "{answer:?}");
        redirected(&visitor.post("/_nowserving/enter", FORM).await?)?;
        all.push(visitor);
    }
    let [first, second, third] = &mut all[..] else {
        anyhow::bail!("three visitors");
    };
    ensure!(status(first).await?["page"] == "admitted");
    for (visitor, position) in [(&mut *second, 1), (&mut *third, 2)] {
        let status = status(visitor).await?;
        ensure!(
            status["page"] == "waiting" && status["position"] == position,
            "{status}"
        );
    }
    let events = format!("/_nowserving/v1/lines/{VIP}/events");
    let mut stream = third.stream(&events).await?;
    stream.until("\"position\":2").await?;
    redirected(&first.post("/_nowserving/leave", FORM).await?)?;
    stream.until("\"position\":1").await?;
    eventually("the next one is admitted", PATIENCE, async || {
        Ok((status(second).await?["page"] == "admitted").then_some(()))
    })
    .await?;
    for visitor in [third, second] {
        redirected(&visitor.post("/_nowserving/leave", FORM).await?)?;
    }
    Ok(())
}

fn redirected(answer: &Answer) -> Result<()> {
    ensure!(answer.status == 303, "{answer:?}");
    Ok(())
}

async fn status(visitor: &mut Visitor) -> Result<Value> {
    let path = format!("/_nowserving/v1/lines/{VIP}/status");
    let answer = visitor.fetch(&path, None).await?;
    ensure!(answer.status == 200, "{answer:?}");
    Ok(serde_json::from_str(&answer.body)?)
}

/// Requests whose headers never end.
async fn half_open(addr: SocketAddr) -> Result<Vec<TcpStream>> {
    let count = match in_all_cases() {
        true => 10_000,
        false => 2_000,
    };
    if !allow_open_files(count as u64 + 500)? {
        skipped(
            "hostile: half-open",
            "this process may not open as many files",
        )?;
        return Ok(Vec::new());
    }
    let mut open = Vec::with_capacity(count);
    for nth in 0..count {
        let host = u8::try_from(1 + nth / OF_ONE_ADDRESS)?;
        let mut stream = connect(Ipv4Addr::new(127, 0, 1, host), addr).await?;
        let half = b"GET /_nowserving/wait?line=vip HTTP/1.1\r\nHost: shop.example\r\nX-Half: ";
        // It may be closed already: those that say nothing make room for others.
        let _ = stream.write_all(half).await;
        open.push(stream);
    }
    Ok(open)
}

/// Each is refused with 431 before its end has come, and its connection ends. The gateway does not even for a moment have
/// them in memory.
async fn large_headers(gateway: &Gateway) -> Result<()> {
    const AT_ONCE: u64 = 100;
    const KIB: u64 = 1_024;
    const PEAK_KIB_MAX: u64 = AT_ONCE * KIB / 4;
    let addr = gateway.addr();
    let refused = async || {
        let mut stream = connect(FROM, addr).await?;
        let (mut reads, mut writes) = stream.split();
        let large = "x".repeat(KIB as usize * 1_024);
        let request = format!("GET {WAIT} HTTP/1.1\r\nHost: shop.example\r\nX: {large}");
        let send = writes.write_all(request.as_bytes());
        let receive = async {
            let mut answer = Vec::new();
            // After a reset, what came before it counts.
            let _ = reads.read_to_end(&mut answer).await;
            answer
        };
        let both = async { tokio::join!(send, receive).1 };
        let answer = tokio::time::timeout(PATIENCE, both).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        ensure!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
        ensure!(answer.matches("HTTP/1.1").count() == 1, "{answer:?}");
        anyhow::Ok(())
    };
    let process = gateway.process();
    process.begin_memory_peak()?;
    let before = process.memory_kib()?;
    for _ in 0..3 {
        futures::future::try_join_all((0..AT_ONCE).map(|_| refused())).await?;
    }
    let more = process.memory_peak_kib()?.saturating_sub(before);
    eprintln!("large headers: {more} KiB more at the peak");
    ensure!(more <= PEAK_KIB_MAX, "{more} KiB more at the peak");
    Ok(())
}

/// Many requests on each connection, and streams, whose answers nobody reads.
async fn slow_readers(addr: SocketAddr) -> Result<Vec<TcpStream>> {
    const CONNECTIONS: usize = 100;
    const REQUESTS: usize = 100;
    const VISITORS: usize = 5;
    const STREAMS: usize = 8;
    let mut open = Vec::new();
    let page = format!("GET {WAIT} HTTP/1.1\r\nHost: shop.example\r\nAccept: text/html\r\n\r\n");
    for _ in 0..CONNECTIONS {
        open.push(silent_reader(addr, page.repeat(REQUESTS).as_bytes()).await?);
    }
    for _ in 0..VISITORS {
        let mut visitor = Visitor::new(addr);
        let to = format!("/_nowserving/wait?line={TICKETS}&to=%2Ftickets%2Fa");
        visitor.page(&to).await?;
        let form = format!("line={TICKETS}&to=%2Ftickets%2Fa");
        redirected(&visitor.post("/_nowserving/enter", &form).await?)?;
        let (name, ticket) = visitor
            .cookies
            .iter()
            .find(|(name, _)| name.ends_with(TICKETS))
            .context("a ticket")?;
        let events = format!(
            "GET /_nowserving/v1/lines/{TICKETS}/events HTTP/1.1\r\nHost: shop.example\r\n\
             Cookie: {name}={ticket}\r\n\r\n"
        );
        for _ in 0..STREAMS {
            open.push(silent_reader(addr, events.as_bytes()).await?);
        }
    }
    Ok(open)
}

/// Sends this, and reads nothing.
async fn silent_reader(addr: SocketAddr, bytes: &[u8]) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4_096)?;
    socket.bind(SocketAddr::from((FROM, 0)))?;
    let mut stream = socket.connect(addr).await?;
    stream.write_all(bytes).await?;
    Ok(stream)
}
