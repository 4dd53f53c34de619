//! Whole numbers on the command line, each with its range.

use std::ops::RangeInclusive;

use clap::{Arg, Command};

/// A value parser for clap: a whole number within limits. The refusal names them.
pub fn between<T: TryFrom<u64> + 'static>(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| limits.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| refusal(text, &limits))
    }
}

/// Why a text is no whole number within limits.
fn refusal(text: &str, limits: &RangeInclusive<u64>) -> String {
    let (min, max) = (limits.start(), limits.end());
    let digits = text.strip_prefix('-').unwrap_or(text);
    match !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("must be {min} to {max}"),
        false => format!("must be a whole number, {min} to {max}"),
    }
}

/// The command and its subcommands, where a negative number after an option is its value: the refusal then names the
/// option and its range. Otherwise clap takes the number for an unknown flag, and advises `--`.
pub fn accept_negative(command: Command) -> Command {
    command
        .mut_args(accept_negative_value)
        .mut_subcommands(accept_negative)
}

/// The same, of one argument.
pub fn accept_negative_value(arg: Arg) -> Arg {
    match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_is_refused_with_its_range() {
        let port = between::<u16>(1..=65_535);
        assert_eq!(port("65535"), Ok(65_535));
        for bad in ["0", "65536", "-1", "99999999999999999999"] {
            assert_eq!(port(bad).unwrap_err(), "must be 1 to 65535", "{bad}");
        }
        for bad in ["1.5", "many", "1e3", "-", ""] {
            let whole = "must be a whole number, 1 to 65535";
            assert_eq!(port(bad).unwrap_err(), whole, "{bad}");
        }
        let beyond_its_type = between::<u8>(0..=300);
        assert!(beyond_its_type("256").is_err());
    }
}
