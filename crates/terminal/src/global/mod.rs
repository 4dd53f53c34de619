//! The options of every command: which cluster, who asks, and the connection that they make.

mod context;
mod store;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;
use nowserving_client::{Client, ClientOptions, OperatorNote};
use nowserving_protocol::servers::Servers;
use nowserving_security::Security;

pub use self::context::{Context, masked};
pub use self::store::{Contexts, Store};
use crate::duration;
use crate::output::WrongUsage;

pub const NATS_DEFAULT: &str = "nats://127.0.0.1:4222";

/// Flags of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// NATS server(s), comma-separated [default: nats://127.0.0.1:4222].
    // No default for clap: a node must tell a flag from none, to know whether its file counts.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "NOWSERVING_NATS",
        hide_env_values = true
    )]
    pub nats: Option<String>,
    /// First word(s) of all subjects [default: nowserving].
    #[arg(
        long,
        global = true,
        value_name = "WORD",
        env = "NOWSERVING_PREFIX",
        hide_env_values = true
    )]
    pub prefix: Option<String>,
    /// Replies come to subjects that begin so, as _INBOX.operators: the inbox that the login's role may use [default:
    /// _INBOX].
    #[arg(
        long,
        global = true,
        value_name = "WORDS",
        env = "NOWSERVING_INBOX_PREFIX",
        hide_env_values = true
    )]
    pub inbox_prefix: Option<String>,
    /// The context whose options count where neither a flag nor the environment says otherwise [default: the one chosen
    /// by `context use`].
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "NOWSERVING_CONTEXT",
        hide_env_values = true
    )]
    pub context: Option<String>,
    /// Who asks, for journals: at most 128 bytes. If the NATS server tells its user, that counts [default: the login name].
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "NOWSERVING_BY",
        hide_env_values = true
    )]
    pub by: Option<String>,
    #[command(flatten)]
    pub login: Login,
    /// How long to try to connect, and then each request, 1ms to 1h.
    #[arg(
        long = "timeout", global = true, value_name = "TIME", default_value = "10s",
        value_parser = duration::between(1..=3_600_000)
    )]
    pub timeout_ms: u64,
    /// Prints one line of JSON per answer (an error is an answer too) and nothing else.
    #[arg(long, global = true)]
    pub json: bool,
    /// The options that said which cluster, as they are typed, for commands that are printed. Without what the environment
    /// says anyway, and without the login of a URL.
    #[arg(skip)]
    pub asked: Vec<String>,
}

/// How to log in to NATS, and how to encrypt.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Login {
    /// A NATS credentials file.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "NOWSERVING_CREDS",
        hide_env_values = true
    )]
    pub creds: Option<PathBuf>,
    /// A file with the seed of a NATS user's nkey.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "NOWSERVING_NKEY",
        hide_env_values = true
    )]
    pub nkey: Option<PathBuf>,
    /// The roots (PEM) that must have signed the server's certificate [default: those of the system].
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "NOWSERVING_TLS_CA",
        hide_env_values = true
    )]
    pub tls_ca: Option<PathBuf>,
    /// The client's certificate (PEM), with --tls-key.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "NOWSERVING_TLS_CERT",
        hide_env_values = true
    )]
    pub tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM).
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "NOWSERVING_TLS_KEY",
        hide_env_values = true
    )]
    pub tls_key: Option<PathBuf>,
    /// Encrypts before the server's first word, for servers with `handshake_first`.
    #[arg(
        long, global = true, env = "NOWSERVING_TLS_FIRST", hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub tls_first: bool,
}

impl Login {
    /// Takes what no flag says. A login and a certificate are each taken as a whole.
    fn fill(&mut self, security: Security) {
        if self.creds.is_none() && self.nkey.is_none() {
            self.creds = security.credentials_file;
            self.nkey = security.nkey_file;
        }
        if self.tls_cert.is_none() && self.tls_key.is_none() {
            self.tls_cert = security.tls_cert_file;
            self.tls_key = security.tls_key_file;
        }
        self.tls_ca = self.tls_ca.take().or(security.tls_ca_file);
        self.tls_first |= security.tls_first;
    }
}

/// The reason of an operator.
#[derive(Debug, Clone, Default, Args)]
pub struct Why {
    /// Why, for the journal: at most 128 bytes.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

impl Global {
    /// Takes what neither flags nor the environment say from the context that counts, if there is one.
    ///
    /// # Errors
    /// There is no such context, or their file cannot be read.
    pub fn take_context(&mut self) -> anyhow::Result<()> {
        // An empty name in the environment is none.
        self.context.take_if(|name| name.is_empty());
        self.asked = self.asked(|name| std::env::var_os(name));
        let store = match Store::of_user() {
            Ok(store) => store,
            // A program that runs without a home has no contexts.
            Err(_) if self.context.is_none() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let contexts = store.read()?;
        let Some(name) = self.context.as_deref().or(contexts.current()) else {
            return Ok(());
        };
        let context = contexts.get(name)?.clone();
        if let Some(variable) = self.contradicts(&context, |name| std::env::var_os(name)) {
            let wrong =
                format!("--context {name}: {variable} says otherwise and would count: unset it");
            return Err(WrongUsage(wrong).into());
        }
        self.fill(context);
        Ok(())
    }

    /// The variable of the environment that would override a context which a flag names: the command would go to another
    /// cluster, or as another user, than it says.
    fn contradicts(
        &self,
        context: &Context,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Option<&'static str> {
        let named = self.context.as_ref().map(OsString::from);
        if named.is_none() || named == environment("NOWSERVING_CONTEXT") {
            return None;
        }
        let login = &self.login;
        // What a flag says counts before both.
        let is_flag = |variable: &str| match variable {
            "NOWSERVING_NATS" => self.nats.as_ref().map(OsString::from) != environment(variable),
            "NOWSERVING_PREFIX" => {
                self.prefix.as_ref().map(OsString::from) != environment(variable)
            }
            "NOWSERVING_CREDS" => {
                login.creds.clone().map(PathBuf::into_os_string) != environment(variable)
            }
            "NOWSERVING_NKEY" => {
                login.nkey.clone().map(PathBuf::into_os_string) != environment(variable)
            }
            _ => true,
        };
        let mut overriding = context.overridden_by(&environment).into_iter();
        overriding.find(|variable| !is_flag(variable))
    }

    fn asked(&self, environment: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
        let text = |text: &String| OsString::from(text);
        let file = |file: &PathBuf| file.clone().into_os_string();
        let login = &self.login;
        let given = [
            ("context", self.context.as_ref().map(text)),
            ("nats", self.nats.as_ref().map(text)),
            ("prefix", self.prefix.as_ref().map(text)),
            ("inbox-prefix", self.inbox_prefix.as_ref().map(text)),
            ("creds", login.creds.as_ref().map(file)),
            ("nkey", login.nkey.as_ref().map(file)),
            ("tls-ca", login.tls_ca.as_ref().map(file)),
            ("tls-cert", login.tls_cert.as_ref().map(file)),
            ("tls-key", login.tls_key.as_ref().map(file)),
        ];
        let mut words = Vec::new();
        for (option, value) in given {
            let variable = format!("NOWSERVING_{}", option.replace('-', "_").to_uppercase());
            let value = value.filter(|value| environment(&variable).as_ref() != Some(value));
            let value = value.and_then(|value| value.into_string().ok());
            let value = match option {
                "nats" => {
                    value.and_then(|urls| Some(urls.parse::<Servers>().ok()?.urls().join(",")))
                }
                _ => value,
            };
            if let Some(value) = value
                && let Ok(quoted) = shlex::try_quote(&value)
            {
                words.extend([format!("--{option}"), quoted.into_owned()]);
            }
        }
        if login.tls_first && environment("NOWSERVING_TLS_FIRST").is_none() {
            words.push("--tls-first".to_owned());
        }
        words
    }

    fn fill(&mut self, context: Context) {
        self.nats = self.nats.take().or(context.nats);
        self.prefix = self.prefix.take().or(context.prefix);
        self.inbox_prefix = self.inbox_prefix.take().or(context.inbox_prefix);
        self.by = self.by.take().or(context.by);
        self.login.fill(context.security);
    }

    /// Who asks: as given, else the login name, else the user of this process. A journal always says who.
    pub fn by(&self) -> Option<String> {
        let login = ["USER", "LOGNAME"].map(|name| std::env::var(name).ok());
        first_name([self.by.clone()].into_iter().chain(login)).or_else(|| {
            let uid = rustix::process::getuid().as_raw();
            Some(format!("uid {uid}"))
        })
    }

    /// Who asks for a change, and why.
    pub fn note(&self, reason: Option<&str>) -> OperatorNote {
        OperatorNote {
            by: self.by().map(Into::into),
            reason: reason.filter(|it| !it.is_empty()).map(Into::into),
        }
    }

    /// How the connection to NATS logs in and encrypts.
    ///
    /// # Errors
    /// The flags do not go together.
    pub fn security(&self) -> Result<Security, WrongUsage> {
        let Login {
            creds,
            nkey,
            tls_ca,
            tls_cert,
            tls_key,
            tls_first,
        } = &self.login;
        let security = Security {
            credentials_file: creds.clone(),
            nkey_file: nkey.clone(),
            tls_ca_file: tls_ca.clone(),
            tls_cert_file: tls_cert.clone(),
            tls_key_file: tls_key.clone(),
            tls_first: *tls_first,
        };
        let checked = security.check();
        checked.map_err(|error| WrongUsage(error.to_string()))?;
        Ok(security)
    }

    /// A client as the flags say.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        self.connect_for(Duration::ZERO).await
    }

    /// A client whose requests have at least so much time.
    pub async fn connect_for(&self, least: Duration) -> anyhow::Result<Client> {
        let mut options = ClientOptions::default();
        options.deadline = Duration::from_millis(self.timeout_ms).max(least);
        options.name = "nowserving-cli".to_owned();
        self.connect_as(options).await
    }

    /// A client with these options, but for what the flags say.
    pub async fn connect_as(&self, mut options: ClientOptions) -> anyhow::Result<Client> {
        options.inbox_prefix.clone_from(&self.inbox_prefix);
        options.security = self.security()?;
        self.connect_with(options).await
    }

    /// A client of the same cluster, with the login and the inbox of these options.
    pub async fn connect_with(&self, mut options: ClientOptions) -> anyhow::Result<Client> {
        if let Some(prefix) = &self.prefix {
            options.prefix.clone_from(prefix);
        }
        let url = self.nats.as_deref().unwrap_or(NATS_DEFAULT);
        Ok(Client::connect_with(url, options).await?)
    }
}
/// An empty name is none, and hides no other.
fn first_name(names: impl Iterator<Item = Option<String>>) -> Option<String> {
    names.flatten().find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    /// A command line of any command.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        global: Global,
        _words: Vec<String>,
    }

    fn parsed(words: &str) -> Global {
        Line::try_parse_from(words.split(' ')).unwrap().global
    }

    #[test]
    fn flags_count_before_the_context() {
        let words = "nowserving --prefix mine --nkey seed info shop";
        let mut global = parsed(words);
        global.fill(Context {
            nats: Some("nats://of-context".to_owned()),
            prefix: Some("of-context".to_owned()),
            inbox_prefix: Some("_INBOX.operators".to_owned()),
            by: Some("ann".to_owned()),
            security: Security {
                credentials_file: Some("of-context.creds".into()),
                tls_ca_file: Some("ca.pem".into()),
                ..Security::default()
            },
        });
        assert_eq!(global.nats.as_deref(), Some("nats://of-context"));
        assert_eq!(global.prefix.as_deref(), Some("mine"));
        assert_eq!(global.inbox_prefix.as_deref(), Some("_INBOX.operators"));
        assert_eq!(global.by().as_deref(), Some("ann"));
        let security = global.security().unwrap();
        assert_eq!(security.credentials_file, None, "one login alone");
        assert_eq!(security.nkey_file, Some("seed".into()));
        assert_eq!(security.tls_ca_file, Some("ca.pem".into()));
    }

    #[test]
    fn a_context_named_by_a_flag_is_not_overridden_by_the_environment() {
        let context = Context {
            nats: Some("nats://of-context".to_owned()),
            prefix: None,
            inbox_prefix: None,
            by: None,
            security: Security::default(),
        };
        let found = |words: &str, set: &[(&str, &str)]| {
            let global = parsed(words);
            let environment = |name: &str| {
                let mut set = set.iter().filter(|(variable, _)| *variable == name);
                set.next().map(|(_, value)| value.into())
            };
            global.contradicts(&context, environment)
        };
        // As clap takes it from the environment.
        let other = "nowserving --context prod --nats nats://other info shop";
        let nats = ("NOWSERVING_NATS", "nats://other");
        assert_eq!(found(other, &[nats]), Some("NOWSERVING_NATS"));
        assert_eq!(found(other, &[]), None, "a flag");
        assert_eq!(found(other, &[nats, ("NOWSERVING_CONTEXT", "prod")]), None);
        let same = "nowserving --context prod --nats nats://of-context info shop";
        assert_eq!(
            found(same, &[("NOWSERVING_NATS", "nats://of-context")]),
            None
        );
    }

    #[test]
    fn an_empty_name_hides_no_other() {
        let some = |name: &str| Some(name.to_owned());
        let by = |names: [Option<String>; 3]| first_name(names.into_iter());
        assert_eq!(by([None, some(""), some("ann")]), some("ann"));
        assert_eq!(by([some("bob"), some("ann"), None]), some("bob"));
        assert_eq!(by([some(""), None, None]), None);
    }

    #[test]
    fn printed_commands_ask_the_same_cluster() {
        let words = "nowserving doctor --nats nats://ann:secret@h:1,h2 --prefix p --creds my.creds";
        let global = parsed(words);
        let asked = global.asked(|name| (name == "NOWSERVING_PREFIX").then(|| "p".into()));
        assert_eq!(
            asked,
            ["--nats", "'nats://h:1,h2'", "--creds", "my.creds"],
            "the environment has the prefix"
        );
        let words = [
            "nowserving",
            "doctor",
            "--context",
            "prod",
            "--prefix",
            "a b",
        ];
        let global = Line::try_parse_from(words).unwrap().global;
        assert_eq!(
            global.asked(|_| None),
            ["--context", "prod", "--prefix", "'a b'"]
        );
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let words = "nowserving --tls-cert c.pem info shop";
        let global = parsed(words);
        assert!(global.security().is_err());
    }
}
