//! Rules of one domain in a text, as nodes take them.

use std::fmt;

use super::error::{Position, RuleError, RuleErrors};
use super::rule::Rules;

impl Rules {
    /// Reads a text with the rules of exactly one domain, of at most `bytes_max` bytes. `name` tells whether the domain may have
    /// its name.
    ///
    /// # Errors
    ///
    /// As [`Rules::parse`], each mistake with its place.
    pub fn parse_one<N, E: fmt::Display>(
        text: &str,
        bytes_max: usize,
        name: impl Fn(&str) -> Result<N, E>,
    ) -> Result<(N, Self), RuleErrors> {
        if text.len() > bytes_max {
            let problem = format!(
                "the text has {} bytes; at most {bytes_max}, which end here",
                text.len()
            );
            return Err(wrong(place(text, bytes_max), "", problem));
        }
        let rules = Self::parse(text)?;
        let mut domains: Vec<_> = rules.domains.iter().collect();
        domains.sort_by_key(|(_, domain)| domain.at);
        let (domain, at) = match domains[..] {
            [(domain, of)] => (domain, of.at),
            [] => {
                let start = Position { line: 1, column: 1 };
                let problem = "there is none; exactly one is needed".to_owned();
                return Err(wrong(start, "domain", problem));
            }
            [_, (_, second), ..] => {
                let problem = format!("the second of {}; exactly one is needed", domains.len());
                return Err(wrong(second.at, "domain", problem));
            }
        };
        let named = name(domain).map_err(|error| {
            let problem = format!(
                "`{domain}` cannot be a part of subjects: {error}. Choose another name here; for Envoy, start \
                 `nowserving envoy --domain {domain}=NAME` with it"
            );
            wrong(at, "domain", problem)
        })?;
        Ok((named, rules))
    }
}

fn wrong(at: Position, field: &str, problem: String) -> RuleErrors {
    let field = field.to_owned();
    RuleErrors::from(RuleError { at, field, problem })
}

/// Of the character that has this byte.
fn place(text: &str, byte: usize) -> Position {
    let before = text
        .char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= byte);
    before.fold(Position { line: 1, column: 1 }, |at, (_, c)| match c {
        '\n' => Position {
            line: at.line + 1,
            column: 1,
        },
        _ => Position {
            column: at.column + 1,
            ..at
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let name = |name: &str| match name.contains('.') {
            true => Err("no dots"),
            false => Ok(name.to_owned()),
        };
        let parsed = Rules::parse_one(text, 60, name);
        parsed
            .map(|(name, _)| name)
            .map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_text_has_one_domain_or_the_place_of_what_is_wrong() {
        assert_eq!(parse("domain: shop\n"), Ok("shop".to_owned()));
        for (text, expected) in [
            (
                "",
                "line 1, column 1: domain: there is none; exactly one is needed",
            ),
            (
                "domain: z\n---\ndomain: a\n",
                "line 3, column 9: domain: the second of 2; exactly one is needed",
            ),
            (
                "# shops\ndomain: a.b\n",
                "line 2, column 9: domain: `a.b` cannot be a part of subjects: no dots. Choose another name here; for Envoy, start \
                 `nowserving envoy --domain a.b=NAME` with it",
            ),
            ("domain: [\n", "line 2, column 1: not YAML: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = format!("domain: shop\n# {}\n", "é".repeat(30));
        let expected = "line 2, column 25: the text has 76 bytes; at most 60, which end here";
        assert_eq!(parse(&long).unwrap_err(), expected);
    }
}
