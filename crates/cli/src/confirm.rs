//! Asks before an operation that cannot be taken back.

use std::io::{self, IsTerminal as _, Write as _};

use crate::output::{Output, WrongUsage};

/// Whether the user agrees to `what`, as in "kick 12 tokens". Without a terminal nobody can be asked.
///
/// # Errors
/// Wrong usage if nobody can be asked: `--yes` is needed then.
pub fn agreed(what: &str, output: &Output) -> anyhow::Result<bool> {
    if output.json || !io::stdin().is_terminal() {
        return Err(WrongUsage(format!("this would {what}: give --yes")).into());
    }
    eprint!("{} [y/N] ", question(what));
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
