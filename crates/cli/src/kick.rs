//! `nowserving line kick`: ends tokens, and asks first if they are many.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use nowserving_client::{AdminLine, Key, Kick, KickReply, LaneName, LiveState, TokenName};

use crate::phase::UNASKED_MAX;
use crate::{confirm, tables, token_name};
use nowserving_terminal::duration;
use nowserving_terminal::global::Why;
use nowserving_terminal::output::Output;

/// The longest `--idle-over`: 30 days.
const IDLE_MS_MAX: u64 = 2_592_000_000;

/// Ends tokens; they go with the reason `kicked`.
///
/// Counts first, and asks before it ends more than ten; without a terminal it needs --yes for that. Ending a million takes
/// a while; if it is interrupted, repeat it.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
#[command(after_help = "\
Examples:
  nowserving line kick shop-1 --token vip:3 --reason \"paid twice\"
  nowserving line kick shop-1 --key order-4711 --key order-4712
  nowserving line kick shop-1 --idle-over 10m --dry-run
  nowserving line kick shop-1 --lane vip --state waiting
  nowserving line kick shop-1 --all --yes --json")]
pub struct KickArgs {
    /// The line's name.
    pub name: String,
    /// This token, as LANE:NUMBER; may be repeated.
    #[arg(
        long = "token", value_name = "LANE:N", value_parser = token_name::with_lane, group = "which"
    )]
    tokens: Vec<TokenName>,
    /// The live token of this key; may be repeated.
    #[arg(long = "key", value_name = "KEY", value_parser = key, group = "which")]
    keys: Vec<Key>,
    /// Waiting tokens whose clients were not seen for longer than this.
    #[arg(
        long = "idle-over", value_name = "TIME", group = "which",
        value_parser = duration::between(1..=IDLE_MS_MAX)
    )]
    idle_over_ms: Option<u64>,
    /// All tokens of this lane.
    #[arg(long, value_name = "LANE", group = "which")]
    lane: Option<LaneName>,
    /// All tokens of the line.
    #[arg(long, group = "which")]
    all: bool,
    /// Of these, only tokens in this state.
    #[arg(long, value_name = "STATE", value_parser = live_state())]
    state: Option<LiveState>,
    #[command(flatten)]
    pub why: Why,
    /// Only counts them.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
}

pub fn key(text: &str) -> Result<Key, String> {
    Key::new(text.as_bytes()).map_err(|error| error.message)
}

pub fn live_state() -> impl TypedValueParser<Value = LiveState> {
    let words = PossibleValuesParser::new(["waiting", "admitted", "in_checkout"]);
    words.map(|word| match word.as_str() {
        "waiting" => LiveState::Waiting,
        "admitted" => LiveState::Admitted,
        _ => LiveState::InCheckout,
    })
}

impl KickArgs {
    fn request(&self) -> Kick {
        Kick {
            tokens: (!self.tokens.is_empty()).then(|| self.tokens.clone()),
            keys: (!self.keys.is_empty()).then(|| self.keys.clone()),
            idle_over_ms: self.idle_over_ms,
            lane: self.lane.clone(),
            all: self.all,
            state: self.state,
            dry_run: true,
            ..Kick::default()
        }
    }
}

/// Counts, asks if need be, and ends them.
pub async fn run(args: &KickArgs, line: &AdminLine, output: &Output) -> anyhow::Result<()> {
    let mut request = args.request();
    if !args.yes || args.dry_run {
        let counted = line.kick(&request).await?;
        if args.dry_run {
            return output.answer(&counted, |reply| text(&request, reply, output));
        }
        if counted.kicked > UNASKED_MAX {
            ask(&request, &counted, output)?;
        }
        // By now there may be more of them: newcomers stay, and no more go than were agreed to.
        request.through_version = Some(counted.through_version);
        request.incarnation = Some(counted.incarnation);
        request.most = Some(counted.kicked.max(UNASKED_MAX));
    }
    request.dry_run = false;
    let kicked = line.kick(&request).await?;
    output.answer(&kicked, |reply| text(&request, reply, output))
}

fn ask(request: &Kick, counted: &KickReply, output: &Output) -> anyhow::Result<()> {
    if !output.json {
        eprintln!("{}", text(request, counted, output));
    }
    confirm::ask(&format!("kick {} tokens", counted.kicked), output)
}

fn text(request: &Kick, reply: &KickReply, output: &Output) -> String {
    let verb = match reply.dry_run {
        true => "would be kicked",
        false => "kicked",
    };
    let mut text = format!("{} {verb}", tokens(reply.kicked));
    if !reply.sample.is_empty() {
        let rows = reply.sample.iter().map(|it| {
            let key = it.key.as_ref().map(tables::key_text);
            vec![
                it.lane.to_string(),
                it.token.to_string(),
                key.unwrap_or_else(|| "-".to_owned()),
                it.state.as_str().to_owned(),
            ]
        });
        text.push('\n');
        text.push_str(&tables::plain(
            "lane, token, key, state",
            rows.collect(),
            output,
        ));
    }
    let unlisted = reply.kicked.saturating_sub(reply.sample.len() as u64);
    if unlisted > 0 {
        text.push_str(&format!("\nand {unlisted} more"));
    }
    for row in passed_over(request, reply) {
        text.push('\n');
        text.push_str(&row);
    }
    text
}

/// `2 of 3 keys: no such live token: ann, bob`
fn passed_over(request: &Kick, reply: &KickReply) -> Vec<String> {
    let tokens = request.tokens.iter().flatten();
    let tokens = tokens.map(|it| format!("{}:{}", it.lane, it.token));
    let keys = request.keys.iter().flatten().map(tables::key_text);
    let named: Vec<String> = tokens.chain(keys).collect();
    let what = match request.keys {
        None => tables::many(named.len() as u64, "token"),
        Some(_) => tables::many(named.len() as u64, "key"),
    };
    let both = [
        (&reply.not_found, "no such live token"),
        (&reply.other_state, "in another state"),
    ];
    let some = both.into_iter().filter(|(places, _)| !places.is_empty());
    let rows = some.map(|(places, why)| {
        let names = places.iter().filter_map(|place| named.get(*place as usize));
        let names: Vec<&str> = names.map(String::as_str).collect();
        format!("{} of {what}: {why}: {}", places.len(), names.join(", "))
    });
    rows.collect()
}

fn tokens(count: u64) -> String {
    match count {
        1 => "1 token".to_owned(),
        count => format!("{count} tokens"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        kick: KickArgs,
    }

    #[test]
    fn those_passed_over_are_named() {
        let rows = |words: &str, not_found: &[u32], other_state: &[u32]| {
            let words = ["probe", "shop"].into_iter().chain(words.split(' '));
            let args = Probe::try_parse_from(words).unwrap().kick;
            let reply = KickReply {
                not_found: not_found.to_vec(),
                other_state: other_state.to_vec(),
                ..KickReply::default()
            };
            passed_over(&args.request(), &reply)
        };
        let keys = "--key ann --key bob --key cat";
        assert_eq!(
            rows(keys, &[0, 2], &[]),
            ["2 of 3 keys: no such live token: ann, cat"]
        );
        let tokens = "--token vip:3 --token normal:1 --state waiting";
        assert_eq!(
            rows(tokens, &[1], &[0]),
            [
                "1 of 2 tokens: no such live token: normal:1",
                "1 of 2 tokens: in another state: vip:3"
            ]
        );
        assert!(rows("--all", &[], &[]).is_empty());
    }
}
