//! A browser before a shop whose proxy asks a gateway: its cookies, and the requests of the waiting page.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;

use super::wire::{Head, Wire, Wish};

/// The host of the shop, as the proxy says it.
const HOST: &str = "shop.example";

/// The gateways, as a load balancer before them would choose.
pub struct Gateways {
    addresses: Vec<SocketAddr>,
    next: AtomicUsize,
}

impl Gateways {
    pub fn new(addresses: Vec<SocketAddr>) -> Gateways {
        Gateways {
            addresses,
            next: AtomicUsize::new(0),
        }
    }

    /// To the next one that takes connections, and which one that is.
    async fn connect(&self) -> io::Result<(Wire, usize)> {
        let mut error = io::Error::from(io::ErrorKind::NotFound);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for nth in 0..self.addresses.len() {
            let next = (first + nth) % self.addresses.len();
            match Wire::open(self.addresses[next]).await {
                Ok(wire) => return Ok((wire, next)),
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }
}

/// One visitor's browser.
pub struct Browser {
    gateways: Arc<Gateways>,
    line: String,
    /// Of the visitor, as the proxy says it.
    address: String,
    cookies: Vec<(String, String)>,
}

/// What the shop learns of a request that was let in.
#[derive(Debug)]
pub struct LetIn {
    pub claims: Claims,
}

/// The claims of a pass. Its signature is checked elsewhere.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Claims {
    pub incarnation: u64,
    pub lane: String,
    pub token: u64,
    pub epoch: u64,
    pub exp: u64,
}

/// The answer to a page of the shop.
pub enum Page {
    LetIn(LetIn),
    /// Sent elsewhere, as after a number that is admitted at once.
    Redirected(String),
    /// The waiting page.
    Held,
}

impl Browser {
    /// `visitor`: a number that no other has.
    pub fn new(gateways: Arc<Gateways>, line: &str, visitor: u32) -> Browser {
        let [_, b, c, d] = visitor.to_be_bytes();
        Browser {
            gateways,
            line: line.to_owned(),
            address: format!("10.{b}.{c}.{d}"),
            cookies: Vec::new(),
        }
    }

    /// The ticket, as the shop behind sees it.
    pub fn ticket(&self) -> Option<&str> {
        let suffix = format!("nowserving-{}", self.line);
        let mut all = self.cookies.iter();
        all.find(|(name, _)| name.ends_with(&suffix))
            .map(|(_, value)| value.as_str())
    }

    /// Somebody else's browser that has the ticket already.
    pub fn take_ticket(&mut self, ticket: &str) {
        let name = format!("__Host-nowserving-{}", self.line);
        self.cookies.push((name, ticket.to_owned()));
    }

    /// A page of the shop is asked for; the proxy asks the gateway first.
    pub async fn visit(&mut self, path: &str) -> io::Result<Page> {
        let wish = Wish::get("/gate/forward")
            .with("X-Forwarded-Method", "GET")
            .with("X-Forwarded-Uri", path);
        let (head, _) = self.ask(navigation(wish)).await?;
        Ok(match head.status {
            200 => Page::LetIn(let_in(&head)?),
            302 | 303 => Page::Redirected(head.header("location").unwrap_or("/").to_owned()),
            _ => Page::Held,
        })
    }

    /// The page sends its form by itself.
    pub async fn enter(&mut self, to: &str) -> io::Result<Head> {
        let body = format!("line={}&to={}", self.line, to.replace('/', "%2F"));
        let mut wish = navigation(Wish::get("/_nowserving/enter"));
        (wish.method, wish.body) = ("POST", body);
        let wish = wish
            .with("Content-Type", "application/x-www-form-urlencoded")
            .with("Sec-Fetch-Site", "same-origin");
        Ok(self.ask(wish).await?.0)
    }

    /// The place is given up by the button.
    pub async fn leave(&mut self) -> io::Result<Head> {
        let mut wish = navigation(Wish::get("/_nowserving/leave"));
        (wish.method, wish.body) = ("POST", format!("line={}&to=%2F", self.line));
        let wish = wish
            .with("Content-Type", "application/x-www-form-urlencoded")
            .with("Sec-Fetch-Site", "same-origin");
        Ok(self.ask(wish).await?.0)
    }

    /// The script asks for the status.
    pub async fn status(&mut self) -> io::Result<Value> {
        let path = format!("/_nowserving/v1/lines/{}/status", self.line);
        let (_, body) = self.ask(of_script(Wish::get(&path))).await?;
        serde_json::from_str(&body)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no JSON"))
    }

    /// Opens the stream, and says at which gateway. `Err(status)`: the gateway gives none.
    pub async fn stream(&mut self) -> io::Result<Result<(Wire, usize), u16>> {
        let path = format!("/_nowserving/v1/lines/{}/events", self.line);
        let mut wish = of_script(Wish::get(&path)).with("Accept", "text/event-stream");
        wish.keeps = true;
        let (wire, gateway, head) = self.begin(wish).await?;
        Ok(match head.status {
            200 => Ok((wire, gateway)),
            status => Err(status),
        })
    }

    async fn ask(&mut self, wish: Wish<'_>) -> io::Result<(Head, String)> {
        let (mut wire, _, head) = self.begin(wish).await?;
        let body = wire.body(&head).await?;
        Ok((head, body))
    }

    async fn begin(&mut self, wish: Wish<'_>) -> io::Result<(Wire, usize, Head)> {
        let mut wish = wish
            .with("Host", HOST)
            .with("X-Forwarded-Host", HOST)
            .with("X-Forwarded-Proto", "https")
            .with("X-Forwarded-For", self.address.clone());
        if !self.cookies.is_empty() {
            let pairs: Vec<String> = self
                .cookies
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            wish = wish.with("Cookie", pairs.join("; "));
        }
        let (mut wire, gateway) = self.gateways.connect().await?;
        let head = wire.ask(&wish).await?;
        let set: Vec<String> = head.all("set-cookie").map(str::to_owned).collect();
        set.iter().for_each(|cookie| self.set(cookie));
        Ok((wire, gateway, head))
    }

    fn set(&mut self, cookie: &str) {
        let mut parts = cookie.split(';').map(str::trim);
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
            return;
        };
        self.cookies.retain(|(other, _)| other != name);
        if !parts.any(|part| part.eq_ignore_ascii_case("Max-Age=0")) {
            self.cookies.push((name.to_owned(), value.to_owned()));
        }
    }
}

fn navigation(wish: Wish<'_>) -> Wish<'_> {
    wish.with("Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")
        .with("Sec-Fetch-Mode", "navigate")
        .with("Sec-Fetch-Dest", "document")
}

fn of_script(wish: Wish<'_>) -> Wish<'_> {
    wish.with("Sec-Fetch-Mode", "cors")
        .with("Sec-Fetch-Dest", "empty")
}

fn let_in(head: &Head) -> io::Result<LetIn> {
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let pass = head
        .header("nowserving-pass")
        .ok_or_else(|| odd("let in without a pass"))?;
    let claims = pass
        .split('.')
        .nth(1)
        .and_then(|claims| BASE64URL_NOPAD.decode(claims.as_bytes()).ok());
    let claims = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
    Ok(LetIn {
        claims: claims.ok_or_else(|| odd("a pass that cannot be read"))?,
    })
}
