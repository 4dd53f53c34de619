#![allow(clippy::unwrap_used)]
use nowserving_kv::{Full, Limits, Store, VALUE_BYTES_MAX};

use super::*;
use crate::codec::{Format, MAX_REQUEST_BYTES, Payload, decode, encode, read};

fn bucket() -> LineName {
    LineName::try_from("visits").unwrap()
}

fn refused<T: Payload + fmt::Debug>(text: &str) -> String {
    decode::<T>(text.as_bytes()).unwrap_err().message
}

#[test]
fn a_put_comes_as_it_was_in_both_formats() {
    let put = KvPut {
        key: KvKey::new("票/\u{1}".repeat(100)).unwrap(),
        value: KvValue::new("\u{1}".repeat(VALUE_BYTES_MAX).into_bytes()).unwrap(),
        if_revision: Some(0),
        ttl_ms: Some(TTL_MS_MAX),
    };
    for format in [Format::Json, Format::MsgPack] {
        let bytes = encode(&put, format);
        // As long as can be: in JSON each byte takes six.
        assert!(bytes.len() <= MAX_REQUEST_BYTES);
        assert_eq!(decode::<KvPut>(&bytes).unwrap(), put);
    }
    // MessagePack: a string is taken for a value, too.
    let short = encode(
        &serde_json::json!({"key": "k", "value": "v"}),
        Format::MsgPack,
    );
    let put: KvPut = decode(&short).unwrap();
    assert_eq!(put.value.as_bytes(), b"v");
    assert!(matches!(put.into_op(&bucket()), Op::Put { above: 0, .. }));
}

#[test]
fn a_value_that_is_no_text_is_base64_in_json() {
    for (value, in_json) in [(&b"text"[..], "value"), (&[0xff, 0][..], "value_base64")] {
        let reply = KvGetReply {
            key: KvKey::new("k").unwrap(),
            value: KvValue::new(value).unwrap(),
            revision: 7,
            expires_in_ms: None,
        };
        let json: serde_json::Value = read(&encode(&reply, Format::Json)).unwrap();
        let names: Vec<_> = json.as_object().unwrap().keys().collect();
        assert_eq!(names, ["key", "revision", in_json]);
        for format in [Format::Json, Format::MsgPack] {
            let read: KvGetReply = decode(&encode(&reply, format)).unwrap();
            assert_eq!(read, reply);
        }
    }
    assert!(decode::<KvGetReply>(br#"{"key":"k","revision":1}"#).is_err());
}

#[test]
fn bytes_are_put_and_restored_in_both_formats() {
    for (value, in_json) in [(&b"text"[..], "value"), (&[0xff, 0][..], "value_base64")] {
        let put = KvPut {
            key: KvKey::new("k").unwrap(),
            value: KvValue::new(value).unwrap(),
            if_revision: Some(3),
            ttl_ms: Some(4),
        };
        let restore = KvRestore {
            key: put.key.clone(),
            value: put.value.clone(),
            expires_in_ms: None,
            above_revision: 9,
            overwrite: true,
        };
        for format in [Format::Json, Format::MsgPack] {
            let bytes = encode(&put, format);
            assert_eq!(decode::<KvPut>(&bytes).unwrap(), put);
            let field = match format {
                Format::Json => in_json,
                Format::MsgPack => "value",
            };
            let fields: BTreeMap<String, serde::de::IgnoredAny> = read(&bytes).unwrap();
            let names: Vec<_> = fields.keys().map(String::as_str).collect();
            assert_eq!(names, ["if_revision", "key", "ttl_ms", field]);
            let bytes = encode(&restore, format);
            assert_eq!(decode::<KvRestore>(&bytes).unwrap(), restore);
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    let value = "v".repeat(VALUE_BYTES_MAX + 1);
    for (text, named) in [
        (r#"{"value":"v"}"#.to_owned(), "key: required"),
        (r#"{"key":"k"}"#.to_owned(), "value: required"),
        (
            r#"{"key":"","value":""}"#.to_owned(),
            "key: expected a string of 1 to 512 bytes, got a length of 0",
        ),
        (
            format!(r#"{{"key":"{long}","value":""}}"#),
            "key: expected a string of 1 to 512 bytes, got a length of 513",
        ),
        (
            r#"{"key":7,"value":""}"#.to_owned(),
            "key: expected a string of 1 to 512 bytes, got 7",
        ),
        (
            format!(r#"{{"key":"k","value":"{value}"}}"#),
            "value: expected a string or binary of at most 10240 bytes, got a length of 10241",
        ),
        (
            r#"{"key":"k","value":"","if_revison":0}"#.to_owned(),
            "if_revison: unknown field",
        ),
        (
            r#"{"key":"k","value":"","ttl":1000}"#.to_owned(),
            "ttl: unknown field",
        ),
        (
            r#"{"key":"k","value":[1]}"#.to_owned(),
            "value: expected a string or binary of at most 10240 bytes, got a list",
        ),
        (
            r#"{"key":"k","value":"","ttl_ms":0}"#.to_owned(),
            "ttl_ms: ",
        ),
        (
            r#"{"key":"k","value":"","ttl_ms":31536000001}"#.to_owned(),
            "ttl_ms: ",
        ),
        (
            r#"{"key":"k","value":"","if_revision":-1}"#.to_owned(),
            "if_revision: ",
        ),
    ] {
        let message = refused::<KvPut>(&text);
        assert!(message.starts_with(named), "{message}");
    }
    let message = refused::<KvList>(r#"{"limit":1001}"#);
    assert!(message.starts_with("limit: "), "{message}");
    let message = refused::<KvGet>(r#"{"key":"k","consistency":"sometimes"}"#);
    assert!(message.starts_with("consistency: "), "{message}");
    let message =
        refused::<KvRestore>(r#"{"key":"k","value":"","above_revision":4503599627370497}"#);
    assert!(message.starts_with("above_revision: "), "{message}");
    let most = br#"{"key":"k","value":"","above_revision":4503599627370496}"#;
    let most: KvRestore = decode(most).unwrap();
    assert_eq!(most.above_revision, REVISION_ABOVE_MAX);
    let both = refused::<KvPut>(r#"{"key":"k","value":"v","value_base64":"dg=="}"#);
    assert_eq!(both, "value_base64: not together with value");
    let long = data_encoding::BASE64.encode(&[0xff; VALUE_BYTES_MAX + 1]);
    for (value, named) in [
        (
            long.as_str(),
            "value_base64: expected a string or binary of at most 10240 bytes, got a length of 10241",
        ),
        ("?", "value_base64: no base64"),
    ] {
        let message = refused::<KvPut>(&format!(r#"{{"key":"k","value_base64":"{value}"}}"#));
        assert!(message.starts_with(named), "{message}");
    }
    assert!(KvKey::new("").is_err() && KvPrefix::new("").is_ok());
    assert!(KvValue::new(vec![0; VALUE_BYTES_MAX + 1]).is_err());
}

/// The stores of three shards with these keys.
fn stores(keys: &[String]) -> Vec<Store> {
    let mut stores = [(); 3].map(|()| Store::new(Limits::default(), 0));
    for key in keys {
        let put = KvPut {
            key: KvKey::new(key.as_str()).unwrap(),
            value: KvValue::new(key.as_bytes()).unwrap(),
            if_revision: None,
            ttl_ms: key.ends_with('9').then_some(10),
        };
        let shard = kv_shard_of(&bucket(), key, 3) as usize;
        stores[shard]
            .apply(0, &put.into_op(&bucket()), None)
            .unwrap();
    }
    stores.into()
}

fn pages(stores: &[Store], now_ms: u64, mut ask: KvList) -> Vec<Vec<KvListed>> {
    let mut pages = Vec::new();
    loop {
        let page = KvListReply::new(&bucket(), &ask, stores.iter().map(|it| (it, now_ms)));
        pages.push(page.entries);
        match page.next {
            Some(next) => ask.after = Some(next.into()),
            None => return pages,
        }
    }
}

#[test]
fn a_list_goes_over_all_shards_in_pages() {
    let keys: Vec<String> = (0..50).map(|n| format!("k{n:02}")).collect();
    let stores = stores(&keys);
    assert!(stores.iter().all(|store| store.len() > 5));
    let ask = KvList {
        after: Some(KvPrefix::new("").unwrap()),
        limit: Some(7),
        ..KvList::default()
    };
    let all = pages(&stores, 4, ask);
    assert_eq!(all.len(), 8);
    let listed: Vec<_> = all.iter().flatten().map(|it| it.key.as_str()).collect();
    assert_eq!(listed, keys);
    assert_eq!(all[1][2].expires_in_ms, Some(6));
    let ask = KvList {
        prefix: Some(KvPrefix::new("k1").unwrap()),
        ..KvList::default()
    };
    let ten = pages(&stores, 10, ask).concat();
    assert_eq!(ten.len(), 9, "one has expired");
    assert_eq!((ten[0].bytes, ten[0].expires_in_ms), (3, None));
}

#[test]
fn a_page_that_has_just_all_keys_is_the_last_one() {
    let keys: Vec<String> = (0..20).map(|n| format!("k{n:02}")).collect();
    let stores = stores(&keys);
    for (limit, sizes) in [
        (20, &[20][..]),
        (19, &[19, 1]),
        (10, &[10, 10]),
        (1_000, &[20]),
    ] {
        let ask = KvList {
            limit: Some(limit),
            ..KvList::default()
        };
        let all = pages(&stores, 0, ask);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        let listed: Vec<_> = all.iter().flatten().map(|it| it.key.as_str()).collect();
        assert_eq!(listed, keys);
    }
    let none = pages(&[], 0, KvList::default());
    assert!(none.concat().is_empty());
}

#[test]
fn a_page_fits_a_message() {
    let keys: Vec<String> = (0..1_000)
        .map(|n| format!("{n:04}{}", "\u{1}".repeat(KEY_BYTES_MAX - 4)))
        .collect();
    let stores = stores(&keys);
    let ask = KvList {
        limit: Some(KV_LIST_MAX),
        ..KvList::default()
    };
    let all = pages(&stores, 0, ask);
    assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 1_000);
    for entries in all {
        let next = entries.last().map(|it| it.key.clone());
        let bytes = encode(&KvListReply { entries, next }, Format::Json);
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
    }
}

#[test]
fn hashes_are_those_of_the_contract() {
    // Published test vectors of 64-bit FNV-1a.
    assert_eq!(key_hash(""), "cbf29ce484222325");
    assert_eq!(key_hash("foobar"), "85944171f73967e8");
    let shard = kv_shard_of(&bucket(), "k", 16);
    assert_eq!(shard, crate::subject::fnv1a32(b"visits\0k") % 16);
}

#[test]
fn kv_full_names_the_limit_and_its_number() {
    for (full, text) in [
        (
            Full::BucketKeys,
            "no room: a bucket has at most 16384 keys in a shard",
        ),
        (
            Full::BucketBytes,
            "no room: a bucket has at most 8388608 bytes in a shard",
        ),
        (Full::Buckets, "no room: a shard has at most 1024 buckets"),
        (
            Full::Bytes,
            "no room: a shard has at most 33554432 bytes of key-values",
        ),
    ] {
        let error = ApiError::from(Refused::Full(full));
        assert_eq!((error.code, error.message.as_str()), (Code::KvFull, text));
    }
}

#[test]
fn an_event_has_no_value() {
    let event = Event {
        bucket: "visits".into(),
        key: "foobar".into(),
        what: Change::Expired,
        revision: 8,
    };
    let event = KvEvent::new(&event, 5);
    assert_eq!(event.id(), "kv/visits/85944171f73967e8/8");
    let json: serde_json::Value = read(&encode(&event, Format::Json)).unwrap();
    let expected = serde_json::json!(
        {"bucket": "visits", "key": "foobar", "event": "expired", "revision": 8, "at_ms": 5}
    );
    assert_eq!(json, expected);
}
