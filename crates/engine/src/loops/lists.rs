//! Lists over all shards of a node, of which each loop gives a page.

use nowserving_protocol::admin::{LIST_LINES_DEFAULT, LineList, ListLines};
use nowserving_protocol::kv::{KV_LIST_DEFAULT, KvList, KvListReply};
use nowserving_protocol::page::Room;
use serde::Serialize;

use crate::request::{Outcome, Question, ReplyBody};

/// The page of all loops, of a page of each; `None` for questions that no loop but the first answers.
pub(crate) fn merged(question: &Question, parts: Vec<Outcome>) -> Option<Outcome> {
    let bodies = parts.into_iter().filter_map(|part| match part {
        Outcome::Reply(body) => Some(body),
        _ => None,
    });
    Some(Outcome::Reply(match question {
        Question::ListLines(ask) => {
            let pages = bodies.filter_map(|body| match body {
                ReplyBody::Lines(page) => Some(*page),
                _ => None,
            });
            ReplyBody::Lines(Box::new(lines(ask, pages)))
        }
        Question::KvList { ask, .. } => {
            let pages = bodies.filter_map(|body| match body {
                ReplyBody::KvListed(page) => Some(*page),
                _ => None,
            });
            ReplyBody::KvListed(Box::new(keys(ask, pages)))
        }
        Question::ClusterStatus | Question::MembersChanges => return None,
    }))
}

fn lines(ask: &ListLines, pages: impl Iterator<Item = LineList>) -> LineList {
    let pages = pages.map(|page| (page.lines, page.next));
    let limit = ask.limit.unwrap_or(LIST_LINES_DEFAULT);
    let (lines, next) = page(pages, limit, |it| it.line.clone());
    LineList { lines, next }
}

fn keys(ask: &KvList, pages: impl Iterator<Item = KvListReply>) -> KvListReply {
    let pages = pages.map(|page| (page.entries, page.next));
    let limit = ask.limit.unwrap_or(KV_LIST_DEFAULT);
    let (entries, next) = page(pages, limit, |it| it.key.clone());
    KvListReply { entries, next }
}

/// What comes first in these pages. Behind the end of a page that is not the last of its loop something may be that it
/// does not show: the page ends there.
fn page<T: Serialize, N: Ord + Clone>(
    pages: impl Iterator<Item = (Vec<T>, Option<N>)>,
    limit: u64,
    name: impl Fn(&T) -> N,
) -> (Vec<T>, Option<N>) {
    let (mut all, mut end): (Vec<T>, Option<N>) = (Vec::new(), None);
    for (items, next) in pages {
        all.extend(items);
        end = match (end, next) {
            (Some(end), Some(next)) => Some(end.min(next)),
            (end, next) => end.or(next),
        };
    }
    all.sort_by_key(&name);
    let found = all.len();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut room = Room::new();
    let shown = all.into_iter().take(limit);
    let shown = shown.take_while(|it| {
        let is_shown = end.as_ref().is_none_or(|end| name(it) <= *end);
        is_shown && room.takes(it)
    });
    let shown: Vec<T> = shown.collect();
    let more = end.is_some() || shown.len() < found;
    let next = shown.last().filter(|_| more).map(&name);
    (shown, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names from `0` on that a loop of three has, in pages of at most so many.
    fn of_loop(index: u32, after: Option<u32>, most: usize) -> (Vec<u32>, Option<u32>) {
        let all = (0..40).filter(|it| it % 3 == index && after.is_none_or(|after| *it > after));
        let all: Vec<u32> = all.collect();
        let shown: Vec<u32> = all.iter().copied().take(most).collect();
        let next = shown.last().copied().filter(|_| shown.len() < all.len());
        (shown, next)
    }

    #[test]
    fn pages_of_loops_make_pages_without_a_gap() {
        for (most, limit) in [(1, 1), (2, 5), (5, 3), (7, 7), (40, 6)] {
            let (mut after, mut seen) = (None, Vec::new());
            loop {
                let pages = (0..3).map(|index| of_loop(index, after, most));
                let (shown, next) = page(pages, limit, |it| *it);
                assert!(shown.len() <= limit as usize);
                seen.extend(shown);
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, (0..40).collect::<Vec<_>>(), "{most} {limit}");
        }
    }
}
