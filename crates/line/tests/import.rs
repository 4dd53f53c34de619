//! Import of a queue that runs elsewhere.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, IMPORT_ROWS_MAX, ImportRow, Imported, Limits, Lines, Op, Phase, Refused, Reply,
    Settings, SettingsPatch, State,
};

fn row(key: &str) -> ImportRow {
    ImportRow {
        key: key.as_bytes().into(),
        lane: None,
        entered_at_ms: None,
    }
}

fn import(
    shard: &mut Shard,
    id: &str,
    first_row: u64,
    rows: Vec<ImportRow>,
) -> Result<Reply, Refused> {
    shard.apply(&Op::Import {
        line: shop(),
        import_id: id.into(),
        first_row,
        rows,
    })
}

fn imported(id: &str, rows: u64, entered: u64) -> Option<Imported> {
    Some(Imported {
        id: id.into(),
        rows,
        entered,
    })
}

fn number_of(shard: &Shard, key: &str) -> Option<u64> {
    shard.line().find(key.as_bytes()).map(|at| at.token)
}

#[test]
fn rows_enter_in_their_order_and_once() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 9));
    shard.enter_as(Some("b")).unwrap();
    let mut first = row("a");
    first.entered_at_ms = Some(5);
    let mut late = row("c");
    late.entered_at_ms = Some(u64::MAX);
    import(&mut shard, "old", 0, vec![first, row("b"), late]).unwrap();
    assert_eq!(shard.line().imported(), imported("old", 3, 2).as_ref());
    for (key, number) in [("b", 1), ("a", 2), ("c", 3)] {
        assert_eq!(number_of(&shard, key), Some(number), "{key}");
    }
    // Only shown: what waits, waits since now.
    assert_eq!(shard.status(2).entered_at_ms, Some(5));
    assert_eq!(shard.status(3).entered_at_ms, Some(shard.wall_ms()));
    assert_eq!(shard.status(2).state, State::Waiting);
    // One that has gone since does not enter again, and the import goes on, also over a restart.
    let at = shard.at(2);
    shard.apply(&Op::Leave { line: shop(), at }).unwrap();
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    let rows = ["a", "b", "c", "d"].map(row).to_vec();
    import(&mut shard, "old", 0, rows).unwrap();
    assert_eq!(number_of(&shard, "a"), None);
    assert_eq!(number_of(&shard, "d"), Some(4));
    assert_eq!(shard.line().imported(), imported("old", 4, 3).as_ref());
    let version = shard.line().version();
    import(&mut shard, "old", 2, vec![row("c"), row("d")]).unwrap();
    assert_eq!(shard.line().version(), version);
    // Another import begins anew.
    import(&mut shard, "new", 0, vec![row("a")]).unwrap();
    assert_eq!(number_of(&shard, "a"), Some(5));
    assert_eq!(shard.line().imported(), imported("new", 1, 1).as_ref());
}

#[test]
fn a_row_that_is_refused_ends_it_and_names_itself() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 1));
    let rows = ["a", "b", "c", "d"].map(row).to_vec();
    import(&mut shard, "old", 0, rows.clone()).unwrap();
    assert_eq!(shard.line().imported(), imported("old", 2, 2).as_ref());
    assert_eq!(
        import(&mut shard, "old", 0, rows.clone()),
        Err(Refused::LineFull)
    );
    shard.set(SettingsPatch {
        queue_limit: Some(Change::Set(9)),
        phase: Some(Change::Set(Phase::PreOpen)),
        ..SettingsPatch::default()
    });
    import(&mut shard, "old", 2, rows[2..].to_vec()).unwrap();
    assert_eq!(shard.line().imported(), imported("old", 4, 4).as_ref());
    let mut astray = row("e");
    astray.lane = Some("vip".try_into().unwrap());
    for (id, first_row, rows, field) in [
        ("old", 4, vec![astray], "rows[4].lane"),
        ("old", 4, vec![row("")], "rows[4].key"),
        ("old", 5, vec![row("e")], "first_row"),
        ("new", 1, vec![row("e")], "first_row"),
        ("", 0, vec![row("e")], "import_id"),
        ("old", 4, vec![], "rows"),
        ("old", 4, vec![row("e"); IMPORT_ROWS_MAX + 1], "rows"),
    ] {
        let before = shard.lines.dump();
        match import(&mut shard, id, first_row, rows) {
            Err(Refused::BadField(bad)) => assert_eq!(bad.field, field),
            other => panic!("{field}: {other:?}"),
        }
        assert_eq!(shard.lines.dump(), before);
    }
    assert_eq!(number_of(&shard, "e"), None);
}
