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
        number.ok_or_else(|| format!("must be {} to {}", limits.start(), limits.end()))
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
    use std::any::TypeId;

    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::Cli;

    #[test]
    fn a_number_is_refused_with_its_range() {
        let port = between::<u16>(1..=65_535);
        assert_eq!(port("65535"), Ok(65_535));
        for bad in ["0", "65536", "-1", "1.5", "many", ""] {
            assert_eq!(port(bad).unwrap_err(), "must be 1 to 65535", "{bad}");
        }
        let beyond_its_type = between::<u8>(0..=300);
        assert!(beyond_its_type("256").is_err());
    }

    #[test]
    fn every_option_with_a_number_refuses_a_negative_one_with_its_range() {
        let ids = [
            TypeId::of::<u8>(),
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
        ];
        let is_number = |arg: &Arg| {
            let value = arg.get_value_parser().type_id();
            arg.get_action().takes_values() && ids.iter().any(|id| value == *id)
        };
        let mut seen = 0;
        let mut left = vec![(vec!["nowserving".to_owned()], Cli::command())];
        while let Some((words, command)) = left.pop() {
            for inner in command.get_subcommands() {
                let words = [&words[..], &[inner.get_name().to_owned()]].concat();
                left.push((words, inner.clone()));
            }
            for arg in command.get_arguments().filter(|arg| is_number(arg)) {
                let option = arg.get_long().map(|long| format!("--{long}"));
                let option: Vec<String> = option.into_iter().collect();
                let words = [&words[..], &option, &["-1".to_owned()]].concat();
                let error = Cli::try_parse_from(&words).unwrap_err().to_string();
                let named = error.contains("invalid value '-1' for '");
                // Durations and times have examples instead.
                let range = ["must be ", "such as ", "is not a time as "];
                let has_range = range.iter().any(|words| error.contains(words));
                assert!(named && has_range, "{words:?}: {error}");
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen}");
    }
}
