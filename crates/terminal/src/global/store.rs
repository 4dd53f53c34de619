//! The file of contexts. It is written whole and then renamed, so that no reader finds half of one; others than its
//! owner cannot read it, as URLs can have passwords.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Context;
use crate::nearest::names_for;
use crate::output::{WrongFile, WrongUsage};

const FILE: &str = "contexts.toml";
const NAME_MAX: usize = 64;

/// Where the contexts are.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Contexts {
    /// The one that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    contexts: BTreeMap<String, Context>,
}

impl Store {
    /// The user's.
    ///
    /// # Errors
    /// The environment does not say where the user's files are.
    pub fn of_user() -> Result<Store, WrongUsage> {
        let named = |name: &str| env::var_os(name).filter(|dir| !dir.is_empty());
        let named = |name: &str| named(name).map(PathBuf::from);
        let dir = named("NOWSERVING_CONFIG_DIR")
            .or_else(|| Some(named("XDG_CONFIG_HOME")?.join("nowserving")))
            .or_else(|| Some(named("HOME")?.join(".config/nowserving")));
        let dir = dir.ok_or_else(|| {
            WrongUsage("contexts: neither NOWSERVING_CONFIG_DIR nor HOME is set".to_owned())
        })?;
        Ok(Store { dir })
    }

    fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// The contexts; none without a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not one of contexts.
    pub fn read(&self) -> anyhow::Result<Contexts> {
        let file = self.file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        // The parser's own text shows the line, which can have a password.
        let contexts = toml::from_str(&text).map_err(|error| {
            let what = error.message();
            WrongFile(format!("{}: {what}", file.display()))
        });
        Ok(contexts?)
    }

    /// Writes the contexts.
    ///
    /// # Errors
    /// The file cannot be written; the old one is whole then.
    pub fn write(&self, contexts: &Contexts) -> anyhow::Result<()> {
        let text = toml::to_string(contexts)?;
        let written = write_whole(&self.dir, &self.file(), text.as_bytes());
        written.with_context(|| self.file().display().to_string())
    }
}

fn write_whole(dir: &Path, file: &Path, text: &[u8]) -> io::Result<()> {
    let mut folders = fs::DirBuilder::new();
    folders.recursive(true).mode(0o700).create(dir)?;
    // Made for its owner alone.
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(text)?;
    new.as_file().sync_all()?;
    new.persist(file).map_err(|error| error.error)?;
    Ok(())
}

impl Contexts {
    /// The name of the one that counts.
    pub fn current(&self) -> Option<&str> {
        self.current.as_deref()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.contexts.len()
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contexts.keys().map(String::as_str)
    }

    /// # Errors
    /// There is none of this name: says which there are.
    pub fn get(&self, name: &str) -> Result<&Context, WrongUsage> {
        self.contexts.get(name).ok_or_else(|| self.none(name))
    }

    fn none(&self, name: &str) -> WrongUsage {
        let names = names_for(name, self.contexts.keys().cloned().collect());
        WrongUsage(format!("there is no context {name}; {names}"))
    }

    /// # Errors
    /// A name that none can have, or another one has.
    pub fn add(&mut self, name: &str, context: Context, replace: bool) -> Result<(), WrongUsage> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_word) {
            let what = format!("context {name:?}: 1 to {NAME_MAX} of A-Z a-z 0-9 _ -");
            return Err(WrongUsage(what));
        }
        if self.contexts.contains_key(name) && !replace {
            let what = format!("there is a context {name} already: --replace");
            return Err(WrongUsage(what));
        }
        self.contexts.insert(name.to_owned(), context);
        Ok(())
    }

    /// # Errors
    /// There is none of this name.
    pub fn choose(&mut self, name: Option<&str>) -> Result<(), WrongUsage> {
        name.map_or(Ok(()), |name| self.get(name).map(drop))?;
        self.current = name.map(str::to_owned);
        Ok(())
    }

    /// # Errors
    /// There is none of this name.
    pub fn remove(&mut self, name: &str) -> Result<(), WrongUsage> {
        if self.contexts.remove(name).is_none() {
            return Err(self.none(name));
        }
        self.current.take_if(|current| current == name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use nowserving_security::Security;

    use super::*;

    fn context(nats: &str) -> Context {
        Context {
            nats: Some(nats.to_owned()),
            security: Security {
                credentials_file: Some("/etc/ops.creds".into()),
                ..Security::default()
            },
            ..Context::default()
        }
    }

    #[test]
    fn what_is_written_is_read_and_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store {
            dir: dir.path().join("deep/down"),
        };
        assert_eq!(store.read().unwrap(), Contexts::default());
        let mut contexts = Contexts::default();
        contexts
            .add("prod", context("nats://a:b@h"), false)
            .unwrap();
        contexts.add("test", Context::default(), false).unwrap();
        contexts.choose(Some("prod")).unwrap();
        store.write(&contexts).unwrap();
        assert_eq!(store.read().unwrap(), contexts);
        let mode = fs::metadata(store.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(store.file(), "nats = \"nats://a:secret@h").unwrap();
        let error = store.read().unwrap_err();
        assert!(error.is::<WrongFile>());
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn names_are_checked_and_near_ones_are_told() {
        let mut contexts = Contexts::default();
        for bad in ["", "a b", "a/b"] {
            assert!(
                contexts.add(bad, Context::default(), false).is_err(),
                "{bad}"
            );
        }
        contexts.add("prod", Context::default(), false).unwrap();
        let twice = contexts
            .add("prod", context("nats://h"), false)
            .unwrap_err();
        assert!(twice.0.contains("--replace"), "{twice}");
        contexts.add("prod", context("nats://h"), true).unwrap();
        let unknown = contexts.choose(Some("prd")).unwrap_err();
        assert!(unknown.0.contains("the nearest: prod"), "{unknown}");
        contexts.choose(Some("prod")).unwrap();
        contexts.remove("prod").unwrap();
        assert_eq!((contexts.current(), contexts.count()), (None, 0));
    }

    #[test]
    fn fuzz_a_file() {
        let mut contexts = Contexts::default();
        let prod = context("nats://a:b@h,tls://h:1");
        contexts.add("prod", prod, false).unwrap();
        contexts.choose(Some("prod")).unwrap();
        let seeds = vec![toml::to_string(&contexts).unwrap().into_bytes()];
        nowserving_testkit::target!(seeds, |bytes| {
            let dir = tempfile::tempdir().unwrap();
            let store = Store {
                dir: dir.path().to_owned(),
            };
            fs::write(store.file(), bytes).unwrap();
            if let Ok(contexts) = store.read() {
                for context in contexts.contexts.values() {
                    drop(context.nats.as_deref().map(crate::global::masked));
                }
            }
        });
    }
}
