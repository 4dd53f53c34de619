//! Which paths a rule is about.

use std::str::FromStr;

use crate::address::normal_path;

/// A path such as `/checkout`, or with `/*` at its end all below it and itself. A `/` at the end makes no difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRule {
    /// Without `/` at its end; empty for the root.
    path: String,
    /// Also all below it.
    below: bool,
}

impl PathRule {
    /// Whether all paths below it fit, too.
    pub(crate) fn has_below(&self) -> bool {
        self.below
    }

    /// Whether this path fits: normal, as [`Asked`](crate::address::Asked) has it.
    #[must_use]
    pub fn fits(&self, path: &str) -> bool {
        self.fits_by(path, |one, other| one == other)
    }

    /// The same, whether letters are large or small: many shops do not tell them apart.
    #[must_use]
    pub fn fits_in_any_case(&self, path: &str) -> bool {
        self.fits_by(path, str::eq_ignore_ascii_case)
    }

    fn fits_by(&self, path: &str, same: fn(&str, &str) -> bool) -> bool {
        let path = path.strip_suffix('/').unwrap_or(path);
        match path.split_at_checked(self.path.len()) {
            Some((begin, rest)) if same(begin, &self.path) => {
                rest.is_empty() || (self.below && rest.starts_with('/'))
            }
            _ => false,
        }
    }
}

impl FromStr for PathRule {
    type Err = String;

    fn from_str(text: &str) -> Result<PathRule, String> {
        let (path, below) = match text.strip_suffix("/*") {
            Some(path) => (path, true),
            None => (text, false),
        };
        if !text.starts_with('/') || text.contains(['?', '#']) {
            return Err(format!("{text:?}: a path begins with / and has no query"));
        }
        if path.contains('*') {
            return Err(format!(
                "{text:?}: `*` stands only at the end, as in \"/checkout/*\""
            ));
        }
        let path = if path.is_empty() { "/" } else { path };
        let normal = normal_path(path).map_err(|bad| format!("{text:?}: {bad}"))?;
        let path = path.strip_suffix('/').unwrap_or(path);
        if normal.strip_suffix('/').unwrap_or(&normal) != path {
            return Err(format!(
                "{text:?}: write {normal:?}, as requests are compared with it"
            ));
        }
        let path = path.to_owned();
        Ok(PathRule { path, below })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_fit_by_whole_segments() {
        for (rule, fits, does_not) in [
            (
                "/checkout",
                &["/checkout", "/checkout/"][..],
                &["/checkout/1", "/checkouts", "/"][..],
            ),
            (
                "/checkout/*",
                &["/checkout", "/checkout/", "/checkout/a/b"],
                &["/checkouts", "/check"],
            ),
            ("/*", &["/", "/a", "/a/b"], &[]),
            ("/", &["/"], &["/a"]),
            ("/käse", &["/käse"], &["/kase"]),
        ] {
            let rule: PathRule = rule.parse().unwrap();
            for path in fits {
                assert!(rule.fits(path), "{rule:?} {path}");
            }
            for path in does_not {
                assert!(!rule.fits(path), "{rule:?} {path}");
            }
        }
    }

    #[test]
    fn rules_that_would_never_fit_are_refused() {
        for bad in [
            "", "checkout", "/a*", "/a/*/b", "/a/../b", "//a", "/a%20b", "/a%2Fb", "/a;b", "/a?b",
        ] {
            assert!(bad.parse::<PathRule>().is_err(), "{bad}");
        }
    }
}
