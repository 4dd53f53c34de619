//! Files from elsewhere, and what is said of rules.

use super::*;

/// Published files have them, and Lyft's server does not look at them.
#[test]
fn names_of_domains_and_descriptors_have_no_effect() {
    let with = "
domain: shop
name: rules of the shop
descriptors:
  - key: ip
    name: by_ip
    rate_limit: {unit: minute, requests_per_unit: 5}
";
    let rules = parse(with);
    let rule = limited(&rules, "shop", &[("ip", "::1")]).unwrap();
    assert_eq!(rule.name, None);
    let replaces =
        "{key: user, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: by_ip}]}}";
    let rules = parse(&format!("{with}  - {replaces}\n"));
    let both: [&[(&str, &str)]; 2] = [&[("ip", "::1")], &[("user", "ann")]];
    let matched = rules.resolve("shop", &both).unwrap();
    assert!(
        matched
            .iter()
            .all(|it| matches!(it, Matched::Limited { .. }))
    );
}

/// Lyft's server takes a field anywhere, and counts as if it were not there.
#[test]
fn fields_in_the_wrong_place_are_told_where_they_belong() {
    for (descriptor, expected) in [
        (
            "{key: ip, unit: day}",
            "descriptors[0].unit: has no effect here; it belongs in the descriptor's `rate_limit`",
        ),
        (
            "{key: ip, replaces: [{name: a}]}",
            "descriptors[0].replaces: has no effect here; it belongs in the descriptor's `rate_limit`",
        ),
        (
            "{key: ip, rate_limit: {unit: day, requests_per_unit: 5, shadow_mode: true}}",
            "descriptors[0].rate_limit.shadow_mode: has no effect here; it belongs in the descriptor, beside `rate_limit`",
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n  - {descriptor}\n");
        let error = Rules::parse(&text).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
}

/// One line that says what it is, in place of one for each unknown field.
#[test]
fn objects_of_kubernetes_are_named() {
    let config_map = "apiVersion: v1
kind: ConfigMap
metadata:
  name: ratelimit-config
data:
  config.yaml: |
    domain: shop
    descriptors:
      - key: PATH
";
    let ambassador = "apiVersion: getambassador.io/v3alpha1
kind: RateLimit
metadata: {name: backend}
spec:
  domain: ambassador
  limits:
    - pattern: [{generic_key: backend}]
      rate: 3
      unit: minute
";
    for (text, expected) in [
        (
            config_map,
            "line 2, column 7: kind: a ConfigMap of Kubernetes: its rules are the text under `data`, as `config.yaml` in line 6. \
             Save that text as a file, and apply it",
        ),
        (
            "{apiVersion: v1, kind: ConfigMap}",
            "line 1, column 24: kind: a ConfigMap of Kubernetes: its rules are the text under `data`. \
             Save that text as a file, and apply it",
        ),
        (
            ambassador,
            "line 2, column 7: kind: an Ambassador `RateLimit`: its limits are under `spec`, in another form. Each entry of a \
             `pattern` is a descriptor here, below the one before; `rate` and `unit` are a `rate_limit` at the last one",
        ),
        (
            "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n",
            "line 2, column 7: kind: an object of Kubernetes (`EnvoyFilter`) and no file of rules, which begins with `domain` and \
             `descriptors`",
        ),
    ] {
        assert_eq!(Rules::parse(text).unwrap_err().to_string(), expected);
    }
}

#[test]
fn buckets_too_small_for_their_rate_are_noted() {
    let rules = parse(
        "
domain: d
descriptors:
  - {key: small, rate_limit: {unit: second, requests_per_unit: 2000, algorithm: token_bucket, burst: 2}}
  - {key: queue, rate_limit: {unit: minute, requests_per_unit: 6000, algorithm: leaking_bucket, burst: 1}}
  - {key: large, rate_limit: {unit: second, requests_per_unit: 2000, algorithm: token_bucket, burst: 33}}
  - {key: all, rate_limit: {unit: second, requests_per_unit: 2000, algorithm: token_bucket}}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 1}}
  - {key: none, rate_limit: {unit: second, requests_per_unit: 0, algorithm: token_bucket}}
  - {key: window, rate_limit: {unit: second, requests_per_unit: 2000}}
",
    );
    let note = "lets less through than its rate, as requests come some milliseconds apart";
    assert_eq!(
        rules.notes(),
        [
            format!(
                "d / queue: 6000 per minute, leaking_bucket, burst 1: {note}; burst 3 is enough for all"
            ),
            format!(
                "d / small: 2000 per second, token_bucket, burst 2: {note}; burst 33 is enough for all"
            ),
        ]
    );
}

#[test]
fn a_rules_path_in_words_is_as_it_is_listed() {
    let rules = parse(SHOP);
    let listed: Vec<String> = rules
        .rules()
        .into_iter()
        .map(|(path, _)| path.to_string())
        .collect();
    let mut found = 0;
    for entries in [
        &[("path", "/api/1/export")][..],
        &[("register", "x"), ("remote_address", "::1")],
        &[("agent", "friend")],
        &[("register", "x")],
        &[("nothing", "x")],
    ] {
        let mut text = String::new();
        let has_rule = rules.append_path("shop", entries, &mut text);
        let path = rules.path("shop", entries).map(|path| path.to_string());
        assert_eq!(has_rule.then_some(text.clone()), path, "{entries:?}");
        assert!(has_rule == listed.contains(&text));
        found += usize::from(has_rule);
    }
    assert!(found >= 3);
}
