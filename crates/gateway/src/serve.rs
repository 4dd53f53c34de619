//! The server: accepts connections within bounds, and ends them when it stops.

mod addresses;
mod http2;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::http::{Request, Response};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use futures::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nowserving_client::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tower_service::Service as _;

use self::addresses::{Addresses, Counted};
use crate::access_log::Logged;
use crate::config::{Config, ConfigError};
use crate::dashboard::{self, Dashboard};
use crate::page::{PageError, Pages};
use crate::tls::Tls;
use crate::{Gateway, Shared, http, metrics, own_shop};

/// What one connection may take.
struct Bounds {
    /// A request's headers must come within this, also on a connection that is kept.
    headers_within: Duration,
    /// How many headers a request has over HTTP/1. The array for them exists only while they are read.
    headers_max: usize,
    /// Headers of a request, and what a slow reader is sent ahead (over HTTP/2 for each stream).
    buffer_bytes: u32,
    http2_streams: u32,
}

/// A browser's cookies are some thousand bytes, and the page is a few files and one stream.
const OF_BROWSERS: Bounds = Bounds {
    headers_within: Duration::from_secs(15),
    headers_max: 100,
    buffer_bytes: 16 * 1024,
    http2_streams: 32,
};
/// A proxy keeps connections for later requests, nginx for 60 s. It asks with all headers that it has taken itself: to
/// refuse those would be no answer for it, and where the shop is open without one, a way in.
const OF_PROXIES: Bounds = Bounds {
    headers_within: Duration::from_secs(75),
    // As many as the first read can hold: none is shorter than 4 bytes. The room for them is written for each request, so
    // for the 16,384 that 64 KiB could hold, a check took twice as long.
    headers_max: 2_048,
    buffer_bytes: 64 * 1024,
    http2_streams: 100,
};
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Connections that have not asked for anything yet. One more ends the oldest: others ask at once.
const SILENT_MAX: usize = 1_000;
/// Bytes that the other side does not acknowledge for so long end a connection: a laptop that sleeps says no good-bye.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(60);
/// After a connection that could not be taken (too many open files?) the next try is this much later.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Open files beside connections of browsers.
const OTHER_FILES: usize = 100;
const RESERVE_MAX: usize = 1_000;
/// Operators at the dashboard, each with some connections.
const ADMIN_CONNECTIONS_MAX: usize = 200;
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Requests that are being answered when the server stops have this long.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder `page_dir` cannot be used.
    #[error("page_dir: {0}")]
    Page(#[from] PageError),
    /// An address cannot be listened on.
    #[error("{field} {addr}: {error}")]
    Listen {
        /// Which.
        field: &'static str,
        /// Where.
        addr: SocketAddr,
        /// Why.
        error: io::Error,
    },
}

/// A gateway that listens.
pub struct Server {
    listener: TcpListener,
    #[cfg(feature = "envoy")]
    envoy: Option<TcpListener>,
    admin: Option<TcpListener>,
    /// Asks for the dashboard.
    operator: Client,
    tls: Option<Tls>,
    shop: Option<Router>,
    gateway: Shared,
}

/// Says what a server does while it runs. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    gateway: Shared,
    tls: Option<Tls>,
}

impl Handle {
    /// Whether it decides by the cluster, or why not, as far as is known now.
    ///
    /// # Errors
    /// For people: a cause a row, with what to do.
    pub fn ready(&self) -> Result<(), String> {
        self.gateway.is_ready()
    }

    /// Reads certificate and key again. After an error those from before stand.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn reload_tls(&self) -> Result<(), ConfigError> {
        self.tls.as_ref().map_or(Ok(()), Tls::reload)
    }
}

impl Server {
    /// Listens, checks the configuration, reads all files, and follows the lines. Requests are answered by
    /// [`Server::run`]. The client may be one that connects in the background.
    ///
    /// # Errors
    /// Names the field or the file.
    pub async fn bind(config: Config, client: Client) -> Result<Server, BindError> {
        let listener = listen("listen", config.listen).await?;
        Server::from_listener(listener, config, client).await
    }

    /// The same with a listener that was opened before, whose address replaces [`Config::listen`]: for programs that take
    /// the port before there is a cluster.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub async fn from_listener(
        listener: TcpListener,
        mut config: Config,
        client: Client,
    ) -> Result<Server, BindError> {
        config.listen = listener.local_addr().map_err(|error| BindError::Listen {
            field: "listen",
            addr: config.listen,
            error,
        })?;
        config.check()?;
        raise_open_files_max(config.connections_max);
        let pages = Pages::load(config.page_dir.as_deref())?;
        let tls = config.tls.clone().map(Tls::load).transpose()?;
        #[cfg(feature = "envoy")]
        let envoy = match config.envoy_listen {
            Some(addr) => Some(listen("envoy_listen", addr).await?),
            None => None,
        };
        let admin = match config.admin_listen {
            Some(addr) => Some(listen("admin_listen", addr).await?),
            None => None,
        };
        Ok(Server {
            operator: client.clone(),
            admin,
            gateway: Gateway::start(config, client, pages)?,
            listener,
            #[cfg(feature = "envoy")]
            envoy,
            tls,
            shop: None,
        })
    }

    /// The same, with a shop that answers all requests outside `/_nowserving/` that pass the gate: for demos, and for
    /// programs that need no proxy.
    #[must_use]
    pub fn with_shop(self, shop: Router) -> Server {
        let shop = own_shop::behind_the_gate(shop, self.gateway.clone());
        Server {
            shop: Some(shop),
            ..self
        }
    }

    /// The same, with a dashboard that asks by this client, which has the rights of an operator. Without it, it asks as the
    /// gateway does, and what the gateway may not ask is shown as not permitted.
    #[must_use]
    pub fn with_operator(self, operator: Client) -> Server {
        Server { operator, ..self }
    }

    /// Where the dashboard listens, if there is one.
    ///
    /// # Errors
    /// The system does not say.
    pub fn admin_addr(&self) -> io::Result<Option<SocketAddr>> {
        self.admin.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// For the time while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle {
            gateway: self.gateway.clone(),
            tls: self.tls.clone(),
        }
    }

    /// Answers requests until `stop` ends. Then streams end at once, with a time after which their browsers come again, and
    /// requests that are being answered have some seconds.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (stopping, _) = watch::channel(());
        #[cfg(feature = "envoy")]
        let envoy = self.envoy.map(|listener| {
            let mut stopped = stopping.subscribe();
            let stop = async move {
                let _ = stopped.changed().await;
            };
            tokio::spawn(crate::gate::envoy::serve(
                self.gateway.clone(),
                listener,
                stop,
            ))
        });
        let config = &self.gateway.config;
        let open = Arc::new(Semaphore::new(config.connections_max));
        let mut accepting = Accepting {
            routes: http::routes(self.gateway.clone(), self.shop),
            gateway: self.gateway.clone(),
            tls: self.tls,
            open: open.clone(),
            reserve: reserve(config),
            addresses: Addresses::new(config.address_connections_max),
            stopping: stopping.subscribe(),
            silent: VecDeque::new(),
            ends: GracefulShutdown::new(),
        };
        let mut admin = self.admin.map(|listener| {
            let listens = listener.local_addr();
            let listens = listens.unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
            let dashboard = Dashboard::new(self.gateway.clone(), &self.operator, listens);
            let accepting = Accepting {
                routes: dashboard::routes(dashboard.clone()),
                gateway: self.gateway.clone(),
                tls: None,
                open: Arc::new(Semaphore::new(ADMIN_CONNECTIONS_MAX)),
                reserve: 0,
                addresses: Addresses::new(ADMIN_CONNECTIONS_MAX),
                stopping: stopping.subscribe(),
                silent: VecDeque::new(),
                ends: GracefulShutdown::new(),
            };
            (listener, dashboard, accepting)
        });
        tokio::select! {
            never = accepting.run(&self.listener) => match never {},
            never = serve_admin(admin.as_mut()) => match never {},
            never = count_open(&self.gateway, &open) => match never {},
            () = stop => {}
        }
        drop(self.listener);
        self.gateway.streams.stop();
        let _ = stopping.send(());
        // Its answers come within some seconds, and nobody waits for them: the page asks again.
        drop(admin);
        if tokio::time::timeout(STOPS_WITHIN, accepting.ends.shutdown())
            .await
            .is_err()
        {
            tracing::info!("some requests were not answered in time");
        }
        #[cfg(feature = "envoy")]
        if let Some(envoy) = envoy {
            let _ = tokio::time::timeout(STOPS_WITHIN, envoy).await;
        }
        // No request that could end a visit comes any more.
        self.gateway.admissions.finish(STOPS_WITHIN).await;
    }
}

/// The dashboard, if there is one.
async fn serve_admin(admin: Option<&mut (TcpListener, Arc<Dashboard>, Accepting)>) -> Infallible {
    match admin {
        Some((listener, dashboard, accepting)) => {
            tokio::select! {
                never = accepting.run(listener) => never,
                never = dashboard.poll() => never,
            }
        }
        None => std::future::pending().await,
    }
}

async fn count_open(gateway: &Gateway, open: &Semaphore) -> Infallible {
    loop {
        metrics::connections(gateway.config.connections_max - open.available_permits());
        metrics::streams(gateway.streams.open());
        tokio::time::sleep(COUNT_EVERY).await;
    }
}

/// How many of the last connections are for questions of proxies alone: whatever visitors do by way of the same proxy, it
/// finds room to ask. Half of those that are not for streams.
fn reserve(config: &Config) -> usize {
    match config.trusted_proxies.is_empty() {
        true => 0,
        false => RESERVE_MAX.min((config.connections_max - config.streams_max) / 2),
    }
}

/// Many systems begin with 1,024 open files, and allow more to whoever asks.
fn raise_open_files_max(connections_max: usize) {
    let limit = getrlimit(Resource::Nofile);
    let needed = (connections_max + OTHER_FILES) as u64;
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let raised = Rlimit {
        current: Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed))),
        maximum: limit.maximum,
    };
    let is_enough = setrlimit(Resource::Nofile, raised).is_ok() && raised.current == Some(needed);
    if !is_enough {
        let allowed = limit.maximum;
        tracing::warn!(
            needed,
            allowed,
            "fewer connections than connections_max: too few open files are allowed"
        );
    }
}

async fn listen(field: &'static str, addr: SocketAddr) -> Result<TcpListener, BindError> {
    let failed = |error| BindError::Listen { field, addr, error };
    TcpListener::bind(addr).await.map_err(failed)
}

/// Takes connections.
struct Accepting {
    routes: Router,
    gateway: Shared,
    tls: Option<Tls>,
    /// As many more connections may be open.
    open: Arc<Semaphore>,
    /// When fewer than so many are left, only questions of trusted proxies are answered.
    reserve: usize,
    addresses: Addresses,
    /// Changes when the server stops.
    stopping: watch::Receiver<()>,
    /// The newest connections, the oldest of them first, of which some have not asked for anything.
    silent: VecDeque<Silent>,
    ends: GracefulShutdown,
}

struct Silent {
    has_asked: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Silent {
    fn is_silent(&self) -> bool {
        !self.has_asked.load(Ordering::Relaxed) && !self.task.is_finished()
    }
}

impl Accepting {
    async fn run(&mut self, listener: &TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    fn take(&mut self, stream: TcpStream, peer: SocketAddr) {
        let is_trusted = self.gateway.config.trusts(peer.ip());
        let counted = match is_trusted {
            true => None,
            false => match self.addresses.take(peer.ip()) {
                None => return metrics::connection_closed("address"),
                counted => counted,
            },
        };
        let has_room = is_trusted || self.open.available_permits() > self.reserve;
        let permit = self.open.clone().try_acquire_owned().ok();
        let Some(permit) = permit.filter(|_| has_room) else {
            metrics::connection_closed("full");
            // Those that ask for nothing make room for the next one.
            self.end_oldest_silent();
            return;
        };
        let place = Place {
            permit,
            _counted: counted,
        };
        let _ = stream.set_nodelay(true);
        let unacknowledged_ms = UNACKNOWLEDGED_MAX.as_millis() as u32;
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, unacknowledged_ms);
        let has_asked = Arc::new(AtomicBool::new(false));
        let connection = Connection {
            routes: self.routes.clone(),
            gateway: self.gateway.clone(),
            peer,
            bounds: if is_trusted {
                &OF_PROXIES
            } else {
                &OF_BROWSERS
            },
            has_asked: has_asked.clone(),
            ends: self.ends.watcher(),
            stopping: self.stopping.clone(),
            reserve: self.reserve,
            place,
        };
        // Tasks of their own: thousands without TLS take no room for what TLS needs.
        let task = match self.tls.clone() {
            None => tokio::spawn(connection.http1(stream)).abort_handle(),
            Some(tls) => tokio::spawn(connection.with_tls(stream, tls)).abort_handle(),
        };
        self.silent.push_back(Silent { has_asked, task });
        if self.silent.len() > SILENT_MAX {
            self.silent.retain(Silent::is_silent);
        }
        if self.silent.len() > SILENT_MAX {
            self.end_oldest_silent();
        }
    }

    fn end_oldest_silent(&mut self) {
        while let Some(oldest) = self.silent.pop_front() {
            if oldest.is_silent() {
                metrics::connection_closed("silent");
                oldest.task.abort();
                return;
            }
        }
    }
}

/// One connection.
struct Connection {
    routes: Router,
    gateway: Shared,
    peer: SocketAddr,
    bounds: &'static Bounds,
    has_asked: Arc<AtomicBool>,
    ends: Watcher,
    stopping: watch::Receiver<()>,
    reserve: usize,
    place: Place,
}

/// Of an open connection.
struct Place {
    permit: OwnedSemaphorePermit,
    /// Of an address that is not trusted.
    _counted: Option<Counted>,
}

impl Connection {
    async fn with_tls(self, stream: TcpStream, tls: Tls) {
        // It fails when the other side breaks it off, or speaks no TLS.
        let handshake = tokio::time::timeout(HANDSHAKE_WITHIN, tls.acceptor().accept(stream));
        if let Ok(Ok(stream)) = handshake.await {
            match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Box::pin(self.http2(stream)).await,
                _ => self.http1(stream).await,
            }
        }
    }

    /// HTTP/1 alone where there is no TLS: to find out which version a silent connection speaks would have no end.
    ///
    /// Not an `async fn`, whose future would have room for the connection twice.
    fn http1(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> impl Future<Output = ()> + Send {
        let bounds = self.bounds;
        let (ends, service, place) = self.into_parts();
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.headers_within)
            .max_headers(bounds.headers_max)
            // One read may go beyond the buffer.
            .max_buf_size(bounds.buffer_bytes as usize)
            .max_header_size(bounds.buffer_bytes as usize)
            .serve_connection(TokioIo::new(stream), service_fn(service));
        // It fails when the other side breaks it off, which is its right.
        ends.watch(connection).map(move |_| drop(place))
    }

    async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (bounds, stopping) = (self.bounds, self.stopping.clone());
        // The stop waits for `_ends`.
        let (_ends, answer, _place) = self.into_parts();
        http2::serve(stream, answer, bounds, stopping).await;
    }

    fn into_parts(
        self,
    ) -> (
        Watcher,
        impl Fn(Request<Incoming>) -> Answered + Clone,
        Place,
    ) {
        let Connection {
            routes,
            gateway,
            peer,
            has_asked,
            ends,
            reserve,
            place,
            ..
        } = self;
        let open = place.permit.semaphore().clone();
        let service = move |request: Request<Incoming>| -> Answered {
            has_asked.store(true, Ordering::Relaxed);
            let (mut routes, gateway) = (routes.clone(), gateway.clone());
            let has_room = open.available_permits() >= reserve;
            Box::pin(async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(ConnectInfo(peer));
                let logged = Logged::of(&request, peer.ip(), &gateway.config);
                let response = match has_room || logged.is_of_a_proxy() {
                    true => routes
                        .call(request)
                        .await
                        .unwrap_or_else(|never| match never {}),
                    false => {
                        metrics::connection_closed("reserved");
                        http::no_room()
                    }
                };
                logged.answered(&response);
                Ok(response)
            })
        };
        (ends, service, place)
    }
}

type Answered = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;
