//! `nowserving completions` and `nowserving man`: files for the shell and for `man`, made from the command line's own
//! definition.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use nowserving_terminal::output::Output;

const NAME: &str = "nowserving";

/// Prints a script that completes the commands and options in a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving completions bash > /etc/bash_completion.d/nowserving
  nowserving completions zsh > \"${fpath[1]}/_nowserving\"
  nowserving completions fish > ~/.config/fish/completions/nowserving.fish")]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Writes the manual pages, one for each command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving man /usr/local/share/man/man1
  nowserving man ./man && man ./man/nowserving-line-kick.1")]
pub struct ManArgs {
    /// The folder; it is made if it does not exist.
    dir: PathBuf,
}

/// Prints the script. It is made as a whole first: a reader that ends early is no error.
pub fn completions<C: CommandFactory>(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), NAME, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// Writes the pages.
pub fn man<C: CommandFactory>(args: &ManArgs, output: &Output) -> anyhow::Result<()> {
    let dir = args.dir.display().to_string();
    // Its parent must be there: a misspelt path makes no folders elsewhere.
    if !args.dir.is_dir() {
        fs::create_dir(&args.dir).with_context(|| dir.clone())?;
    }
    clap_mangen::generate_to(C::command(), &args.dir).with_context(|| dir.clone())?;
    output.answer(&serde_json::json!({ "dir": dir }), |_| {
        format!("the manual pages are in {dir}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::ValueEnum as _;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn every_shell_has_a_script_with_the_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), NAME, &mut script);
            let script = String::from_utf8(script).unwrap();
            for word in ["rehearse", "kick", "idle-over"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Cli::command(), dir.path()).unwrap();
        for (page, word) in [
            ("nowserving.1", "Exit codes"),
            ("nowserving-line-kick.1", "idle"),
            ("nowserving-context-add.1", "context"),
        ] {
            let text = fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(word), "{page}");
        }
    }
}
