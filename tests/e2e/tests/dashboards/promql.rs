//! What the test has to know of PromQL's text: comparisons, the sides of an `or`, and the values of labels.

use anyhow::{Context, Result, ensure};

/// A comparison of a label with a value, or with several that `|` separates.
#[derive(Debug, PartialEq, Eq)]
pub struct Matcher<'a> {
    pub metric: &'a str,
    pub label: &'a str,
    pub values: Vec<&'a str>,
}

/// The query without `== 0`, `> 0.9` and the like, and without offsets (a new Prometheus knows no past); what stands in
/// quotes stays.
pub fn without_comparisons(query: &str) -> String {
    let mut kept = String::new();
    let (mut rest, mut quoted) = (query, false);
    while let Some(next) = rest.chars().next() {
        quoted ^= next == '"';
        let removed = if quoted {
            None
        } else {
            after_comparison(rest).or_else(|| after_offset(rest))
        };
        if let Some(after) = removed {
            rest = after;
        } else {
            kept.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    kept
}

/// What follows a comparison with a number, if the text begins with one.
fn after_comparison(text: &str) -> Option<&str> {
    let operators = ["==", "!=", "<=", ">=", "<", ">"];
    let after = operators.iter().find_map(|it| text.strip_prefix(it))?;
    let number = after.trim_start();
    let is_part = |(at, part): &(usize, char)| {
        part.is_ascii_digit()
            || matches!(part, '.' | 'e')
            || matches!(part, '+' | '-') && (*at == 0 || number[..*at].ends_with('e'))
    };
    let length = number.char_indices().take_while(is_part).count();
    number[..length].parse::<f64>().ok()?;
    Some(&number[length..])
}

fn after_offset(text: &str) -> Option<&str> {
    let duration = text.strip_prefix(" offset ")?;
    Some(duration.trim_start_matches(|it: char| it.is_ascii_alphanumeric()))
}

/// The query with one side of each of its `or`s alone, in each combination: what one side has would hide that the other one
/// has nothing.
pub fn sides(query: &str) -> Vec<String> {
    let shape = without_quoted(query);
    let Some(at) = shape.find(" or ") else {
        return vec![query.to_owned()];
    };
    let (left, right) = (at, at + " or ".len());
    let begin = left - reach(shape[..left].chars().rev(), ')', '(');
    let end = right + reach(shape[right..].chars(), '(', ')');
    let [before, after] = [&query[..begin], &query[end..]];
    let each = [&query[begin..left], &query[right..end]];
    each.into_iter()
        .flat_map(|side| sides(&format!("{before}{side}{after}")))
        .collect()
}

/// How far it is to the end of what the brackets around it enclose, or to a comma there. `or` binds less than all else.
fn reach(text: impl Iterator<Item = char>, opens: char, closes: char) -> usize {
    let mut depth = 0usize;
    let inside = text.take_while(|&it| {
        if it == opens {
            depth += 1;
        } else if it == closes {
            match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => return false,
            }
        }
        it != ',' || depth > 0
    });
    inside.count()
}

/// All of the query's matchers.
pub fn matchers(query: &str) -> Result<Vec<Matcher<'_>>> {
    let shape = without_quoted(query);
    let mut found = Vec::new();
    for (open, _) in shape.match_indices('{') {
        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        let metric = &query[shape[..open].trim_end_matches(is_name).len()..open];
        let close = open + shape[open..].find('}').context("no end of the matchers")?;
        let mut at = open + 1;
        for part in shape[at..close].split(',') {
            let text = query[at..at + part.len()].trim();
            at += part.len() + 1;
            let (label, rest) = text.split_once(['=', '!']).context("no operator")?;
            let quoted = rest.trim_start_matches(['=', '~']);
            let value = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
            let value = value.with_context(|| format!("no value: {text}"))?;
            found.push(Matcher {
                metric,
                label,
                values: value.split('|').collect(),
            });
        }
    }
    Ok(found)
}

/// The query without matchers.
pub fn without_matchers(query: &str) -> Result<String> {
    let shape = without_quoted(query);
    let mut kept = String::new();
    let mut at = 0;
    while let Some(open) = shape[at..].find('{') {
        kept += &query[at..at + open];
        let close = shape[at + open..].find('}').context("no end of matchers")?;
        at += open + close + 1;
    }
    kept += &query[at..];
    ensure!(!kept.is_empty(), "{query}");
    Ok(kept)
}

/// As long as the query, with other characters in place of those in quotes: brackets and commas there mean nothing.
fn without_quoted(query: &str) -> String {
    let mut quoted = false;
    let blank = |it: char| {
        if it == '"' {
            quoted = !quoted;
        }
        let is_kept = it == '"' || !quoted;
        if is_kept {
            it.to_string()
        } else {
            "_".repeat(it.len_utf8())
        }
    };
    query.chars().map(blank).collect()
}

#[test]
fn comparisons_and_offsets_are_taken_away() {
    for (query, left) in [
        (r#"up{job="a == 1"} == 0"#, r#"up{job="a == 1"} "#),
        (r#"a{b!="1"} / (c > 0) > 0.9"#, r#"a{b!="1"} / (c ) "#),
        ("a < 1.073741824e+09 and on (x) b >= -2", "a  and on (x) b "),
        ("a > b", "a > b"),
        ("max by (x) (a offset 10m) > 0", "max by (x) (a) "),
    ] {
        assert_eq!(without_comparisons(query), left);
    }
}

#[test]
fn each_side_of_an_or_stands_alone() {
    assert_eq!(sides("sum by (a, b) (c)"), ["sum by (a, b) (c)"]);
    assert_eq!(
        sides(r#"(sum(a{b=") or ("}) or max by (x, y) (c) * 0) / d"#),
        [r#"(sum(a{b=") or ("})) / d"#, "(max by (x, y) (c) * 0) / d"]
    );
    assert_eq!(
        sides("topk(3, a or b) or c"),
        ["topk(3, a)", "c", "topk(3,b)", "c"]
    );
}

#[test]
fn matchers_are_found_with_each_of_their_values() -> Result<()> {
    let query = r#"sum(a_total{line!="(others), {x}", code=~"one|two"}) / on (b) c{d="e"}"#;
    let found = matchers(query)?;
    let found: Vec<_> = found
        .iter()
        .map(|it| (it.metric, it.label, it.values.join(" ")))
        .collect();
    assert_eq!(
        found,
        [
            ("a_total", "line", "(others), {x}".to_owned()),
            ("a_total", "code", "one two".to_owned()),
            ("c", "d", "e".to_owned()),
        ]
    );
    let bare = without_matchers(query)?;
    assert_eq!(bare, "sum(a_total) / on (b) c");
    Ok(())
}
