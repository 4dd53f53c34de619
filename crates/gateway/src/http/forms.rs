//! The forms of the page: to take a number, and to give the place up.

use std::time::Duration;

use ::http::StatusCode;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use nowserving_client::{Code, State as TokenState};

use super::Answer;
use super::wait::{Found, Wish, moved, redirect, redirect_to_wait, show, take_number};
use crate::address::Asked;
use crate::cookies::{Pre, key_after};
use crate::visit::Visit;
use crate::{LineRule, Shared};

/// A form has a line and a path.
const FORM_BYTES_MAX: usize = 32 * 1024;
/// So long a form may take.
const FORM_WITHIN: Duration = Duration::from_secs(10);

/// `POST /_nowserving/enter`.
pub(super) async fn enter(State(gateway): State<Shared>, asked: Asked, body: Body) -> Answer {
    let (wish, rule) = match form(&gateway, &asked, body).await {
        Ok(form) => form,
        Err(answer) => return *answer,
    };
    let key = match key(&gateway, &asked, rule, &wish).await {
        Ok(key) => key,
        Err(answer) => return *answer,
    };
    let found = take_number(&gateway, &asked, rule, key).await;
    match found.visit.page {
        _ if found.is_let_in => redirect(&wish.to, found.cookies),
        // It has a number now.
        _ if !found.cookies.is_empty() => redirect_to_wait(rule, &wish, found.cookies),
        _ => show(&gateway, &asked, Some(rule), &wish, found),
    }
}

/// The key to enter with, or the answer to somebody who has a place or no cookies.
async fn key(
    gateway: &Shared,
    asked: &Asked,
    rule: &LineRule,
    wish: &Wish,
) -> Result<String, Box<Answer>> {
    let (line, cookies) = (&rule.line, &gateway.cookies);
    let view = gateway.lines.get(line);
    let ticket = cookies.ticket(&asked.headers, line);
    if let Some((ticket, view)) = ticket.zip(view) {
        match view.status(ticket, false).await {
            Ok(status) if status.state == TokenState::Gone => return Ok(key_after(ticket)),
            Ok(status) => {
                let moved = moved(gateway, line, status.ticket.as_deref());
                let moved = moved.into_iter().collect();
                return Err(Box::new(match status.state {
                    TokenState::Waiting => redirect_to_wait(rule, wish, moved),
                    _ => redirect(&wish.to, moved),
                }));
            }
            // Nobody's ticket: its holder is as one without.
            Err(error) if error.code() == Some(Code::TicketInvalid) => {}
            Err(_) => return Err(Box::new(redirect_to_wait(rule, wish, Vec::new()))),
        }
    }
    match cookies.pre(&asked.headers, line) {
        Some(Pre::Key(key)) => Ok(key),
        None if ticket.is_none() => {
            let found = Found::of(Visit::plain("cookies"));
            Err(Box::new(show(gateway, asked, Some(rule), wish, found)))
        }
        // The browser takes cookies; the page was open for a long time. `wait` brings the new one back.
        Some(Pre::Old) | None => {
            let pre = vec![cookies.set_pre(line), cookies.drop_ticket(line)];
            Err(Box::new(redirect_to_wait(rule, wish, pre)))
        }
    }
}

/// `POST /_nowserving/leave`.
pub(super) async fn leave(State(gateway): State<Shared>, asked: Asked, body: Body) -> Answer {
    let (wish, rule) = match form(&gateway, &asked, body).await {
        Ok(form) => form,
        Err(answer) => return *answer,
    };
    let view = gateway.lines.get(&rule.line);
    let ticket = gateway.cookies.ticket(&asked.headers, &rule.line);
    if let Some((view, ticket)) = view.zip(ticket) {
        // Also if it fails: the page says what came of it.
        if let Err(error) = view.line().leave(ticket).await {
            tracing::debug!(line = %rule.line, %error, "a visitor could not leave");
        }
        gateway.admissions.forget(&rule.line, ticket);
    }
    redirect_to_wait(rule, &wish, Vec::new())
}

/// What the form says, and the rule of its line.
async fn form<'a>(
    gateway: &'a Shared,
    asked: &Asked,
    body: Body,
) -> Result<(Wish, &'a LineRule), Box<Answer>> {
    let refuse =
        |wish: &Wish, status| Box::new(show(gateway, asked, None, wish, Found::error(status)));
    if is_of_another_site(asked) {
        return Err(refuse(&Wish::of_query(""), StatusCode::FORBIDDEN));
    }
    let read = tokio::time::timeout(FORM_WITHIN, to_bytes(body, FORM_BYTES_MAX)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(refuse(&Wish::of_query(""), StatusCode::PAYLOAD_TOO_LARGE)),
        Err(_) => return Err(refuse(&Wish::of_query(""), StatusCode::REQUEST_TIMEOUT)),
    };
    let wish = Wish::of_query(&String::from_utf8_lossy(&bytes));
    match wish.rule(gateway, asked) {
        Some(rule) => Ok((wish, rule)),
        None => Err(refuse(&wish, StatusCode::NOT_FOUND)),
    }
}

/// A form on a page of somebody else must not take a number, or give one up. `SameSite` keeps the cookies from it, but not from
/// another host below the shop's domain. Browsers of these years say where the form stands, older ones its origin, and
/// programs neither.
fn is_of_another_site(asked: &Asked) -> bool {
    match asked.headers.get("sec-fetch-site") {
        Some(site) => site == "cross-site" || site == "same-site",
        None => asked.is_of_another_origin(),
    }
}
