//! `nowserving_rate_limit_total`: how the checks of this node ended, by rule. It shows which rule is too strict, and what a
//! rule in shadow mode would refuse.
//!
//! Each descriptor that a rule limits is counted once, by the node that answers the request. The name of its rule is built in
//! a buffer of the thread and looked up, so that only a new name allocates. Lyft's ratelimit counts hits in several
//! metrics a rule, of which `near_limit` is a part of `within_limit`; here each descriptor has exactly one outcome.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use metrics::Counter;
use nowserving_limit::{Limit, Matched, MetricValues, Rules, Verdict};
use nowserving_line::LineName;

use super::rule_hits::HitCounters;

const RATE_LIMIT_TOTAL: &str = "nowserving_rate_limit_total";
/// Names of rules that a node counts apart. They are kept until it ends.
const NAMES_MAX: usize = 10_000;
/// Those of them with values of requests: however many values clients send, there is room for so many rules as are left.
const NAMES_OF_REQUESTS_MAX: usize = 9_000;
/// So many rules begin at 0 before anything was asked of them: more would leave too few places for names with values of
/// requests. The others begin when they are first counted.
const NAMES_BEGUN_MAX: usize = NAMES_MAX - NAMES_OF_REQUESTS_MAX;
/// A longer name is not counted apart.
const NAME_BYTES_MAX: usize = 512;
/// The name of all others. No rule has it, as a rule's name has a dot.
const OTHER: &str = "other";

/// The counters of all rules.
#[derive(Debug, Default)]
pub struct RuleCounters {
    names: RwLock<Names>,
    /// Those of `limit stats`.
    pub hits: HitCounters,
}

#[derive(Debug, Default)]
struct Names {
    counters: HashMap<Box<str>, Counters>,
    of_requests: usize,
    begun: usize,
    other: Option<Counters>,
}

/// Those of one rule: all outcomes at once, so that none begins with the first event that it counts, which an alarm
/// would not see.
struct Counters([Counter; Outcome::ALL.len()]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Within,
    Near,
    Over,
    ShadowOver,
    Untracked,
}

thread_local! {
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

impl RuleCounters {
    /// Begins those of new rules whose names have no values of requests.
    pub fn begin(&self, rules: &Rules) {
        let new = rules.metric_names();
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        for name in new {
            if !names.counters.contains_key(&*name) && names.begun < NAMES_BEGUN_MAX {
                let inserted = names.insert(&name, MetricValues::OfRules);
                let inserted = usize::from(inserted.is_some());
                names.begun += inserted;
            }
        }
    }

    /// Counts the descriptors of a request, each with what the rules and its counter say.
    pub fn count<'a>(
        &self,
        (domain, rules): (&LineName, &Rules),
        entries: &[Vec<(&str, &str)>],
        answered: impl Iterator<Item = (&'a Matched<'a>, &'a Option<Verdict>)>,
    ) {
        NAME.with_borrow_mut(|name| {
            for (entries, (matched, verdict)) in entries.iter().zip(answered) {
                let limit = matched.rule().and_then(|rule| rule.limit.as_ref());
                let (Some(limit), Some(verdict)) = (limit, verdict) else {
                    continue;
                };
                name.clear();
                if let Some(values) = rules.metric_name(domain.as_str(), entries, name) {
                    self.add(name, values, Outcome::of(limit, verdict));
                }
            }
        });
    }

    fn add(&self, name: &str, values: MetricValues, outcome: Outcome) {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = names.counters.get(name) {
            return counters.add(outcome);
        }
        if let (Some(other), false) = (&names.other, names.have_room(name, values)) {
            return other.add(outcome);
        }
        drop(names);
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        match names.insert(name, values) {
            Some(counters) => counters.add(outcome),
            None => {
                let other = names.other.get_or_insert_with(|| Counters::of(OTHER));
                other.add(outcome);
            }
        }
    }
}

impl Names {
    fn have_room(&self, name: &str, values: MetricValues) -> bool {
        let have_room = match values {
            MetricValues::OfRules => true,
            MetricValues::OfRequests => self.of_requests < NAMES_OF_REQUESTS_MAX,
        };
        have_room && self.counters.len() < NAMES_MAX && name.len() <= NAME_BYTES_MAX
    }

    fn insert(&mut self, name: &str, values: MetricValues) -> Option<&Counters> {
        if !self.counters.contains_key(name) {
            if !self.have_room(name, values) {
                return None;
            }
            self.of_requests += usize::from(values == MetricValues::OfRequests);
            self.counters.insert(name.into(), Counters::of(name));
        }
        self.counters.get(name)
    }
}

impl Counters {
    fn of(name: &str) -> Self {
        let rule = label(name);
        Counters(Outcome::ALL.map(|outcome| {
            let labels = [
                ("rule", rule.clone()),
                ("outcome", outcome.name().to_owned()),
            ];
            metrics::counter!(RATE_LIMIT_TOTAL, &labels)
        }))
    }

    fn add(&self, outcome: Outcome) {
        let Counters(counters) = self;
        if let Some(counter) = counters.get(outcome as usize) {
            counter.increment(1);
        }
    }
}

/// Prometheus's text escapes these characters, and its exporter takes some that are escaped already for the same: two
/// names would be one sample, twice.
fn label(name: &str) -> String {
    let is_escaped = |c: char| c.is_control() || matches!(c, '"' | '\\');
    name.replace(is_escaped, "_")
}

impl Outcome {
    const ALL: [Outcome; 5] = [
        Outcome::Within,
        Outcome::Near,
        Outcome::Over,
        Outcome::ShadowOver,
        Outcome::Untracked,
    ];

    fn of(limit: &Limit, verdict: &Verdict) -> Self {
        let answer = &verdict.answer;
        if verdict.is_untracked {
            return Outcome::Untracked;
        }
        match (answer.allowed, verdict.is_shadow) {
            (true, _) if is_near(limit, answer.remaining) => Outcome::Near,
            (true, _) => Outcome::Within,
            (false, true) => Outcome::ShadowOver,
            (false, false) => Outcome::Over,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Outcome::Within => "within",
            Outcome::Near => "near",
            Outcome::Over => "over",
            Outcome::ShadowOver => "shadow_over",
            Outcome::Untracked => "untracked",
        }
    }
}

/// Whether more than 0.8 of it is used, the default `near_limit_ratio` of Lyft's ratelimit.
fn is_near(limit: &Limit, remaining: u32) -> bool {
    let capacity = u64::from(limit.capacity());
    let used = capacity.saturating_sub(u64::from(remaining));
    used * 10 > capacity * 8
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Counters").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::super::rules::read_one;
    use super::super::tests::verdict;
    use super::*;

    const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: plan, value: free, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: burst, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 20}}
  - {key: open, rate_limit: {unlimited: true}}
";

    /// Counts requests with one descriptor of one entry, and returns the samples of this metric but those of 0.
    fn counted<'a>(
        counters: &RuleCounters,
        requests: impl IntoIterator<Item = ((&'a str, &'a str), Option<Verdict>)>,
    ) -> Vec<String> {
        let (domain, rules) = read_one(TEXT).unwrap();
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for (entry, verdict) in requests {
                let entries = [vec![entry]];
                let matched = rules.resolve("shop", &[&entries[0]]).unwrap();
                let answered = matched.iter().zip(std::slice::from_ref(&verdict));
                counters.count((&domain, &rules), &entries, answered);
            }
        });
        let mut samples = samples(&recorder.handle().render());
        samples.retain(|sample| !sample.ends_with(" 0"));
        samples
    }

    fn samples(rendered: &str) -> Vec<String> {
        let samples = rendered.lines().filter_map(|line| {
            let sample = line.strip_prefix(RATE_LIMIT_TOTAL)?;
            Some(sample.to_owned())
        });
        let mut samples: Vec<_> = samples.collect();
        samples.sort();
        samples
    }

    /// Whether it was asked for or only applied; the second time nothing begins anew.
    #[test]
    fn all_outcomes_of_a_rule_begin_at_0() {
        let (domain, rules) = read_one(TEXT).unwrap();
        let recorder = PrometheusBuilder::new().build_recorder();
        let counters = RuleCounters::default();
        metrics::with_local_recorder(&recorder, || {
            counters.begin(&rules);
            let entries = [vec![("user", "ann")], vec![("ip", "a")]];
            let asked = entries.each_ref().map(|it| &it[..]);
            let matched = rules.resolve("shop", &asked).unwrap();
            let verdicts = [Some(verdict(true, 4)), Some(verdict(false, 0))];
            counters.count((&domain, &rules), &entries, matched.iter().zip(&verdicts));
            counters.begin(&rules);
        });
        let mut expected = Vec::new();
        for rule in ["burst", "ip", "plan_free", "user_ann"] {
            for outcome in ["near", "over", "shadow_over", "untracked", "within"] {
                let count = u8::from(matches!(
                    (rule, outcome),
                    ("ip", "over") | ("user_ann", "within")
                ));
                expected.push(format!(
                    "{{rule=\"shop.{rule}\",outcome=\"{outcome}\"}} {count}"
                ));
            }
        }
        assert_eq!(samples(&recorder.handle().render()), expected);
    }

    #[test]
    fn rules_that_nobody_asks_for_leave_room_for_values_of_requests() {
        let counters = RuleCounters::default();
        for domain in ["a", "b"] {
            let mut text = format!("domain: {domain}\ndescriptors:\n");
            for nth in 0..=NAMES_BEGUN_MAX / 2 {
                let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
                text += &format!("  - {{key: k{nth}, {limit}}}\n");
            }
            counters.begin(&read_one(&text).unwrap().1);
        }
        let names = counters.names.read().unwrap();
        assert_eq!(names.counters.len(), NAMES_BEGUN_MAX);
        assert!(names.have_room("d.user_ann", MetricValues::OfRequests));
    }

    #[test]
    fn each_descriptor_that_a_rule_limits_is_counted_by_name_and_outcome() {
        let shadow = Verdict {
            is_shadow: true,
            ..verdict(false, 0)
        };
        let untracked = Verdict {
            is_untracked: true,
            ..verdict(true, 5)
        };
        let samples = counted(
            &RuleCounters::default(),
            [
                (("ip", "a"), Some(verdict(true, 4))),
                (("ip", "b"), Some(verdict(true, 3))),
                (("ip", "a"), Some(verdict(false, 0))),
                (("ip", "a"), Some(shadow)),
                (("ip", "a"), Some(untracked)),
                (("user", "ann"), Some(verdict(true, 1))),
                (("user", "bob"), Some(verdict(true, 0))),
                (("plan", "free"), Some(verdict(true, 1))),
                (("plan", "paid"), None),
                (("open", "a"), None),
                (("none", "a"), None),
            ],
        );
        assert_eq!(
            samples,
            [
                r#"{rule="shop.ip",outcome="over"} 1"#,
                r#"{rule="shop.ip",outcome="shadow_over"} 1"#,
                r#"{rule="shop.ip",outcome="untracked"} 1"#,
                r#"{rule="shop.ip",outcome="within"} 2"#,
                r#"{rule="shop.plan_free",outcome="within"} 1"#,
                r#"{rule="shop.user_ann",outcome="within"} 1"#,
                r#"{rule="shop.user_bob",outcome="near"} 1"#,
            ]
        );
    }

    /// 4 of 5 are not near it, 5 are; of a bucket its burst counts.
    #[test]
    fn a_limit_is_near_its_end_beyond_four_fifths() {
        let (_, rules) = read_one(TEXT).unwrap();
        for (key, remaining, expected) in [
            ("ip", 1, Outcome::Within),
            ("ip", 0, Outcome::Near),
            ("burst", 4, Outcome::Within),
            ("burst", 3, Outcome::Near),
        ] {
            let matched = rules.resolve("shop", &[&[(key, "x")]]).unwrap();
            let limit = matched[0].rule().unwrap().limit.as_ref().unwrap();
            let outcome = Outcome::of(limit, &verdict(true, remaining));
            assert_eq!(outcome, expected, "{key}, {remaining} left");
        }
    }

    /// Clients that send ever new values fill only the places for those: the rule that comes after them has its own.
    #[test]
    fn names_are_bounded_and_values_of_requests_hide_no_rule() {
        let counters = RuleCounters::default();
        let users: Vec<_> = (0..NAMES_OF_REQUESTS_MAX + 5)
            .map(|nth| nth.to_string())
            .collect();
        let requests = users.iter().map(|user| ("user", user.as_str()));
        let requests = requests.chain([("ip", "a"), ("user", "0"), ("user", "late")]);
        let samples = counted(
            &counters,
            requests.map(|entry| (entry, Some(verdict(true, 4)))),
        );
        assert_eq!(samples.len(), NAMES_OF_REQUESTS_MAX + 2);
        for expected in [
            r#"{rule="other",outcome="within"} 6"#,
            r#"{rule="shop.ip",outcome="within"} 1"#,
            r#"{rule="shop.user_0",outcome="within"} 2"#,
        ] {
            assert!(samples.iter().any(|it| it == expected), "{expected}");
        }

        let names = &mut *counters.names.write().unwrap();
        for nth in names.counters.len()..NAMES_MAX {
            let inserted = names.insert(&format!("shop.{nth}"), MetricValues::OfRules);
            assert!(inserted.is_some(), "{nth}");
        }
        assert!(names.insert("shop.more", MetricValues::OfRules).is_none());
        assert!(names.insert("shop.ip", MetricValues::OfRules).is_some());
    }

    #[test]
    fn a_name_is_short_and_needs_no_escapes() {
        let long = "x".repeat(NAME_BYTES_MAX);
        let requests = ["a\"b", "a\\b", "a\nb", long.as_str()].map(|user| ("user", user));
        let samples = counted(
            &RuleCounters::default(),
            requests.map(|entry| (entry, Some(verdict(true, 4)))),
        );
        let expected = [
            r#"{rule="other",outcome="within"} 1"#,
            r#"{rule="shop.user_a_b",outcome="within"} 3"#,
        ];
        assert_eq!(samples, expected);
    }
}
