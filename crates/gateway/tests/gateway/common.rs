//! Gateways to ask, and a client that sends what it is told to.

use std::net::SocketAddr;
use std::time::Duration;

use nowserving_client::{Client, ClientOptions};
use nowserving_gateway::{Config, LineRule, Secret, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(20);
pub const HTML: (&str, &str) = ("Accept", "text/html,*/*;q=0.8");

/// A gateway that runs.
pub struct Gateway {
    pub addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Gateway {
    /// For the line `sale` on all paths below `/checkout`, with cookies that need no HTTPS.
    pub async fn start(nats: &str, change: impl FnOnce(&mut Config)) -> Gateway {
        let mut rule = LineRule::new("sale".parse().unwrap());
        rule.paths = vec!["/checkout/*".parse().unwrap()];
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(listen, Secret::from([7; 32]), vec![rule]);
        config.insecure_cookies = true;
        config.patience_ms = 500;
        change(&mut config);
        let mut options = ClientOptions::default();
        options.connect_in_background = true;
        let client = Client::connect_with(nats, options).await.unwrap();
        let server = Server::bind(config, client).await.unwrap();
        let addr = server.addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let stop = Some(stop);
        Gateway { addr, stop, task }
    }

    /// Where no NATS is.
    pub async fn without_cluster(change: impl FnOnce(&mut Config)) -> Gateway {
        Gateway::start("nats://127.0.0.1:1", change).await
    }

    /// Waits until it has found its line.
    pub async fn ready(&self) {
        let mut said = String::new();
        let ready = async {
            loop {
                let answer = self.get("/readyz", &[]).await;
                if answer.status == 200 {
                    break;
                }
                said = answer.body;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        ready.unwrap_or_else(|_| panic!("{said}"));
    }

    /// Waits until `/readyz` says why it is not.
    pub async fn unready(&self, why: &str) {
        let mut said = String::new();
        let unready = async {
            while !said.contains(why) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                said = self.get("/readyz", &[]).await.body;
            }
        };
        let unready = tokio::time::timeout(PATIENCE, unready).await;
        unready.unwrap_or_else(|_| panic!("{said}"));
        let answer = self.get("/readyz", &[]).await;
        assert_eq!(answer.status, 503, "{}", answer.body);
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, "").await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        self.ask("POST", path, headers, form).await
    }

    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            let length = body.len();
            request += "Content-Type: application/x-www-form-urlencoded\r\n";
            request += &format!("Content-Length: {length}\r\n");
        }
        Answer::read(&self.raw(format!("{request}\r\n{body}").as_bytes()).await)
    }

    /// Sends these bytes, and reads until the gateway closes the connection.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.addr).await.unwrap();
        // It may close before it has read all.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        // After a reset, what came before it counts.
        let _ = read.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Ends it, and waits for that.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    fn read(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").expect("headers");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines.filter_map(|line| line.split_once(": "));
        Answer {
            status: status
                .and_then(|status| status.parse().ok())
                .expect("a status"),
            headers: headers
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(it, _)| it == name)
            .map(|(_, value)| value.as_str())
    }

    /// The state of a page or of data.
    pub fn page(&self) -> String {
        let json = match self.body.split_once("data-page='") {
            Some((_, rest)) => rest.split('\'').next().unwrap(),
            None => &self.body,
        };
        let data: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        data["page"].as_str().unwrap_or_default().to_owned()
    }

    /// What stands between a name of a cookie that it sets and `;`.
    pub fn cookie(&self, name: &str) -> Option<String> {
        let set = self.headers.iter().filter(|(it, _)| it == "set-cookie");
        let mut pairs = set.filter_map(|(_, value)| value.split(';').next()?.split_once('='));
        pairs
            .find(|(it, _)| *it == name)
            .map(|(_, value)| value.to_owned())
    }
}

/// The cookies of a browser.
#[derive(Default, Clone)]
pub struct Jar(Vec<(String, String)>);

impl Jar {
    /// Keeps what an answer sets.
    pub fn take(&mut self, answer: &Answer) {
        for (_, value) in answer.headers.iter().filter(|(it, _)| it == "set-cookie") {
            let (name, kept) = value.split(';').next().unwrap().split_once('=').unwrap();
            self.0.retain(|(it, _)| it != name);
            if !value.contains("Max-Age=0") {
                self.0.push((name.to_owned(), kept.to_owned()));
            }
        }
    }

    pub fn header(&self) -> String {
        let pairs = self.0.iter().map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(it, _)| it == name)
    }
}
