//! Requests that pass without a line: health checks, static files, partners.

use crate::address::Asked;
use crate::config::BypassRule;

/// Whether all parts of the rule that are given fit. A rule without any part fits nothing.
pub(super) fn fits(rule: &BypassRule, asked: &Asked) -> bool {
    let BypassRule {
        paths,
        methods,
        from,
        header,
    } = rule;
    let is_empty = paths.is_empty() && methods.is_empty() && from.is_empty() && header.is_none();
    let header_fits = header.as_ref().is_none_or(|(name, expected)| {
        let mut values = asked.headers.get_all(name).iter();
        // A second one could be another hop's.
        let only = values.next().filter(|_| values.next().is_none());
        only.is_some_and(|value| is_same(value.as_bytes(), expected.as_bytes()))
    });
    !is_empty
        && (paths.is_empty() || paths.iter().any(|path| path.fits(&asked.path)))
        && (methods.is_empty() || methods.contains(&asked.method))
        && (from.is_empty() || from.iter().any(|net| net.contains(&asked.client)))
        && header_fits
}

/// In a time that says nothing about where they differ: the value is a secret of partners.
fn is_same(value: &[u8], expected: &[u8]) -> bool {
    let differs = value
        .iter()
        .zip(expected)
        .fold(0, |all, (a, b)| all | (a ^ b));
    value.len() == expected.len() && differs == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::http::{HeaderName, Method};

    use super::super::tests::asked;
    use super::*;

    fn rule(
        paths: &[&str],
        methods: &[Method],
        from: &[&str],
        header: Option<(&str, &str)>,
    ) -> BypassRule {
        BypassRule {
            paths: paths.iter().map(|path| path.parse().unwrap()).collect(),
            methods: methods.to_vec(),
            from: from.iter().map(|net| net.parse().unwrap()).collect(),
            header: header.map(|(name, value)| {
                (
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    value.to_owned(),
                )
            }),
        }
    }

    #[test]
    fn paths_that_only_look_like_those_of_a_rule_do_not_pass() {
        let rule = rule(&["/static/*", "/health"], &[], &[], None);
        for (path, passes) in [
            ("/static/app.css", true),
            ("/static/app.css?x=/checkout", true),
            ("/static", true),
            ("//static/app.css", true),
            ("/a/../static/app.css", true),
            ("/%73tatic/app.css", true),
            ("/health", true),
            ("/health/", true),
            ("/static/../checkout", false),
            ("/static/%2e%2e/checkout", false),
            ("/static/./../checkout", false),
            ("/staticx/app.css", false),
            ("/static%2f..%2fcheckout", false),
            ("/static/..%2fcheckout", false),
            ("/static/..;/checkout", false),
            ("/static/..\\checkout", false),
            ("/static/%00/../x", false),
            ("/STATIC/app.css", false),
            ("/health/x", false),
            ("/checkout?/static/", false),
            ("/checkout#/static/", false),
            ("/../static/app.css", false),
        ] {
            let asked = asked("GET", path, "192.0.2.1", &[]);
            assert_eq!(
                asked.is_some_and(|asked| fits(&rule, &asked)),
                passes,
                "{path}"
            );
        }
    }

    #[test]
    fn all_parts_that_are_given_must_fit() {
        let all = rule(
            &["/api/*"],
            &[Method::GET],
            &["10.0.0.0/8"],
            Some(("x-partner", "s3cret")),
        );
        let good = ("GET", "/api/stock", "10.1.2.3", "s3cret");
        let passes = |(method, path, client, value): (&str, &str, &str, &str)| {
            fits(
                &all,
                &asked(method, path, client, &[("x-partner", value)]).unwrap(),
            )
        };
        assert!(passes(good));
        assert!(!passes(("POST", good.1, good.2, good.3)));
        assert!(!passes((good.0, "/apis", good.2, good.3)));
        assert!(!passes((good.0, good.1, "11.0.0.1", good.3)));
        for value in ["", "s3cre", "s3cret1", "S3cret"] {
            assert!(!passes((good.0, good.1, good.2, value)), "{value:?}");
        }
        let twice = [("x-partner", "s3cret"), ("x-partner", "s3cret")];
        assert!(!fits(
            &all,
            &asked("GET", "/api/stock", "10.1.2.3", &twice).unwrap()
        ));
        assert!(!fits(
            &all,
            &asked("GET", "/api/stock", "10.1.2.3", &[]).unwrap()
        ));
    }

    #[test]
    fn an_empty_rule_passes_nobody() {
        let asked = asked("GET", "/", "10.1.2.3", &[]).unwrap();
        assert!(!fits(&BypassRule::default(), &asked));
    }
}
