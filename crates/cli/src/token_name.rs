//! A token on the command line: `vip:3`, as `line tokens` and `line kick` list them.

use nowserving_client::{LaneName, TokenName};
use nowserving_line::NUMBER_MAX;

use nowserving_terminal::number;
use nowserving_terminal::output::WrongUsage;

const FORM: &str = "LANE:NUMBER, such as vip:3";

/// A token whose lane another option can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenArg {
    lane: Option<LaneName>,
    number: u64,
}

/// A value parser for clap: `vip:3`
pub fn with_lane(text: &str) -> Result<TokenName, String> {
    let (lane, number) = text.rsplit_once(':').ok_or(FORM)?;
    Ok(TokenName {
        lane: LaneName::try_from(lane).map_err(|_| FORM)?,
        token: token_number(number)?,
    })
}

/// A value parser for clap: `vip:3` or `3`
pub fn any(text: &str) -> Result<TokenArg, String> {
    let (lane, number) = match text.contains(':') {
        true => {
            let TokenName { lane, token } = with_lane(text)?;
            (Some(lane), token)
        }
        false => (None, token_number(text)?),
    };
    Ok(TokenArg { lane, number })
}

fn token_number(text: &str) -> Result<u64, String> {
    number::between(1..=NUMBER_MAX)(text).map_err(|range| format!("{FORM}; the number {range}"))
}

impl TokenArg {
    /// The token's lane, if it or the option `--lane` says one, and its number.
    ///
    /// # Errors
    /// Both say one, and not the same.
    pub fn in_lane(self, lane: Option<LaneName>) -> Result<(Option<LaneName>, u64), WrongUsage> {
        let TokenArg { lane: own, number } = self;
        match (own, lane) {
            (Some(own), Some(lane)) if own != lane => {
                let wrong = format!("--lane {lane} and --token {own}:{number} name two lanes");
                Err(WrongUsage(wrong))
            }
            (own, lane) => Ok((own.or(lane), number)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn a_token_has_a_lane_and_a_number() {
        let vip = with_lane("vip:3").unwrap();
        assert_eq!((vip.lane.as_str(), vip.token), ("vip", 3));
        for bad in ["3", "vip:", ":3", "vip:x", "v p:3", "vip:0", "-1"] {
            assert!(with_lane(bad).unwrap_err().contains("vip:3"), "{bad}");
        }
        let negative = with_lane("vip:-1").unwrap_err();
        assert!(negative.ends_with("the number must be 1 to 9007199254740991"));
    }

    #[test]
    fn all_commands_about_a_token_take_it_with_its_lane() {
        for words in [
            "line kick shop --token vip:3",
            "line take shop --token vip:3",
            "line move shop --token vip:3 --to normal",
            "line move shop --lane vip --token 3 --to normal",
            "line journal shop --token vip:3",
            "line journal shop --lane vip --token 3",
        ] {
            let all = ["nowserving"].into_iter().chain(words.split(' '));
            assert!(Cli::try_parse_from(all).is_ok(), "{words}");
        }
    }

    #[test]
    fn another_option_can_say_the_lane_but_not_another_lane() {
        let lane = |name: &str| Some(LaneName::try_from(name).unwrap());
        for (token, of_option, expected) in [
            ("3", None, Ok((None, 3))),
            ("3", lane("vip"), Ok((lane("vip"), 3))),
            ("vip:3", None, Ok((lane("vip"), 3))),
            ("vip:3", lane("vip"), Ok((lane("vip"), 3))),
        ] {
            assert_eq!(any(token).unwrap().in_lane(of_option), expected, "{token}");
        }
        let two = any("vip:3").unwrap().in_lane(lane("normal")).unwrap_err();
        assert!(two.to_string().contains("two lanes"), "{two}");
        for bad in ["x", ":3", "-1", "0", ""] {
            assert!(any(bad).unwrap_err().contains("vip:3"), "{bad}");
        }
    }
}
