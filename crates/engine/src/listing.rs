//! `admin.cluster.list_lines`: a page over all shards, from this node's own state.

use nowserving_line::{Line, Lines};
use nowserving_protocol::admin::{LIST_LINES_DEFAULT, LineList, LineSummary, ListLines};
use nowserving_protocol::page::Room;

/// The lines after `ask.after` by name that have the labels asked for: `ask.limit` at most, and as many as fit a page.
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
    let mut room = Room::new();
    let page = found.iter().take(limit);
    let page = page.map(|line| LineSummary::from(*line));
    let lines: Vec<_> = page.take_while(|line| room.takes(line)).collect();
    let more = lines.len() < found.len();
    LineList {
        next: lines.last().filter(|_| more).map(|last| last.line.clone()),
        lines,
    }
}

fn has_labels(line: &Line, ask: &ListLines) -> bool {
    let labels = &line.settings().labels;
    ask.labels
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{Op, Settings, Stamp};
    use nowserving_protocol::page::{PAGE_BYTES_MAX, json_bytes};

    use super::*;

    /// Labels take much room: as JSON such a byte takes six.
    #[test]
    fn pages_with_long_labels_have_fewer_lines() {
        let mut lines = Lines::new();
        let words = |first: u8| String::from_utf8(vec![first; 64]).unwrap();
        let labels = (0..16).map(|n| (words(n), words(n)));
        let mut settings = Settings::new(1, 10);
        settings.labels = labels.collect();
        for n in 0..20 {
            let create = Op::Create {
                line: format!("line-{n:02}").parse().unwrap(),
                settings: settings.clone(),
            };
            let stamp = Stamp {
                index: n + 1,
                op_no: 0,
                now_ms: 1,
                wall_ms: 1,
            };
            lines.apply(stamp, &create, None).unwrap();
        }
        let (mut ask, mut names, mut pages) = (ListLines::default(), Vec::new(), 0);
        loop {
            let page = page(&ask, std::iter::once(&lines));
            assert!(json_bytes(&page.lines) <= PAGE_BYTES_MAX);
            names.extend(page.lines.into_iter().map(|line| line.line));
            pages += 1;
            ask.after = page.next;
            if ask.after.is_none() {
                break;
            }
        }
        assert_eq!((names.len(), names.is_sorted()), (20, true));
        assert!(pages > 4, "{pages}");
    }
}
