//! Headers of answers.

use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The page needs its own files and addresses alone.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const ROBOTS: HeaderName = HeaderName::from_static("x-robots-tag");

/// Neither a browser nor a CDN keeps it: it is about one visitor.
pub(crate) fn set_not_stored(headers: &mut HeaderMap) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Those of every answer to somebody who is not let in.
pub(crate) fn set_unadmitted(headers: &mut HeaderMap, retry_after_s: u64) {
    set_not_stored(headers);
    headers.insert(header::RETRY_AFTER, retry_after_s.into());
    headers.insert(header::VARY, HeaderValue::from_static("Accept, Cookie"));
    headers.insert(ROBOTS, HeaderValue::from_static("noindex"));
}

/// Those of the page.
pub(crate) fn set_page(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
