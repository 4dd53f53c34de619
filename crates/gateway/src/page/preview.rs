//! Every state of the page with made-up data, for whoever changes it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use super::catalogues::lay_over;
use super::{PageError, Pages, RenderError, files};
use crate::http::headers::CONTENT_SECURITY_POLICY;
use crate::http::query::value;

/// The names of the states with data, without that which lies beneath all of them.
pub(super) static STATES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let names = files::PREVIEW
        .iter()
        .filter_map(|(file, _)| file.strip_suffix(".json"));
    names.filter(|name| !name.starts_with('_')).collect()
});

/// A server of all states. The shop's folder is read again for each page.
pub struct Preview {
    listener: TcpListener,
    shop_dir: Option<PathBuf>,
}

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The folder cannot be used.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The address cannot be listened on, or the server failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Preview {
    /// Checks the folder, and listens.
    ///
    /// # Errors
    /// The folder cannot be used, or the address cannot be listened on.
    pub async fn bind(
        addr: SocketAddr,
        shop_dir: Option<PathBuf>,
    ) -> Result<Preview, PreviewError> {
        Pages::load(shop_dir.as_deref())?;
        Ok(Preview {
            listener: TcpListener::bind(addr).await?,
            shop_dir,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop` ends.
    ///
    /// # Errors
    /// The server failed.
    pub async fn run(
        self,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), PreviewError> {
        let routes = Router::new()
            .route("/", get(index))
            .route("/preview/{state}", get(state))
            .route("/_nowserving/page/{*file}", get(file))
            .fallback(any(async || Redirect::to("/")))
            .with_state(self.shop_dir);
        // Connections of a browser that looks at pages do not hold it up.
        tokio::select! {
            served = axum::serve(self.listener, routes).into_future() => Ok(served?),
            () = stop => Ok(()),
        }
    }
}

type ShopDir = State<Option<PathBuf>>;

async fn index(State(dir): ShopDir) -> Response {
    with_pages(dir, |pages| Ok(Html(list(pages)).into_response()))
}

async fn state(State(dir): ShopDir, Path(name): Path<String>, query: RawQuery) -> Response {
    let query = query.0.unwrap_or_default();
    with_pages(dir, |pages| {
        let Some(state) = STATES.iter().find(|state| **state == name) else {
            return Ok(StatusCode::NOT_FOUND.into_response());
        };
        let lang = value(&query, "lang");
        let language = pages.language(lang.as_deref(), None, None);
        let is_off = value(&query, "refresh").as_deref() == Some("off");
        let page = render(pages, state, language, is_off);
        let page = page.map_err(|error| error.of_file(state))?;
        let policy = (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
        Ok(([policy], Html(page)).into_response())
    })
}

async fn file(State(dir): ShopDir, Path(path): Path<String>) -> Response {
    with_pages(dir, |pages| {
        Ok(match pages.asset(&path) {
            Some(asset) => {
                ([(header::CONTENT_TYPE, asset.content_type)], asset.bytes).into_response()
            }
            None => StatusCode::NOT_FOUND.into_response(),
        })
    })
}

/// What is wrong with the folder is the answer: its author looks at it.
fn with_pages(
    dir: Option<PathBuf>,
    answer: impl FnOnce(&Pages) -> Result<Response, PageError>,
) -> Response {
    let answered = Pages::load(dir.as_deref()).and_then(|pages| answer(&pages));
    answered.unwrap_or_else(|error| {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
    })
}

fn list(pages: &Pages) -> String {
    let mut html = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
        content=\"width=device-width\"><title>The waiting page</title><main><h1>The waiting page</h1><ul>"
        .to_owned();
    for state in STATES.iter() {
        let _ = write!(html, "<li>{state}:");
        for language in &pages.languages {
            let name = &language.name;
            let _ = write!(html, " <a href=\"/preview/{state}?lang={name}\">{name}</a>");
        }
        html.push_str("</li>");
    }
    html.push_str("</ul></main></html>");
    html
}

/// A state as the gateway would render it.
pub(super) fn render(
    pages: &Pages,
    state: &str,
    language: &str,
    refresh_off: bool,
) -> Result<String, RenderError> {
    let mut context = data("_base");
    lay_over(&mut context, &json!({"refresh_off": refresh_off}));
    lay_over(&mut context, &data(state));
    let urls = json!({"urls": {"assets": pages.assets.root()}});
    lay_over(&mut context, &urls);
    let of_language = |name: &str| format!("/preview/{state}?lang={name}");
    let context = minijinja::Value::from_serialize(&context);
    pages.render_with(language, context, &of_language)
}

/// The data of a state. Tests read all of it.
pub(super) fn data(state: &str) -> Value {
    let file = format!("{state}.json");
    let found = files::PREVIEW.iter().find(|(name, _)| *name == file);
    let data = found.and_then(|(_, bytes)| serde_json::from_slice(bytes).ok());
    data.unwrap_or(Value::Object(Map::new()))
}
