//! Whether somebody wants a page or data.

use ::http::HeaderMap;
use ::http::header::ACCEPT;

/// Media ranges that are looked at.
const RANGES_MAX: usize = 40;

/// A page for documents; data for requests of scripts, for stylesheets and pictures, and for whoever does not name HTML. A
/// browser says what it is for; others by `Accept`, where HTML must be named and wanted at least as much as JSON.
pub(crate) fn wants_html(headers: &HeaderMap) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("x-requested-with").is_some_and(|by| by.eq_ignore_ascii_case("XMLHttpRequest")) {
        return false;
    }
    if let Some(dest) = header("sec-fetch-dest") {
        return matches!(
            dest,
            "document" | "iframe" | "frame" | "fencedframe" | "embed" | "object"
        );
    }
    let mut html = 0.0_f32;
    let mut json = 0.0_f32;
    let ranges = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    for range in ranges.flat_map(|value| value.split(',')).take(RANGES_MAX) {
        let (kind, quality) = range_of(range);
        match kind.as_str() {
            "text/html" | "application/xhtml+xml" => html = html.max(quality),
            "application/json" | "application/problem+json" => json = json.max(quality),
            _ => {}
        }
    }
    html > 0.0 && html >= json
}

fn range_of(range: &str) -> (String, f32) {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or("").to_ascii_lowercase();
    let quality =
        parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    // What cannot be read is not wanted.
    let quality = quality.map_or(1.0, |text| text.parse::<f32>().unwrap_or(0.0));
    (kind, quality.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn wants(headers: &[(&'static str, &str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        wants_html(&headers.collect())
    }

    #[test]
    fn browsers_get_a_page_and_scripts_do_not() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        assert!(wants(&[("accept", browser)]));
        assert!(wants(&[("sec-fetch-dest", "document"), ("accept", "*/*")]));
        assert!(wants(&[("accept", "application/json;q=0.5, text/html")]));
        assert!(!wants(&[("sec-fetch-dest", "empty"), ("accept", browser)]));
        assert!(!wants(&[
            ("x-requested-with", "XMLHttpRequest"),
            ("accept", browser)
        ]));
        for accept in [
            "*/*",
            "application/json",
            "application/json, text/html;q=0.5",
            "text/html;q=0",
            "text/html;q=x",
        ] {
            assert!(!wants(&[("accept", accept)]), "{accept}");
        }
        assert!(!wants(&[]));
    }
}
