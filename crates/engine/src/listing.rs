//! `admin.cluster.list_lines`: a page over all shards, from this node's own state.

use nowserving_line::{Line, LineName, Lines};
use nowserving_protocol::admin::{LIST_LINES_DEFAULT, LineList, LineSummary, ListLines};

/// The lines after `ask.after` by name that have the labels asked for, `ask.limit` at most.
pub fn page<'a>(ask: &ListLines, shards: impl Iterator<Item = &'a Lines>) -> LineList {
    let limit = usize::try_from(ask.limit.unwrap_or(LIST_LINES_DEFAULT)).unwrap_or(usize::MAX);
    // Each shard gives its first `limit` in order, one more to see whether there is a next page;
    // the smallest of all those are the page.
    let mut found: Vec<&Line> = shards
        .flat_map(|lines| {
            lines
                .range_after(ask.after.as_ref())
                .filter(|line| has_labels(line, ask))
                .take(limit + 1)
        })
        .collect();
    found.sort_unstable_by_key(|line| line.name());
    let more = found.len() > limit;
    found.truncate(limit);
    let next: Option<LineName> = found.last().filter(|_| more).map(|l| l.name().clone());
    LineList {
        lines: found.into_iter().map(LineSummary::from).collect(),
        next,
    }
}

fn has_labels(line: &Line, ask: &ListLines) -> bool {
    let labels = &line.settings().labels;
    ask.labels
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}
