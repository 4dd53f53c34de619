#![allow(clippy::unwrap_used)]
use ::http::Request;

use super::*;
use crate::config::{LineRule, Secret};

fn config(trusted: &[&str]) -> Config {
    let rule = LineRule::new("sale".parse().unwrap());
    let mut config = Config::new(
        "127.0.0.1:0".parse().unwrap(),
        Secret::from([0; 32]),
        vec![rule],
    );
    config.trusted_proxies = trusted.iter().map(|net| net.parse().unwrap()).collect();
    config
}

fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn headers_of_strangers_are_not_believed() {
    let config = config(&["10.0.0.0/8"]);
    let spoofed = parts(
        "/a",
        &[
            ("host", "Shop.Example:8443"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "admin.example"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-uri", "/other"),
        ],
    );
    let asked = Asked::direct(&spoofed, ip("192.0.2.1"), &config).unwrap();
    assert_eq!((asked.client, asked.https), (ip("192.0.2.1"), false));
    assert_eq!(
        (asked.host.as_str(), asked.path.as_str()),
        ("shop.example", "/a")
    );
    for ask in [Asked::forwarded, Asked::original] {
        assert!(
            ask(&spoofed, ip("192.0.2.1"), &config)
                .unwrap_err()
                .is_forbidden
        );
    }
}

#[test]
fn private_is_this_machine_and_networks_that_are_not_of_the_internet() {
    let config = config(&["10.0.0.1/32"]);
    let of = |peer| is_private(&parts("/readyz", &[]).headers, ip(peer), &config);
    for peer in [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "::ffff:192.168.1.1",
        "169.254.1.1",
        "fe80::1",
        "fd00::1",
        // The proxy itself, which asks for nobody.
        "10.0.0.1",
    ] {
        assert!(of(peer), "{peer}");
    }
    for peer in [
        "0.0.0.0",
        "192.0.2.1",
        "172.32.0.1",
        "203.0.113.9",
        "::",
        "::ffff:203.0.113.9",
        "2001:db8::1",
        "fec0::1",
    ] {
        assert!(!of(peer), "{peer}");
    }
}

#[test]
fn a_proxy_makes_no_visitor_private() {
    let config = config(&["10.0.0.1/32"]);
    let by_proxy = |forwarded_for| {
        let parts = parts("/readyz", &[("x-forwarded-for", forwarded_for)]);
        is_private(&parts.headers, ip("10.0.0.1"), &config)
    };
    assert!(by_proxy("192.168.1.1"));
    for forwarded_for in ["203.0.113.9", "127.0.0.1, 203.0.113.9", "unknown", ""] {
        assert!(!by_proxy(forwarded_for), "{forwarded_for:?}");
    }
    let by_stranger = parts("/readyz", &[("x-forwarded-for", "192.168.1.1")]);
    assert!(!is_private(&by_stranger.headers, ip("10.9.9.9"), &config));
}

#[test]
fn a_trusted_proxy_says_who_asks_for_what() {
    let config = config(&["10.0.0.0/8"]);
    let of_proxy = parts(
        "/gate/forward",
        &[
            ("host", "gateway"),
            ("x-forwarded-for", "203.0.113.9, 192.0.2.1"),
            ("x-forwarded-for", "10.9.9.9"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/Check%6fut//x/?q=1"),
        ],
    );
    let asked = Asked::forwarded(&of_proxy, ip("::ffff:10.0.0.1"), &config).unwrap();
    assert_eq!(asked.method, Method::POST);
    assert_eq!(
        (asked.host.as_str(), asked.path.as_str()),
        ("shop.example", "/Checkout/x/")
    );
    assert_eq!(asked.path_and_query, "/Check%6fut//x/?q=1");
    // The one before the first that is not trusted is what the client says of itself.
    assert_eq!((asked.client, asked.https), (ip("192.0.2.1"), true));
}

#[test]
fn a_header_of_the_proxy_that_is_there_twice_is_refused() {
    let config = config(&["10.0.0.1/32"]);
    let good = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "a"),
    ];
    for (name, value) in good {
        let twice = parts("/", &[&good[..], &[(name, value)]].concat());
        assert!(
            Asked::forwarded(&twice, ip("10.0.0.1"), &config).is_err(),
            "{name}"
        );
    }
    assert!(Asked::forwarded(&parts("/", &good[1..]), ip("10.0.0.1"), &config).is_err());
    let long = format!("1.1.1.1{}", ", 10.0.0.1".repeat(50));
    let long = parts("/", &[&good[..], &[("x-forwarded-for", &long)]].concat());
    assert!(Asked::forwarded(&long, ip("10.0.0.1"), &config).is_err());
}

#[test]
fn addresses_are_read_with_and_without_ports() {
    for (text, address) in [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:80", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ] {
        assert_eq!(super::address(text), Some(ip(address)), "{text}");
    }
    for bad in ["", "unknown", "_x", "1.2.3", "1.2.3.4, 5.6.7.8"] {
        assert_eq!(super::address(bad), None, "{bad}");
    }
}

#[test]
fn hosts_are_compared_without_case_and_port() {
    for (host, normal) in [
        ("Shop.Example", "shop.example"),
        ("shop.example:80", "shop.example"),
        ("shop.example.:80", "shop.example"),
        ("[::1]:80", "[::1]"),
        ("", ""),
    ] {
        assert_eq!(normal_host(host).unwrap(), normal);
    }
    for bad in ["a/b", "a b", "a@b", "ä", "a\\b", &"a".repeat(256)] {
        assert!(normal_host(bad).is_err(), "{bad}");
    }
}

#[test]
fn paths_are_normal_before_rules_see_them() {
    for (path, normal) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("//a///b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/%61/%2e%2e/b", "/b"),
        ("/a;x=1/b;y", "/a/b"),
        ("/a/;x/b", "/a/b"),
        ("/k%C3%A4se", "/käse"),
        ("/a%20b", "/a b"),
        ("/100%25", "/100%"),
    ] {
        assert_eq!(normal_path(path).as_deref(), Ok(normal), "{path}");
    }
}

#[test]
fn paths_that_two_programs_could_read_in_two_ways_are_refused() {
    for path in [
        "",
        "a",
        "/..",
        "/a/../..",
        "/%2e%2e",
        "/a%2fb",
        "/a%2Fb",
        "/a%5cb",
        "/a\\b",
        "/a%00",
        "/a%0d%0ab",
        "/a%",
        "/a%2",
        "/a%zz",
        "/a/..;/b",
        "/a/.;x",
        "/a/%2e%2e;/b",
        "/static/..%2fcheckout",
    ] {
        assert!(normal_path(path).is_err(), "{path}");
    }
}

#[test]
fn only_paths_of_the_shop_lead_back() {
    for to in ["/", "/checkout?item=42&x=%20", "/a#b"] {
        assert_eq!(way_back(to), to);
    }
    let long = format!("/{}", "a".repeat(9_000));
    for to in [
        "",
        "checkout",
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/a\r\nSet-Cookie: x=y",
        "/a b",
        "/ä",
        "/_nowserving/wait?to=/",
        "javascript:alert(1)",
        &long,
    ] {
        assert_eq!(way_back(to), "/", "{to}");
    }
}

#[test]
fn a_prefetch_is_no_navigation() {
    let html = ("accept", "text/html");
    let asked = |headers: &[(&str, &str)]| {
        Asked::direct(&parts("/", headers), ip("192.0.2.1"), &config(&[])).unwrap()
    };
    assert!(asked(&[html]).is_navigation());
    assert!(!asked(&[]).is_navigation());
    for prefetch in [
        ("sec-purpose", "prefetch;prerender"),
        ("purpose", "prefetch"),
        ("x-moz", "prefetch"),
    ] {
        assert!(!asked(&[html, prefetch]).is_navigation(), "{prefetch:?}");
    }
}

#[test]
fn a_page_of_another_host_says_so_by_its_origin() {
    let host = ("host", "Shop.Example:8443");
    let asks = |origins: &[&str]| {
        let origins = origins.iter().map(|origin| ("origin", *origin));
        let headers: Vec<_> = std::iter::once(host).chain(origins).collect();
        let asked = Asked::direct(&parts("/", &headers), ip("192.0.2.1"), &config(&[]));
        asked.unwrap().is_of_another_origin()
    };
    assert!(!asks(&[]));
    assert!(!asks(&["https://shop.example"]) && !asks(&["http://shop.example:8443"]));
    for other in [
        "null",
        "",
        "shop.example",
        "https://other.shop.example",
        "https://shop.example.evil.example",
        "https://evil.example/shop.example",
        "ftp://shop.example",
    ] {
        assert!(asks(&[other]), "{other}");
    }
    assert!(asks(&["https://shop.example", "https://evil.example"]));
}
