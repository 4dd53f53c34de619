//! The gateway: a process between browsers and a shop, which lets in those whose turn it is.
//!
//! It has no state of its own that a restart would miss: the ticket is a cookie of the browser, the places are the
//! cluster's. So any number of gateways can stand beside each other, with the same configuration and secret.
//!
//! # How a request flows
//!
//! 1. `serve` accepts connections, with or without TLS, and bounds them; `http` routes and logs requests.
//! 2. A proxy of the shop asks whether a request may pass (`gate`). [`Config::rule_for`] says which line it belongs to,
//!    `cookies` which ticket it carries, `address` from where it came.
//! 3. Admitted: it passes, with a signed pass for the shop behind. Otherwise `http::wait` answers: it takes a number in two
//!    steps (a pre-cookie has to come back, so clients without cookies take none), and `page` renders the page.
//! 4. The page's script follows its place by a stream (`streams`). All streams of a line are fed from one view of it
//!    (`lines`), which hears the line's events and says to the line which visitors are there.
//!
//! `dashboard` is for operators, on an address of its own ([`Config::admin_listen`]).
//!
//! `trouble` says why the gateway does not decide by the cluster, and what mends it.
//!
//! `visit` says in which state of the page a visitor is, from what the cluster answers.
//!
//! # Bounds
//!
//! Connections and streams are counted ([`Config::connections_max`], which says what one takes, [`Config::streams_max`],
//! [`Config::address_connections_max`]), headers and forms have a size and a time in which they must come, each question to the cluster has an end ([`Config::patience_ms`]), and
//! admissions are kept in a cache of a fixed size.

#![warn(missing_docs)]

mod access_log;
mod address;
mod config;
mod cookies;
mod dashboard;
#[cfg(test)]
mod fuzz_tests;
mod gate;
mod http;
mod limits;
mod lines;
mod metrics;
mod notices;
mod own_shop;
pub mod page;
mod serve;
mod streams;
mod tls;
mod trouble;
mod visit;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nowserving_client::{Client, LineName};

pub use crate::config::{
    AddressLimitsConfig, Admin, BypassRule, Config, ConfigError, LineRule, OnUnavailable,
    OtherHosts, PathRule, Secret, Shop, TlsFiles,
};
pub use crate::page::PageError;
pub use crate::serve::{BindError, Handle, Server};

use crate::cookies::Cookies;
use crate::gate::{Admissions, Strangers};
use crate::limits::AddressLimits;
use crate::lines::LineView;
use crate::notices::Notices;
use crate::page::Pages;
use crate::streams::Streams;
use crate::visit::Visit;

/// All that requests share.
pub(crate) struct Gateway {
    pub config: Config,
    pub client: Client,
    pub cookies: Cookies,
    pub pages: Pages,
    /// One for each line of the configuration.
    pub lines: BTreeMap<LineName, LineView>,
    pub admissions: Admissions,
    pub strangers: Strangers,
    /// That cookies for https do not come back was said.
    pub warned_of_http: AtomicBool,
    pub limits: Option<AddressLimits>,
    pub notices: Notices,
    pub streams: Streams,
    pub keys: http::PublicKeys,
}

pub(crate) type Shared = Arc<Gateway>;

impl Gateway {
    /// Starts to follow the lines.
    fn start(config: Config, client: Client, pages: Pages) -> Result<Shared, ConfigError> {
        let mut lines = BTreeMap::new();
        for rule in &config.lines {
            if !lines.contains_key(&rule.line) {
                let view = LineView::start(&client, &rule.line, &config);
                lines.insert(rule.line.clone(), view);
            }
        }
        let notices = Notices::start(&client, &config, lines.keys().cloned())?;
        Ok(Arc::new(Gateway {
            cookies: Cookies::new(&config.secret, config.insecure_cookies),
            limits: AddressLimits::new(&client, &config)?,
            admissions: Admissions::new(&config, &lines),
            strangers: Strangers::default(),
            warned_of_http: AtomicBool::new(false),
            streams: Streams::new(&config, &lines, &notices),
            notices,
            keys: http::PublicKeys::default(),
            lines,
            pages,
            config,
            client,
        }))
    }

    /// The language of the visitor's page, as a catalogue is named. `wished`: chosen with this request.
    fn language(&self, headers: &::http::HeaderMap, wished: Option<&str>) -> &str {
        let cookie = self.cookies.language(headers);
        let accept = headers.get(::http::header::ACCEPT_LANGUAGE);
        let accept = accept.and_then(|accept| accept.to_str().ok());
        self.pages.language(wished, cookie, accept)
    }

    /// Adds the operators' announcement for the line, if there is one, in a language of [`Gateway::language`].
    fn announce(&self, visit: &mut Visit, line: &LineName, language: &str) {
        if let Some(notice) = self.notices.of(line) {
            visit.put("notice", notice.for_reader(language));
        }
    }
}
