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

/// Somebody who looks at the page goes in by himself: a seat of the demo is not kept for long.
const AUTO_ENTER_S: u32 = 2;

/// A gateway before a little shop, on 127.0.0.1.
pub struct Web {
    server: Server,
    addr: SocketAddr,
    dashboard: Option<SocketAddr>,
}

impl Web {
    /// Listens. Visitors wait in this line, which may be created later.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn open(client: Client, line: &LineName, port: u16) -> anyhow::Result<Web> {
        let mut rule = LineRule::new(line.clone());
        rule.auto_enter_s = AUTO_ENTER_S;
        rule.complete_path = Some(THANKS_PATH.parse().map_err(anyhow::Error::msg)?);
        let secret = Secret::random().map_err(anyhow::Error::msg)?;
        let listen = (Ipv4Addr::LOCALHOST, port).into();
        let mut config = Config::new(listen, secret, vec![rule]);
        // Over plain HTTP a browser takes no others.
        config.insecure_cookies = true;
        config.admin_listen = Some((Ipv4Addr::LOCALHOST, 0).into());
        config.shop = Shop {
            name: Some("nowserving demo shop".to_owned()),
            url: None,
        };
        let server = Server::bind(config, client).await;
        let server = server.with_context(|| format!("--web {port}"))?;
        let (addr, dashboard) = (server.addr()?, server.admin_addr()?);
        let server = server.with_shop(shop());
        Ok(Web {
            server,
            addr,
            dashboard,
        })
    }

    /// What browsers are to open, in words.
    pub fn urls(&self) -> String {
        let dashboard = self.dashboard.iter();
        let dashboard = dashboard.map(|addr| format!("; the dashboard: http://{addr}/"));
        format!("http://{}/", self.addr) + &dashboard.collect::<String>()
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
