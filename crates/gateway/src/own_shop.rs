//! A shop in the same process, for demos and for programs with a shop of their own: no proxy stands between.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderName;
use axum::middleware::{self, Next};

use crate::Shared;
use crate::address::{Asked, BadRequest};
use crate::gate::{self, Decision, PASS};
use crate::http::{self, Answer};

/// The shop, whose requests pass the gate first.
pub(crate) fn behind_the_gate(shop: Router, gateway: Shared) -> Router {
    shop.layer(middleware::from_fn_with_state(gateway, check))
}

async fn check(State(gateway): State<Shared>, request: Request, next: Next) -> Answer {
    let (mut parts, body) = request.into_parts();
    let pass_header = HeaderName::from_static(PASS);
    parts.headers.remove(&pass_header);
    let asked = match Asked::direct(&parts, http::peer(&parts), &gateway.config) {
        Ok(asked) => asked,
        Err(why) => return http::bad(&why),
    };
    let until = gate::answers_until();
    match gate::decide(&gateway, &asked, until).await {
        Decision::Through { pass } => {
            if let Some(pass) = pass {
                parts.headers.insert(pass_header, pass);
            }
            next.run(Request::from_parts(parts, body)).await
        }
        Decision::Unadmitted { rule, visit } => {
            gate::unadmitted(&gateway, &asked, rule, visit, until).await
        }
        Decision::UnknownHost => http::bad(&BadRequest::UNKNOWN_HOST),
    }
}
