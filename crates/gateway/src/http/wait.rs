//! The answer to somebody who is not let in: the page, or data.
//!
//! A number is taken in two steps. The first answer sets a signed pre-cookie; the request that brings it back takes the
//! number. So clients without cookies take none, and a crawler that follows links makes no ghosts.

use ::http::{HeaderValue, Method, StatusCode, header};
use axum::extract::{RawQuery, State};
use axum::response::IntoResponse;
use nowserving_client::{LineName, State as TokenState};
use serde_json::{Map, Value, json};

use super::query::value;
use super::{Answer, Noted, headers, of_problem};
use crate::address::{Asked, normal_path, way_back};
use crate::cookies::Pre;
use crate::lines::is_unavailable;
use crate::page::{ROOT, Shown, wait_url};
use crate::visit::Visit;
use crate::{LineRule, OnUnavailable, Shared, metrics};

/// For answers whose state does not say when it may change.
const RETRY_AFTER_S: u64 = 30;

/// What a visitor has come for.
#[derive(Debug, Clone, Default)]
pub(super) struct Wish {
    pub line: Option<String>,
    /// Checked: a path of the shop.
    pub to: String,
    /// The browser was to bring the pre-cookie back.
    pub is_second_step: bool,
    pub refresh_off: bool,
    pub language: Option<String>,
}

impl Wish {
    pub fn of_query(query: &str) -> Wish {
        let is = |name: &str, wanted: &str| value(query, name).is_some_and(|it| it == wanted);
        Wish {
            line: value(query, "line"),
            to: way_back(&value(query, "to").unwrap_or_default()).to_owned(),
            is_second_step: is("step", "2"),
            refresh_off: is("refresh", "off"),
            language: value(query, "lang"),
        }
    }

    /// At the shop's own address.
    fn of_shop(asked: &Asked) -> Wish {
        Wish {
            to: back_from(asked).to_owned(),
            ..Wish::default()
        }
    }

    /// The rule of the line that is named, or of the one that the way back belongs to.
    pub fn rule<'a>(&self, gateway: &'a Shared, asked: &Asked) -> Option<&'a LineRule> {
        let config = &gateway.config;
        let path = self.to.split(['?', '#']).next().unwrap_or("/");
        let of_path = normal_path(path)
            .ok()
            .and_then(|path| config.rule_for(&asked.host, &path));
        let Some(name) = &self.line else {
            return of_path;
        };
        let name: LineName = name.parse().ok()?;
        of_path
            .filter(|rule| rule.line == name)
            .or_else(|| config.rule_of(&name))
    }

    fn wait_url(&self, rule: &LineRule) -> String {
        let off: &[(&str, &str)] = match self.refresh_off {
            true => &[("refresh", "off")],
            false => &[],
        };
        wait_url(rule.line.as_str(), &self.to, off)
    }
}

/// Where somebody who is let in later is led: after a form that was sent, back to where it stood.
pub(crate) fn back_from(asked: &Asked) -> &str {
    way_back(match asked.method {
        Method::GET | Method::HEAD => &asked.path_and_query,
        _ => referring_path(asked).unwrap_or("/"),
    })
}

/// The path and query of `Referer`, if that is of the same host.
fn referring_path(asked: &Asked) -> Option<&str> {
    let referer = asked.headers.get(header::REFERER)?.to_str().ok()?;
    let (_, rest) = referer.split_once("://")?;
    let path_at = rest.find('/')?;
    let (host, path) = rest.split_at(path_at);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host.eq_ignore_ascii_case(&asked.host).then_some(path)
}

/// What is known of a visitor.
pub(super) struct Found {
    pub visit: Visit,
    pub cookies: Vec<HeaderValue>,
    /// Of an error or a limit; the page's own otherwise.
    pub status: Option<StatusCode>,
    /// It holds a seat since this request: it need not see the page at all.
    pub is_let_in: bool,
}

impl Found {
    pub fn of(visit: Visit) -> Found {
        Found {
            visit,
            cookies: Vec::new(),
            status: None,
            is_let_in: false,
        }
    }

    /// The gateway cannot answer.
    pub fn error(status: StatusCode) -> Found {
        let mut visit = Visit::plain("error");
        visit.put("reference", format!("{:08x}", rand::random::<u32>()));
        Found {
            status: Some(status),
            ..Found::of(visit)
        }
    }
}

/// `/_nowserving/wait`: the page.
pub(super) async fn wait(
    State(gateway): State<Shared>,
    RawQuery(query): RawQuery,
    asked: Asked,
) -> Answer {
    let wish = Wish::of_query(query.as_deref().unwrap_or(""));
    match wish.rule(&gateway, &asked) {
        Some(rule) => answer(&gateway, &asked, rule, &wish, None).await,
        None => show(
            &gateway,
            &asked,
            None,
            &wish,
            Found::error(StatusCode::NOT_FOUND),
        ),
    }
}

/// The whole answer to somebody who is not let in at the shop's own address. `known`: from the gate, if the visitor has a
/// ticket.
pub(crate) async fn unadmitted(
    gateway: &Shared,
    asked: &Asked,
    rule: &LineRule,
    known: Option<Visit>,
) -> Answer {
    answer(gateway, asked, rule, &Wish::of_shop(asked), known).await
}

/// The same where the cluster did not answer in time.
pub(crate) fn unavailable(gateway: &Shared, asked: &Asked, rule: &LineRule) -> Answer {
    let has_number = gateway.cookies.ticket(&asked.headers, &rule.line).is_some();
    let found = Found::of(Visit::unavailable(has_number, None));
    show(gateway, asked, Some(rule), &Wish::of_shop(asked), found)
}

async fn answer(
    gateway: &Shared,
    asked: &Asked,
    rule: &LineRule,
    wish: &Wish,
    known: Option<Visit>,
) -> Answer {
    let limited = limited(gateway, "page", asked).await;
    let found = match (limited, known) {
        (Some(refused), _) => refused,
        (None, Some(visit)) => Found::of(visit),
        (None, None) => find(gateway, asked, rule, wish).await,
    };
    match found.is_let_in {
        true => redirect(&wish.to, found.cookies),
        false => show(gateway, asked, Some(rule), wish, found),
    }
}

/// By the ticket, or by what is known of the line; takes a number if this is the second step.
async fn find(gateway: &Shared, asked: &Asked, rule: &LineRule, wish: &Wish) -> Found {
    if let Some(found) = by_ticket(gateway, asked, rule).await {
        return found;
    }
    let newcomer = newcomer(gateway, rule);
    if asked.method != Method::GET || !asked.is_navigation() {
        return Found::of(newcomer);
    }
    match gateway.cookies.pre(&asked.headers, &rule.line) {
        Some(Pre::Key(key)) => take_number(gateway, asked, rule, key).await,
        None if wish.is_second_step => Found::of(Visit::plain("cookies")),
        // The line may be full or closed, without anybody being asked. Whether it is sold out, it says itself.
        _ => match newcomer.page {
            "full" | "closed" | "draining" => Found::of(newcomer),
            _ => Found::of(Visit::plain("enter")),
        },
    }
}

/// What the newest board says to somebody who has no number. Not while the line does not answer: a page that is sent to enter
/// then is refused again and again, and tries less often after that.
pub(super) fn newcomer(gateway: &Shared, rule: &LineRule) -> Visit {
    let view = gateway.lines.get(&rule.line);
    let Some(view) = view.filter(|view| !view.is_away() && !view.is_unanswered()) else {
        return Visit::unavailable(false, None);
    };
    let (info, board) = (view.info(), view.board());
    Visit::of_newcomer(info.as_deref(), board.as_deref())
}

/// The status of the visitor's token; `None`: the request has no ticket.
pub(super) async fn by_ticket(gateway: &Shared, asked: &Asked, rule: &LineRule) -> Option<Found> {
    let line = &rule.line;
    let ticket = gateway.cookies.ticket(&asked.headers, line)?;
    let view = gateway.lines.get(line)?;
    Some(match view.status(ticket, false).await {
        Ok(status) => {
            let mut found = Found::of(Visit::of_status(&status, view.info().as_deref(), rule));
            found
                .cookies
                .extend(moved(gateway, line, status.ticket.as_deref()));
            found
        }
        Err(error) => Found::of(Visit::of_error(&error, true)),
    })
}

/// The token has another number, and another ticket.
pub(super) fn moved(
    gateway: &Shared,
    line: &LineName,
    ticket: Option<&str>,
) -> Option<HeaderValue> {
    ticket.map(|ticket| gateway.cookies.set_ticket(line, ticket))
}

/// Takes a number under a key, or finds that which the key has.
pub(super) async fn take_number(
    gateway: &Shared,
    asked: &Asked,
    rule: &LineRule,
    key: String,
) -> Found {
    if let Some(refused) = limited(gateway, "enter", asked).await {
        return refused;
    }
    let Some(view) = gateway.lines.get(&rule.line) else {
        return Found::error(StatusCode::NOT_FOUND);
    };
    let info = view.info();
    match view.line().enter(key).await {
        Ok(status) => {
            metrics::entered(&rule.line);
            let mut found = Found::of(Visit::of_status(&status, info.as_deref(), rule));
            found
                .cookies
                .extend(moved(gateway, &rule.line, status.ticket.as_deref()));
            found.is_let_in = matches!(status.state, TokenState::Admitted | TokenState::InCheckout);
            found
        }
        Err(error) => {
            if is_unavailable(&error) {
                view.doubt();
            }
            tracing::debug!(line = %rule.line, %error, "no number");
            match Visit::of_error(&error, false).in_phase(info.as_deref()) {
                visit if visit.page == "error" => {
                    tracing::warn!(line = %rule.line, %error, "a visitor could not enter");
                    Found::error(StatusCode::INTERNAL_SERVER_ERROR)
                }
                visit => Found::of(visit),
            }
        }
    }
}

/// The answer to an address that asks too often.
pub(super) async fn limited(gateway: &Shared, what: &'static str, asked: &Asked) -> Option<Found> {
    let limits = gateway.limits.as_ref()?;
    let retry_after_ms = limits.refuses(what, asked.client).await?;
    Some(Found {
        status: Some(StatusCode::TOO_MANY_REQUESTS),
        ..Found::of(Visit::limited(retry_after_ms))
    })
}

/// Sends somebody who holds a seat to the shop. The gate claims it there.
pub(super) fn redirect(to: &str, cookies: Vec<HeaderValue>) -> Answer {
    let mut answer = StatusCode::SEE_OTHER.into_response();
    let headers = answer.headers_mut();
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/"));
    headers.insert(header::LOCATION, to);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    headers::set_not_stored(headers);
    answer
}

/// Sends somebody to the page.
pub(super) fn redirect_to_wait(rule: &LineRule, wish: &Wish, cookies: Vec<HeaderValue>) -> Answer {
    redirect(&wish.wait_url(rule), cookies)
}

/// The page, or data for whoever wants no page. `rule`: `None` for an unknown line.
pub(super) fn show(
    gateway: &Shared,
    asked: &Asked,
    rule: Option<&LineRule>,
    wish: &Wish,
    mut found: Found,
) -> Answer {
    let language = gateway.language(&asked.headers, wish.language.as_deref());
    if let Some(rule) = rule {
        gateway.announce(&mut found.visit, &rule.line, language);
    }
    let line = rule.map_or("", |rule| rule.line.as_str());
    let page = found.visit.page;
    let status = StatusCode::from_u16(gateway.config.page_status);
    let status = found
        .status
        .or(status.ok())
        .unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let noted = Noted {
        line: Some(line.to_owned()),
        page: Some(page),
        reference: found
            .visit
            .fields
            .get("reference")
            .and_then(Value::as_str)
            .map(str::to_owned),
        about: None,
    };
    let retry_after_s = found.visit.asks_again_after_s().unwrap_or(RETRY_AFTER_S);
    let is_denied =
        found.visit.is_without_line() && gateway.config.on_unavailable == OnUnavailable::Deny;
    let wants_html = asked.wants_html() && !is_denied;
    let mut answer = match wants_html {
        true => html(gateway, rule, wish, &found.visit, status, language),
        false => unadmitted_problem(line, wish, &found.visit, status),
    };
    metrics::shown(line, page);
    let headers = answer.headers_mut();
    headers::set_unadmitted(headers, retry_after_s);
    for cookie in found.cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    if let Some(rule) = rule.filter(|_| wants_html && is_without_number(page)) {
        let has_pre = matches!(
            gateway.cookies.pre(&asked.headers, &rule.line),
            Some(Pre::Key(_))
        );
        if !has_pre {
            headers.append(header::SET_COOKIE, gateway.cookies.set_pre(&rule.line));
        }
    }
    answer.extensions_mut().insert(noted);
    answer
}

/// The next step of such a visitor is to enter, so its browser needs the pre-cookie.
fn is_without_number(page: &str) -> bool {
    matches!(
        page,
        "enter"
            | "cookies"
            | "forgotten"
            | "full"
            | "sold_out"
            | "closed"
            | "draining"
            | "limited"
            | "unavailable_new"
    )
}

fn html(
    gateway: &Shared,
    rule: Option<&LineRule>,
    wish: &Wish,
    visit: &Visit,
    status: StatusCode,
    language: &str,
) -> Answer {
    let shown = Shown {
        visit,
        line: rule.map_or("", |rule| rule.line.as_str()),
        to: &wish.to,
        shop: &gateway.config.shop,
        auto_enter_s: rule.map_or(0, |rule| rule.auto_enter_s),
        refresh_off: wish.refresh_off,
    };
    let mut answer = match gateway.pages.render(language, &shown) {
        Ok(page) => (status, page).into_response(),
        Err(error) => {
            tracing::error!(%error, page = visit.page, "the page could not be rendered");
            (StatusCode::INTERNAL_SERVER_ERROR, visit.page).into_response()
        }
    };
    headers::set_page(answer.headers_mut());
    // The choice lasts.
    if wish
        .language
        .as_deref()
        .is_some_and(|wished| wished.eq_ignore_ascii_case(language))
    {
        let cookie = gateway.cookies.set_language(language);
        answer.headers_mut().append(header::SET_COOKIE, cookie);
    }
    answer
}

/// What a script of the shop gets instead of its answer, so that it can send its user to the page.
fn unadmitted_problem(line: &str, wish: &Wish, visit: &Visit, status: StatusCode) -> Answer {
    let mut body = Map::new();
    body.insert("type".to_owned(), "urn:nowserving:unadmitted".into());
    body.insert(
        "title".to_owned(),
        "There is a line before this page".into(),
    );
    body.insert("status".to_owned(), status.as_u16().into());
    body.insert("line".to_owned(), line.into());
    let urls = json!({
        "wait": wait_url(line, &wish.to, &[]),
        "status": format!("{ROOT}v1/lines/{line}/status"),
    });
    body.insert("urls".to_owned(), urls);
    if let Value::Object(visit) = visit.to_json() {
        body.extend(visit);
    }
    of_problem(status, &Value::Object(body))
}
