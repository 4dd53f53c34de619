//! `nowserving line tokens`: the tokens of a line.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use nowserving_client::{
    AdminLine, LIST_TOKENS_MAX, LaneName, ListTokens, ListedToken, LiveState, TokenOrder,
    TokensReply,
};

use nowserving_rehearse::duration;

use crate::kick::live_state;
use crate::tables;
use nowserving_terminal::number;
use nowserving_terminal::output::Output;

/// Lists tokens that are not gone, with their keys, states and places.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving line tokens shop-1 --order service --limit 20     who is next?
  nowserving line tokens shop-1 --state in_checkout            who holds seats, and for how long?
  nowserving line tokens shop-1 --lane vip --limit 1000000 --json")]
pub struct TokensArgs {
    /// The line's name.
    pub name: String,
    /// Only tokens in this state.
    #[arg(long, value_name = "STATE", value_parser = live_state())]
    state: Option<LiveState>,
    /// Only tokens of this lane.
    #[arg(long, value_name = "LANE")]
    lane: Option<LaneName>,
    /// By number, lane by lane; or the waiting ones as they would be admitted now: service.
    #[arg(long, value_name = "ORDER", value_parser = order(), default_value = "number")]
    order: TokenOrder,
    /// How many tokens at most.
    #[arg(
        long, value_name = "N", default_value_t = 1_000,
        value_parser = number::between::<u64>(1..=100_000_000)
    )]
    limit: u64,
}

fn order() -> impl TypedValueParser<Value = TokenOrder> {
    PossibleValuesParser::new(["number", "service"]).map(|word| match word.as_str() {
        "service" => TokenOrder::Service,
        _ => TokenOrder::Number,
    })
}

/// Asks page by page until there is no more, or enough.
pub async fn run(args: &TokensArgs, line: &AdminLine, output: &Output) -> anyhow::Result<()> {
    let mut page = ListTokens {
        state: args.state,
        lane: args.lane.clone(),
        order: args.order,
        after: Vec::new(),
        limit: Some(args.limit.min(LIST_TOKENS_MAX)),
    };
    let mut all = line.list_tokens(&page).await?;
    while let Some(next) = &all.next
        && let left = args.limit.saturating_sub(all.tokens.len() as u64)
        && left > 0
        // A page that ends where it began: no endless loop.
        && *next != page.after
    {
        page.after.clone_from(next);
        page.limit = Some(left.min(LIST_TOKENS_MAX));
        let got = line.list_tokens(&page).await?;
        all.tokens.extend(got.tokens);
        all.next = got.next;
    }
    output.answer(&all, |all| text(all, output))
}

fn text(all: &TokensReply, output: &Output) -> String {
    let header = "lane, token, key, state, position, turn, last seen, held for, expires in";
    let rows = all.tokens.iter().map(row).collect();
    let mut text = tables::plain(header, rows, output);
    if all.next.is_some() {
        text.push_str("\nand more: --limit");
    }
    text
}

fn row(token: &ListedToken) -> Vec<String> {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let number = |value: Option<u64>| or_none(value.map(|value| value.to_string()));
    let ago = |ms| format!("{} ago", duration(ms));
    vec![
        token.lane.to_string(),
        token.token.to_string(),
        or_none(token.key.as_ref().map(tables::key_text)),
        token.state.as_str().to_owned(),
        number(token.position),
        number(token.turn),
        or_none(token.last_seen_ms.map(ago)),
        // Of an admitted token the cluster does not tell.
        or_none(token.claimed_ago_ms.map(duration)),
        or_none(token.expires_in_ms.map(duration)),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_page_shows_places_and_that_there_is_more() {
        let plain = Output {
            json: false,
            colour: false,
            live: false,
        };
        let page: TokensReply = serde_json::from_value(serde_json::json!({
            "line": "shop-1", "incarnation": 7, "version": 9, "at_ms": 1000,
            "tokens": [
                {"lane": "normal", "token": 17, "state": "admitted", "entered_at_ms": 5,
                 "expires_in_ms": 42_000},
                {"lane": "normal", "token": 16, "state": "in_checkout", "entered_at_ms": 5,
                 "claimed_ago_ms": 600_000, "expires_in_ms": 1_000},
                {"lane": "vip", "token": 3, "key": "an\nn", "state": "waiting", "entered_at_ms": 5,
                 "last_seen_ms": 61_000, "position": 4, "turn": 12},
            ],
            "next": [{"lane": "vip", "token": 3}]
        }))
        .unwrap();
        let text = text(&page, &plain);
        for words in [
            "17", "admitted", "an\\nn", "12", "ago", "--limit", "10 min", "42 s",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
    }
}
