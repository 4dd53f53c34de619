#![allow(clippy::unwrap_used)]
use super::*;

fn cookies(secret: u8, is_insecure: bool) -> Cookies {
    Cookies::new(&Secret::from([secret; 32]), is_insecure)
}

fn line(name: &str) -> LineName {
    name.parse().unwrap()
}

/// A request that brings these back.
fn brings(headers: &[&str]) -> HeaderMap {
    let values = headers.iter().map(|it| (COOKIE, it.parse().unwrap()));
    values.collect()
}

/// What the browser keeps of a `Set-Cookie`.
fn kept(set: &HeaderValue) -> String {
    set.to_str().unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn a_ticket_comes_back_as_it_was_set() {
    for (is_insecure, name) in [(false, "__Host-nowserving-sale"), (true, "nowserving-sale")] {
        let cookies = cookies(1, is_insecure);
        let set = cookies.set_ticket(&line("sale"), "AbC-_9");
        let text = set.to_str().unwrap();
        assert!(
            text.starts_with(&format!("{name}=AbC-_9; Path=/; ")),
            "{text}"
        );
        assert!(text.contains("; HttpOnly; SameSite=Lax"), "{text}");
        assert_eq!(text.ends_with("; Secure"), !is_insecure);
        let back = brings(&[&format!("a=b; {}; c=d", kept(&set))]);
        assert_eq!(cookies.ticket(&back, &line("sale")), Some("AbC-_9"));
        assert_eq!(cookies.ticket(&back, &line("sal")), None);
        assert_eq!(cookies.ticket(&back, &line("sale2")), None);
    }
}

#[test]
fn of_two_tickets_none_is_believed() {
    let (cookies, sale) = (cookies(1, false), line("sale"));
    let one = "__Host-nowserving-sale=AAAA";
    for headers in [
        &[&*format!("{one}; __Host-nowserving-sale=BBBB")][..],
        &[one, "__Host-nowserving-sale=BBBB"],
        &["__Host-nowserving-sale=", one],
    ] {
        assert_eq!(cookies.ticket(&brings(headers), &sale), None, "{headers:?}");
    }
    assert_eq!(cookies.ticket(&brings(&[one, one]), &sale), Some("AAAA"));
}

#[test]
fn what_is_no_ticket_is_none() {
    let (cookies, sale) = (cookies(1, false), line("sale"));
    let long = "A".repeat(513);
    for value in ["", "a b", "a\"b", "a.b", "ä", &long] {
        let mut back = HeaderMap::new();
        let header = format!("__Host-nowserving-sale={value}");
        back.insert(COOKIE, HeaderValue::from_bytes(header.as_bytes()).unwrap());
        assert_eq!(cookies.ticket(&back, &sale), None, "{value}");
    }
    // An insecure gateway's cookie is not one of a secure one's.
    assert_eq!(
        cookies.ticket(&brings(&["nowserving-sale=AAAA"]), &sale),
        None
    );
}

#[test]
fn a_pre_cookie_is_one_key_and_only_its_lines() {
    let (cookies, sale) = (cookies(1, false), line("sale"));
    let value = cookies.new_pre(&sale, [7; 16], 1_000);
    let at = |cookies: &Cookies, name: &str, value: &str, now_s| {
        let back = brings(&[&format!("__Host-nowserving-{name}.pre={value}")]);
        cookies.pre_at(&back, &line(name), now_s)
    };
    let key = Pre::Key(format!("web-{}", "07".repeat(16)));
    for now_s in [990, 1_000, 1_000 + PRE_S] {
        assert_eq!(at(&cookies, "sale", &value, now_s), Some(key.clone()));
    }
    assert_eq!(at(&cookies, "sale", &value, 1_001 + PRE_S), Some(Pre::Old));
    assert_eq!(at(&cookies, "other", &value, 1_000), None);
    assert_eq!(at(&self::cookies(2, false), "sale", &value, 1_000), None);
    let mut altered = BASE64URL_NOPAD.decode(value.as_bytes()).unwrap();
    for nth in 0..altered.len() {
        altered[nth] ^= 1;
        assert_eq!(
            at(&cookies, "sale", &BASE64URL_NOPAD.encode(&altered), 1_000),
            None,
            "{nth}"
        );
        altered[nth] ^= 1;
    }
    assert_eq!(at(&cookies, "sale", &value[1..], 1_000), None);
}

#[test]
fn another_gateway_with_the_same_secret_takes_it() {
    let sale = line("sale");
    let set = cookies(1, false).set_pre(&sale);
    let back = brings(&[&kept(&set)]);
    assert!(matches!(
        cookies(1, false).pre(&back, &sale),
        Some(Pre::Key(_))
    ));
    assert_eq!(cookies(2, false).pre(&back, &sale), None);
}

#[test]
fn a_line_named_as_another_one_s_pre_cookie_is_not_confused_with_it() {
    let cookies = cookies(1, false);
    let back = brings(&["__Host-nowserving-sale-pre=AAAA; __Host-nowserving-lang=BBBB"]);
    assert_eq!(cookies.pre(&back, &line("sale")), None);
    assert_eq!(cookies.language(&back), None);
    let back = brings(&[&kept(&cookies.set_language("zh-Hant"))]);
    assert_eq!(cookies.language(&back), Some("zh-Hant"));
}

#[test]
fn each_gone_ticket_has_one_key() {
    assert_eq!(key_after("AAAA"), key_after("AAAA"));
    assert_ne!(key_after("AAAA"), key_after("AAAB"));
    assert_eq!(key_after("AAAA").len(), 36);
}
