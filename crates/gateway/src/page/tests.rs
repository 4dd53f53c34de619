#![allow(clippy::unwrap_used)]
use super::*;

fn pages() -> Pages {
    Pages::load(None).unwrap()
}

/// What the script is given.
fn data_of(html: &str) -> Value {
    let (_, rest) = html.split_once("data-page='").unwrap();
    let (text, _) = rest.split_once('\'').unwrap();
    serde_json::from_str(text).unwrap()
}

fn shown<'a>(visit: &'a Visit, to: &'a str, shop: &'a Shop) -> Shown<'a> {
    Shown {
        visit,
        line: "sale",
        to,
        shop,
        auto_enter_s: 8,
        refresh_off: false,
    }
}

#[test]
fn every_state_is_rendered_in_every_language() {
    let pages = pages();
    for state in preview::STATES.iter() {
        for language in &pages.languages {
            let html = preview::render(&pages, state, &language.name, false).unwrap();
            let name = &language.name;
            assert!(
                html.contains(&format!("<html lang=\"{name}\"")),
                "{state} {name}"
            );
            assert!(
                !html.contains("{{") && !html.contains("{%"),
                "{state} {name}"
            );
            assert!(
                !html.contains(" style=") && !html.contains("<style"),
                "{state} {name}"
            );
            let page = data_of(&html);
            assert_eq!(page["page"], preview::data(state)["page"], "{state}");
            // Every page has words of its own.
            let heading = &page["words"]["states"][page["page"].as_str().unwrap()]["heading"];
            assert!(
                heading.as_str().is_some_and(|it| !it.is_empty()),
                "{state} {name}"
            );
        }
    }
}

#[test]
fn every_state_of_a_visit_has_data_for_a_preview() {
    let pages: Vec<_> = preview::STATES
        .iter()
        .map(|state| preview::data(state)["page"].clone())
        .collect();
    for page in [
        "enter",
        "cookies",
        "error",
        "limited",
        "unavailable",
        "unavailable_new",
        "uncertain",
        "sold_out",
        "closed",
        "draining",
        "full",
        "admitted",
        "in_checkout",
        "completed",
        "left",
        "idle",
        "no_show",
        "checkout_expired",
        "wait_expired",
        "kicked",
        "forgotten",
        "sold_out_gone",
        "closed_gone",
        "drawing",
        "pre_open_draw",
        "pre_open",
        "paused",
        "call_ahead",
        "waiting",
    ] {
        assert!(pages.contains(&page.into()), "{page}");
    }
}

#[test]
fn what_a_visitor_sends_is_escaped() {
    let shop = Shop {
        name: Some("<b>&\"'".to_owned()),
        url: None,
    };
    let mut visit = Visit::plain("waiting");
    visit.put("position", 1_234);
    visit.put(
        "notice",
        json!({"text": "</main><script>alert('x')</script>"}),
    );
    let to = "/a?b='\"><script>alert(1)</script>";
    let html = pages().render("en", &shown(&visit, to, &shop)).unwrap();
    assert!(!html.contains("<script>alert"), "{html}");
    assert!(!html.contains("<b>"));
    assert_eq!(data_of(&html)["to"], to);
    assert!(html.contains("1,234"));
}

#[test]
fn addresses_of_a_page_carry_line_and_way_back() {
    let (visit, shop) = (Visit::plain("enter"), Shop::default());
    let html = pages()
        .render("en", &shown(&visit, "/checkout?item=42&x=1", &shop))
        .unwrap();
    let urls = &data_of(&html)["urls"];
    let here = "/_nowserving/wait?line=sale&to=%2Fcheckout%3Fitem%3D42%26x%3D1";
    assert_eq!(urls["here"], here);
    assert_eq!(urls["second_step"], format!("{here}&step=2"));
    assert_eq!(urls["status"], "/_nowserving/v1/lines/sale/status");
    assert_eq!(urls["wait"], "/_nowserving/wait");
}

#[test]
fn a_reader_gets_the_language_that_is_wanted_most() {
    let pages = pages();
    for (query, cookie, accept, language) in [
        (None, None, None, "en"),
        (None, None, Some("de-AT,de;q=0.9,en;q=0.8"), "de"),
        (None, None, Some("fr,ja;q=0.5,de;q=0.7"), "de"),
        (None, None, Some("zh-TW"), "zh-Hant"),
        (None, None, Some("zh-HK,en"), "zh-Hant"),
        (None, None, Some("zh-Hant-TW"), "zh-Hant"),
        (None, None, Some("zh-CN,en;q=0.5"), "en"),
        (None, None, Some("de;q=0,ar"), "ar"),
        (None, None, Some("*"), "en"),
        (None, None, Some(";;q=,,\u{7f}"), "en"),
        (None, Some("ja"), Some("de"), "ja"),
        (Some("AR"), Some("ja"), Some("de"), "ar"),
        (Some("xx"), Some("../../etc"), Some("de"), "de"),
    ] {
        assert_eq!(
            pages.language(query, cookie, accept),
            language,
            "{query:?} {cookie:?} {accept:?}"
        );
    }
}

#[test]
fn assets_are_found_by_their_names_alone() {
    let pages = pages();
    let root = pages.assets.root();
    let hash = root.strip_prefix("/_nowserving/page/").unwrap();
    let script = pages.asset(&format!("{hash}page.js")).unwrap();
    assert_eq!(
        (script.content_type, script.is_for_good),
        ("text/javascript; charset=utf-8", true)
    );
    let old = pages.asset("0123/page.css").unwrap();
    assert_eq!(
        (old.content_type, old.is_for_good),
        ("text/css; charset=utf-8", false)
    );
    for path in [
        "page.js",
        "x/../page.js",
        "x/",
        "x/nothing.js",
        "x/../../Cargo.toml",
    ] {
        assert!(pages.asset(path).is_none(), "{path}");
    }
}

#[test]
fn a_shop_lays_its_folder_over_ours() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("page/test/shop");
    let pages = Pages::load(Some(&dir)).unwrap();
    let html = preview::render(&pages, "waiting", "de", false).unwrap();
    let english = preview::render(&pages, "waiting", "en", false).unwrap();
    let ours = preview::render(&self::pages(), "waiting", "en", false).unwrap();
    assert!(html.contains("shop.css") && !ours.contains("shop.css"));
    assert_ne!(english, ours);
    assert_ne!(pages.assets.root(), self::pages().assets.root());
    assert!(pages.asset("x/shop.css").is_some());
}

#[test]
fn a_mistake_in_a_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let error = || Pages::load(Some(dir.path())).err().unwrap().to_string();
    write("templates/footer.html", "{% if %}");
    assert!(
        error().starts_with("templates/footer.html: "),
        "{}",
        error()
    );
    write(
        "templates/footer.html",
        "{{ visit.position.nothing.at.all }}",
    );
    assert!(error().contains("footer.html"), "{}", error());
    write("templates/footer.html", "");
    write("catalogues/de.json", "{");
    assert!(error().starts_with("catalogues/de.json: "), "{}", error());
    write("catalogues/de.json", r#"{"live": "no object"}"#);
    assert!(error().contains("in the state"), "{}", error());
    std::fs::remove_file(dir.path().join("catalogues/de.json")).unwrap();
    Pages::load(Some(dir.path())).unwrap();
    assert!(Pages::load(Some(&dir.path().join("nothing"))).is_err());
}
