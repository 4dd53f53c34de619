#![allow(clippy::unwrap_used)]
use super::*;

const BASE: &str = "listen = \"127.0.0.1:8090\"\ninsecure_cookies = true\n";
const LINE: &str = "[[line]]\nline = \"sale\"\n";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new(""))
}

#[test]
fn a_whole_file_is_read() {
    let config = parse(
        r#"
        listen = "127.0.0.1:8090"
        envoy_listen = "127.0.0.1:8092"
        trusted_proxies = ["127.0.0.0/8", "::1"]
        on_unavailable = "allow"
        patience_ms = 500
        page_status = 200
        page_dir = "page"
        insecure_cookies = true
        admission_stale_ms = 1000
        streams_max = 100
        address_connections_max = 50
        other_hosts = "pass"
        shop = { name = "Nordlicht", url = "/" }
        address_limits = { domain = "web", requests = ["enter", "status"] }
        notices_bucket = "notices"

        [[line]]
        line = "spring-sale"
        hosts = ["shop.example", "*.shop.example"]
        paths = ["/checkout/*", "/cart"]
        complete_path = "/checkout/done"
        auto_enter_s = 0
        opens_at = "2026-12-01T09:00:00+08:00"

        [[line]]
        line = "rest"

        [[bypass]]
        paths = ["/health"]
        methods = ["GET"]
        from = ["10.0.0.0/8"]
        header = { name = "X-Partner", value = "s3cret" }
        "#,
    )
    .unwrap();
    let rule = |host: &str, path: &str| config.rule_for(host, path).unwrap().line.to_string();
    assert_eq!(rule("shop.example", "/checkout/a"), "spring-sale");
    assert_eq!(rule("a.b.shop.example", "/cart"), "spring-sale");
    assert_eq!(rule("evilshop.example", "/cart"), "rest");
    assert_eq!(rule("shop.example", "/carts"), "rest");
    assert_eq!(config.lines[0].opens_at_ms, Some(1_796_086_800_000));
    assert_eq!(config.on_unavailable, OnUnavailable::Allow);
    assert_eq!(config.connections_max, 2_100);
    assert_eq!(config.address_connections_max, 50);
    assert_eq!(config.other_hosts, OtherHosts::Pass);
    assert!(config.trusts("::ffff:127.1.1.1".parse().unwrap()));
    assert!(config.trusts("::1".parse().unwrap()));
    assert!(!config.trusts("10.0.0.1".parse().unwrap()));
}

#[test]
fn what_is_wrong_is_named_with_its_limit() {
    for (text, field, what) in [
        (
            format!("{BASE}{LINE}pats = []"),
            "the configuration",
            "pats",
        ),
        (
            format!("listen = \"127.0.0.1:1\"\n{LINE}"),
            "secret_file",
            "required",
        ),
        (BASE.to_owned(), "line", "1 to 1000, not 0"),
        (
            format!("{BASE}patience_ms = 10\n{LINE}"),
            "patience_ms",
            "50 to 60000",
        ),
        (
            format!("{BASE}page_status = 302\n{LINE}"),
            "page_status",
            "leads nowhere",
        ),
        (
            format!("{BASE}page_status = 502\n{LINE}"),
            "page_status",
            "leads nowhere",
        ),
        (
            format!("{BASE}connections_max = 9000\n{LINE}"),
            "connections_max",
            "at least 9100",
        ),
        (
            format!("{BASE}address_connections_max = 5\n{LINE}"),
            "address_connections_max",
            "10 to 1000000",
        ),
        (
            format!("{BASE}trusted_proxies = [\"10.0.0/8\"]\n{LINE}"),
            "trusted_proxies",
            "10.0.0/8",
        ),
        (
            format!("{BASE}shop = {{ url = \"javascript:x\" }}\n{LINE}"),
            "shop.url",
            "https://",
        ),
        (
            format!("{BASE}{LINE}paths = [\"/a*\"]"),
            "line[0].paths",
            "only at the end",
        ),
        (
            format!("{BASE}{LINE}complete_path = \"/checkout/*\""),
            "line[0].complete_path",
            "one address, without /*",
        ),
        (
            format!("{BASE}{LINE}hosts = [\"Shop:80\"]"),
            "line[0].hosts",
            "lower case",
        ),
        (
            format!("{BASE}{LINE}opens_at = \"tomorrow\""),
            "line[0].opens_at",
            "needs a time",
        ),
        (
            format!("{BASE}[[line]]\nline = \"a b\""),
            "line[0].line",
            "A-Za-z0-9_-",
        ),
        (
            format!("{BASE}{LINE}[[bypass]]\n"),
            "bypass[0]",
            "all requests",
        ),
        (
            format!("{BASE}{LINE}[[bypass]]\nmethods = [\"G T\"]"),
            "bypass[0].methods",
            "no method",
        ),
        (
            format!("{BASE}address_limits = {{ domain = \"a\", requests = [\"all\"] }}\n{LINE}"),
            "address_limits.requests",
            "enter, page, status",
        ),
        (
            format!("{BASE}address_limits = {{ domain = \"a\", requests = [] }}\n{LINE}"),
            "address_limits.requests",
            "at least one of enter, page, status",
        ),
        (
            format!("{}{LINE}", BASE.replace("127.0.0.1", "0.0.0.0")),
            "insecure_cookies",
            "as 127.0.0.1:8090, not 0.0.0.0:8090",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert_eq!(error.field, field, "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn insecure_cookies_are_for_loopback_alone() {
    let mut config = parse(&format!("{BASE}{LINE}")).unwrap();
    config.listen = "192.0.2.1:80".parse().unwrap();
    assert_eq!(config.check().unwrap_err().field, "insecure_cookies");
    config.insecure_cookies = false;
    config.check().unwrap();
}

/// A shop that answers to every name would be open under one that nobody knows.
#[test]
fn a_host_that_no_rule_names_is_refused_if_any_rule_names_hosts() {
    let named =
        format!("{BASE}{LINE}hosts = [\"shop.example\", \"*.a.example\"]\npaths = [\"/a\"]\n");
    let config = parse(&named).unwrap();
    for host in ["", "elsewhere.example", "a.example", "127.0.0.1"] {
        assert!(config.refuses_host(host), "{host}");
    }
    for host in ["shop.example", "b.a.example"] {
        assert!(!config.refuses_host(host), "{host}");
    }
    let all = parse(&format!("{BASE}{LINE}paths = [\"/a\"]")).unwrap();
    assert!(!all.refuses_host("elsewhere.example"));
    // A rule for all hosts names none.
    let both = parse(&format!("{named}{LINE}paths = [\"/b\"]")).unwrap();
    assert!(both.refuses_host("elsewhere.example"));
    assert!(both.rule_for("elsewhere.example", "/b").is_some());
    let passing = named.replace(LINE, &format!("other_hosts = \"pass\"\n{LINE}"));
    assert!(!parse(&passing).unwrap().refuses_host("elsewhere.example"));
}
