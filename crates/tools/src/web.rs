//! A shop in a browser, behind a gateway: `demo --web` and `dev --web`.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use axum::Router;
use axum::response::Html;
use axum::routing::get;
use nowserving_client::{Client, LineName};
use nowserving_gateway::{Config, LineRule, Secret, Server, Shop};
use tokio::net::TcpListener;

/// What stands in the shop. It sells nothing.
const INSIDE: &str = include_str!("web/inside.html");
const THANKS: &str = include_str!("web/thanks.html");
/// A request to it completes the visit, so that the next one in line has the seat.
const THANKS_PATH: &str = "/thanks";

/// Somebody who looks at the page goes in by himself: a seat of the demo is not kept for long.
const AUTO_ENTER_S: u32 = 2;

/// Takes the port of `--web`, if there is one: before the cluster starts, which would be in vain without it. Browsers that
/// come before [`Web::run`] are answered then.
///
/// # Errors
/// The port is taken.
pub async fn listen(port: Option<u16>) -> anyhow::Result<Option<TcpListener>> {
    let Some(port) = port else {
        return Ok(None);
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| {
        format!("cannot listen on port {port} of 127.0.0.1; `--web PORT` chooses another one")
    })?;
    Ok(Some(listener))
}

/// A gateway before a little shop, on 127.0.0.1.
pub struct Web {
    server: Server,
    addr: SocketAddr,
    dashboard: Option<SocketAddr>,
}

impl Web {
    /// Visitors wait in this line, which may be created later.
    ///
    /// # Errors
    /// The dashboard finds no free port.
    pub async fn open(
        listener: TcpListener,
        client: Client,
        line: &LineName,
    ) -> anyhow::Result<Web> {
        let mut rule = LineRule::new(line.clone());
        rule.auto_enter_s = AUTO_ENTER_S;
        rule.complete_path = Some(THANKS_PATH.parse().map_err(anyhow::Error::msg)?);
        let secret = Secret::random().map_err(anyhow::Error::msg)?;
        let mut config = Config::new(listener.local_addr()?, secret, vec![rule]);
        // Over plain HTTP a browser takes no others.
        config.insecure_cookies = true;
        config.admin_listen = Some((Ipv4Addr::LOCALHOST, 0).into());
        config.shop = Shop {
            name: Some("nowserving demo shop".to_owned()),
            url: None,
        };
        let server = Server::from_listener(listener, config, client).await;
        let server = server.context("--web")?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_is_an_error_that_names_the_flag() {
        assert!(listen(None).await.unwrap().is_none());
        let first = listen(Some(0)).await.unwrap().unwrap();
        let port = first.local_addr().unwrap().port();
        let error = format!("{:#}", listen(Some(port)).await.unwrap_err());
        let names_both = error.contains(&port.to_string()) && error.contains("`--web PORT`");
        assert!(names_both, "{error}");
    }
}
