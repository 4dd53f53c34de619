//! `nowserving line journal`: why was X before me?

use clap::Args;
use nowserving_client::{AdminLine, JOURNAL_LIMIT_MAX, Journal, JournalReply, LaneName};
use nowserving_line::NUMBER_MAX;

use crate::tables;
use crate::token_name::{self, TokenArg};
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};

/// Shows what happened in a line, and why other tokens were admitted before a given one.
///
/// Lists tokens that were admitted, moved or ended, when and why, oldest first; a line keeps the newest
/// 4,096 entries about tokens, and as many about the line as a whole. With --token, also lists the tokens that entered later and were admitted earlier.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving line journal shop-1 --newest 20              what happened last?
  nowserving line journal shop-1 --of-line                who changed what, and why?
  nowserving line journal shop-1 --token vip:17           why did it take so long?
  nowserving line journal shop-1 --lane vip --after 4711 --json")]
pub struct JournalArgs {
    /// The line's name.
    pub name: String,
    /// Only what happened in this lane; with --token, the lane of its number, if it says none (by default the
    /// default lane).
    #[arg(long, value_name = "LANE")]
    lane: Option<LaneName>,
    /// Only the entries of this token, as LANE:NUMBER or NUMBER, and the tokens admitted before it.
    #[arg(long, value_name = "LANE:N", value_parser = token_name::any)]
    token: Option<TokenArg>,
    /// Only what happened to the line as a whole: what operators and the schedule did, who asked and why.
    #[arg(long, conflicts_with_all = ["lane", "token"])]
    of_line: bool,
    /// Begin after this version.
    #[arg(long, value_name = "VERSION", value_parser = number::between::<u64>(0..=NUMBER_MAX))]
    after: Option<u64>,
    /// How many entries at most: the oldest ones.
    #[arg(
        long, value_name = "N", default_value_t = 8_192, conflicts_with = "newest",
        value_parser = number::between::<u64>(1..=1_000_000)
    )]
    limit: u64,
    /// Only the newest N entries, also oldest first.
    #[arg(
        long, value_name = "N",
        value_parser = number::between::<u64>(1..=1_000_000)
    )]
    newest: Option<u64>,
}

impl JournalArgs {
    /// The lane and the number that it asks about.
    pub fn place(&self) -> Result<(Option<LaneName>, Option<u64>), WrongUsage> {
        let lane = self.lane.clone();
        match self.token.clone() {
            None => Ok((lane, None)),
            Some(token) => token
                .in_lane(lane)
                .map(|(lane, number)| (lane, Some(number))),
        }
    }
}

/// Asks page by page until there is no more, or enough.
pub async fn run(
    args: &JournalArgs,
    (lane, token): (Option<LaneName>, Option<u64>),
    line: &AdminLine,
    output: &Output,
) -> anyhow::Result<()> {
    // The newest are found by reading all: a line keeps few.
    let limit = args.newest.map_or(args.limit, |_| u64::MAX);
    let mut page = Journal {
        after: args.after,
        limit: Some(limit.min(JOURNAL_LIMIT_MAX)),
        lane,
        token,
        of_line: args.of_line,
    };
    let mut all = line.journal(&page).await?;
    while let Some(next) = all.next
        && let Some(left) = limit.checked_sub(all.entries.len() as u64)
        && left > 0
    {
        page.after = Some(next);
        page.limit = Some(left.min(JOURNAL_LIMIT_MAX));
        let got: JournalReply = line.journal(&page).await?;
        // A page without entries that still names a next one: no endless loop.
        all.next = got.next.filter(|_| !got.entries.is_empty());
        all.entries.extend(got.entries);
        all.explain = got.explain.or(all.explain);
    }
    if let Some(newest) = args.newest {
        keep_newest(&mut all.entries, newest);
    }
    output.answer(&all, |all| tables::journal(all, output))
}

fn keep_newest<T>(entries: &mut Vec<T>, newest: u64) {
    let newest = usize::try_from(newest).unwrap_or(usize::MAX);
    entries.drain(..entries.len().saturating_sub(newest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_the_last_ones() {
        for (newest, expected) in [
            (1, &[3][..]),
            (2, &[2, 3]),
            (3, &[1, 2, 3]),
            (9, &[1, 2, 3]),
        ] {
            let mut entries = vec![1, 2, 3];
            keep_newest(&mut entries, newest);
            assert_eq!(entries, expected);
        }
    }
}
