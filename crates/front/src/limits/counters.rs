//! How the checks of this node ended, by rule: the metric `nowserving_rate_limit_total`, and the hits of `limit stats`, which adds
//! up those of all nodes. Both show which rule is too strict, and the metric what a rule in shadow mode would refuse.
//!
//! The node that answers a request counts it, as only that node knows whether the whole request passed. Rules are known by their
//! paths in words, as metrics' names of two rules can be the same. A rule has one name in metrics, or one for each value of
//! requests. Both are built in buffers and looked up, so that only new ones allocate.
//!
//! The metric counts descriptors, whatever their hits. Lyft's ratelimit counts hits in several metrics a rule, of which `near_limit`
//! is a part of `within_limit`; here each descriptor has exactly one outcome.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use metrics::Counter;
use nowserving_limit::{Entries, Limit, Matched, MetricValues, Rules, Verdict, combine};
use nowserving_line::LineName;
use nowserving_protocol::limits::{NodeCounts, NodeHits, RuleHits};

use super::KnownRules;

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

/// The counts of all rules.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters {
    since_ms: u64,
    /// By their paths in words.
    rules: HashMap<Box<str>, Rule>,
    names: usize,
    names_of_requests: usize,
    names_begun: usize,
    other: Option<Counters>,
    /// The path and the name of a rule.
    words: [String; 2],
}

#[derive(Debug, Default)]
struct Rule {
    /// Hits of requests that passed, and hits over the limit.
    allowed: u64,
    refused: u64,
    /// By names in metrics, those that are counted apart.
    names: HashMap<Box<str>, Counters>,
}

/// Those of one name: all outcomes at once, so that none begins with the first event that it counts, which an alarm
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

impl RuleCounters {
    /// From this time on.
    pub fn new(since_ms: u64) -> Self {
        RuleCounters {
            since_ms,
            ..RuleCounters::default()
        }
    }

    /// Other rules are known than before.
    pub fn follow(&mut self, before: Option<&KnownRules>, now: &KnownRules) {
        for (name, domain) in &now.domains {
            let known = before.and_then(|before| before.domains.get(name));
            if known.is_none_or(|known| !Arc::ptr_eq(known, domain)) {
                self.begin(&domain.rules);
            }
        }
        self.keep(now.domains.values().map(|domain| &domain.rules));
    }

    /// Begins those of new rules whose names have no values of requests.
    fn begin(&mut self, rules: &Rules) {
        for (path, name) in rules.metric_names() {
            if self.names_begun < NAMES_BEGUN_MAX {
                let is_new = self.insert(&path, &name, MetricValues::OfRules);
                self.names_begun += usize::from(is_new);
            }
        }
    }

    /// Forgets the hits of rules that are there no longer. Their names in metrics stay.
    fn keep<'a>(&mut self, all: impl Iterator<Item = &'a Rules>) {
        let known = all.flat_map(Rules::rules);
        let known: HashSet<String> = known.map(|(path, _)| path.to_string()).collect();
        self.rules.retain(|path, rule| {
            let is_known = known.contains(&**path);
            if !is_known {
                (rule.allowed, rule.refused) = Default::default();
            }
            is_known || !rule.names.is_empty()
        });
    }

    /// Counts the descriptors of an answered request, of so many hits each.
    pub fn count(
        &mut self,
        (domain, rules): (&LineName, &Rules),
        entries: impl IntoIterator<Item: Entries>,
        (matched, verdicts): (&[Matched<'_, ()>], &[Option<Verdict>]),
        hits: u32,
    ) {
        let passes = combine(verdicts.iter().flatten()).allowed;
        let [mut path, mut name] = std::mem::take(&mut self.words);
        for (entries, (matched, verdict)) in entries.into_iter().zip(matched.iter().zip(verdicts)) {
            let limit = matched.rule().and_then(|rule| rule.limit.as_ref());
            let (Some(limit), Some(verdict)) = (limit, verdict) else {
                continue;
            };
            path.clear();
            name.clear();
            rules.append_path(domain.as_str(), &entries, &mut path);
            let values = rules.metric_name(domain.as_str(), &entries, &mut name);
            if let Some(values) = values {
                let rule = (path.as_str(), name.as_str(), values);
                self.count_one(rule, (limit, verdict), passes, hits);
            }
        }
        self.words = [path, name];
    }

    fn count_one(
        &mut self,
        (path, name, values): (&str, &str, MetricValues),
        (limit, verdict): (&Limit, &Verdict),
        passes: bool,
        hits: u32,
    ) {
        let known = self.rules.get(path);
        if !known.is_some_and(|rule| rule.names.contains_key(name) || !self.have_room(name, values))
        {
            self.insert(path, name, values);
        }
        let Some(rule) = self.rules.get_mut(path) else {
            return;
        };
        let counters = match rule.names.get(name) {
            Some(counters) => counters,
            None => self.other.get_or_insert_with(|| Counters::of(OTHER)),
        };
        counters.add(Outcome::of(limit, verdict));
        // What another limit refused is in neither.
        match verdict.answer.allowed {
            false => rule.refused += u64::from(hits),
            true if passes => rule.allowed += u64::from(hits),
            true => {}
        }
    }

    /// The hits that this node has counted.
    pub fn of_node(&self, node: u64) -> NodeHits {
        let counted = self.rules.iter().map(|(path, rule)| RuleHits {
            rule: path.to_string(),
            allowed: rule.allowed,
            refused: rule.refused,
        });
        let since_ms = self.since_ms;
        NodeHits {
            of: NodeCounts { node, since_ms },
            rules: RuleHits::sum(counted.filter(|it| (it.allowed, it.refused) != (0, 0))),
        }
    }

    fn have_room(&self, name: &str, values: MetricValues) -> bool {
        let have_room = match values {
            MetricValues::OfRules => true,
            MetricValues::OfRequests => self.names_of_requests < NAMES_OF_REQUESTS_MAX,
        };
        have_room && self.names < NAMES_MAX && name.len() <= NAME_BYTES_MAX
    }

    /// Whether the name is new and has room.
    fn insert(&mut self, path: &str, name: &str, values: MetricValues) -> bool {
        let have_room = self.have_room(name, values);
        let rule = self.rules.entry(path.into()).or_default();
        let is_new = have_room && !rule.names.contains_key(name);
        if is_new {
            rule.names.insert(name.into(), Counters::of(name));
            self.names += 1;
            self.names_of_requests += usize::from(values == MetricValues::OfRequests);
        }
        is_new
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

    use crate::limits::read_one;

    use super::*;
    use crate::limits::check::tests::verdict;

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
        counters: &mut RuleCounters,
        requests: impl IntoIterator<Item = ((&'a str, &'a str), Option<Verdict>)>,
    ) -> Vec<String> {
        let (domain, rules) = read_one(TEXT).unwrap();
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            for (entry, verdict) in requests {
                let entries = [[entry]];
                let matched = rules.matched("shop", &entries);
                counters.count((&domain, &rules), &entries, (&matched, &[verdict]), 1);
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
        let mut counters = RuleCounters::default();
        metrics::with_local_recorder(&recorder, || {
            counters.begin(&rules);
            let entries = [[("user", "ann")], [("ip", "a")]];
            let matched = rules.matched("shop", &entries);
            let verdicts = [Some(verdict(true, 4)), Some(verdict(false, 0))];
            counters.count((&domain, &rules), &entries, (&matched, &verdicts), 1);
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
        let mut counters = RuleCounters::default();
        for domain in ["a", "b"] {
            let mut text = format!("domain: {domain}\ndescriptors:\n");
            for nth in 0..=NAMES_BEGUN_MAX / 2 {
                let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
                text += &format!("  - {{key: k{nth}, {limit}}}\n");
            }
            counters.begin(&read_one(&text).unwrap().1);
        }
        assert_eq!(
            (counters.names, counters.rules.len()),
            (NAMES_BEGUN_MAX, NAMES_BEGUN_MAX)
        );
        assert!(counters.have_room("d.user_ann", MetricValues::OfRequests));
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
            &mut RuleCounters::default(),
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
            let matched = rules.matched("shop", &[[(key, "x")]]);
            let limit = matched[0].rule().unwrap().limit.as_ref().unwrap();
            let outcome = Outcome::of(limit, &verdict(true, remaining));
            assert_eq!(outcome, expected, "{key}, {remaining} left");
        }
    }

    /// Clients that send ever new values fill only the places for those: the rule that comes after them has its own.
    #[test]
    fn names_are_bounded_and_values_of_requests_hide_no_rule() {
        let mut counters = RuleCounters::default();
        let users: Vec<_> = (0..NAMES_OF_REQUESTS_MAX + 5)
            .map(|nth| nth.to_string())
            .collect();
        let requests = users.iter().map(|user| ("user", user.as_str()));
        let requests = requests.chain([("ip", "a"), ("user", "0"), ("user", "late")]);
        let samples = counted(
            &mut counters,
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

        for nth in counters.names..NAMES_MAX {
            assert!(counters.insert("shop", &format!("shop.{nth}"), MetricValues::OfRules));
        }
        assert!(!counters.insert("shop", "shop.more", MetricValues::OfRules));
    }

    #[test]
    fn a_name_is_short_and_needs_no_escapes() {
        let long = "x".repeat(NAME_BYTES_MAX);
        let requests = ["a\"b", "a\\b", "a\nb", long.as_str()].map(|user| ("user", user));
        let samples = counted(
            &mut RuleCounters::default(),
            requests.map(|entry| (entry, Some(verdict(true, 4)))),
        );
        let expected = [
            r#"{rule="other",outcome="within"} 1"#,
            r#"{rule="shop.user_a_b",outcome="within"} 3"#,
        ];
        assert_eq!(samples, expected);
    }

    const HITS_TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: user, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: path, value: /a*, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
";

    fn hits(rule: &str, allowed: u64, refused: u64) -> RuleHits {
        RuleHits {
            rule: rule.to_owned(),
            allowed,
            refused,
        }
    }

    #[test]
    fn hits_are_counted_by_rule_where_they_are_decided() {
        let (domain, rules) = read_one(HITS_TEXT).unwrap();
        let mut counters = RuleCounters::default();
        let shadow = Verdict {
            is_shadow: true,
            ..verdict(false, 0)
        };
        let mut count = |request: &[(&str, &str, Option<Verdict>)], hits| {
            let entries: Vec<_> = request.iter().map(|it| [(it.0, it.1)]).collect();
            let verdicts: Vec<_> = request.iter().map(|it| it.2).collect();
            let matched = rules.matched("shop", &entries);
            counters.count((&domain, &rules), &entries, (&matched, &verdicts), hits);
        };
        let (yes, no) = (Some(verdict(true, 4)), Some(verdict(false, 0)));
        count(&[("ip", "a", yes), ("user", "ann", yes)], 3);
        // Refused by one: the other has counted nothing.
        count(&[("ip", "b", yes), ("user", "bob", no)], 2);
        count(&[("path", "/ab", Some(shadow)), ("ip", "c", yes)], 1);
        count(&[("other", "x", None)], 1);
        let counted = counters.of_node(7);
        assert_eq!(counted.of.node, 7);
        assert_eq!(
            counted.rules,
            [
                hits("shop / ip", 4, 0),
                hits("shop / path=/a*", 0, 1),
                hits("shop / user", 3, 2),
            ]
        );
    }

    /// However many there were: it keeps as many as there are.
    #[test]
    fn rules_that_are_gone_are_forgotten() {
        let (domain, rules) = read_one(HITS_TEXT).unwrap();
        let mut counters = RuleCounters::default();
        let entries = [[("ip", "a")], [("user", "ann")]];
        let verdicts = [Some(verdict(true, 4)), Some(verdict(true, 4))];
        let matched = rules.matched("shop", &entries);
        counters.count((&domain, &rules), &entries, (&matched, &verdicts), 1);
        let text = HITS_TEXT.replace("key: user", "key: account");
        let (_, fewer) = read_one(&text).unwrap();
        counters.keep([&fewer].into_iter());
        assert_eq!(counters.of_node(1).rules, [hits("shop / ip", 1, 0)]);
        counters.keep(std::iter::empty());
        assert!(counters.of_node(1).rules.is_empty());
    }
}
