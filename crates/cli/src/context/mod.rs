//! `nowserving context`: named sets of the options that say which cluster, kept in a file.

mod store;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use nowserving_client::ClientOptions;
use nowserving_security::Security;
use serde::{Deserialize, Serialize};

pub use self::store::Store;
use crate::args::{Global, NATS_DEFAULT};
use crate::output::{Output, WrongUsage};
use crate::tables;

/// Keeps the options that say which cluster under names, and chooses the one that counts.
///
/// An option on the command line counts before one in the environment, that before the context, and that before the
/// default. The file is contexts.toml in $NOWSERVING_CONFIG_DIR, else in $XDG_CONFIG_HOME/nowserving, else in
/// ~/.config/nowserving. `nowserving node` does not read it.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Adds a context with the options that are given here or in the environment.
    #[command(after_help = "\
Examples:
  nowserving context add test --nats nats://127.0.0.1:4222
  nowserving context add prod --nats tls://nats.example.com --creds ops.creds --prefix shop --use")]
    Add {
        /// The context's name: 1 to 64 of A-Z a-z 0-9 _ -.
        name: String,
        /// Replaces a context of this name.
        #[arg(long)]
        replace: bool,
        /// Chooses it, as `context use` does. The first context is chosen anyway.
        #[arg(long = "use")]
        chosen: bool,
    },
    /// Chooses the context that counts from now on, or none.
    #[command(after_help = "\
Examples:
  nowserving context use prod
  nowserving context use --none
  nowserving --context test line list          another one for one command")]
    Use {
        /// The context.
        #[arg(required_unless_present = "none")]
        name: Option<String>,
        /// No context counts.
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
    /// Lists the contexts; a star is at the one that counts.
    List,
    /// Shows a context; passwords are left out.
    Show {
        /// The context [default: the one that counts].
        name: Option<String>,
    },
    /// Removes a context. Files that it names stay.
    Remove {
        /// The context.
        name: String,
    },
}

/// The options of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// `--nats`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<String>,
    /// `--prefix`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `--inbox-prefix`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbox_prefix: Option<String>,
    /// `--by`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The login and TLS.
    #[serde(skip_serializing_if = "is_default")]
    pub security: Security,
}

impl Context {
    /// What every command would refuse is refused when it is added.
    fn check(&self) -> anyhow::Result<()> {
        if *self == Context::default() {
            let what = "an empty context: give --nats, or another option that says which cluster";
            return Err(WrongUsage(what.to_owned()).into());
        }
        let mut options = ClientOptions::default();
        if let Some(prefix) = &self.prefix {
            options.prefix.clone_from(prefix);
        }
        options.inbox_prefix.clone_from(&self.inbox_prefix);
        options.check(self.nats.as_deref().unwrap_or(NATS_DEFAULT))?;
        Ok(())
    }
}

fn is_default(security: &Security) -> bool {
    *security == Security::default()
}

/// A context as it is shown.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    current: bool,
    #[serde(flatten)]
    context: Context,
}

/// Runs one of them. `global` has what the flags and the environment say, and nothing of a context.
pub fn run(command: ContextCommand, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let store = Store::of_user()?;
    let mut contexts = store.read()?;
    match command {
        ContextCommand::Add {
            name,
            replace,
            chosen,
        } => {
            let context = of_flags(global)?;
            context.check()?;
            contexts.add(&name, context, replace)?;
            if chosen || contexts.len() == 1 {
                contexts.choose(Some(&name))?;
            }
            store.write(&contexts)?;
            let shown = shown(&contexts, &name)?;
            output.answer(&shown, |shown| format!("added\n{}", text(shown)))?;
        }
        ContextCommand::Use { name, none: _ } => {
            contexts.choose(name.as_deref())?;
            store.write(&contexts)?;
            let overridden_by = match &name {
                Some(name) => overriding(name, contexts.get(name)?, |it| std::env::var_os(it)),
                None => Vec::new(),
            };
            let now = serde_json::json!({ "current": name, "overridden_by": overridden_by });
            output.answer(&now, |_| match &name {
                Some(name) if overridden_by.is_empty() => format!("context {name} counts now"),
                Some(name) => {
                    let variables = overridden_by.join(", ");
                    format!(
                        "context {name} counts now, but these variables override it: {variables}"
                    )
                }
                None => "no context counts now".to_owned(),
            })?;
        }
        ContextCommand::List => {
            let all: Result<Vec<Shown<'_>>, WrongUsage> = contexts
                .names()
                .map(|name| shown(&contexts, name))
                .collect();
            output.answer(&all?, |all| list(all, output))?;
        }
        ContextCommand::Show { name } => {
            let name = name.or_else(|| contexts.current().map(str::to_owned));
            let name = name.ok_or_else(|| WrongUsage("no context counts: name one".to_owned()))?;
            output.answer(&shown(&contexts, &name)?, text)?;
        }
        ContextCommand::Remove { name } => {
            contexts.remove(&name)?;
            store.write(&contexts)?;
            let removed = serde_json::json!({ "removed": name });
            output.answer(&removed, |_| format!("context {name} is removed"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The variables of the environment that override the context of this name; another context's name is one, too.
fn overriding(
    name: &str,
    context: &Context,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<&'static str> {
    const CONTEXT: &str = "NOWSERVING_CONTEXT";
    let other = environment(CONTEXT).filter(|it| !it.is_empty() && it != name);
    let other = other.map(|_| CONTEXT);
    other
        .into_iter()
        .chain(context.overridden_by(&environment))
        .collect()
}

impl Context {
    /// The variables of the environment that say something else than this context, and count before it.
    pub fn overridden_by(
        &self,
        environment: &impl Fn(&str) -> Option<OsString>,
    ) -> Vec<&'static str> {
        let text = |text: &Option<String>| text.as_ref().map(OsString::from);
        let file = |file: &Option<PathBuf>| file.clone().map(PathBuf::into_os_string);
        let security = &self.security;
        let has_login = security.credentials_file.is_some() || security.nkey_file.is_some();
        // Of the first two none is the default.
        let all = [
            ("NOWSERVING_NATS", text(&self.nats), true),
            ("NOWSERVING_PREFIX", text(&self.prefix), true),
            ("NOWSERVING_INBOX_PREFIX", text(&self.inbox_prefix), false),
            ("NOWSERVING_BY", text(&self.by), false),
            (
                "NOWSERVING_CREDS",
                file(&security.credentials_file),
                has_login,
            ),
            ("NOWSERVING_NKEY", file(&security.nkey_file), has_login),
            ("NOWSERVING_TLS_CA", file(&security.tls_ca_file), false),
            ("NOWSERVING_TLS_CERT", file(&security.tls_cert_file), false),
            ("NOWSERVING_TLS_KEY", file(&security.tls_key_file), false),
        ];
        let differs = |variable: &str, of_context: &Option<OsString>, counts_if_none: bool| {
            let Some(value) = environment(variable).filter(|value| !value.is_empty()) else {
                return false;
            };
            match of_context {
                // Contexts name files from the root.
                Some(it) => {
                    *it != value
                        && std::path::absolute(&value).ok().as_deref() != Some(Path::new(it))
                }
                None => counts_if_none,
            }
        };
        let all = all
            .iter()
            .filter(|(variable, of_context, if_none)| differs(variable, of_context, *if_none));
        all.map(|(variable, ..)| *variable).collect()
    }
}

/// The options of this command line. Files are named from the root: the next command may run elsewhere.
fn of_flags(global: &Global) -> anyhow::Result<Context> {
    let security = global.security()?;
    let absolute = |file: Option<PathBuf>| file.map(std::path::absolute).transpose();
    Ok(Context {
        nats: global.nats.clone(),
        prefix: global.prefix.clone(),
        inbox_prefix: global.inbox_prefix.clone(),
        by: global.by.clone(),
        security: Security {
            credentials_file: absolute(security.credentials_file)?,
            nkey_file: absolute(security.nkey_file)?,
            tls_ca_file: absolute(security.tls_ca_file)?,
            tls_cert_file: absolute(security.tls_cert_file)?,
            tls_key_file: absolute(security.tls_key_file)?,
            tls_first: security.tls_first,
        },
    })
}

fn shown<'a>(contexts: &store::Contexts, name: &'a str) -> Result<Shown<'a>, WrongUsage> {
    let mut context = contexts.get(name)?.clone();
    context.nats = context.nats.as_deref().map(masked);
    Ok(Shown {
        name,
        current: contexts.current() == Some(name),
        context,
    })
}

fn text(shown: &Shown<'_>) -> String {
    let Shown {
        name,
        current,
        context,
    } = shown;
    let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
    let security = &context.security;
    let rows = [
        ("nats", context.nats.clone()),
        ("prefix", context.prefix.clone()),
        ("inbox-prefix", context.inbox_prefix.clone()),
        ("by", context.by.clone()),
        ("creds", file(&security.credentials_file)),
        ("nkey", file(&security.nkey_file)),
        ("tls-ca", file(&security.tls_ca_file)),
        ("tls-cert", file(&security.tls_cert_file)),
        ("tls-key", file(&security.tls_key_file)),
        ("tls-first", security.tls_first.then(|| "yes".to_owned())),
    ];
    let rows = rows
        .into_iter()
        .filter_map(|(option, value)| Some(format!("\n  {option:<12} {}", value?)));
    let counts = if *current { ", which counts" } else { "" };
    format!("context {name}{counts}") + &rows.collect::<String>()
}

fn list(all: &[Shown<'_>], output: &Output) -> String {
    if all.is_empty() {
        return "there are no contexts: `nowserving context add NAME --nats URL` adds one"
            .to_owned();
    }
    let or_dash = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let rows = all.iter().map(|it| {
        vec![
            if it.current { "*" } else { "" }.to_owned(),
            it.name.to_owned(),
            or_dash(&it.context.nats),
            or_dash(&it.context.prefix),
        ]
    });
    tables::plain(", context, nats, prefix", rows.collect(), output)
}

/// URLs, joined by commas, without their passwords and tokens.
pub fn masked(urls: &str) -> String {
    let urls = urls.split(',').map(|url| {
        let (scheme, rest) = match url.find("://") {
            Some(at) => url.split_at(at + 3),
            None => ("", url),
        };
        let authority = rest.split('/').next().unwrap_or(rest);
        let Some(at) = authority.rfind('@') else {
            return url.to_owned();
        };
        let (login, host) = (&rest[..at], &rest[at..]);
        match login.split_once(':') {
            Some((user, _)) => format!("{scheme}{user}:***{host}"),
            // A name alone is a token.
            None => format!("{scheme}***{host}"),
        }
    });
    urls.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_say_something_else_are_named() {
        let context = Context {
            nats: Some("nats://here".to_owned()),
            security: Security {
                credentials_file: Some("/ops.creds".into()),
                ..Security::default()
            },
            ..Context::default()
        };
        let found = |set: &[(&str, &str)]| {
            overriding("prod", &context, |name: &str| {
                let mut set = set.iter().filter(|(variable, _)| *variable == name);
                set.next().map(|(_, value)| value.into())
            })
        };
        let same = [
            ("NOWSERVING_NATS", "nats://here"),
            ("NOWSERVING_CREDS", "/ops.creds"),
            ("NOWSERVING_CONTEXT", "prod"),
            ("NOWSERVING_PREFIX", ""),
            ("NOWSERVING_TLS_CA", "not of the context"),
        ];
        assert!(found(&same).is_empty());
        let others = [
            ("NOWSERVING_NATS", "nats://there"),
            ("NOWSERVING_NKEY", "seed"),
            ("NOWSERVING_CONTEXT", "test"),
        ];
        let named = ["NOWSERVING_CONTEXT", "NOWSERVING_NATS", "NOWSERVING_NKEY"];
        assert_eq!(found(&others), named);
    }

    #[test]
    fn a_context_that_no_command_can_use_is_refused() {
        let with = |nats: Option<&str>, prefix: Option<&str>, inbox_prefix: Option<&str>| Context {
            nats: nats.map(str::to_owned),
            prefix: prefix.map(str::to_owned),
            inbox_prefix: inbox_prefix.map(str::to_owned),
            ..Context::default()
        };
        for bad in [
            Context::default(),
            with(Some("http://x y"), None, None),
            with(Some("http://h"), None, None),
            with(Some(""), None, None),
            with(None, Some("a b.>"), None),
            with(None, None, Some("_INBOX.*")),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        for good in [
            with(Some("nats://ann:secret@h:4222,tls://h2"), None, None),
            with(None, Some("shop.a"), Some("_INBOX.ops")),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn passwords_are_masked() {
        for (url, expected) in [
            ("nats://h:4222", "nats://h:4222"),
            ("nats://ann:secret@h:4222", "nats://ann:***@h:4222"),
            ("tls://token@h,nats://h2", "tls://***@h,nats://h2"),
            ("ann:p@ss@h", "ann:***@h"),
            ("wss://h/path@x", "wss://h/path@x"),
        ] {
            assert_eq!(masked(url), expected);
        }
    }
}
