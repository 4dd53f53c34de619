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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn credentials_of(jwt: &str, key: &KeyPair) -> String {
        let seed = key.seed().unwrap();
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n***** a secret *****\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }

    #[test]
    fn each_connection_logs_in_by_the_newest_content_that_can_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login");
        let keys = [KeyPair::new_user(), KeyPair::new_user()];
        let nkeys = keys.each_ref().map(|key| key.seed().unwrap());
        let credentials = [
            credentials_of("a.b.c", &keys[0]),
            credentials_of("d.e.f", &keys[1]),
        ];
        for (file, [first, second], jwts) in [
            (LoginFile::Nkey(path.clone()), &nkeys, [None, None]),
            (
                LoginFile::Credentials(path.clone()),
                &credentials,
                [Some("a.b.c"), Some("d.e.f")],
            ),
        ] {
            write(&path, first);
            let last = Mutex::new(Arc::new(file.read().unwrap()));
            for (content, nth) in [(first.as_str(), 0), ("", 0), (second, 1), ("no login", 1)] {
                write(&path, content);
                let auth = file.newest(&last).sign(b"nonce").unwrap();
                assert_eq!(auth.jwt.as_deref(), jwts[nth]);
                let public_key = auth.jwt.is_none().then(|| keys[nth].public_key());
                assert_eq!(auth.nkey, public_key);
                keys[nth]
                    .verify(b"nonce", &auth.signature.unwrap())
                    .unwrap();
            }
        }
    }
}
