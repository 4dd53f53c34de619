//! The page, its stylesheet and its modules: they are in the program.

use ::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use ::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;

use crate::http::Answer;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! file {
    ($kind:ident, $name:literal) => {
        File {
            name: $name,
            kind: $kind,
            bytes: include_bytes!(concat!("../../dashboard/", $name)),
        }
    };
}

static FILES: [File; 14] = [
    file!(HTML, "index.html"),
    file!(SCRIPT, "assets/api.js"),
    file!(SCRIPT, "assets/change.js"),
    file!(SCRIPT, "assets/chart.js"),
    file!(SCRIPT, "assets/cluster.js"),
    file!(STYLE, "assets/dashboard.css"),
    file!(SCRIPT, "assets/dashboard.js"),
    file!(SCRIPT, "assets/dom.js"),
    file!(SCRIPT, "assets/findings.js"),
    file!(PICTURE, "assets/icon.svg"),
    file!(SCRIPT, "assets/line.js"),
    file!(SCRIPT, "assets/overview.js"),
    file!(SCRIPT, "assets/why.js"),
    file!(SCRIPT, "assets/words.js"),
];

/// The file at this path, without the `/` before it. A browser asks each time whether it has changed: an upgrade brings
/// all modules at once.
pub fn file(name: &str, asked: &HeaderMap) -> Option<Answer> {
    let file = FILES.iter().find(|file| file.name == name)?;
    let etag = format!("\"{}\"", &blake3::hash(file.bytes).to_hex()[..16]);
    let headers = [(CACHE_CONTROL, "no-cache"), (ETAG, etag.as_str())];
    let known = asked.get(IF_NONE_MATCH).and_then(|it| it.to_str().ok());
    let is_known = known.is_some_and(|known| {
        let mut tags = known.split(',').map(str::trim);
        tags.any(|tag| tag.trim_start_matches("W/") == etag)
    });
    Some(match is_known {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, [(CONTENT_TYPE, file.kind)], file.bytes).into_response(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn all_files_are_in_the_program() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard/assets");
        let names = fs::read_dir(folder).unwrap().map(|entry| {
            let name = entry.unwrap().file_name();
            format!("assets/{}", name.to_str().unwrap())
        });
        for name in names.chain(["index.html".to_owned()]) {
            let answer = file(&name, &HeaderMap::new()).expect(&name);
            assert_eq!(answer.status(), StatusCode::OK, "{name}");
        }
        for name in [
            "",
            "assets",
            "assets/",
            "preview/line.json",
            "../Cargo.toml",
        ] {
            assert!(file(name, &HeaderMap::new()).is_none(), "{name}");
        }
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let mut headers = HeaderMap::new();
        let answer = file("index.html", &headers).unwrap();
        headers.insert(IF_NONE_MATCH, answer.headers()[ETAG].clone());
        let again = file("index.html", &headers).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        headers.insert(IF_NONE_MATCH, "\"other\"".parse().unwrap());
        assert_eq!(
            file("index.html", &headers).unwrap().status(),
            StatusCode::OK
        );
    }
}
