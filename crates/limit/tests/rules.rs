//! Rules: what is read, what is refused, and which one counts.

mod elsewhere;

use nowserving_limit::{
    Algorithm, Matched, MetricValues, RULE_ERRORS_MAX, RULES_BYTES_MAX, Rule, Rules, Unit,
    WhenFull, key,
};

const SHOP: &str = include_str!("rules/shop.yaml");

fn parse(text: &str) -> Rules {
    Rules::parse(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn errors(text: &str) -> Vec<String> {
    let errors = Rules::parse(text).unwrap_err();
    errors.0.iter().map(ToString::to_string).collect()
}

fn matched<'r>(rules: &'r Rules, domain: &str, entries: &[(&str, &str)]) -> Matched<'r> {
    rules.resolve(domain, &[entries]).unwrap().remove(0)
}

fn limited<'r>(rules: &'r Rules, domain: &str, entries: &[(&str, &str)]) -> Option<&'r Rule> {
    match matched(rules, domain, entries) {
        Matched::Limited { rule, .. } => Some(rule),
        _ => None,
    }
}

/// How many requests the rule that counts allows in a unit.
fn requests(rules: &Rules, domain: &str, entries: &[(&str, &str)]) -> Option<u32> {
    let rule = limited(rules, domain, entries)?;
    rule.limit.as_ref().map(|limit| limit.requests_per_unit())
}

#[test]
fn every_field_is_read() {
    let rules = parse(SHOP);
    assert_eq!(rules.domains().collect::<Vec<_>>(), ["messaging", "shop"]);
    let all = rules.rules();
    let all: Vec<_> = all
        .iter()
        .map(|(path, rule)| format!("{path}: {rule}"))
        .collect();
    assert_eq!(
        all,
        [
            "messaging / to_number: 100 per day, fixed_window",
            "shop / agent=404: 0 per hour, fixed_window",
            "shop / agent=friend: unlimited, named friends",
            "shop / agent=scraper: 5 per month, sliding_window_log, shadow mode, replaces search other",
            "shop / path=/search: 20 per second, token_bucket, burst 100, detailed metric, named search",
            "shop / path=/slow: 1000 per minute, leaking_bucket",
            "shop / path=/api/*/export: 6 per minute, leaking_bucket",
            "shop / path=/api/*: 500 per week, sliding_window_counter, zone Europe/Berlin",
            "shop / path: 1000 per minute, leaking_bucket",
            "shop / register / remote_address: 10 per day, fixed_window, zone Asia/Taipei, exact, refused when full",
            "shop / service=media: 1 per year, fixed_window, quota mode",
        ]
    );
    let rule = limited(
        &rules,
        "shop",
        &[("register", ""), ("remote_address", "::1")],
    )
    .unwrap();
    assert!(rule.is_exact && rule.when_full == WhenFull::Deny);
    let limit = rule.limit.as_ref().unwrap();
    assert_eq!(
        (limit.algorithm(), limit.unit()),
        (Algorithm::FixedWindow, Unit::Day)
    );
}

/// The examples of Lyft's README, in short.
#[test]
fn the_shape_of_lyfts_files_is_read() {
    let basic = "
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - key: subkey1
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: subkey1
        value: subvalue1
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: key2
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: key2
    value: value2
    rate_limit: {unit: minute, requests_per_unit: 30}
  - key: key2
    value: value3
  - key: key5
    value: value5
    rate_limit: {unit: day, requests_per_unit: 15}
    descriptors:
      - key: subkey5
        value: subvalue5
        rate_limit: {unit: day, requests_per_unit: 25}
";
    let rules = parse(basic);
    for (entries, expected) in [
        (&[("key1", "value1"), ("subkey1", "something")][..], Some(5)),
        (&[("key1", "value1"), ("subkey1", "subvalue1")], Some(10)),
        // The whole depth has to match.
        (&[("key1", "value1")], None),
        (&[("key1", "value1"), ("subkey1", "x"), ("more", "y")], None),
        (&[("key1", "value2"), ("subkey1", "x")], None),
        (&[("subkey1", "x")], None),
        (&[("key2", "something")], Some(20)),
        (&[("key2", "")], Some(20)),
        (&[("key2", "value2")], Some(30)),
        // An entry without a limit lets its value pass.
        (&[("key2", "value3")], None),
        (&[("key2", "value2"), ("more", "x")], None),
        (&[("key5", "value5")], Some(15)),
        (&[("key5", "value5"), ("subkey5", "subvalue5")], Some(25)),
        (&[("key5", "value5"), ("subkey5", "other")], None),
        (&[], None),
    ] {
        assert_eq!(
            requests(&rules, "test-domain", entries),
            expected,
            "{entries:?}"
        );
    }
    assert_eq!(requests(&rules, "other", &[("key2", "x")]), None);
    assert!(rules.has_domain("test-domain") && !rules.has_domain("other"));
}

#[test]
fn the_value_comes_before_wildcards_and_they_before_the_key_alone() {
    let rules = parse(
        "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: k, value: ab*, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: k, value: a*, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: k, value: '*z', rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: k, value: abc, rate_limit: {unit: day, requests_per_unit: 5}}
",
    );
    for (value, expected) in [
        ("abc", 5),
        ("abcd", 2),
        ("a", 3),
        ("acz", 3),
        ("z", 4),
        ("x", 1),
    ] {
        assert_eq!(
            requests(&rules, "d", &[("k", value)]),
            Some(expected),
            "{value}"
        );
    }
}

#[test]
fn the_path_of_a_rule_shows_which_one_fits() {
    let rules = parse(
        "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: k
    value: a*
    descriptors:
      - {key: l, value: x, rate_limit: {unlimited: true}}
",
    );
    let path = |entries: &[(&str, &str)]| rules.path("d", entries).map(|it| it.to_string());
    assert_eq!(path(&[("k", "b")]).as_deref(), Some("d / k"));
    let nested = path(&[("k", "abc"), ("l", "x")]);
    assert_eq!(nested.as_deref(), Some("d / k=a* / l=x"));
    let listed = rules.rules();
    assert!(
        listed
            .iter()
            .any(|(path, _)| Some(path.to_string()) == nested)
    );
    assert_eq!(path(&[("k", "abc")]), None, "it has no limit of its own");
    assert_eq!(path(&[("k", "abc"), ("l", "y")]), None);
    assert_eq!(rules.path("e", [("k", "b")]), None);
}

/// As in Lyft's server: what was taken at one step is not given back when it leads nowhere.
#[test]
fn there_is_no_way_back() {
    let rules = parse(
        "
domain: d
descriptors:
  - {key: k, value: v}
  - key: k
    descriptors:
      - {key: l, rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    assert_eq!(
        requests(&rules, "d", &[("k", "other"), ("l", "x")]),
        Some(1)
    );
    assert_eq!(requests(&rules, "d", &[("k", "v"), ("l", "x")]), None);
}

#[test]
fn keys_and_values_are_not_glued_together() {
    let rules = parse(
        "
domain: d
descriptors:
  - {key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a, value: b, rate_limit: {unit: day, requests_per_unit: 2}}
",
    );
    assert_eq!(requests(&rules, "d", &[("a_b", "x")]), Some(1));
    assert_eq!(requests(&rules, "d", &[("a", "b")]), Some(2));
}

const REPLACES: &str = "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {name: specific_limit, requests_per_unit: 5, unit: second}
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          replaces:
            - name: specific_limit
          requests_per_unit: 10
          unit: second
  - key: key_3
    rate_limit: {unlimited: true, replaces: [{name: specific_limit}]}
";

#[test]
fn a_rule_is_replaced_if_the_one_that_replaces_it_is_there_too() {
    let rules = parse(REPLACES);
    let first = &[("key_1", "value_1"), ("user", "bkthomps")][..];
    let second = &[("key_2", "value_2"), ("user", "bkthomps")][..];
    let unlimited = &[("key_3", "x")][..];
    let kinds = |descriptors: &[&[(&str, &str)]]| {
        let matched = rules.resolve("example7", descriptors).unwrap();
        let kinds = matched.iter().map(|matched| match matched {
            Matched::Nothing => "nothing",
            Matched::Unlimited(_) => "unlimited",
            Matched::Replaced(_) => "replaced",
            Matched::Limited { .. } => "limited",
        });
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(kinds(&[first]), ["limited"]);
    assert_eq!(kinds(&[second]), ["limited"]);
    assert_eq!(kinds(&[first, second]), ["replaced", "limited"]);
    assert_eq!(kinds(&[second, first]), ["limited", "replaced"]);
    assert_eq!(
        kinds(&[first, unlimited, &[("x", "y")]]),
        ["replaced", "unlimited", "nothing"]
    );
}

#[test]
fn counters_are_by_value_unless_a_threshold_is_shared() {
    let rules = parse(SHOP);
    let key_of = |entries: &[(&str, &str)]| match matched(&rules, "shop", entries) {
        Matched::Limited { key, .. } => key,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        key_of(&[("path", "/api/1/export")]),
        key_of(&[("path", "/api/2/export")])
    );
    assert_ne!(key_of(&[("path", "/api/1")]), key_of(&[("path", "/api/2")]));
    let key = key_of(&[("register", "x"), ("remote_address", "::1")]);
    let parts = key::decode(&key).unwrap();
    assert_eq!(
        (parts.algorithm, parts.unit),
        (Algorithm::FixedWindow, Unit::Day)
    );
    assert_eq!(parts.domain, "shop");
    assert_eq!(
        parts.entries,
        [("register", "x"), ("remote_address", "::1")]
    );
    let long = "x".repeat(3_000);
    assert!(rules.resolve("shop", &[[("path", long.as_str())]]).is_err());
    // What no rule matches need not fit.
    assert_eq!(
        rules.resolve("shop", &[[("other", long.as_str())]]),
        Ok(vec![Matched::Nothing])
    );
}

#[test]
fn a_rule_says_what_it_limits() {
    let rules = parse(SHOP);
    let rule = limited(&rules, "shop", &[("agent", "scraper")]).unwrap();
    assert!(rule.is_shadow && !rule.is_quota);
    let limit = rule.limit.as_ref().unwrap();
    assert_eq!(limit.algorithm(), Algorithm::SlidingWindowLog);
    let friend = matched(&rules, "shop", &[("agent", "friend")]);
    assert!(matches!(friend, Matched::Unlimited(_)));
    assert_eq!(
        friend.rule().and_then(|rule| rule.name.as_deref()),
        Some("friends")
    );
}

#[test]
fn metrics_are_named_as_by_lyft() {
    let rules = parse(
        "
domain: d
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: method
        value: read*
        value_to_metric: true
        descriptors:
          - {key: id, rate_limit: {unit: minute, requests_per_unit: 60}}
      - key: method
        value: write*
        descriptors:
          - {key: id, value: root, rate_limit: {unit: minute, requests_per_unit: 60}}
  - {key: file, value: a/*, share_threshold: true, value_to_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: all, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: fixed, value: x, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: some, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: free
    rate_limit: {unlimited: true}
    descriptors:
      - {key: id, value: x*, rate_limit: {unit: minute, requests_per_unit: 1}}
",
    );
    // Without those that have values of requests.
    let expected = ["d.file_a/*", "d.fixed_x", "d.free.id_x*", "d.some"];
    let named = rules.metric_names();
    let names: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, expected);
    for (path, _) in &named {
        let mut listed = rules.rules().into_iter();
        assert!(listed.any(|(it, _)| it.to_string() == *path), "{path}");
    }
    for (entries, name) in [
        (
            &[("route", "api"), ("method", "readfile"), ("id", "7")][..],
            Some(("d.route_api.method_readfile.id", MetricValues::OfRequests)),
        ),
        (
            &[("route", "api"), ("method", "writefile"), ("id", "root")],
            Some((
                "d.route_api.method_write*.id_root",
                MetricValues::OfRequests,
            )),
        ),
        (
            &[("file", "a/b")],
            Some(("d.file_a/*", MetricValues::OfRules)),
        ),
        (&[("all", "x")], Some(("d.all_x", MetricValues::OfRequests))),
        (&[("some", "x")], Some(("d.some", MetricValues::OfRules))),
        (
            &[("fixed", "x")],
            Some(("d.fixed_x", MetricValues::OfRules)),
        ),
        (&[("none", "x")], None),
        (&[("route", "api")], None),
    ] {
        let mut made = String::new();
        let values = rules.metric_name("d", entries, &mut made);
        let expected = name.map_or("", |(name, _)| name);
        assert_eq!(made, expected, "{entries:?}");
        assert_eq!(values, name.map(|(_, values)| values), "{entries:?}");
    }
}

#[test]
fn each_mistake_is_told_with_its_place_and_its_limit() {
    for (text, expected) in [
        (
            "domain: d\ndescriptors:\n  - key: [a",
            "line 4, column 1: not YAML: ",
        ),
        ("'''", "line 1, column 1: not YAML: "),
        ("domain:\n\t- c", "line 2, column 2: not YAML: "),
        (
            "descriptors: []",
            "line 1, column 1: domain: missing: a text that is not empty",
        ),
        ("domain: ~", "line 1, column 1: domain: missing: "),
        (
            "domain: [d]",
            "line 1, column 9: domain: a text of 1 to 128 bytes",
        ),
        (
            "- domain",
            "line 1, column 1: not a mapping; its fields are domain, descriptors",
        ),
        (
            "0.25: d\ndomain: d",
            "line 1, column 1: 0.25: an unknown field; known ones are domain, descriptors",
        ),
        (
            "[a]: d\ndomain: d",
            "line 1, column 1: the name of a field is a text",
        ),
        (
            "domain: d\ndomain: e",
            "line 2, column 1: domain: the field is there twice",
        ),
        (
            "domain: d\n---\ndomain: d",
            "line 3, column 9: domain: the domain `d` is there twice, first in line 1",
        ),
        (
            "domain: d\ndescriptors: 5",
            "line 2, column 14: descriptors: not a list",
        ),
        (
            "domain: d\ndescriptors: [a]",
            "line 2, column 15: descriptors[0]: not a mapping; its fields are key, value, ",
        ),
        (
            "domain: d\ndescriptors:\n  - value: v",
            "line 3, column 5: descriptors[0].key: missing: a text that is not empty",
        ),
        (
            "domain: d\ndescriptors:\n  - {key: k, Value: v}",
            "line 3, column 14: descriptors[0].Value: an unknown field; `value` is meant",
        ),
        (
            "domain: d\ndescriptors:\n  - {key: k, ratelimit: {unit: day}}",
            "line 3, column 14: descriptors[0].ratelimit: an unknown field; `rate_limit` is meant",
        ),
        (
            "domain: d\ndescriptors:\n  - {key: k, value: v}\n  - {key: k, value: v}",
            "line 4, column 11: descriptors[1].key: key `k` with value `v` is there twice, first in line 3",
        ),
        (
            "domain: d\ndescriptors:\n  - {key: k}\n  - key: k",
            "line 4, column 10: descriptors[1].key: key `k` is there twice, first in line 3",
        ),
        (
            "domain: d\ndescriptors: [{key: k, value: a*}, {key: k, value: a*}]",
            "line 2, column 42: descriptors[1].key: key `k` with value `a*` is there twice, first in line 2",
        ),
        (
            "domain: d\ndescriptors: [{key: k, shadow_mode: maybe}]",
            "line 2, column 37: descriptors[0].shadow_mode: `maybe` is neither true nor false",
        ),
        (
            "domain: d\ndescriptors: [{key: k, value: v, share_threshold: true}]",
            "line 2, column 51: descriptors[0].share_threshold: only with a value that has a `*`",
        ),
    ] {
        let first = errors(text).remove(0);
        assert!(first.starts_with(expected), "{text}\n{first}\n{expected}");
    }
}

#[test]
fn each_mistake_in_a_rate_limit_is_told() {
    for (limit, column, expected) in [
        (
            "5",
            1,
            "rate_limit: not a mapping; its fields are unit, requests_per_unit, ",
        ),
        (
            "{}",
            1,
            "rate_limit.unit: missing: one of second, minute, hour, day, week, month, year",
        ),
        (
            "{unit: day}",
            1,
            "rate_limit.requests_per_unit: missing: a whole number from 0 to 4294967295",
        ),
        (
            "{unit: foo, requests_per_unit: 5}",
            8,
            "rate_limit.unit: `foo` is not one of second, minute, hour, day, week, month, year",
        ),
        (
            "{unit: day, requests_per_unit: 4294967296}",
            32,
            "rate_limit.requests_per_unit: `4294967296` is not a whole number from 0 to 4294967295",
        ),
        (
            "{unit: day, requests_per_unit: '5'}",
            32,
            "rate_limit.requests_per_unit: `5` is not a whole number from 0 to 4294967295",
        ),
        (
            "{unit: day, requests_per_unit: [5]}",
            32,
            "rate_limit.requests_per_unit: a list is not a whole number from 0 to 4294967295",
        ),
        (
            "{unit: day, requestsperunit: 5}",
            13,
            "rate_limit.requestsperunit: an unknown field; `requests_per_unit` is meant",
        ),
        (
            "{unit: day, requests_per_unit: 5, algorithm: gcra}",
            46,
            "rate_limit.algorithm: `gcra` is not one of fixed_window, sliding_window_log, ",
        ),
        (
            "{unit: day, requests_per_unit: 10001, algorithm: sliding_window_log}",
            32,
            "rate_limit.requests_per_unit: at most 10000 with algorithm sliding_window_log",
        ),
        (
            "{unit: day, requests_per_unit: 5, burst: 7}",
            42,
            "rate_limit.burst: only with algorithm token_bucket or leaking_bucket",
        ),
        (
            "{unit: day, requests_per_unit: 5, algorithm: token_bucket, burst: 0}",
            67,
            "rate_limit.burst: 1 to 4294967295",
        ),
        (
            "{unit: day, requests_per_unit: 5, zone: Nowhere/Else}",
            41,
            "rate_limit.zone: `Nowhere/Else` is not one of the time zones of the IANA database",
        ),
        (
            "{unit: hour, requests_per_unit: 5, zone: UTC}",
            42,
            "rate_limit.zone: only with unit day, week, month or year and algorithm ",
        ),
        (
            "{unit: day, requests_per_unit: 5, when_full: wait}",
            46,
            "rate_limit.when_full: `wait` is not one of allow, deny",
        ),
        (
            "{unlimited: true, unit: day}",
            25,
            "rate_limit.unit: not with unlimited",
        ),
        (
            "{unlimited: true, exact: true}",
            26,
            "rate_limit.exact: not with unlimited",
        ),
        (
            "{unit: day, requests_per_unit: 5, name: a, replaces: [{name: a}]}",
            62,
            "rate_limit.replaces[0].name: a rule cannot replace itself",
        ),
        (
            "{unit: day, requests_per_unit: 5, replaces: [{name: }]}",
            46,
            "rate_limit.replaces[0].name: missing: the name of another rule",
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      {limit}\n");
        let first = errors(&text).remove(0);
        let expected = format!("line 5, column {}: descriptors[0].{expected}", column + 6);
        assert!(first.starts_with(&expected), "{text}\n{first}\n{expected}");
    }
}

#[test]
fn all_mistakes_are_told_in_their_order() {
    let text = "
descriptors:
  - key: a
    rate_limit: {unit: fortnight, requests_per_unit: many}
    more: 1
  - value: b
domain:
";
    let places: Vec<_> = errors(text)
        .iter()
        .map(|error| error[..16].to_owned())
        .collect();
    assert_eq!(
        places,
        [
            "line 2, column 1",
            "line 4, column 2",
            "line 4, column 5",
            "line 5, column 5",
            "line 6, column 5"
        ]
    );
    let many = format!("domain: d\ndescriptors:\n{}", "  - {}\n".repeat(1_000));
    assert_eq!(errors(&many).len(), RULE_ERRORS_MAX);
}

#[test]
fn a_text_is_bounded() {
    let long = " ".repeat(RULES_BYTES_MAX + 1);
    assert!(errors(&long)[0].contains("4194305 bytes; at most 4194304"));
    let deep = format!("domain: d\ndescriptors: {}", "[".repeat(70));
    assert!(
        errors(&deep)[0].contains("at most 64 levels"),
        "{:?}",
        errors(&deep)
    );
    // Each line repeats the one before ten times.
    let mut laughs = "metadata: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for nth in 1..9 {
        let alias = format!("*a{},", nth - 1).repeat(10);
        laughs.push_str(&format!("a{nth}: &a{nth} [{alias}]\n"));
    }
    assert!(errors(&laughs)[0].contains("values, those that aliases repeat included"));
    assert!(
        errors("a: &a [*a]")[0].contains("not YAML") || errors("a: &a [*a]")[0].contains("alias")
    );
}

#[test]
fn texts_are_added_whole_or_not_at_all() {
    let mut rules = parse("domain: a");
    rules.add("domain: b").unwrap();
    let errors = rules.add("domain: c\n---\ndomain: a").unwrap_err();
    assert_eq!(errors.0.len(), 1);
    assert_eq!(rules.domains().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(parse("").domains().count(), 0);
    assert_eq!(parse("# nothing\n---\n").domains().count(), 0);
}

#[test]
fn a_comparison_names_what_was_added_removed_and_changed() {
    let before = parse(
        "
domain: d
descriptors:
  - {key: same, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: gone, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: more, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: w, value: a*}
  - {key: w, value: b*}
---
domain: old
",
    );
    let after = parse(
        "
domain: d
descriptors:
  - {key: more, rate_limit: {unit: day, requests_per_unit: 2, algorithm: token_bucket, burst: 9}}
  - {key: w, value: b*}
  - {key: w, value: a*, share_threshold: true}
  - {key: same, rate_limit: {requests_per_unit: 1, unit: Day}}
  - key: new
    descriptors:
      - {key: x, value: y, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
",
    );
    let diff = before.diff(&after);
    let diff: Vec<_> = diff.iter().map(ToString::to_string).collect();
    assert_eq!(
        diff,
        [
            "- d / gone=x: 1 per day, fixed_window",
            "~ d / more: 1 per day, fixed_window -> 2 per day, token_bucket, burst 9",
            "+ d / new: no limit of its own",
            "+ d / new / x=y: 3 per hour, fixed_window, shadow mode",
            "~ d / w=a*: no limit of its own, wildcard 1 of 2 -> no limit of its own, shared threshold, wildcard 2 of 2",
            "~ d / w=b*: no limit of its own, wildcard 2 of 2 -> no limit of its own, wildcard 1 of 2",
            "- old: no rules",
        ]
    );
    assert!(before.diff(&before).is_empty() && after.diff(&parse(&SHOP[..0])).len() == 6);
}
