//! Fuzz targets of what browsers and proxies send.

#![allow(clippy::unwrap_used)]

use ::http::header::{ACCEPT, COOKIE};
use ::http::{HeaderMap, HeaderValue, Request};
use nowserving_testkit::target;

use crate::address::{Asked, normal_path, way_back};
use crate::config::{Config, LineRule, Secret};
use crate::cookies::Cookies;
use crate::http::accept::wants_html;
use crate::page::Pages;

fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A path that is taken has one meaning: it is its own normal path, and nothing in it leads anywhere else.
#[test]
fn a_path() {
    let paths = [
        "/checkout/a?b=c",
        "/a/../b//c/./d",
        "/%2e%2e/%41;x=1/",
        "/k%C3%A4se/%20",
        "/..;/a/",
    ];
    target!(seeds(&paths), |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Ok(normal) = normal_path(text) {
            assert!(
                normal.starts_with('/') && !normal.contains("//"),
                "{text:?}: {normal:?}"
            );
            assert!(
                !normal.split('/').any(|it| it == ".." || it == "."),
                "{text:?}: {normal:?}"
            );
            assert!(!normal.contains(['\\', ';']), "{text:?}: {normal:?}");
            let again = normal.replace('%', "%25");
            assert_eq!(normal_path(&again).as_deref(), Ok(&*normal), "{text:?}");
        }
    });
}

/// It leads to the shop, and is a header's value.
#[test]
fn a_way_back() {
    let ways = [
        "/checkout?item=42",
        "//evil",
        "/\\evil",
        "https://evil/",
        "/_nowserving/wait",
    ];
    target!(seeds(&ways), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let way = way_back(&text);
        assert!(way.starts_with('/') && !way.starts_with("//") && !way.contains('\\'));
        HeaderValue::from_str(way).unwrap();
    });
}

#[test]
fn cookies() {
    let cookies = [
        "a=b; __Host-nowserving-sale=AbC; __Host-nowserving-sale.pre=AAAA",
        "=;;=",
        "__Host-nowserving.lang=de",
    ];
    target!(seeds(&cookies), |bytes| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else {
            return;
        };
        let headers: HeaderMap = [(COOKIE, value)].into_iter().collect();
        let (cookies, line) = (
            Cookies::new(&Secret::from([1; 32]), false),
            "sale".parse().unwrap(),
        );
        if let Some(ticket) = cookies.ticket(&headers, &line) {
            assert!(!ticket.is_empty() && ticket.is_ascii());
        }
        assert_eq!(cookies.pre(&headers, &line), None);
        let _ = cookies.language(&headers);
    });
}

#[test]
fn what_is_accepted() {
    let values = [
        "text/html,*/*;q=0.8",
        "de-AT,de;q=0.9,en;q=0.8",
        "zh-Hant-TW;q=1.000",
        "*;q=NaN,;q=-1",
    ];
    target!(seeds(&values), |bytes| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else {
            return;
        };
        let headers: HeaderMap = [(ACCEPT, value.clone())].into_iter().collect();
        let _ = wants_html(&headers);
        if let Ok(text) = value.to_str() {
            static PAGES: std::sync::LazyLock<Pages> =
                std::sync::LazyLock::new(|| Pages::load(None).unwrap());
            assert!(
                !PAGES
                    .language(Some(text), Some(text), Some(text))
                    .is_empty()
            );
        }
    });
}

/// What a trusted proxy says is taken or refused, and never another host or address than it says.
#[test]
fn forwarded_headers() {
    let values = [
        "203.0.113.9, 192.0.2.1",
        "[2001:db8::1]:80",
        "shop.example:8443",
        "/checkout?a",
        "https",
        "GET",
    ];
    target!(seeds(&values), |bytes| {
        let rule = LineRule::new("sale".parse().unwrap());
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(listen, Secret::from([1; 32]), vec![rule]);
        config.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
        for name in [
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-uri",
            "x-forwarded-proto",
            "host",
            "accept-language",
        ] {
            let mut request = Request::builder().uri("/gate/forward");
            let good = [
                ("x-forwarded-method", "GET"),
                ("x-forwarded-uri", "/"),
                ("x-forwarded-host", "a"),
            ];
            for (good, value) in good.into_iter().filter(|(good, _)| *good != name) {
                request = request.header(good, value);
            }
            let Ok(request) = request.header(name, bytes).body(()) else {
                return;
            };
            let (parts, ()) = request.into_parts();
            let peer = "10.0.0.1".parse().unwrap();
            if let Ok(asked) = Asked::forwarded(&parts, peer, &config) {
                assert!(asked.path.starts_with('/'));
                assert!(!asked.host.contains(['/', ' ', '@']));
            }
            let _ = Asked::direct(&parts, peer, &config);
        }
    });
}
