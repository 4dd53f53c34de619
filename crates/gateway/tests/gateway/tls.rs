//! TLS of the gateway itself.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use nowserving_client::{Client, ClientOptions};
use nowserving_gateway::{Config, Handle, LineRule, Secret, Server, TlsFiles};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Writes a certificate of its own, and returns it.
fn write_files(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(dir.join("key.pem"), private).unwrap();
    made.cert.der().clone()
}

async fn server(dir: &Path) -> Server {
    let rule = LineRule::new("sale".parse().unwrap());
    let listen = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(listen, Secret::from([7; 32]), vec![rule]);
    config.tls = Some(TlsFiles {
        cert_file: dir.join("cert.pem"),
        key_file: dir.join("key.pem"),
    });
    let mut options = ClientOptions::default();
    options.connect_in_background = true;
    let client = Client::connect_with("nats://127.0.0.1:1", options)
        .await
        .unwrap();
    Server::bind(config, client).await.unwrap()
}

pub type Secure = TlsStream<TcpStream>;

/// Connects as a browser does that speaks this protocol.
async fn client(
    addr: SocketAddr,
    root: CertificateDer<'static>,
    protocol: &[u8],
) -> std::io::Result<Secure> {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

async fn get(addr: SocketAddr, root: CertificateDer<'static>) -> std::io::Result<String> {
    let mut stream = client(addr, root, b"http/1.1").await?;
    let request = "GET /_nowserving/wait?line=sale HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\
                   Connection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // The server may close without a good-bye of TLS.
    let _ = stream.read_to_end(&mut answer).await;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A gateway with TLS that runs.
pub struct Secured {
    addr: SocketAddr,
    root: CertificateDer<'static>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Secured {
    pub async fn start() -> Secured {
        let dir = tempfile::tempdir().unwrap();
        let root = write_files(dir.path());
        let server = server(dir.path()).await;
        let addr = server.addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Secured {
            addr,
            root,
            stop,
            running,
            _dir: dir,
        }
    }

    /// A connection by this protocol.
    pub async fn client(&self, protocol: &[u8]) -> Secure {
        client(self.addr, self.root.clone(), protocol)
            .await
            .unwrap()
    }

    /// What it answers to somebody else.
    pub async fn page(&self) -> String {
        get(self.addr, self.root.clone()).await.unwrap()
    }

    /// Ends it, and waits for that.
    pub async fn stop(self) {
        drop(self.stop);
        self.running.await.unwrap();
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_after_a_reload_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let first = write_files(dir.path());
    let server = server(dir.path()).await;
    let addr = server.addr().unwrap();
    let handle: Handle = server.handle();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    let answer = get(addr, first.clone()).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("__Host-nowserving-sale.pre=") && answer.contains("; Secure"),
        "{answer}"
    );

    std::fs::write(dir.path().join("cert.pem"), "nothing").unwrap();
    assert_eq!(handle.reload_tls().unwrap_err().field, "tls.cert_file");
    get(addr, first.clone()).await.unwrap();

    let second = write_files(dir.path());
    handle.reload_tls().unwrap();
    get(addr, second).await.unwrap();
    assert!(get(addr, first).await.is_err());

    // Who speaks no TLS is not waited for, and nor is the server's end.
    let mut plain = TcpStream::connect(addr).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    drop(stop);
    running.await.unwrap();
}

#[tokio::test]
async fn a_key_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path());
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(dir.path().join("key.pem"), open).unwrap();
    let rule = LineRule::new("sale".parse().unwrap());
    let mut config = Config::new(
        "127.0.0.1:0".parse().unwrap(),
        Secret::from([7; 32]),
        vec![rule],
    );
    config.tls = Some(TlsFiles {
        cert_file: dir.path().join("cert.pem"),
        key_file: dir.path().join("key.pem"),
    });
    let mut options = ClientOptions::default();
    options.connect_in_background = true;
    let client = Client::connect_with("nats://127.0.0.1:1", options)
        .await
        .unwrap();
    let error = Server::bind(config, client)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("tls.key_file: ") && error.contains("0600"),
        "{error}"
    );
}
