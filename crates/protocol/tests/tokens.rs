//! `list_tokens`: which tokens are on a page, and the page after it.

use nowserving_line::{Line, LineName, Lines, Op, Settings, Stamp, Timestamp};
use nowserving_protocol::admin::{ListTokens, LiveState, TokensReply};

const ENTRANTS: u64 = 5;
const SEATS: u64 = 2;

fn shop() -> LineName {
    LineName::try_from("shop-1").unwrap()
}

/// The first two are admitted, and three wait.
fn lines() -> Lines {
    let mut lines = Lines::new();
    let create = Op::Create {
        line: shop(),
        settings: Settings::new(2, 15),
    };
    let enter = Op::Enter {
        line: shop(),
        key: None,
        lane: None,
    };
    let ops = [create].into_iter().chain(vec![enter; ENTRANTS as usize]);
    for (index, op) in (1..).zip(ops) {
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: index * 1_000,
            wall_ms: index * 1_000,
        };
        lines.apply(stamp, &op, None).unwrap();
    }
    lines
}

fn page(line: &Line, request: &ListTokens) -> TokensReply {
    let now = Timestamp {
        service_ms: 60_000,
        wall_ms: 60_000,
    };
    TokensReply::new(line, request, now, |_, _| 59_000).unwrap()
}

fn numbers(reply: &TokensReply) -> Vec<u64> {
    reply.tokens.iter().map(|it| it.token).collect()
}

#[test]
fn tokens_come_page_by_page_each_once() {
    let lines = lines();
    let line = lines.get(&shop()).unwrap();
    let mut request = ListTokens {
        limit: Some(2),
        ..ListTokens::default()
    };
    let mut pages = Vec::new();
    loop {
        let reply = page(line, &request);
        pages.push(numbers(&reply));
        match reply.next {
            Some(next) => request.after = next,
            None => break,
        }
        assert!(pages.len() < 9, "{pages:?}");
    }
    assert_eq!(pages, [vec![1, 2], vec![3, 4], vec![5]]);
}

#[test]
fn only_tokens_of_the_state_and_those_that_wait_say_when_they_were_seen() {
    let lines = lines();
    let line = lines.get(&shop()).unwrap();
    for (state, expected) in [
        (None, 1..=ENTRANTS),
        (Some(LiveState::Admitted), 1..=SEATS),
        (Some(LiveState::Waiting), SEATS + 1..=ENTRANTS),
    ] {
        let request = ListTokens {
            state,
            ..ListTokens::default()
        };
        let reply = page(line, &request);
        assert_eq!(numbers(&reply), expected.collect::<Vec<_>>(), "{state:?}");
        for token in &reply.tokens {
            let seen_ms = (token.token > SEATS).then_some(1_000);
            assert_eq!(token.last_seen_ms, seen_ms, "{token:?}");
        }
    }
}
