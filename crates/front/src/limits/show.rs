//! What `limit show` answers, in pages, and other lists of lines that fit an answer.

use nowserving_engine::refusals::no_rules;
use nowserving_limit::{Rule, RulePath};
use nowserving_line::LineName;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::{DomainReply, RulesReply, ShowRules};
use nowserving_protocol::page::{PAGE_BYTES_MAX, Room, json_bytes};

use super::rules::{KnownDomain, KnownRules};

/// The most bytes of JSON in the words of one rule: of what can limit a descriptor little is cut off, and `test` has
/// up to 16 in an answer.
const LINE_BYTES_MAX: usize = 2_560;

/// A page of the domains, or of the rules and the text of one.
pub fn show(known: &KnownRules, ask: &ShowRules) -> Result<RulesReply, ApiError> {
    let Some(domain) = &ask.domain else {
        return Ok(page_of_domains(known, ask.after.as_ref()));
    };
    let known = known.domains.get(domain).ok_or_else(|| no_rules(domain))?;
    let from = ask.from.unwrap_or_default();
    Ok(RulesReply {
        domains: vec![page_of_rules(domain, known, from)],
        next: None,
    })
}

fn page_of_domains(known: &KnownRules, after: Option<&LineName>) -> RulesReply {
    let left = known.domains.iter();
    let left: Vec<_> = left
        .filter(|(name, _)| after.is_none_or(|after| *name > after))
        .collect();
    let mut room = Room::new();
    let heads = left
        .iter()
        .map(|(name, known)| head(name, known, known.rules.rules().len()));
    let domains: Vec<_> = heads.take_while(|it| room.takes(it)).collect();
    let last = domains.last().filter(|_| domains.len() < left.len());
    RulesReply {
        next: last.map(|it| it.domain.clone()),
        domains,
    }
}

/// `from`: so many rules were passed, and after these so many bytes of the text.
fn page_of_rules(name: &LineName, known: &KnownDomain, from: u64) -> DomainReply {
    let rules = known.rules.rules();
    let (total, from) = (rules.len(), usize::try_from(from).unwrap_or(usize::MAX));
    let mut page = head(name, known, total);
    let mut room = PAGE_BYTES_MAX.saturating_sub(json_bytes(&page));
    for (nth, (path, rule)) in rules.iter().enumerate().skip(from) {
        let line = in_words(path, rule);
        let bytes = json_bytes(&line) + ",".len();
        if bytes > room {
            page.next = Some(nth as u64);
            return page;
        }
        room -= bytes;
        page.rules.push(line);
    }
    let text = &*known.of.text;
    let begin = text.floor_char_boundary(from.saturating_sub(total));
    let (_, rest) = text.split_at(begin);
    let part = json_prefix(rest, room);
    if part.len() < rest.len() {
        page.next = Some((total + begin + part.len()) as u64);
    }
    page.text = Some(part.to_owned());
    page
}

fn head(name: &LineName, known: &KnownDomain, rules_total: usize) -> DomainReply {
    DomainReply {
        domain: name.clone(),
        version: known.of.version,
        at_ms: known.of.at_ms,
        by: known.of.by.clone(),
        reason: known.of.reason.clone(),
        rules_total: rules_total as u64,
        rules: Vec::new(),
        text: None,
        next: None,
    }
}

/// A rule, and where it stands.
pub fn in_words(path: &RulePath, rule: &Rule) -> String {
    shortened(format!("{path}: {rule}"), LINE_BYTES_MAX)
}

/// The first lines that fit so many bytes of JSON, and how many more there are.
pub fn first_lines(lines: Vec<String>, bytes_max: usize) -> Vec<String> {
    let total = lines.len();
    let mut bytes = 0;
    let lines = lines.into_iter();
    let lines = lines.map(|line| shortened(line, LINE_BYTES_MAX));
    let mut first: Vec<_> = lines
        .take_while(|line| {
            bytes += json_bytes(line) + ",".len();
            bytes <= bytes_max
        })
        .collect();
    if first.len() < total {
        first.push(format!("… and {} more", total - first.len()));
    }
    first
}

/// At most so many bytes of JSON; a longer text ends with `…`.
pub fn shortened(mut text: String, bytes_max: usize) -> String {
    const CUT: char = '…';
    if json_bytes(&text) > bytes_max {
        text.truncate(json_prefix(&text, bytes_max - CUT.len_utf8()).len());
        text.push(CUT);
    }
    text
}

/// What of the text has at most so many bytes of JSON.
fn json_prefix(text: &str, bytes_max: usize) -> &str {
    const QUOTES: usize = 2;
    let mut bytes = QUOTES;
    let mut chars = text.char_indices();
    let over = chars.find(|(_, c)| {
        bytes += json_bytes(c) - QUOTES;
        bytes > bytes_max
    });
    let (prefix, _) = text.split_at(over.map_or(text.len(), |(at, _)| at));
    prefix
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use nowserving_line::KICK_TEXT_BYTES_MAX;
    use nowserving_protocol::codec::{Format, MAX_PAYLOAD_MIN, decode, encode};
    use nowserving_protocol::limits::RULES_BYTES_MAX;
    use nowserving_shard::limits::DomainRules;

    use super::super::rules::read_one;
    use super::*;

    fn known(text: &str) -> KnownDomain {
        let (_, rules) = read_one(text).unwrap();
        KnownDomain {
            of: DomainRules {
                version: 3,
                text: text.into(),
                at_ms: 1_766_222_333_444,
                by: "\"".repeat(KICK_TEXT_BYTES_MAX),
                reason: "\\".repeat(KICK_TEXT_BYTES_MAX),
            },
            rules,
        }
    }

    fn all(domains: Vec<(LineName, KnownDomain)>) -> KnownRules {
        let domains = domains.into_iter();
        KnownRules {
            domains: domains.map(|(name, of)| (name, Arc::new(of))).collect(),
            version: 3,
        }
    }

    /// A page as it is sent, which fits.
    fn page(known: &KnownRules, ask: &ShowRules) -> RulesReply {
        let reply = show(known, ask).unwrap();
        for format in [Format::Json, Format::MsgPack] {
            let sent = encode(&reply, format);
            assert!(sent.len() < MAX_PAYLOAD_MIN - 1_024, "{}", sent.len());
            assert_eq!(decode::<RulesReply>(&sent).unwrap(), reply);
        }
        reply
    }

    /// All pages of a domain, and how many they are.
    fn whole(text: &str) -> (DomainReply, usize) {
        let (name, _) = read_one(text).unwrap();
        let known = all(vec![(name.clone(), known(text))]);
        let mut ask = ShowRules {
            domain: Some(name),
            ..ShowRules::default()
        };
        let mut whole = page(&known, &ask).domains.remove(0);
        let mut pages = 1;
        while whole.next.is_some() {
            ask.from = whole.next;
            assert!(whole.append(page(&known, &ask).domains.remove(0)));
            pages += 1;
        }
        assert_eq!(whole.text.as_deref(), Some(text));
        assert_eq!(whole.rules.len() as u64, whole.rules_total);
        (whole, pages)
    }

    /// Pads a text of rules to the most bytes with a comment.
    fn padded(mut text: String, with: char) -> String {
        text.push('#');
        let bytes = RULES_BYTES_MAX - text.len() - 1;
        text.extend(std::iter::repeat_n(with, bytes / with.len_utf8()));
        text.push('\n');
        text
    }

    #[test]
    fn a_small_domain_has_one_page() {
        let text = "domain: shop\ndescriptors:\n  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5}}\n";
        let (shown, pages) = whole(text);
        assert_eq!((shown.rules.len(), pages), (1, 1));
        assert_eq!(shown.rules, ["shop / ip: 5 per minute, fixed_window"]);
    }

    #[test]
    fn the_largest_texts_come_in_pages_that_fit() {
        let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
        let rule = |nth| format!("  - {{key: k{nth:03}, value: \"\\x01\\\"ä\", {limit}}}\n");
        let rules: String = (0..500).map(rule).collect();
        let begin = format!("domain: {}\ndescriptors:\n", "x".repeat(64));
        for with in ['"', '\\', 'ä', '😀', 'x'] {
            let (shown, pages) = whole(&padded(begin.clone() + &rules, with));
            assert!(shown.rules.len() == 500 && pages > 1, "{pages}");
        }
        let (_, pages) = whole(&padded("domain: shop\n".to_owned(), '"'));
        assert_eq!(pages, 3);
        // Rules of many KiB each, by aliases.
        let names: String = (0..300)
            .map(|nth| format!("{{name: n{nth:099}}},"))
            .collect();
        let first =
            format!("rate_limit: &all {{unit: day, requests_per_unit: 1, replaces: [{names}]}}");
        let others = (0..99).map(|nth| format!("  - {{key: k{nth}, rate_limit: *all}}\n"));
        let text = format!("domain: shop\ndescriptors:\n  - {{key: first, {first}}}\n");
        let (shown, _) = whole(&(text + &others.collect::<String>()));
        let of_first = shown.rules.iter().find(|it| it.contains("/ first: 1"));
        assert!(of_first.unwrap().ends_with('…'));
    }

    #[test]
    fn places_that_are_none_are_answered() {
        let (name, known) = (
            LineName::try_from("shop").unwrap(),
            known("domain: shop\n#ä\n"),
        );
        let known = all(vec![(name.clone(), known)]);
        for (from, text) in [(14, "#ä\n"), (15, "ä\n"), (16, "ä\n"), (17, "\n"), (99, "")] {
            let ask = ShowRules {
                domain: Some(name.clone()),
                from: Some(from - 1),
                after: None,
            };
            let shown = page(&known, &ask).domains.remove(0);
            assert_eq!(
                (shown.text.as_deref(), shown.next),
                (Some(text), None),
                "{from}"
            );
        }
    }

    #[test]
    fn all_domains_come_in_pages_that_fit() {
        let names = (0..256).map(|nth| LineName::try_from(format!("d{nth:063}").as_str()).unwrap());
        let names: Vec<_> = names.collect();
        let of = |name: &LineName| (name.clone(), known("domain: shop\n"));
        let known = all(names.iter().map(of).collect());
        let (mut ask, mut shown) = (ShowRules::default(), Vec::new());
        loop {
            let page = page(&known, &ask);
            shown.extend(page.domains.into_iter().map(|it| it.domain));
            ask.after = page.next;
            if ask.after.is_none() {
                break;
            }
        }
        assert_eq!(shown, names);
    }

    #[test]
    fn lists_of_lines_say_what_they_leave_out() {
        let lines = |count| (0..count).map(|nth| format!("line {nth:03}")).collect();
        assert_eq!(first_lines(lines(2), 22), ["line 000", "line 001"]);
        let cut = first_lines(lines(100), 22);
        assert_eq!(cut, ["line 000", "line 001", "… and 98 more"]);
        let long = first_lines(vec!["\u{1}".repeat(9_000)], 4_000);
        assert!(json_bytes(&long[0]) <= LINE_BYTES_MAX && long[0].ends_with('…'));
    }
}
