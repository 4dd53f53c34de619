#![allow(clippy::unwrap_used)]
use super::*;

fn put(key: &str, value: &str) -> Op {
    Op::Put {
        bucket: "b".into(),
        key: key.into(),
        value: value.as_bytes().into(),
        if_revision: None,
        ttl_ms: None,
        above: 0,
    }
}

fn living(key: &str, ttl: u64) -> Op {
    let Op::Put {
        bucket, key, value, ..
    } = put(key, "v")
    else {
        unreachable!()
    };
    Op::Put {
        bucket,
        key,
        value,
        if_revision: None,
        ttl_ms: Some(ttl),
        above: 0,
    }
}

fn if_revision(op: Op, revision: u64) -> Op {
    match op {
        Op::Put {
            bucket,
            key,
            value,
            ttl_ms,
            above,
            ..
        } => Op::Put {
            bucket,
            key,
            value,
            if_revision: Some(revision),
            ttl_ms,
            above,
        },
        Op::Delete { bucket, key, .. } => Op::Delete {
            bucket,
            key,
            if_revision: Some(revision),
        },
    }
}

fn delete(key: &str) -> Op {
    Op::Delete {
        bucket: "b".into(),
        key: key.into(),
        if_revision: None,
    }
}

fn keys(store: &Store, now_ms: u64, prefix: &str, after: Option<&str>) -> Vec<String> {
    let list = store.list(now_ms, "b", prefix, after);
    list.map(|(key, _)| key.to_owned()).collect()
}

#[test]
fn revisions_grow_over_deletions() {
    let mut store = Store::default();
    assert_eq!(store.apply(0, &put("k", "1"), None).unwrap().revision, 1);
    assert_eq!(store.apply(0, &delete("k"), None).unwrap().revision, 2);
    assert!(store.is_empty());
    assert_eq!(
        store.apply(0, &delete("k"), None),
        Err(Refused::KeyNotFound)
    );
    let again = if_revision(put("k", "2"), 0);
    assert_eq!(store.apply(0, &again, None).unwrap().revision, 3);
    let conflict = Err(Refused::VersionConflict { revision: 3 });
    assert_eq!(store.apply(0, &again, None), conflict);
    assert_eq!(store.apply(0, &if_revision(delete("k"), 1), None), conflict);
    assert_eq!(store.get(0, "b", "k").unwrap().value[..], *b"2");
    let third = if_revision(put("k", "3"), 3);
    assert_eq!(store.apply(0, &third, None).unwrap().revision, 4);
}

#[test]
fn what_comes_back_from_a_backup_is_newer_than_that() {
    let mut store = Store::default();
    let Op::Put {
        bucket, key, value, ..
    } = put("k", "1")
    else {
        unreachable!()
    };
    let op = Op::Put {
        bucket,
        key,
        value,
        if_revision: Some(0),
        ttl_ms: None,
        above: 70,
    };
    assert_eq!(store.apply(0, &op, None).unwrap().revision, 71);
    assert_eq!(store.apply(0, &put("l", "1"), None).unwrap().revision, 72);
}

#[test]
fn an_expired_key_is_gone_before_it_is_removed() {
    let mut store = Store::default();
    for n in 0..EXPIRE_MAX + 5 {
        store
            .apply(0, &living(&format!("k{n:04}"), 10), None)
            .unwrap();
    }
    store.apply(0, &living("later", 20), None).unwrap();
    assert_eq!(store.next_expiry_ms(), Some(10));
    assert_eq!(store.expire(9, None), 0);
    assert!(store.get(9, "b", "k0000").is_some());
    assert!(store.get(10, "b", "k0000").is_none());
    assert_eq!(keys(&store, 10, "", None), ["later"]);
    let mut events = Vec::new();
    // The operation removes what it touches.
    let new = if_revision(put("k0000", "new"), 0);
    store.apply(10, &new, Some(&mut events)).unwrap();
    let whats: Vec<_> = events.iter().map(|event| event.what).collect();
    assert_eq!(whats, [Change::Expired, Change::Put]);
    assert!(events[0].revision < events[1].revision);
    assert!(!store.expires_more_than_once(9) && store.expires_more_than_once(10));
    assert_eq!(store.expire(10, None), EXPIRE_MAX);
    assert!(!store.expires_more_than_once(10));
    assert_eq!(store.expire(10, None), 4);
    assert_eq!(store.expire(10, None), 0);
    assert_eq!(store.len(), 2);
    assert_eq!(
        store.apply(20, &delete("later"), None),
        Err(Refused::KeyNotFound)
    );
    assert_eq!(keys(&store, 20, "", None), ["k0000"]);
}

#[test]
fn a_put_without_a_ttl_ends_the_earlier_one() {
    let mut store = Store::default();
    store.apply(0, &living("k", 10), None).unwrap();
    store.apply(5, &put("k", "v"), None).unwrap();
    assert_eq!(store.next_expiry_ms(), None);
    assert!(store.get(100, "b", "k").is_some());
}

#[test]
fn a_deadline_shares_the_names() {
    let mut store = Store::default();
    store.apply(0, &put("other", "v"), None).unwrap();
    store.apply(0, &living("k", 10), None).unwrap();
    let (name, key) = store.deadlines.values().next().unwrap();
    let (held, bucket) = store.buckets.first_key_value().unwrap();
    assert!(Arc::ptr_eq(name, held));
    assert!(Arc::ptr_eq(key, bucket.keys.get_key_value("k").unwrap().0));
}

#[test]
fn lists_are_pages_by_prefix() {
    let mut store = Store::default();
    for key in ["a", "b/1", "b/2", "b/3", "c"] {
        store.apply(0, &put(key, "v"), None).unwrap();
    }
    assert_eq!(keys(&store, 0, "b/", None), ["b/1", "b/2", "b/3"]);
    assert_eq!(keys(&store, 0, "b/", Some("b/1")), ["b/2", "b/3"]);
    assert_eq!(keys(&store, 0, "b/", Some("a")), ["b/1", "b/2", "b/3"]);
    assert!(keys(&store, 0, "b/", Some("c")).is_empty());
    assert_eq!(keys(&store, 0, "", Some("b/3")), ["c"]);
    assert_eq!(store.list(0, "other", "", None).count(), 0);
    let from: Vec<_> = store.iter_from(3).map(|(_, key, _)| key).collect();
    assert_eq!(from, ["b/3", "c"]);
}

#[test]
fn all_entries_from_any_one_on_go_over_the_buckets() {
    let mut store = Store::default();
    let mut all = Vec::new();
    for (bucket, keys) in [("a", 3), ("b", 1), ("c", 4)] {
        for nth in 0..keys {
            let key = nth.to_string();
            let op = Op::Put {
                bucket: bucket.into(),
                key: key.as_str().into(),
                value: Box::default(),
                if_revision: None,
                ttl_ms: None,
                above: 0,
            };
            store.apply(0, &op, None).unwrap();
            all.push((bucket.to_owned(), key));
        }
    }
    for nth in 0..=all.len() + 1 {
        let from = store.iter_from(nth);
        let from = from.map(|(bucket, key, _)| (bucket.to_owned(), key.to_owned()));
        let expected = all.get(nth..).unwrap_or_default();
        assert_eq!(from.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn limits_count_names_values_and_what_a_key_takes() {
    let limits = Limits {
        bucket_keys: 2,
        bucket_bytes: 2 * OVERHEAD_BYTES + 12,
        buckets: 2,
        bytes: 3 * OVERHEAD_BYTES + 12,
    };
    let mut store = Store::new(limits, 0);
    let full = |what| Err(Refused::Full(what));
    store.apply(0, &put("a", "12345"), None).unwrap();
    assert_eq!(
        store.apply(0, &put("b", "123456"), None),
        full(Full::BucketBytes)
    );
    store.apply(0, &put("b", "12345"), None).unwrap();
    assert_eq!(store.apply(0, &put("c", ""), None), full(Full::BucketKeys));
    // What is replaced makes room.
    store.apply(0, &put("a", "54321"), None).unwrap();
    store.apply(0, &put("a", "123"), None).unwrap();
    let other = |bucket: &str, value: &str| Op::Put {
        bucket: bucket.into(),
        key: "k".into(),
        value: value.as_bytes().into(),
        if_revision: None,
        ttl_ms: None,
        above: 0,
    };
    assert_eq!(store.apply(0, &other("o", "12"), None), full(Full::Bytes));
    store.apply(0, &other("o", ""), None).unwrap();
    assert_eq!(store.apply(0, &other("p", ""), None), full(Full::Buckets));
    store.apply(0, &delete("a"), None).unwrap();
    store.apply(0, &put("c", ""), None).unwrap();
    assert_eq!(store.bytes(), 3 * OVERHEAD_BYTES + 8);
}

#[test]
fn a_conflict_says_which_revision_the_key_has() {
    let says = |revision| Refused::VersionConflict { revision }.to_string();
    assert_eq!(says(3), "the key has revision 3");
    assert_eq!(says(0), "there is no such key");
}

#[test]
fn a_snapshot_that_contradicts_itself_is_noticed() {
    let entry = |revision, expires_at_ms| Entry {
        value: Box::default(),
        revision,
        expires_at_ms,
    };
    let mut store = Store::new(Limits::default(), 5);
    store.add("b", "k", entry(5, Some(9))).unwrap();
    assert_eq!(store.add("b", "k", entry(4, None)), Err(BadEntry::Order));
    assert_eq!(store.add("b", "l", entry(6, None)), Err(BadEntry::Revision));
    assert_eq!(store.add("b", "l", entry(0, None)), Err(BadEntry::Revision));
    assert_eq!(
        store.add("c", "k", entry(5, Some(9))),
        Err(BadEntry::Revision)
    );
    assert_eq!(store.next_expiry_ms(), Some(9));
}
