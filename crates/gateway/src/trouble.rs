//! What keeps the gateway from its work, as far as it is known now, and what mends it: for `/readyz` and the dashboard.

use nowserving_client::LineName;
use nowserving_insight::finding::Finding;
use nowserving_insight::same_cluster;

use crate::Gateway;
use crate::limits::{AddressLimits, Unlimited};
use crate::lines::{LineView, Trouble};

/// So many of the lines that have the same trouble are named.
const NAMED_MAX: usize = 5;
const RIGHTS: &str = "the login needs the rights of the role `gateways` (docs/security.md)";

impl Gateway {
    /// Whether it can decide by the cluster, or why not: a cause a row, with what to do. A gateway that cannot still answers,
    /// as `on_unavailable` says. One answer that is missing, or a moment without NATS, is no reason yet.
    pub fn is_ready(&self) -> Result<(), String> {
        let troubles = self.troubles();
        let is_unready = self.lines.values().any(LineView::is_unready);
        match troubles.is_empty() || !is_unready {
            true => Ok(()),
            false => {
                let rows = troubles.iter().map(Finding::in_words);
                Err(rows.collect::<Vec<_>>().join("\n"))
            }
        }
    }

    /// Why it does not decide by the cluster. Asks nobody.
    pub fn troubles(&self) -> Vec<Finding> {
        if !self.client.is_connected() {
            return vec![same_cluster::without_nats(&self.client)];
        }
        let lines = self.lines.iter();
        let mut found = of_lines(lines.filter_map(|(name, view)| Some((name, view.trouble()?))));
        self.name_cluster(&mut found);
        found
    }

    /// The same, and what it decides without although it should not. Asks nobody.
    pub fn findings(&self) -> Vec<Finding> {
        let unlimited = self.limits.as_ref().and_then(AddressLimits::unlimited);
        let mut limits = unlimited.map(of_limits);
        self.name_cluster(limits.as_mut_slice());
        let mut found = self.troubles();
        found.extend(limits);
        found
    }

    /// The reader of a command may not know where the gateway's NATS server is.
    fn name_cluster(&self, found: &mut [Finding]) {
        same_cluster::name_in(found, &same_cluster::options(&self.client));
    }
}

fn of_limits(unlimited: Unlimited) -> Finding {
    let code = "limits_missing";
    match unlimited {
        Unlimited::NoRules(domain) => {
            let text = format!(
                "no address is limited: the domain {domain} of address_limits has no rules in the cluster"
            );
            Finding::warning(code, text)
                .run_if("nowserving limit show", "lists the domains that have rules")
                .advise("apply rules for it (`nowserving limit apply`), or correct `domain` in the gateway's configuration")
        }
        Unlimited::NoRulesFor(domain, requests) => {
            let requests = requests.join(", ");
            let text = format!(
                "address_limits does not limit {requests}: the domain {domain} has rules, but none for these requests"
            );
            Finding::warning(code, text)
                .run_if(format!("nowserving limit show {domain}"), "lists its rules")
                .advise("add rules for them, or correct `requests` in the gateway's configuration")
        }
        Unlimited::Refused(domain, why) => {
            let text = format!("no address is limited: the domain {domain} cannot be asked: {why}");
            Finding::warning(code, text)
        }
        Unlimited::Forbidden(domain, why) => {
            let text = format!(
                "no address is limited: the login may not ask about the domain {domain}: {why}"
            );
            Finding::warning(code, text).advise(RIGHTS)
        }
    }
}

/// A line that is missing has a finding of its own, up to a number. What others have in common is one.
fn of_lines<'a>(troubles: impl Iterator<Item = (&'a LineName, Trouble)>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut missing_lines = 0;
    let (mut unanswered, mut unheard) = (Vec::new(), Vec::new());
    let (mut forbidden, mut refused) = (Vec::new(), Vec::new());
    let (mut why_unanswered, mut why_forbidden, mut why_refused) = (None, None, None);
    for (line, trouble) in troubles {
        match trouble {
            Trouble::Missing => {
                missing_lines += 1;
                if missing_lines <= NAMED_MAX {
                    found.push(missing(line));
                }
            }
            Trouble::New => unanswered.push(line),
            Trouble::Unanswered(why) => {
                unanswered.push(line);
                why_unanswered = Some(why);
            }
            Trouble::Forbidden(why) => {
                forbidden.push(line);
                why_forbidden = Some(why);
            }
            Trouble::Refused(why) => {
                refused.push(line);
                why_refused = Some(why);
            }
            Trouble::NoEvents => unheard.push(line),
        }
    }
    if missing_lines > NAMED_MAX {
        let text = format!("and {} more lines do not exist", missing_lines - NAMED_MAX);
        found.push(Finding::problem("line_missing", text));
    }
    if !unanswered.is_empty() {
        let why = why_unanswered.map_or(" yet".to_owned(), |why| format!(": {why}"));
        let text = format!(
            "no answer from the cluster about {}{why}",
            named(&unanswered)
        );
        let unanswered = Finding::problem("no_answer", text)
            .run_if("nowserving cluster status --wait", "shows which nodes run");
        found.push(unanswered);
    }
    if let Some(why) = why_forbidden {
        let text = format!("the gateway may not follow {}: {why}", named(&forbidden));
        found.push(Finding::problem("line_refused", text).advise(RIGHTS));
    }
    if let Some(why) = why_refused {
        let text = format!("the gateway cannot follow {}: {why}", named(&refused));
        found.push(Finding::problem("line_refused", text));
    }
    if !unheard.is_empty() {
        let text = format!("the events of {} are not heard yet", named(&unheard));
        found.push(Finding::problem("no_events", text));
    }
    found
}

fn missing(line: &LineName) -> Finding {
    let text = format!(
        "the line {line} does not exist: nobody gets a number, and those who have one are told that their place is not certain"
    );
    Finding::problem("line_missing", text)
        .run_if(
            format!("nowserving line create {line} --seats 50 --queue-limit 10000"),
            "with as many seats as people may be in the shop at once",
        )
        .advise("or correct `line` in the gateway's configuration, and start it again")
}

/// `the line sale`, or `the lines a, b and 3 more`
fn named(lines: &[&LineName]) -> String {
    let first: Vec<&str> = lines.iter().take(NAMED_MAX).map(|it| it.as_str()).collect();
    let more = lines.len() - first.len();
    let s = if lines.len() == 1 { "" } else { "s" };
    let more = match more {
        0 => String::new(),
        _ => format!(" and {more} more"),
    };
    format!("the line{s} {}{more}", first.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rows(troubles: &[(&str, Trouble)]) -> Vec<String> {
        let names: Vec<LineName> = troubles.iter().map(|it| it.0.parse().unwrap()).collect();
        let troubles = troubles.iter().map(|it| it.1.clone());
        of_lines(names.iter().zip(troubles))
            .iter()
            .map(Finding::in_words)
            .collect()
    }

    #[test]
    fn each_missing_line_is_named_with_the_command_that_creates_it() {
        let rows = rows(&[("a", Trouble::Missing), ("b", Trouble::Missing)]);
        assert_eq!(rows.len(), 2);
        assert!(rows[1].starts_with("the line b does not exist"), "{rows:?}");
        assert!(
            rows[1].contains("`nowserving line create b --seats "),
            "{rows:?}"
        );
    }

    #[test]
    fn of_many_missing_lines_the_first_are_named() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let rows = rows(&names.map(|name| (name, Trouble::Missing)));
        assert_eq!(rows.len(), NAMED_MAX + 1);
        assert!(rows[4].starts_with("the line e "), "{rows:?}");
        assert_eq!(rows[5], "and 2 more lines do not exist");
    }

    #[test]
    fn what_many_lines_have_in_common_is_one_row() {
        let why = || Trouble::Unanswered("no node listens".to_owned());
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let mut troubles: Vec<_> = names.map(|name| (name, why())).into();
        troubles.push(("h", Trouble::NoEvents));
        troubles.push(("i", Trouble::Forbidden("may not publish".to_owned())));
        troubles.push(("j", Trouble::Refused("no such request".to_owned())));
        let rows = rows(&troubles);
        assert_eq!(rows.len(), 4);
        let first =
            "no answer from the cluster about the lines a, b, c, d, e and 2 more: no node listens";
        assert!(rows[0].starts_with(first), "{rows:?}");
        assert!(rows[1].contains("the line i: may not publish"), "{rows:?}");
        assert!(rows[1].contains("the role `gateways`"), "{rows:?}");
        // That is no matter of rights.
        assert_eq!(
            rows[2],
            "the gateway cannot follow the line j: no such request"
        );
        assert_eq!(rows[3], "the events of the line h are not heard yet");
        assert_eq!(of_lines(std::iter::empty()), []);
    }
}
