//! A shop in a browser, behind a gateway: `demo --web` and `dev --web`.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use nowserving_client::{Client, LineName};
use nowserving_gateway::{Config, LineRule, Secret, Server, Shop};

/// What stands in the shop. It sells nothing.
const INSIDE: &str = include_str!("web/inside.html");
const THANKS: &str = include_str!("web/thanks.html");
/// A request to it completes the visit, so that the next one in line has the seat.
const THANKS_PATH: &str = "/thanks";

/// A gateway before a little shop, on 127.0.0.1.
pub struct Web {
    server: Server,
    addr: SocketAddr,
}

impl Web {
    /// Listens. Visitors wait in this line, which may be created later.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn open(client: Client, line: &LineName, port: u16) -> anyhow::Result<Web> {
        let mut rule = LineRule::new(line.clone());
        rule.complete_path = Some(THANKS_PATH.parse().map_err(anyhow::Error::msg)?);
        let secret = Secret::random().map_err(anyhow::Error::msg)?;
        let listen = (Ipv4Addr::LOCALHOST, port).into();
        let mut config = Config::new(listen, secret, vec![rule]);
        // Over plain HTTP a browser takes no others.
        config.insecure_cookies = true;
        config.shop = Shop {
            name: Some("nowserving demo shop".to_owned()),
            url: None,
        };
        let server = Server::bind(config, client).await;
        let server = server.with_context(|| format!("--web {port}"))?;
        let addr = server.addr()?;
        let server = server.with_shop(shop());
        Ok(Web { server, addr })
    }

    /// What a browser is to open.
    pub fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    /// Answers browsers for as long as it is polled.
    pub async fn run(self) {
        self.server.run(std::future::pending()).await;
    }
}

fn shop() -> Router {
    Router::new().route("/", get(async || Html(INSIDE))).route(
        THANKS_PATH,
        get(async || Html(THANKS)).post(async || Html(THANKS)),
    )
}
