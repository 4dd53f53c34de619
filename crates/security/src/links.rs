//! TLS of the direct links between nodes, with the certificates that the node has for NATS.
//!
//! The node that takes a link shows its certificate. The one that opens it checks that, and shows none: it proves what it
//! is by the cluster's key, in the link's handshake.

use std::path::Path;
use std::sync::Arc;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Security, SecurityError, TLS_CA, TLS_CERT, TLS_KEY, failed, secret};

impl Security {
    /// Whether links can be encrypted with these files.
    #[must_use]
    pub fn has_tls_for_links(&self) -> bool {
        self.tls_ca_file.is_some() && self.tls_cert_file.is_some()
    }

    /// Encrypts the links that this node takes; `None`: they are not encrypted. Reads the files.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn link_acceptor(&self) -> Result<Option<TlsAcceptor>, SecurityError> {
        let (true, Some(cert), Some(key)) = (
            self.has_tls_for_links(),
            &self.tls_cert_file,
            &self.tls_key_file,
        ) else {
            return Ok(None);
        };
        let (chain, private) = (chain(TLS_CERT, cert)?, private(key)?);
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(TLS_CERT, cert, error.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .map_err(|error| failed(TLS_CERT, cert, error.to_string()))?;
        Ok(Some(Arc::new(config).into()))
    }

    /// Encrypts the links that this node opens; `None`: they are not encrypted. Reads the file.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn link_connector(&self) -> Result<Option<TlsConnector>, SecurityError> {
        let (true, Some(ca)) = (self.has_tls_for_links(), &self.tls_ca_file) else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for root in chain(TLS_CA, ca)? {
            let added = roots.add(root);
            added.map_err(|error| failed(TLS_CA, ca, error.to_string()))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(TLS_CA, ca, error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Some(Arc::new(config).into()))
    }
}

fn chain(field: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let bytes = secret::read(path).map_err(|why| failed(field, path, why))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(failed(field, path, "has no certificate in PEM")),
    }
}

fn private(path: &Path) -> Result<PrivateKeyDer<'static>, SecurityError> {
    let text = secret::read_text(path).map_err(|why| failed(TLS_KEY, path, why))?;
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| failed(TLS_KEY, path, "has no private key in PEM"))
}
