//! The tokens of the line that are not gone, with their states and order.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::LINE;
use crate::api::Api;

/// More are never in the line at once.
const TOKENS_MAX: usize = 1_000;

/// As it was at one moment, or what two such moments have in common.
#[derive(Debug, PartialEq)]
pub struct InLine {
    /// Lane, number, key and state of each token.
    tokens: Vec<Value>,
    /// The waiting ones, as they would be admitted.
    order: Vec<Value>,
}

impl InLine {
    /// As it is now.
    ///
    /// # Errors
    /// The line is not listed.
    pub async fn now(api: &Api) -> Result<InLine> {
        Ok(InLine {
            tokens: listed(api, "number").await?,
            order: listed(api, "service").await?,
        })
    }

    /// Tokens that are the same in both.
    pub fn unchanged(&self, later: &InLine) -> InLine {
        let both = |first: &[Value], second: &[Value]| -> Vec<Value> {
            let same = first.iter().filter(|token| second.contains(token));
            same.cloned().collect()
        };
        InLine {
            tokens: both(&self.tokens, &later.tokens),
            order: both(&self.order, &later.order),
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.order.len()
    }

    /// How many of these tokens are not there, in another state, or in another place of the order.
    pub fn lost_in(&self, other: &InLine) -> u64 {
        let missing = |token: &&Value| !other.tokens.contains(token);
        let missing: Vec<&Value> = self.tokens.iter().filter(missing).collect();
        let order: Vec<&Value> = {
            let such = other.order.iter();
            such.filter(|token| self.order.contains(token)).collect()
        };
        let pairs = self.order.iter().enumerate();
        let moved = |(nth, token): &(usize, &Value)| order.get(*nth) != Some(token);
        let moved: Vec<&Value> = pairs.filter(moved).map(|(_, token)| token).collect();
        if !(missing.is_empty() && moved.is_empty()) {
            eprintln!("not as they were: {missing:?}; in another place: {moved:?}");
        }
        (missing.len() + moved.len()) as u64
    }
}

async fn listed(api: &Api, order: &str) -> Result<Vec<Value>> {
    let body = json!({"order": order, "limit": TOKENS_MAX});
    let page = api.admin(LINE, "list_tokens", body).await?;
    ensure!(page["next"].is_null(), "more than {TOKENS_MAX} tokens");
    let tokens = page["tokens"].as_array().context("no tokens")?.iter();
    let tokens = tokens.map(|it| json!([it["lane"], it["token"], it["key"], it["state"]]));
    Ok(tokens.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_and_another_place_count_as_lost() {
        let token = |number: u64, state: &str| json!(["a", number, "key", state]);
        let line = |states: &[(u64, &str)], order: &[u64]| InLine {
            tokens: states
                .iter()
                .map(|(number, state)| token(*number, state))
                .collect(),
            order: order
                .iter()
                .map(|number| token(*number, "waiting"))
                .collect(),
        };
        let before = line(&[(1, "admitted"), (2, "waiting"), (3, "waiting")], &[2, 3]);
        let after = line(
            &[(2, "waiting"), (3, "waiting"), (4, "waiting")],
            &[2, 3, 4],
        );
        let both = before.unchanged(&after);
        assert_eq!(both, line(&[(2, "waiting"), (3, "waiting")], &[2, 3]));
        assert_eq!((both.waiting(), both.lost_in(&after)), (2, 0));
        let moved = line(&[(2, "waiting"), (3, "waiting")], &[3, 2]);
        assert_eq!(both.lost_in(&moved), 2);
        let admitted = line(&[(2, "admitted"), (3, "waiting")], &[3]);
        assert!(both.lost_in(&admitted) > 0);
    }
}
