//! The command line as people see it: help in which the options of every command stand once, and advice after a mistake.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Parser};

use nowserving_terminal::output::{Output, USAGE, WrongUsage, wants_colour};

/// The topic of the options that every command takes.
pub const OPTIONS: &str = "options";
const FOOTER: &str = "Options of every command: nowserving help options";

/// Reads the words of this process.
///
/// # Errors
/// They are no command line, or ask for help only.
pub fn parse<C: Parser>() -> Result<C, clap::Error> {
    let mut command = command::<C>();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The help of the command that these words name.
pub fn help<C: Parser>(words: impl IntoIterator<Item = OsString>) -> StyledStr {
    named::<C>(words).render_help()
}

fn named<C: Parser>(words: impl IntoIterator<Item = OsString>) -> clap::Command {
    let mut command = command::<C>();
    command.build();
    for word in words.into_iter().skip(1) {
        if let Some(subcommand) = command.find_subcommand(word).cloned() {
            command = subcommand;
        }
    }
    command
}

/// The definition for people. Completions and manual pages are made of the definition itself, which hides nothing.
fn command<C: Parser>() -> clap::Command {
    let command = C::command();
    let shared = |arg: &&Arg| arg.is_global_set();
    let shared: Vec<Arg> = command.get_arguments().filter(shared).cloned().collect();
    let hide = |arg: Arg| match arg.is_global_set() {
        true => arg.hide(true),
        false => arg,
    };
    with_footer(command.mut_args(hide)).mut_subcommand(OPTIONS, |topic| topic.args(shared))
}

fn with_footer(command: clap::Command) -> clap::Command {
    if command.get_name() == OPTIONS {
        return command;
    }
    let footer = match command.get_after_help() {
        Some(text) => format!("{text}\n\n{FOOTER}"),
        None => FOOTER.to_owned(),
    };
    command.after_help(footer).mut_subcommands(with_footer)
}

/// Ends a command line that could not be parsed, or that asked for help only. Without a parsed command
/// line, `--json` is looked for among the words.
pub fn refuse<C: Parser>(mut error: clap::Error) -> ExitCode {
    explain::<C>(&mut error, std::env::args_os().collect());
    // Clap gives the help instead only if no flag is set, and takes one from the environment for set.
    let lacks_subcommand = error.kind() == ErrorKind::MissingSubcommand;
    if error.exit_code() == 0 || !std::env::args_os().any(|word| word == "--json") {
        if lacks_subcommand {
            let text = help::<C>(std::env::args_os());
            match wants_colour(io::stderr().is_terminal()) {
                true => eprintln!("{}", text.ansi()),
                false => eprintln!("{text}"),
            }
            return ExitCode::from(USAGE);
        }
        error.exit();
    }
    let text = match lacks_subcommand {
        true => "a subcommand is required".to_owned(),
        false => usage_text(&error.to_string()),
    };
    Output::new(true).fail(&WrongUsage(text).into())
}

/// The problem in one line: clap's text up to the advice after it.
pub(crate) fn usage_text(whole: &str) -> String {
    let wrong = whole.split("\n\n").next().unwrap_or(whole);
    let words: Vec<&str> = wrong.split_whitespace().collect();
    let text = words.join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}

/// Puts the usage of the command that was meant into an error, and the right order of its words.
fn explain<C: Parser>(error: &mut clap::Error, words: Vec<OsString>) {
    let unknown = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if error.kind() == ErrorKind::InvalidSubcommand => {
            Some(word.clone())
        }
        _ => None,
    };
    // Clap's own usage shows options that the environment sets as if they were required.
    if error.get(ContextKind::Usage).is_some() {
        let known = words.iter().cloned();
        let known = known.take_while(|word| unknown.as_deref().is_none_or(|it| word != it));
        let usage = ContextValue::StyledStr(named::<C>(known).render_usage());
        error.insert(ContextKind::Usage, usage);
    }
    if let Some(unknown) = unknown {
        let words = words.into_iter().filter_map(|word| word.into_string().ok());
        let after = words.skip_while(|word| *word != unknown).skip(1);
        let meant = meant::<C>(&unknown, after.collect());
        if !meant.is_empty() {
            error.remove(ContextKind::SuggestedSubcommand);
            let tips = meant
                .into_iter()
                .map(|it| format!("did you mean `{it}`?").into());
            error.insert(
                ContextKind::Suggested,
                ContextValue::StyledStrs(tips.collect()),
            );
        }
    }
}

/// The command lines that somebody may have meant who wrote a command without its group, or in front of it.
fn meant<C: Parser>(unknown: &str, after: Vec<String>) -> Vec<String> {
    let command = C::command();
    let has_it = |group: &&clap::Command| group.find_subcommand(unknown).is_some();
    let groups = command.get_subcommands().filter(has_it);
    let groups: Vec<&str> = groups.map(clap::Command::get_name).collect();
    let line = |group: &str, rest: &[String]| {
        let words = ["nowserving", group, unknown].into_iter();
        shlex::try_join(words.chain(rest.iter().map(String::as_str))).ok()
    };
    match after.first().filter(|next| groups.contains(&next.as_str())) {
        Some(group) => line(group, &after[1..]).into_iter().collect(),
        None => groups
            .iter()
            .filter_map(|group| line(group, &after))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;
    use crate::commands::Cli;
    use nowserving_terminal::output::error_json;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_options_of_every_command_stand_once() {
        let names = Cli::command();
        let names = names.get_arguments().filter(|arg| arg.is_global_set());
        let flags: Vec<String> = names
            .filter_map(|arg| Some(format!("--{} ", arg.get_long()?)))
            .collect();
        assert_eq!(flags.len(), 13);
        let topic = help::<Cli>(words("nowserving options")).to_string();
        for flag in &flags {
            assert!(topic.contains(flag.trim_end()), "{flag}: {topic}");
        }
        for command in ["nowserving", "nowserving line", "nowserving line create"] {
            let help = help::<Cli>(words(command)).to_string();
            assert!(help.trim_end().ends_with(FOOTER), "{help}");
            let shown = flags.iter().find(|flag| help.contains(&format!("{flag}<")));
            assert_eq!(shown, None, "{help}");
        }
    }

    #[test]
    fn all_commands_parse_as_before() {
        command::<Cli>().debug_assert();
        let line = "nowserving line create shop --seats 1 --queue-limit 2 --json --prefix a";
        let matches = command::<Cli>()
            .try_get_matches_from(line.split(' '))
            .unwrap();
        let cli = Cli::from_arg_matches(&matches).unwrap();
        assert!(cli.global.json);
        assert_eq!(cli.global.prefix.as_deref(), Some("a"));
    }

    #[test]
    fn a_command_without_its_group_is_advised() {
        for (line, advice, usage) in [
            (
                "nowserving create line x --seats 1",
                "did you mean `nowserving line create x --seats 1`?",
                "Usage: nowserving <COMMAND>",
            ),
            (
                "nowserving apply rules.yaml",
                "did you mean `nowserving limit apply rules.yaml`?",
                "Usage: nowserving <COMMAND>",
            ),
            (
                "nowserving line put visits",
                "did you mean `nowserving kv put visits`?",
                "Usage: nowserving line <COMMAND>",
            ),
        ] {
            let mut error = command::<Cli>()
                .try_get_matches_from(line.split(' '))
                .unwrap_err();
            explain::<Cli>(&mut error, words(line));
            let text = error.to_string();
            for part in [advice, usage] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn wrong_usage_is_one_line() {
        let clap = "error: the following required arguments were not provided:\n  --seats <N>\n\n\
                    Usage: nowserving line create";
        let text = usage_text(clap);
        assert_eq!(
            text,
            "the following required arguments were not provided: --seats <N>"
        );
        let json = error_json(&WrongUsage(text).into());
        assert_eq!(json["error"]["code"], "bad_request");
    }
}
