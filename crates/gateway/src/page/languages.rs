//! Which language a reader gets.

use super::Pages;

/// Ranges of `Accept-Language` that are looked at.
const RANGES_MAX: usize = 20;

impl Pages {
    /// The index of a language: by the query, else by the cookie, else the best of `Accept-Language`, else English.
    pub(super) fn choose(
        &self,
        query: Option<&str>,
        cookie: Option<&str>,
        accept: Option<&str>,
    ) -> usize {
        let exact = |name: &str| {
            self.languages
                .iter()
                .position(|it| it.name.eq_ignore_ascii_case(name))
        };
        let chosen = query.and_then(exact).or_else(|| cookie.and_then(exact));
        let accepted = || {
            let ranges = ranges(accept?);
            ranges.into_iter().find_map(|range| self.of_range(range))
        };
        chosen.or_else(accepted).unwrap_or(0)
    }

    /// The language for a range such as `de-AT`: the longest beginning of it that has a catalogue. Traditional Chinese is
    /// also that of the regions that write it, and of those who do not say which Chinese.
    fn of_range(&self, range: &str) -> Option<usize> {
        let range = range.to_ascii_lowercase();
        let is_traditional = matches!(range.as_str(), "zh" | "zh-tw" | "zh-hk" | "zh-mo");
        let mut range = if is_traditional {
            "zh-hant"
        } else {
            range.as_str()
        };
        loop {
            let mut languages = self.languages.iter();
            let found = languages.position(|it| it.name.eq_ignore_ascii_case(range));
            if found.is_some() {
                return found;
            }
            range = range.rsplit_once('-')?.0;
        }
    }
}

/// The ranges, the most wanted first. Those with `q=0` are not wanted.
fn ranges(accept: &str) -> Vec<&str> {
    let mut ranges: Vec<(&str, f32)> = accept
        .split(',')
        .take(RANGES_MAX)
        .filter_map(|range| {
            let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
            let quality = parameters.trim().strip_prefix("q=");
            let quality = quality.map_or(Some(1.0), |quality| quality.trim().parse().ok())?;
            (quality > 0.0).then_some((name.trim(), quality))
        })
        .collect();
    // Stable: of equal ones the first.
    ranges.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranges.into_iter().map(|(name, _)| name).collect()
}
