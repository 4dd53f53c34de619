//! The waiting page: `crates/gateway/page` in the binary, and a shop's folder over it.
//!
//! `page/README.md` is the contract between these files and the gateway.

mod assets;
mod catalogues;
mod languages;
mod preview;
mod shop_dir;

use std::fmt;
use std::path::Path;

use minijinja::Environment;
use serde::Serialize;
use serde_json::{Value, json};

pub use self::preview::{Preview, PreviewError};

pub(crate) use self::assets::Asset;
use self::assets::Assets;
use self::catalogues::Language;
use crate::config::Shop;
use crate::visit::Visit;

/// The files of `crates/gateway/page`, by `build.rs`.
mod files {
    include!(concat!(env!("OUT_DIR"), "/page.rs"));
}

/// All that is below this path is the gateway's, on the shop's own host.
pub(crate) const ROOT: &str = "/_nowserving/";

/// The templates, catalogues and assets.
pub(crate) struct Pages {
    templates: Environment<'static>,
    /// The first one is English.
    languages: Vec<Language>,
    assets: Assets,
}

/// A file of a shop's folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {what}")]
pub struct PageError {
    /// Its path.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

impl PageError {
    fn new(file: impl fmt::Display, what: impl fmt::Display) -> PageError {
        PageError {
            file: file.to_string(),
            what: what.to_string(),
        }
    }
}

/// What a page is made of, beside the language.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub visit: &'a Visit,
    /// Empty if the request named none.
    pub line: &'a str,
    /// Where "Enter now" leads: checked by [`way_back`](crate::address::way_back).
    pub to: &'a str,
    pub shop: &'a Shop,
    pub auto_enter_s: u32,
    /// The reader has stopped the reloads.
    pub refresh_off: bool,
}

/// What `page.html` is rendered with, beside the catalogue and the languages.
#[derive(Serialize)]
struct Context<'a> {
    page: &'a str,
    visit: &'a serde_json::Map<String, Value>,
    line: &'a str,
    to: &'a str,
    shop: Value,
    auto_enter_s: u32,
    refresh_s: Option<u64>,
    refresh_off: bool,
    urls: Value,
}

impl Pages {
    /// The page, with a shop's folder over it.
    ///
    /// # Errors
    /// Names the file of the folder that cannot be used, or with which a state cannot be rendered.
    pub(crate) fn load(shop_dir: Option<&Path>) -> Result<Pages, PageError> {
        let over = match shop_dir {
            Some(dir) => shop_dir::read(dir)?,
            None => shop_dir::ShopDir::default(),
        };
        let mut templates = Environment::new();
        for (name, source) in files::TEMPLATES {
            let source = String::from_utf8_lossy(source).into_owned();
            add(&mut templates, format!("default/{name}"), source.clone())?;
            if !over.templates.contains_key(*name) {
                add(&mut templates, (*name).to_owned(), source)?;
            }
        }
        for (name, source) in over.templates {
            add(&mut templates, name, source)?;
        }
        let languages = catalogues::languages(&over.catalogues)?;
        let assets = Assets::new(over.assets);
        let pages = Pages {
            templates,
            languages,
            assets,
        };
        if shop_dir.is_some() {
            pages.check()?;
        }
        Ok(pages)
    }

    /// A file below `/_nowserving/page/`; `None`: there is none.
    pub(crate) fn asset(&self, path: &str) -> Option<Asset> {
        self.assets.find(path)
    }

    /// The language of a reader, as a catalogue is named: by the query, the cookie, or `Accept-Language`.
    pub(crate) fn language(
        &self,
        query: Option<&str>,
        cookie: Option<&str>,
        accept: Option<&str>,
    ) -> &str {
        &self.languages[self.choose(query, cookie, accept)].name
    }

    /// `language`: as [`Pages::language`] gives it.
    pub(crate) fn render(&self, language: &str, shown: &Shown<'_>) -> Result<String, RenderError> {
        let urls = self.urls(shown);
        let here = urls["here"].as_str().unwrap_or_default().to_owned();
        let context = Context {
            page: shown.visit.page,
            visit: &shown.visit.fields,
            line: shown.line,
            to: shown.to,
            shop: json!({"name": shown.shop.name, "url": shown.shop.url}),
            auto_enter_s: shown.auto_enter_s,
            refresh_s: shown.visit.asks_again_after_s(),
            refresh_off: shown.refresh_off,
            urls,
        };
        let of_language = |name: &str| format!("{here}&lang={name}");
        let context = minijinja::Value::from_serialize(&context);
        self.render_with(language, context, &of_language)
    }

    fn render_with(
        &self,
        language: &str,
        context: minijinja::Value,
        of_language: &dyn Fn(&str) -> String,
    ) -> Result<String, RenderError> {
        let chosen = self.languages.iter().find(|it| it.name == language);
        let chosen = chosen.unwrap_or(&self.languages[0]);
        let languages = self.languages.iter().map(|it| {
            minijinja::context! { lang => it.name, name => it.own_name, url => of_language(&it.name) }
        });
        let languages: Vec<_> = languages.collect();
        let more = minijinja::context! { t => chosen.catalogue, languages };
        let template = self
            .templates
            .get_template("page.html")
            .map_err(RenderError)?;
        let all = minijinja::context! { ..more, ..context };
        template.render(all).map_err(RenderError)
    }

    fn urls(&self, shown: &Shown<'_>) -> Value {
        let line = shown.line;
        let url = |more: &[(&str, &str)]| wait_url(line, shown.to, more);
        json!({
            "assets": self.assets.root(),
            "wait": format!("{ROOT}wait"),
            "here": url(&[]),
            "second_step": url(&[("step", "2")]),
            "refresh_off": url(&[("refresh", "off")]),
            "enter": format!("{ROOT}enter"),
            "leave": format!("{ROOT}leave"),
            "status": format!("{ROOT}v1/lines/{line}/status"),
            "events": format!("{ROOT}v1/lines/{line}/events"),
        })
    }

    /// Renders every state in every language: a template or a catalogue of a shop can be wrong in one of them alone.
    fn check(&self) -> Result<(), PageError> {
        for state in preview::STATES.iter() {
            for language in &self.languages {
                let rendered = preview::render(self, state, &language.name, false);
                rendered.map_err(|error| error.of_file(state))?;
            }
        }
        Ok(())
    }
}

/// Whether every state can be rendered in every language with this folder.
///
/// # Errors
/// Names the file that cannot be used.
pub fn check(shop_dir: Option<&Path>) -> Result<(), PageError> {
    Pages::load(shop_dir)?.check()
}

/// The address of the page, in which the line and the way back stand.
pub(crate) fn wait_url(line: &str, to: &str, more: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("line", line).append_pair("to", to);
    query.extend_pairs(more);
    format!("{ROOT}wait?{}", query.finish())
}

fn add(to: &mut Environment<'static>, name: String, source: String) -> Result<(), PageError> {
    let added = to.add_template_owned(name.clone(), source);
    added.map_err(|error| PageError::new(format!("templates/{name}"), one_line(&error)))
}

/// A template failed.
#[derive(Debug)]
pub(crate) struct RenderError(minijinja::Error);

impl RenderError {
    fn of_file(&self, state: &str) -> PageError {
        let name = self.0.name().unwrap_or("page.html");
        let what = format!("{} (in the state {state})", one_line(&self.0));
        PageError::new(format!("templates/{name}"), what)
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.0))
    }
}

/// With its cause.
fn one_line(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
