//! `nowserving context`: named sets of the options that say which cluster, kept in a file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use nowserving_security::Security;
use serde::Serialize;

use crate::tables;
use nowserving_terminal::global::{Context, Contexts, Global, Store, masked};
use nowserving_terminal::output::{Output, WrongUsage};

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
            if chosen || contexts.count() == 1 {
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

fn shown<'a>(contexts: &Contexts, name: &'a str) -> Result<Shown<'a>, WrongUsage> {
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
}
