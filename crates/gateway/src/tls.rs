//! TLS of the main listener.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::config::{ConfigError, TlsFiles};

/// The certificate in use. Connections that stand keep theirs when it changes.
#[derive(Clone)]
pub(crate) struct Tls {
    files: TlsFiles,
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Tls, ConfigError> {
        let current = Arc::new(RwLock::new(read(&files)?));
        Ok(Tls { files, current })
    }

    /// Reads the files again. After an error the certificate from before stands.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let new = read(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(current.clone())
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, ConfigError> {
    let chain = chain(&files.cert_file)?;
    let key = key(&files.key_file)?;
    let bad = |error: &dyn std::fmt::Display| {
        let what = format!("{}: {error}", files.cert_file.display());
        ConfigError::new("tls.cert_file", what)
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| bad(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let bad =
        |what: String| ConfigError::new("tls.cert_file", format!("{}: {what}", path.display()));
    let text = nowserving_security::secret::read(path).map_err(bad)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(bad("has no certificate (PEM)".to_owned())),
        Err(error) => Err(bad(error.to_string())),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    let bad =
        |what: String| ConfigError::new("tls.key_file", format!("{}: {what}", path.display()));
    let text = nowserving_security::secret::read_text(path).map_err(bad)?;
    // Not the error itself: it may quote the key.
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| bad("has no private key (PEM)".to_owned()))
}
