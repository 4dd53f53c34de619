//! Asks before an operation that cannot be taken back.

use std::io::{self, IsTerminal as _, Write as _};

use nowserving_terminal::output::{Output, WrongUsage};

/// The user has not agreed.
#[derive(Debug, thiserror::Error)]
#[error("not agreed to: nothing was changed")]
pub struct NotAgreed;

/// Asks the user to agree to `what`, as in "kick 12 tokens".
///
/// # Errors
/// [`NotAgreed`]. Without a terminal nobody can be asked: wrong usage, `--yes` is needed then.
pub fn ask(what: &str, output: &Output) -> anyhow::Result<()> {
    if output.json || !io::stdin().is_terminal() {
        return Err(WrongUsage(format!("this would {what}: give --yes")).into());
    }
    eprint!("{} [y/N] ", question(what));
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(NotAgreed.into()),
    }
}

/// `Kick 12 tokens?`
fn question(what: &str) -> String {
    let mut letters = what.chars();
    let first: String = letters
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    format!("{first}{}?", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_begins_with_a_capital() {
        assert_eq!(question("kick 12 tokens"), "Kick 12 tokens?");
        assert_eq!(question(""), "?");
    }
}
