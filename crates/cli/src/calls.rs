//! `nowserving line call-next` and `nowserving line take`: an operator admits tokens.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args};
use nowserving_client::{
    AdminLine, CALL_NEXT_MAX, CallNext, CalledReply, CalledTokenReply, Key, LaneName, Take,
    TokenName,
};

use crate::kick::key;
use crate::{tables, token_name};
use nowserving_terminal::global::Why;
use nowserving_terminal::number;
use nowserving_terminal::output::Output;

/// Admits the next waiting tokens, in their order, while seats are free.
///
/// In a line with --admission called nobody is admitted otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving line call-next hive-7                             the next one
  nowserving line call-next hive-7 --n 5 --lane priority
  nowserving line call-next hive-7 --n 5 --call-id shift-3-41  again: the same answer")]
pub struct CallNextArgs {
    /// The line's name.
    pub name: String,
    /// How many at most; fewer if seats, quota or the admission rate do not suffice.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = number::between::<u32>(1..=CALL_NEXT_MAX.into())
    )]
    n: u32,
    /// Only tokens of this lane.
    #[arg(long, value_name = "LANE")]
    lane: Option<LaneName>,
    /// Names the call, so that it can be repeated; by default another one each time.
    #[arg(long, value_name = "ID")]
    call_id: Option<String>,
    #[command(flatten)]
    pub why: Why,
}

/// Admits one waiting token out of order, if a seat is free.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
#[command(after_help = "\
Examples:
  nowserving line take hive-7 --key driver-4711
  nowserving line take hive-7 --token priority:3")]
pub struct TakeArgs {
    /// The line's name.
    pub name: String,
    /// The live token of this key.
    #[arg(long, value_name = "KEY", value_parser = key, group = "which")]
    key: Option<Key>,
    /// This token, as LANE:NUMBER.
    #[arg(long, value_name = "LANE:N", value_parser = token_name::with_lane, group = "which")]
    token: Option<TokenName>,
    /// Names the call, so that it can be repeated even once the token is gone.
    #[arg(long, value_name = "ID")]
    call_id: Option<String>,
    #[command(flatten)]
    pub why: Why,
}

pub async fn call_next(
    args: CallNextArgs,
    line: &AdminLine,
    output: &Output,
) -> anyhow::Result<()> {
    let request = CallNext {
        n: args.n,
        lane: args.lane,
        call_id: args.call_id.unwrap_or_else(new_call_id),
    };
    let called = line.call_next(&request).await?;
    output.answer(&called, |called| text(called, output))
}

pub async fn take(args: TakeArgs, line: &AdminLine, output: &Output) -> anyhow::Result<()> {
    let (lane, token) = args.token.map(|it| (it.lane, it.token)).unzip();
    let request = Take {
        key: args.key,
        lane,
        token,
        call_id: args.call_id,
    };
    let taken = line.take(&request).await?;
    output.answer(&taken, |taken| {
        let rows = text(taken, output);
        match not_taken(&request, taken) {
            Some(why) => format!("{rows}\n{why}"),
            None => rows,
        }
    })
}

/// Says so if the answer is about another token: a call id has one answer, whatever the call asks for.
fn not_taken(asked: &Take, taken: &CalledReply) -> Option<String> {
    asked.call_id.as_ref()?;
    let mut taken = taken.admitted.iter();
    let (named, found) = match (&asked.key, &asked.lane, asked.token) {
        (Some(key), ..) => {
            let found = taken.any(|it| it.key.as_ref() == Some(key));
            (tables::key_text(key), found)
        }
        (None, Some(lane), Some(token)) => {
            let found = taken.any(|it| it.lane == *lane && it.token == token);
            (format!("{lane}:{token}"), found)
        }
        _ => return None,
    };
    (!found).then(|| {
        format!(
            "{named} is not in this answer: an earlier call had this call id, or the token has been moved"
        )
    })
}

fn text(called: &CalledReply, output: &Output) -> String {
    if called.admitted.is_empty() {
        return "nobody was admitted: line show says what holds the line back".to_owned();
    }
    let rows = called.admitted.iter().map(row).collect();
    tables::plain("lane, token, key", rows, output)
}

fn row(it: &CalledTokenReply) -> Vec<String> {
    let key = it.key.as_ref().map(tables::key_text);
    let key = key.unwrap_or_else(|| "-".to_owned());
    vec![it.lane.to_string(), it.token.to_string(), key]
}

/// Other than that of any other run: by the time, the process and chance.
fn new_call_id() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.unwrap_or_default().as_nanos();
    let chance: u64 = rand::random();
    format!("{now:x}-{:x}-{chance:x}", std::process::id())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_of_calls_differ_and_fit() {
        let (one, other) = (new_call_id(), new_call_id());
        assert_ne!(one, other);
        assert!(one.len() <= 64 && one.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn an_answer_about_another_token_is_told_of() {
        let key = |key: &str| Some(Key::new(key.as_bytes()).unwrap());
        let ann = CalledReply {
            admitted: vec![CalledTokenReply {
                lane: "vip".parse().unwrap(),
                token: 17,
                key: key("ann"),
            }],
        };
        let by_key = |name: &str| Take {
            key: key(name),
            call_id: Some("1".to_owned()),
            ..Take::default()
        };
        let by_number = |token| Take {
            key: None,
            lane: Some("vip".parse().unwrap()),
            token: Some(token),
            ..by_key("ann")
        };
        assert_eq!(not_taken(&by_key("ann"), &ann), None);
        assert_eq!(not_taken(&by_number(17), &ann), None);
        assert!(
            not_taken(&by_key("bob"), &ann)
                .unwrap()
                .starts_with("bob is not")
        );
        assert!(
            not_taken(&by_number(3), &ann)
                .unwrap()
                .starts_with("vip:3 is not")
        );
        let without_id = Take {
            call_id: None,
            ..by_number(3)
        };
        assert_eq!(not_taken(&without_id, &ann), None, "it was moved");
    }

    #[test]
    fn the_admitted_are_listed() {
        let plain = Output {
            json: false,
            colour: false,
            live: false,
        };
        let none = CalledReply::default();
        assert!(text(&none, &plain).starts_with("nobody was admitted"));
        let one = CalledReply {
            admitted: vec![CalledTokenReply {
                lane: "vip".parse().unwrap(),
                token: 17,
                key: Some(Key::new(*b"ann").unwrap()),
            }],
        };
        let text = text(&one, &plain);
        for words in ["vip", "17", "ann"] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
