//! Logins by file: read again for each connection, so that a file that was replaced needs no restart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::{KeyPair, KeyPairType};

use crate::{CREDENTIALS, NKEY, SecurityError, failed, secret};

/// A file that has a login.
pub enum LoginFile {
    Credentials(PathBuf),
    Nkey(PathBuf),
}

/// What proves to a server which user connects.
struct Login {
    key: KeyPair,
    /// Of credentials.
    jwt: Option<String>,
}

impl LoginFile {
    /// Options of connections that log in by this file.
    ///
    /// # Errors
    /// It cannot be used now. Later, connections log in by the last content that could.
    pub fn options(self) -> Result<ConnectOptions, SecurityError> {
        let last = Mutex::new(Arc::new(self.read()?));
        Ok(ConnectOptions::with_auth_callback(move |nonce| {
            let login = self.newest(&last).sign(&nonce);
            async move { login }
        }))
    }

    /// A small file: its reader is a task that connects, and does nothing else meanwhile.
    fn newest(&self, last: &Mutex<Arc<Login>>) -> Arc<Login> {
        let read = self.read();
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(login) => *last = Arc::new(login),
            Err(error) => tracing::error!(%error, "logging in to NATS as the file was before"),
        }
        last.clone()
    }

    fn read(&self) -> Result<Login, SecurityError> {
        match self {
            LoginFile::Credentials(path) => credentials(path),
            LoginFile::Nkey(path) => seed(path),
        }
    }
}

impl Login {
    fn sign(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        auth.signature = Some(self.key.sign(nonce).map_err(AuthError::new)?);
        auth.jwt.clone_from(&self.jwt);
        auth.nkey = self.jwt.is_none().then(|| self.key.public_key());
        Ok(auth)
    }
}

fn credentials(path: &Path) -> Result<Login, SecurityError> {
    let text = secret::read_text(path).map_err(|why| failed(CREDENTIALS, path, why))?;
    let mut parts = between_dashes(&text);
    let jwt = parts.next().filter(|jwt| is_jwt(jwt));
    let key = parts.next().and_then(user_key);
    match jwt.zip(key) {
        Some((jwt, key)) => Ok(Login {
            key,
            jwt: Some(jwt.to_owned()),
        }),
        None => Err(failed(
            CREDENTIALS,
            path,
            "not a credentials file: a user's JWT and its seed, each between two lines of dashes",
        )),
    }
}

/// The lines that stand alone between one with BEGIN and one with END.
fn between_dashes(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_mark = |line: &str, word| line.starts_with("---") && line.contains(word);
    let mut parts = Vec::new();
    for lines in lines.windows(3) {
        if is_mark(lines[0], "BEGIN") && is_mark(lines[2], "END") {
            parts.push(lines[1]);
        }
    }
    parts.into_iter()
}

fn is_jwt(text: &str) -> bool {
    let is_part = |it: u8| it.is_ascii_alphanumeric() || b"_-.=".contains(&it);
    !text.is_empty() && text.bytes().all(is_part)
}

/// The first line that is neither empty nor a comment.
fn seed(path: &Path) -> Result<Login, SecurityError> {
    let text = secret::read_text(path).map_err(|why| failed(NKEY, path, why))?;
    let mut lines = text.lines().map(str::trim);
    let seed = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    match seed.and_then(user_key) {
        Some(key) => Ok(Login { key, jwt: None }),
        None => Err(failed(NKEY, path, "not the seed of a user's nkey (SU…)")),
    }
}

fn user_key(seed: &str) -> Option<KeyPair> {
    // The library's error may quote the seed.
    let key = KeyPair::from_seed(seed).ok()?;
    matches!(key.key_pair_type(), KeyPairType::User).then_some(key)
}
