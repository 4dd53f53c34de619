//! Lists that the cluster answers page by page.

use nowserving_client::{Admin, LIST_LINES_MAX, LineList, ListLines};

/// Up to `limit` lines, asked for page by page.
pub async fn all_lines(
    admin: &Admin,
    mut page: ListLines,
    limit: u64,
) -> nowserving_client::Result<LineList> {
    let mut all = LineList::default();
    loop {
        let left = limit.saturating_sub(all.lines.len() as u64);
        page.limit = Some(left.min(LIST_LINES_MAX));
        let got = admin.list_lines(&page).await?;
        let is_empty = got.lines.is_empty();
        all.lines.extend(got.lines);
        all.next = got.next;
        page.after.clone_from(&all.next);
        // An empty page that still names a next one must not cause an endless loop.
        if all.next.is_none() || all.lines.len() as u64 >= limit || is_empty {
            return Ok(all);
        }
    }
}
