//! A nats-server of a test's own, for crates whose tests need no node. Those of `tests/e2e` have another harness.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const STARTS_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// A running nats-server on a free port of 127.0.0.1. It ends with this value.
#[derive(Debug)]
pub struct Nats {
    server: Child,
    port: u16,
    args: Vec<String>,
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Nats {
    /// Starts one, with these flags beside its address, and waits until it listens.
    ///
    /// # Panics
    /// There is no nats-server (`NATS_SERVER` names one), or it does not start.
    #[must_use]
    pub fn start(args: &[&str]) -> Nats {
        let port = free_port();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let server = listening(port, &args);
        Nats { server, port, args }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }

    /// Starts it again at the same address after it was killed.
    ///
    /// # Panics
    /// As [`Nats::start`].
    pub fn start_again(&mut self) {
        self.server = listening(self.port, &self.args);
    }
}

/// A port of 127.0.0.1 that nobody listens on.
///
/// # Panics
/// There is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener
        .unwrap_or_else(|error| panic!("no free port: {error}"))
        .port()
}

fn listening(port: u16, args: &[String]) -> Child {
    let program = program();
    let started = Command::new(&program)
        .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut server = started.unwrap_or_else(|error| {
        panic!(
            "{}: {error}; name a nats-server with NATS_SERVER",
            program.display()
        )
    });
    let end = Instant::now() + STARTS_WITHIN;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = server.try_wait();
        let ended = ended.unwrap_or_else(|error| panic!("nats-server: {error}"));
        assert!(ended.is_none(), "nats-server has ended: {ended:?}");
        assert!(
            Instant::now() < end,
            "nats-server does not listen on {port}"
        );
        std::thread::sleep(PAUSE);
    }
    server
}

/// `NATS_SERVER`, or where packages put it, or one in PATH.
fn program() -> PathBuf {
    let named = std::env::var_os("NATS_SERVER").map(PathBuf::from);
    let usual = ["/usr/sbin/nats-server", "/usr/local/bin/nats-server"];
    let found = || {
        usual
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
    };
    named.or_else(found).unwrap_or_else(|| "nats-server".into())
}
