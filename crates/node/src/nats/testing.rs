//! A NATS server for tests: a test sees what the node sends, in order, and says what the node gets.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use nowserving_engine::{Input, Subscription};
use nowserving_front::gather;
use nowserving_front::limits::KnownRules;
use nowserving_front::parse::Parser;
use nowserving_front::who::TrustRequestInfo;
use nowserving_protocol::codec::Format;
use nowserving_protocol::keys::ClusterKey;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::gathering::Gathering;
use super::payload_limit::PayloadLimit;
use super::public_keys::PublicKeys;
use super::respond::Responder;
use super::service::Service;
use crate::clock::now;
use crate::keys::Keys;
use crate::shards::to_engine::{NoEngine, ToEngine};

/// The largest payload that this server takes.
pub const MAX_PAYLOAD: usize = 4_096;
/// The number of shards of the service's cluster.
pub const SHARDS: u32 = 16;
const FENCE: &str = "fence";

/// What the node sends to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Subscribe {
        subject: String,
        in_group: bool,
        sid: u64,
    },
    Unsubscribe {
        sid: u64,
    },
    Publish(Published),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub subject: String,
    pub reply: Option<String>,
    /// As they are sent: `name: value` by lines.
    pub headers: Vec<(String, String)>,
    pub payload: Vec<u8>,
}

impl Published {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(it, _)| it == name)?;
        Some(&found.1)
    }

    pub fn json(&self) -> serde_json::Value {
        assert_eq!(Format::of(&self.payload), Format::Json);
        serde_json::from_slice(&self.payload).unwrap()
    }
}

/// The server's end of one connection.
pub struct TestServer {
    pub client: Client,
    sent: mpsc::UnboundedReceiver<Sent>,
    out: mpsc::UnboundedSender<Vec<u8>>,
}

impl TestServer {
    pub async fn start() -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = tokio::spawn(async move { async_nats::connect(address).await.unwrap() });
        let (stream, _) = listener.accept().await.unwrap();
        let (sender, sent) = mpsc::unbounded_channel();
        let out = speak(stream, sender);
        TestServer {
            client: client.await.unwrap(),
            sent,
            out,
        }
    }

    /// The next thing that the node sends.
    pub async fn next(&mut self) -> Sent {
        let next = tokio::time::timeout(Duration::from_secs(20), self.sent.recv());
        next.await.expect("the node sends nothing more").unwrap()
    }

    pub async fn next_published(&mut self) -> Published {
        match self.next().await {
            Sent::Publish(published) => published,
            other => panic!("{other:?}"),
        }
    }

    /// The next subscriptions: `(subject, in a group)` each, and their numbers.
    pub async fn next_subscribed<const N: usize>(&mut self) -> ([(String, bool); N], [u64; N]) {
        let mut all = Vec::new();
        for _ in 0..N {
            match self.next().await {
                Sent::Subscribe {
                    subject,
                    in_group,
                    sid,
                } => all.push(((subject, in_group), sid)),
                other => panic!("{other:?}"),
            }
        }
        let (subjects, sids): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        (subjects.try_into().unwrap(), sids.try_into().unwrap())
    }

    /// All that the node has sent by now.
    pub async fn all_sent(&mut self) -> Vec<Sent> {
        self.client.publish(FENCE, "".into()).await.unwrap();
        let mut all = Vec::new();
        loop {
            match self.next().await {
                Sent::Publish(it) if it.subject == FENCE => return all,
                other => all.push(other),
            }
        }
    }

    /// Gives the node a message by one of its subscriptions.
    pub fn deliver(&self, sid: u64, subject: &str, reply: &str, payload: &[u8]) {
        let head = format!("MSG {subject} {sid} {reply} {}\r\n", payload.len());
        self.write(&[head.as_bytes(), payload, b"\r\n"].concat());
    }

    /// [`TestServer::deliver`], with a block of headers as on the wire, without its end.
    pub fn deliver_with_headers(&self, sid: u64, subject: &str, headers: &str, payload: &[u8]) {
        let headers = format!("{headers}\r\n\r\n");
        let (head, all) = (headers.len(), headers.len() + payload.len());
        let line = format!("HMSG {subject} {sid} {head} {all}\r\n{headers}");
        self.write(&[line.as_bytes(), payload, b"\r\n"].concat());
    }

    fn write(&self, bytes: &[u8]) {
        self.out.send(bytes.to_vec()).unwrap();
    }
}

/// Reads and writes on tasks of their own, and answers pings.
fn speak(stream: TcpStream, sent: mpsc::UnboundedSender<Sent>) -> mpsc::UnboundedSender<Vec<u8>> {
    let (read, mut write) = stream.into_split();
    let (out, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
    let info = format!(
        "INFO {{\"server_id\":\"test\",\"version\":\"2.10.0\",\"proto\":1,\"headers\":true,\"max_payload\":{MAX_PAYLOAD}}}\r\n"
    );
    out.send(info.into_bytes()).unwrap();
    tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            if write.write_all(&line).await.is_err() {
                return;
            }
        }
    });
    let pongs = out.clone();
    tokio::spawn(async move {
        let mut read = BufReader::new(read);
        let mut line = String::new();
        while read.read_line(&mut line).await.is_ok_and(|count| count > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let known = match words.as_slice() {
                ["PING"] => pongs.send(b"PONG\r\n".to_vec()).is_ok(),
                ["CONNECT", ..] | ["PONG"] => true,
                words => match parsed(words, &mut read).await {
                    Some(it) => sent.send(it).is_ok(),
                    None => panic!("the node sent {line:?}"),
                },
            };
            if !known {
                return;
            }
            line.clear();
        }
    });
    out
}

async fn parsed(words: &[&str], read: &mut BufReader<OwnedReadHalf>) -> Option<Sent> {
    let (subject, reply, head, all) = match *words {
        ["SUB", subject, sid] => return subscribe(subject, false, sid),
        ["SUB", subject, _, sid] => return subscribe(subject, true, sid),
        ["UNSUB", sid, ..] => {
            return Some(Sent::Unsubscribe {
                sid: sid.parse().ok()?,
            });
        }
        ["PUB", subject, all] => (subject, None, "0", all),
        ["PUB", subject, reply, all] => (subject, Some(reply.to_owned()), "0", all),
        ["HPUB", subject, head, all] => (subject, None, head, all),
        ["HPUB", subject, reply, head, all] => (subject, Some(reply.to_owned()), head, all),
        _ => return None,
    };
    let (head, all): (usize, usize) = (head.parse().ok()?, all.parse().ok()?);
    let mut bytes = vec![0; all + 2];
    read.read_exact(&mut bytes).await.ok()?;
    let headers = String::from_utf8(bytes.get(..head)?.to_vec()).ok()?;
    let headers = headers.lines().filter_map(|line| line.split_once(':'));
    Some(Sent::Publish(Published {
        subject: subject.to_owned(),
        reply,
        headers: headers
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect(),
        payload: bytes.get(head..all)?.to_vec(),
    }))
}

fn subscribe(subject: &str, in_group: bool, sid: &str) -> Option<Sent> {
    Some(Sent::Subscribe {
        subject: subject.to_owned(),
        in_group,
        sid: sid.parse().ok()?,
    })
}

pub fn config() -> gather::Config {
    let subjects = Subjects::default();
    gather::Config {
        forward: nowserving_front::forward::subjects(&subjects).unwrap(),
        subjects,
        shards: SHARDS,
        me: 1,
        trust: TrustRequestInfo(false),
        seed: 7,
        since_ms: 0,
    }
}

/// In place of an engine, and what it is given. It has ended when its end is dropped.
pub fn engine() -> (ToEngine, mpsc::UnboundedReceiver<Input>) {
    let (given, inbox) = mpsc::unbounded_channel();
    let give = move |input| {
        let given = given.send(input);
        given.map_err(|error| NoEngine(Box::new(error.0)))
    };
    (ToEngine::new(give), inbox)
}

/// The next input, within a while.
pub async fn next(inbox: &mut mpsc::UnboundedReceiver<Input>) -> Input {
    let next = tokio::time::timeout(Duration::from_secs(20), inbox.recv());
    next.await.unwrap().unwrap()
}

/// A service on a [`TestServer`], and the ends of its channels that the rest of the node holds.
pub struct TestService {
    pub server: TestServer,
    pub service: Service,
    pub inbox: mpsc::UnboundedReceiver<Input>,
    pub subscriptions: watch::Sender<BTreeMap<u32, Subscription>>,
    // Held: without it the subscriptions would be those of a node that ends.
    _probed: watch::Sender<Micros>,
}

impl TestService {
    /// It knows that there are no rules of limits.
    pub async fn start() -> TestService {
        let server = TestServer::start().await;
        let trust = TrustRequestInfo(false);
        let parser = Parser::new(Subjects::default(), SHARDS, trust).unwrap();
        let (engine, inbox) = engine();
        let gathering = Arc::new(Gathering::new(config(), engine.clone()));
        let keys = Keys::new(ClusterKey::new([7; 32]).into(), None).unwrap();
        let responder = Responder {
            client: server.client.clone(),
            limit: PayloadLimit::of(&server.client),
            subjects: Subjects::default(),
            keys,
            cluster: "test".into(),
            stats: Arc::default(),
            backups: Arc::default(),
            gathering,
        };
        let rules: Arc<KnownRules> = Arc::default();
        let learnt = rules.clone();
        responder.gather(|it| it.learn(learnt, now())).await;
        let (subscriptions, wanted) = watch::channel(BTreeMap::new());
        let (_probed, echoes) = watch::channel(0);
        let service = Service {
            client: server.client.clone(),
            parser: Arc::new(parser),
            engine,
            public_keys: PublicKeys::new(responder.clone()),
            responder,
            known: watch::channel(Some(rules)).1,
            subscriptions: wanted,
            probed: echoes,
        };
        TestService {
            server,
            service,
            inbox,
            subscriptions,
            _probed,
        }
    }

    /// The next request that is given to the engine.
    pub async fn next_input(&mut self) -> Input {
        next(&mut self.inbox).await
    }
}
