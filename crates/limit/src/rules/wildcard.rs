//! Values with `*`, which stands for any characters or none, anywhere and any number of times.

/// A value with at least one `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wildcard {
    text: Box<str>,
    /// The texts between the `*`, at least two; some may be empty.
    parts: Vec<Box<str>>,
}

impl Wildcard {
    /// `None` if there is no `*` in it.
    pub fn new(text: &str) -> Option<Self> {
        text.contains('*').then(|| Self {
            text: text.into(),
            parts: text.split('*').map(Box::from).collect(),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The first and the last part are where the value begins and ends, and those between follow each other. Each is
    /// taken where it comes first, which leaves most room for those after it.
    pub fn matches(&self, value: &str) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else {
            return false;
        };
        let Some(rest) = value.strip_prefix(&**first) else {
            return false;
        };
        let Some(mut rest) = rest.strip_suffix(&**last) else {
            return false;
        };
        for part in between {
            let Some((_, after)) = rest.split_once(&**part) else {
                return false;
            };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, yes, no) in [
            (
                "foo*",
                &["foo", "foobar", "foo*"][..],
                &["fo", "xfoo", ""][..],
            ),
            ("*", &["", "x"], &[]),
            ("*.png", &["a.png", ".png"], &["a.png.", "png"]),
            ("bar*b", &["barb", "bar-b", "barbb"], &["bar", "barbx"]),
            ("ab*ab", &["abab", "ab-ab"], &["ab", "aba"]),
            (
                "/api/*/resource/*/action",
                &["/api/v1/resource/7/action", "/api//resource//action"],
                &["/api/v1/resource/action", "/api/v1/resource/7/action/8"],
            ),
        ] {
            let wildcard = Wildcard::new(pattern).unwrap();
            assert_eq!(wildcard.as_str(), pattern);
            for value in yes {
                assert!(wildcard.matches(value), "{pattern} {value}");
            }
            for value in no {
                assert!(!wildcard.matches(value), "{pattern} {value}");
            }
        }
        assert_eq!(Wildcard::new("plain"), None);
    }

    /// All ways to divide the value.
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern.split_first(), value.split_first()) {
            (None, None) => true,
            (Some((b'*', pattern)), _) => {
                (0..=value.len()).any(|skip| naive(pattern, &value[skip..]))
            }
            (Some((own, pattern)), Some((other, value))) => own == other && naive(pattern, value),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn as_all_ways_to_divide_a_value_have_it(pattern in "[ab*]{0,6}", value in "[ab]{0,8}") {
            if let Some(wildcard) = Wildcard::new(&pattern) {
                prop_assert_eq!(wildcard.matches(&value), naive(pattern.as_bytes(), value.as_bytes()));
            }
        }
    }
}
