//! How nodes, the SDK and the command line tool log in to NATS and encrypt, beyond what a URL says.
//!
//! [`Security`] names files. [`Security::options`] reads them, refuses secrets that others can read (`secret.rs`), and
//! makes the options of a connection. All of them are read again for each connection that is made with these options, so
//! that renewed ones count at the next one: the login by `login.rs`, the TLS files by NATS's library.

mod links;
mod login;
pub mod secret;

use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::login::LoginFile;

const CREDENTIALS: &str = "credentials_file";
const NKEY: &str = "nkey_file";
const TLS_CA: &str = "tls_ca_file";
const TLS_CERT: &str = "tls_cert_file";
const TLS_KEY: &str = "tls_key_file";

/// The names of all fields of [`Security`].
pub const FIELDS: [&str; 6] = [CREDENTIALS, NKEY, TLS_CA, TLS_CERT, TLS_KEY, "tls_first"];

/// How a connection to NATS logs in and encrypts, beyond what its URLs say. It has no secrets, only the names of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// A NATS credentials file (`.creds`): a user's JWT and its seed. For its owner only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// A file with the seed of a user's nkey (`SU…`), instead of credentials. For its owner only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey_file: Option<PathBuf>,
    /// The roots (PEM) that must have signed the server's certificate; by default those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca_file: Option<PathBuf>,
    /// The client's certificate (PEM), with `tls_key_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of that certificate (PEM). For its owner only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key_file: Option<PathBuf>,
    /// Encrypts before the server's first word, for servers with `handshake_first`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tls_first: bool,
}

/// Why a [`Security`] cannot be used: always names the field. No content of a file is in it.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A field does not go with the others.
    #[error("{field} {why}")]
    Fields {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file cannot be used.
    #[error("{field} {}: {why}", path.display())]
    File {
        /// Which field.
        field: &'static str,
        /// The file that it names.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl SecurityError {
    /// The field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            SecurityError::Fields { field, .. } | SecurityError::File { field, .. } => field,
        }
    }
}

impl Security {
    /// Whether the fields go together. Reads no file.
    ///
    /// # Errors
    /// The first field that does not go with the others.
    pub fn check(&self) -> Result<(), SecurityError> {
        let refuse = |field, why| Err(SecurityError::Fields { field, why });
        if self.credentials_file.is_some() && self.nkey_file.is_some() {
            return refuse(NKEY, "is not possible together with credentials_file");
        }
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(_), None) => refuse(TLS_CERT, "needs tls_key_file"),
            (None, Some(_)) => refuse(TLS_KEY, "needs tls_cert_file"),
            _ => Ok(()),
        }
    }

    /// Whether a connection must be encrypted: then one to a server without TLS fails.
    #[must_use]
    pub fn wants_tls(&self) -> bool {
        self.tls_first || self.tls_ca_file.is_some() || self.tls_cert_file.is_some()
    }

    /// The files whose content counts at the next connection.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [
            &self.credentials_file,
            &self.nkey_file,
            &self.tls_ca_file,
            &self.tls_cert_file,
            &self.tls_key_file,
        ];
        files.into_iter().flatten().map(PathBuf::as_path)
    }

    /// The options of a connection, without its URL's login, over which one by file wins. Reads all files.
    ///
    /// # Errors
    /// The fields do not go together, or a file cannot be used.
    pub fn options(&self) -> Result<ConnectOptions, SecurityError> {
        self.check()?;
        let file = match (&self.credentials_file, &self.nkey_file) {
            (Some(path), _) => Some(LoginFile::Credentials(path.clone())),
            (_, Some(path)) => Some(LoginFile::Nkey(path.clone())),
            _ => None,
        };
        let mut options = match file {
            Some(file) => file.options()?,
            None => ConnectOptions::new(),
        };
        if let Some(path) = &self.tls_ca_file {
            certificates(TLS_CA, path)?;
            options = options.add_root_certificates(path.clone());
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_key_file) {
            certificates(TLS_CERT, certificate)?;
            private_key(key)?;
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if self.wants_tls() {
            options = options.require_tls(true);
        }
        if self.tls_first {
            options = options.tls_first();
        }
        Ok(options)
    }
}

/// The error of a connection, with what to do about it where the reason is TLS and its text does not say so.
#[must_use]
pub fn explained(error: &str) -> String {
    const HINTS: [(&str, &str); 3] = [
        (
            "UnknownIssuer",
            "no root of tls_ca_file (without it, of the system) has signed the server's certificate",
        ),
        (
            "CertificateRequired",
            "the server demands a client certificate: tls_cert_file and tls_key_file",
        ),
        (
            "received corrupt message",
            "the server does not seem to speak TLS at this point: see tls_first, and whether the server has TLS",
        ),
    ];
    let hint = HINTS.iter().find(|(part, _)| error.contains(part));
    match hint {
        Some((_, hint)) => format!("{error} ({hint})"),
        None => error.to_owned(),
    }
}

fn failed(field: &'static str, path: &Path, why: impl Into<String>) -> SecurityError {
    SecurityError::File {
        field,
        path: path.to_owned(),
        why: why.into(),
    }
}

fn certificates(field: &'static str, path: &Path) -> Result<(), SecurityError> {
    let bytes = secret::read(path).map_err(|why| failed(field, path, why))?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        // The library's error quotes the line, which may be a secret of a file that was named by mistake.
        certificate.map_err(|_| failed(field, path, "has a section that is not PEM"))?;
        count += 1;
    }
    match count {
        0 => Err(failed(field, path, "has no certificate in PEM")),
        _ => Ok(()),
    }
}

fn private_key(path: &Path) -> Result<(), SecurityError> {
    let text = secret::read_text(path).map_err(|why| failed(TLS_KEY, path, why))?;
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(failed(TLS_KEY, path, "has no private key in PEM")),
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
