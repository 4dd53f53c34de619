//! Texts that let their holder in, from standard input: other users of the machine see a command's arguments, and the
//! shell keeps them.

use std::io::Read;

use nowserving_terminal::output::WrongUsage;

/// A ticket has some 60 bytes, with the longest name of a line 120.
const TICKET_BYTES_MAX: usize = 512;

/// The argument, or standard input if it is `-`.
pub fn ticket(argument: String) -> anyhow::Result<String> {
    argument_or_stdin(Some(argument), TICKET_BYTES_MAX, "ticket")
}

/// The argument, or standard input without one, or if it is `-`. `what` it is, of at most so many bytes.
pub fn argument_or_stdin(
    argument: Option<String>,
    bytes_max: usize,
    what: &str,
) -> anyhow::Result<String> {
    match argument {
        Some(argument) if argument != "-" => Ok(argument),
        _ => read(std::io::stdin().lock(), bytes_max, what),
    }
}

fn read(input: impl Read, bytes_max: usize, what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    // And a newline or two.
    let max = bytes_max as u64 + 2;
    let bytes = input.take(max + 1).read_to_string(&mut text)?;
    if bytes as u64 > max {
        let message = format!("standard input: more than {bytes_max} bytes are no {what}");
        return Err(WrongUsage(message).into());
    }
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn standard_input_is_read_without_its_newline_and_has_a_limit() {
        assert_eq!(read(&b"a.b.c\n"[..], 5, "pass").unwrap(), "a.b.c");
        let endless = std::io::repeat(b'a');
        let error = read(endless, 5, "pass").unwrap_err();
        assert!(error.is::<WrongUsage>());
    }

    #[test]
    fn an_argument_is_taken_as_it_is() {
        assert_eq!(ticket("-abc".to_owned()).unwrap(), "-abc");
    }
}
