//! A line as data: a visitor's status, its events, the board.

use ::http::{HeaderValue, StatusCode, header};
use axum::extract::{Path, State};
use nowserving_client::LineName;

use super::wait::{Found, by_ticket, limited, newcomer};
use super::{Answer, Noted, headers, json, problem};
use crate::address::Asked;
use crate::{LineRule, Shared, streams};

fn rule<'a>(gateway: &'a Shared, line: &str) -> Result<&'a LineRule, Box<Answer>> {
    let name: Option<LineName> = line.parse().ok();
    let rule = name.and_then(|name| gateway.config.rule_of(&name));
    let unknown = || {
        problem(
            StatusCode::NOT_FOUND,
            "Not found",
            "the gateway does not serve this line",
        )
    };
    rule.ok_or_else(|| Box::new(unknown()))
}

/// `GET …/status`: the visit, by its cookie. Takes no number.
pub(super) async fn status(
    State(gateway): State<Shared>,
    Path(line): Path<String>,
    asked: Asked,
) -> Answer {
    let rule = match rule(&gateway, &line) {
        Ok(rule) => rule,
        Err(answer) => return *answer,
    };
    let mut found = match limited(&gateway, "status", &asked).await {
        Some(refused) => refused,
        None => match by_ticket(&gateway, &asked, rule).await {
            Some(found) => found,
            None => Found::of(newcomer(&gateway, rule)),
        },
    };
    let language = gateway.language(&asked.headers, None);
    gateway.announce(&mut found.visit, &rule.line, language);
    let status = found.status.unwrap_or(match found.visit.is_without_line() {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::OK,
    });
    let mut answer = json(status, &found.visit.to_json());
    let headers = answer.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("Cookie"));
    if !status.is_success() {
        headers.insert(
            header::RETRY_AFTER,
            found.visit.asks_again_after_s().unwrap_or(5).into(),
        );
    }
    for cookie in found.cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    answer.extensions_mut().insert(Noted {
        line: Some(line),
        page: Some(found.visit.page),
        ..Noted::default()
    });
    answer
}

/// `GET …/events`: the stream of a visit.
pub(super) async fn events(
    State(gateway): State<Shared>,
    Path(line): Path<String>,
    asked: Asked,
) -> Answer {
    match rule(&gateway, &line) {
        Ok(rule) => streams::events(&gateway, &asked, &rule.line).await,
        Err(answer) => *answer,
    }
}

/// `GET …/board`: the same for everybody, so a CDN can keep it for a second.
pub(super) async fn board(State(gateway): State<Shared>, Path(line): Path<String>) -> Answer {
    let rule = match rule(&gateway, &line) {
        Ok(rule) => rule,
        Err(answer) => return *answer,
    };
    let board = gateway.lines.get(&rule.line).and_then(|view| view.board());
    let board = board.and_then(|board| serde_json::to_value(&*board).ok());
    let Some(board) = board else {
        let mut answer = problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "Unavailable",
            "the line's board is not known",
        );
        headers::set_unadmitted(answer.headers_mut(), 5);
        return answer;
    };
    let mut answer = json(StatusCode::OK, &board);
    let for_a_second = HeaderValue::from_static("public, max-age=1");
    answer
        .headers_mut()
        .insert(header::CACHE_CONTROL, for_a_second);
    answer
}
