//! Payloads of users: accepted ones, refused ones, and the text of the refusals.

use nowserving_line::LaneName;
use nowserving_protocol::codec::{Format, MAX_REQUEST_BYTES, Payload, decode, encode};
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::limits::{APPLY_BYTES_MAX, ApplyRules};
use nowserving_protocol::user::*;
use proptest::prelude::*;
use serde::Serialize;
use serde_json::json;

fn msgpack(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

/// The message of the refusal of `payload` as a `T`.
fn refusal<T: Payload + std::fmt::Debug>(payload: &[u8]) -> String {
    let error = decode::<T>(payload).unwrap_err();
    assert_eq!(error.code, Code::BadRequest);
    error.message
}

/// As [`refusal`], of a value in both formats, which must both name `field`.
fn refused<T: Payload + std::fmt::Debug>(value: serde_json::Value, field: &str) {
    for payload in [serde_json::to_vec(&value).unwrap(), msgpack(&value)] {
        let message = refusal::<T>(&payload);
        assert!(message.contains(field), "{value}: {message}");
    }
}

fn taken<T: Payload + PartialEq + std::fmt::Debug>(value: serde_json::Value, expected: T) {
    assert_eq!(
        decode::<T>(&serde_json::to_vec(&value).unwrap()).unwrap(),
        expected
    );
    assert_eq!(decode::<T>(&msgpack(&value)).unwrap(), expected);
}

fn both_ways<T: Serialize + Payload + PartialEq + std::fmt::Debug>(value: &T) {
    for format in [Format::Json, Format::MsgPack] {
        let payload = encode(value, format);
        assert_eq!(Format::of(&payload), format);
        assert_eq!(decode::<T>(&payload).unwrap(), *value);
    }
}

#[test]
fn requests_look_as_in_the_contract() {
    let key = Some(Key::new(*b"order 1").unwrap());
    let lane = Some(LaneName::try_from("vip").unwrap());
    taken(json!({"anonymous": true}), Enter::default());
    taken(
        json!({"key": null, "lane": null, "anonymous": true}),
        Enter::default(),
    );
    taken(
        json!({"key": "order 1", "lane": "vip", "anonymous": false, "x_more": [{}]}),
        Enter { key, lane },
    );
    taken(
        json!({"key": "票"}),
        Find {
            key: Key::new("票".as_bytes()).unwrap(),
        },
    );
    let ticket = "t".to_owned();
    taken(
        json!({"ticket": "t"}),
        StatusRequest::new(TokenBy::Ticket(ticket.clone())),
    );
    for (word, consistency) in [
        ("leader", Consistency::Leader),
        ("linearizable", Consistency::Linearizable),
        ("local", Consistency::Local),
    ] {
        let consistency = Some(consistency);
        taken(
            json!({"key": "k", "consistency": word, "holes": true}),
            StatusRequest {
                token: TokenBy::Key(Key::new(*b"k").unwrap()),
                consistency,
                holes: true,
                pass: false,
            },
        );
        taken(json!({ "consistency": word }), Info { consistency });
    }
    taken(
        json!({"ticket": "t"}),
        Claim {
            ticket: ticket.clone(),
            pass: false,
        },
    );
    taken(
        json!({"ticket": "t", "pass": true}),
        Claim {
            ticket: ticket.clone(),
            pass: true,
        },
    );
    taken(
        json!({"ticket": "t", "pass": true, "consistency": "linearizable"}),
        StatusRequest {
            pass: true,
            consistency: Some(Consistency::Linearizable),
            ..StatusRequest::new(TokenBy::Ticket(ticket.clone()))
        },
    );
    taken(
        json!({"ticket": "t", "epoch": 7}),
        Renew {
            ticket: ticket.clone(),
            epoch: 7,
        },
    );
    taken(
        json!({"ticket": "t"}),
        Complete {
            ticket: ticket.clone(),
            epoch: None,
            units: None,
        },
    );
    taken(
        json!({"ticket": "t", "epoch": 7, "units": 3}),
        Complete {
            ticket: ticket.clone(),
            epoch: Some(7),
            units: Some(3),
        },
    );
    taken(json!({"ticket": "t"}), Leave { ticket });
}

#[test]
fn requests_omit_unset_fields() {
    let anonymous = Enter::default();
    assert_eq!(encode(&anonymous, Format::Json), br#"{"anonymous":true}"#);
    both_ways(&anonymous);
    let enter = Enter {
        key: Some(Key::new(*b"k").unwrap()),
        lane: Some(LaneName::try_from("vip").unwrap()),
    };
    assert_eq!(encode(&enter, Format::Json), br#"{"key":"k","lane":"vip"}"#);
    both_ways(&enter);
    let status = StatusRequest::new(TokenBy::Ticket("t".to_owned()));
    assert_eq!(encode(&status, Format::Json), br#"{"ticket":"t"}"#);
    both_ways(&StatusRequest {
        holes: true,
        consistency: Some(Consistency::Local),
        ..status
    });
}

#[test]
fn an_empty_payload_is_an_empty_map() {
    assert_eq!(decode::<Info>(b"").unwrap(), Info::default());
    for blank in [&b""[..], b" \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"] {
        assert_eq!(decode::<Info>(blank).unwrap(), Info::default());
        assert_eq!(Format::of(blank), Format::Json);
        assert!(refusal::<Claim>(blank).contains("ticket: required"));
    }
}

#[test]
fn blanks_and_a_byte_order_mark_before_json_are_passed_over() {
    for before in [" ", "\n", "\t\r\n  ", "\u{feff}", "\u{feff}\n "] {
        let payload = format!("{before}{{\"ticket\": \"t\"}}\n");
        assert_eq!(Format::of(payload.as_bytes()), Format::Json);
        assert_eq!(decode::<Claim>(payload.as_bytes()).unwrap().ticket, "t");
    }
}

#[test]
fn only_the_first_byte_of_a_map_asks_for_message_pack() {
    for first in 0..=u8::MAX {
        let format = match first {
            0x80..=0x8f | 0xde | 0xdf => Format::MsgPack,
            _ => Format::Json,
        };
        assert_eq!(Format::of(&[first]), format, "{first:#x}");
    }
    for neither in [&b"key=a"[..], b"[1]", b"null", b"\"{}\"", b"\xc0", b" [{}]"] {
        assert_eq!(Format::of(neither), Format::Json);
        let message = refusal::<Info>(neither);
        assert!(
            message.contains("neither a JSON object nor a MessagePack map"),
            "{message}"
        );
    }
}

#[test]
fn a_clients_own_fields_are_passed_over_however_they_look() {
    let extra = json!({"ticket": "t", "x_new": {"deep": [[[{"er": [1.5, null, true, -3, "x"]}]]]}});
    taken(
        extra,
        Claim {
            ticket: "t".to_owned(),
            pass: false,
        },
    );
    let deep = format!(
        r#"{{"x_new": {}{}, "ticket": "t"}}"#,
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    assert_eq!(decode::<Claim>(deep.as_bytes()).unwrap().ticket, "t");
    for own in [
        &br#""\ud83d""#[..],
        b"1e999",
        b"\"\xff\"",
        br#"{"\ud800":[1]}"#,
    ] {
        let payload = [br#"{"x_new":"#, own, br#","ticket":"t"}"#].concat();
        assert_eq!(decode::<Claim>(&payload).unwrap().ticket, "t");
    }
    // An extension (a timestamp, say), binary and NaN under such a name.
    for value in [
        &[0xd6, 0xff, 1, 2, 3, 4][..],
        &[0xc4, 1, 0xff],
        &[0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
    ] {
        let payload = [
            &[0x82, 0xa2, b'x', b'_'],
            value,
            &[0xa6],
            b"ticket",
            &[0xa1, b't'],
        ]
        .concat();
        assert_eq!(decode::<Claim>(&payload).unwrap().ticket, "t", "{value:x?}");
    }
}

#[test]
fn missing_and_mistyped_fields_are_named() {
    refused::<Claim>(json!({}), "ticket: required");
    refused::<Claim>(json!({"ticket": "t", "pass": 1}), "pass:");
    refused::<StatusRequest>(json!({"key": "k", "pass": true}), "pass: only with");
    let local = json!({"ticket": "t", "pass": true, "consistency": "local"});
    refused::<StatusRequest>(local, "pass: not with");
    refused::<Find>(json!({}), "key: required");
    refused::<Renew>(json!({"ticket": "t"}), "epoch: required");
    for wrong in [
        json!(1),
        json!(null),
        json!(["t"]),
        json!({"t": 1}),
        json!(true),
    ] {
        refused::<Claim>(json!({ "ticket": wrong }), "ticket:");
    }
    for wrong in [
        json!(-1),
        json!(1.5),
        json!("7"),
        json!(null),
        json!(9_007_199_254_740_992_u64),
        json!(u64::MAX),
    ] {
        refused::<Renew>(json!({"ticket": "t", "epoch": wrong}), "epoch:");
    }
    refused::<Complete>(json!({"ticket": "t", "epoch": -1}), "epoch:");
    refused::<Complete>(
        json!({"ticket": "t", "epoch": -1}),
        "from 0 to 9007199254740991",
    );
    for wrong in [
        json!("Leader"),
        json!(0),
        json!({"leader": null}),
        json!([]),
    ] {
        refused::<Info>(json!({ "consistency": wrong }), "consistency:");
    }
    refused::<Info>(json!({"consistency": "quorum"}), "`linearizable`");
    for wrong in [
        json!(""),
        json!("x".repeat(129)),
        json!(1),
        json!([1, 2]),
        json!({"a": 1}),
        json!(true),
    ] {
        refused::<Enter>(json!({ "key": wrong }), "key:");
        refused::<Enter>(json!({ "key": wrong }), "1 to 128 bytes");
    }
    for wrong in [
        json!(""),
        json!("a.b"),
        json!("*"),
        json!("票"),
        json!("x".repeat(65)),
        json!(1),
    ] {
        refused::<Enter>(json!({ "lane": wrong }), "lane:");
        refused::<Enter>(json!({ "lane": wrong }), "1 to 64");
    }
    refused::<StatusRequest>(json!({"ticket": "t", "holes": 1}), "true or false");
    refused::<StatusRequest>(json!({}), "ticket: required, or `key`");
    refused::<StatusRequest>(json!({"ticket": "t", "key": "k"}), "key: not together");
    refused::<StatusRequest>(json!({"key": ""}), "1 to 128 bytes");
}

#[test]
fn an_enter_has_a_key_or_is_anonymous() {
    for missing in [
        json!({}),
        json!({"key": null}),
        json!({"anonymous": false}),
        json!({"lane": "vip"}),
    ] {
        refused::<Enter>(missing.clone(), "key:");
        refused::<Enter>(missing, "\"anonymous\": true");
    }
    assert!(refusal::<Enter>(b"").contains("key:"));
    refused::<Enter>(
        json!({"kee": "order 1", "y": 1}),
        "kee: unknown field `kee`: did you mean `key`?",
    );
    refused::<Enter>(json!({"key": "k", "anonymous": true}), "anonymous:");
    for wrong in [json!(1), json!("true"), json!(null), json!([])] {
        refused::<Enter>(json!({ "anonymous": wrong }), "anonymous:");
        refused::<Enter>(json!({ "anonymous": wrong }), "true or false");
    }
    // An unknown field may hold the key: the error omits its value, and shortens its name.
    let secret = json!({"k".repeat(1_000): "secret"}).to_string();
    let message = refusal::<Enter>(secret.as_bytes());
    assert!(
        message.len() < 500 && !message.contains("secret"),
        "{message}"
    );
    for twice in ["key", "lane", "anonymous"] {
        let value = if twice == "anonymous" {
            "true"
        } else {
            "\"a\""
        };
        let body = format!("{{\"{twice}\":{value},\"{twice}\":{value}}}");
        assert!(refusal::<Enter>(body.as_bytes()).contains(twice), "{body}");
    }
}

#[test]
fn keys_are_strings_or_binary_and_not_printed() {
    let binary = [&[0x81, 0xa3], &b"key"[..], &[0xc4, 2, 0xff, 0x00]].concat();
    let key = decode::<Find>(&binary).unwrap().key;
    assert_eq!(key.as_bytes(), [0xff, 0x00]);
    assert_eq!(encode(&Find { key: key.clone() }, Format::MsgPack), binary);
    let same = [&[0x81, 0xa3], &b"key"[..], &[0xc4, 1, b'a']].concat();
    assert_eq!(decode::<Find>(&same).unwrap().key, Key::new(*b"a").unwrap());
    assert!(!format!("{:?}", Key::new(*b"secret").unwrap()).contains("secret"));
    let long = json!({"key": "secret".repeat(30)}).to_string();
    assert!(!refusal::<Find>(long.as_bytes()).contains("secret"));
    assert_eq!(Key::new(*b"").unwrap_err().code, Code::BadRequest);
    assert!(Key::new(vec![b'x'; 128]).is_ok() && Key::new(vec![b'x'; 129]).is_err());
}

#[test]
fn a_field_twice_is_refused() {
    assert!(refusal::<Claim>(br#"{"ticket":"a","ticket":"b"}"#).contains("ticket"));
    let twice = [
        &[0x82, 0xa6],
        &b"ticket"[..],
        &[0xa1, b'a', 0xa6],
        b"ticket",
        &[0xa1, b'b'],
    ]
    .concat();
    assert!(refusal::<Claim>(&twice).contains("ticket"));
}

#[test]
fn payloads_other_than_maps_are_refused() {
    let array = msgpack(&["t"]);
    for payload in [
        &array[..],
        b"[]",
        b"null",
        b"\"ticket\"",
        b"ticket=t",
        &[0xc1],
        &[0xff, 0xfe],
    ] {
        assert!(
            refusal::<Claim>(payload).starts_with("payload:"),
            "{payload:?}"
        );
    }
    // A derived reader would take a number for a field's place, and an array for a map.
    for name in [&[0x00][..], &[0xc4, 1, b't'], &[0x90], &[0xa1, 0xff]] {
        let payload = [&[0x81], name, &[0xa1, b't']].concat();
        let message = refusal::<Claim>(&payload);
        assert!(!message.contains("required"), "{name:x?}: {message}");
    }
    assert!(refusal::<Claim>(&[0x81, 0x00, 0xa1, b't']).contains("the name of a field, a string"));
}

#[test]
fn bytes_after_the_end_are_refused() {
    for payload in [
        &br#"{"ticket":"t"} x"#[..],
        br#"{"ticket":"t"}{}"#,
        b"{\"ticket\":\"t\"}\0",
    ] {
        assert!(refusal::<Claim>(payload).starts_with("payload:"));
    }
    // Whole values, and the beginnings of values.
    for tail in [
        &[0xc0][..],
        &[0x91],
        &[0x92, 1],
        &[0x81, 0xa1, b'a'],
        &[0xcd],
        &[0xc1],
    ] {
        let mut payload = msgpack(&json!({"ticket": "t"}));
        payload.extend(tail);
        let message = format!("payload: {} bytes follow after its end", tail.len());
        assert_eq!(refusal::<Claim>(&payload), message);
    }
    assert!(decode::<Claim>(b"{\"ticket\":\"t\"} \n").is_ok());
}

#[test]
fn cut_and_hostile_payloads_are_refused() {
    let json = br#"{"ticket":"t","epoch":7}"#;
    let binary = msgpack(&json!({"ticket": "t", "epoch": 7}));
    for payload in [&json[..], &binary] {
        for length in 1..payload.len() {
            refusal::<Renew>(&payload[..length]);
        }
    }
    for payload in [
        &[0xdf, 0xff, 0xff, 0xff, 0xff][..],
        &[
            0x81, 0xa6, b't', b'i', b'c', b'k', b'e', b't', 0xdb, 0xff, 0xff, 0xff, 0xff,
        ],
        &[
            0x81, 0xa6, b't', b'i', b'c', b'k', b'e', b't', 0xdd, 0xff, 0xff, 0xff, 0xff,
        ],
        // A length of 4 GiB under a name that is skipped: map, array, string, binary, extension.
        &[0x81, 0xa2, b'x', b'_', 0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa2, b'x', b'_', 0xdd, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa2, b'x', b'_', 0xdb, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa2, b'x', b'_', 0xc6, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa2, b'x', b'_', 0xc9, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa2, b'x', b'_', 0xc1],
        &[&[0x81, 0xa2, b'x', b'_'][..], &[0x91; 60_000]].concat(),
        &[&[0x81, 0xa2, b'x', b'_'][..], &[0x81; 60_000]].concat(),
        &[b'{'; 60_000],
        br#"{"ticket":"\ud800"}"#,
        b"{\"ticket\":\"\xff\"}",
        br#"{"ticket":NaN}"#,
        br#"{"ticket":"t","epoch":1e400}"#,
        br#"{"ticket":"t","epoch":7.0}"#,
        br#"{"ticket":"t","epoch":18446744073709551616}"#,
    ] {
        refusal::<Renew>(payload);
    }
}

#[test]
fn many_values_in_few_bytes_are_refused() {
    let nulls = |count: u16| {
        let [high, low] = count.to_be_bytes();
        let list = [&[0xdc, high, low], &[0xc0].repeat(count.into())[..]].concat();
        refusal::<Claim>(&[&[0x81, 0xa6], &b"ticket"[..], &list].concat())
    };
    // With the map, the name and the list.
    assert!(nulls(16_381).ends_with("got a list"));
    let message = nulls(16_382);
    assert!(message.contains("more than 16384 values"), "{message}");
}

#[test]
fn a_payload_that_breaks_off_in_a_name_is_named() {
    let message = refusal::<Claim>(b"{bad");
    assert!(message.starts_with("payload: "), "{message}");
}

#[test]
fn depth_is_bounded() {
    let nested = |arrays: usize| {
        let skipped = [&[0xa2, b'x', b'_'][..], &vec![0x91; arrays], &[0xc0]].concat();
        [&[0x82], &skipped[..], &[0xa6], b"ticket", &[0xa1, b't']].concat()
    };
    // The map itself is one level.
    assert!(decode::<Claim>(&nested(31)).is_ok());
    for arrays in [32, 1_000, 60_000] {
        let message = refusal::<Claim>(&nested(arrays));
        assert_eq!(message, "payload: it nests deeper than 32 levels");
    }
    let message = refusal::<Claim>(format!(r#"{{"ticket":{}"#, "[".repeat(200)).as_bytes());
    assert!(message.contains("recursion limit"), "{message}");
}

#[test]
fn the_size_limit_is_exact() {
    let of_size = |size: usize| {
        format!(r#"{{"ticket":"t","x_pad":"{}"}}"#, "x".repeat(size - 25)).into_bytes()
    };
    assert_eq!(of_size(100).len(), 100);
    assert!(decode::<Claim>(&of_size(MAX_REQUEST_BYTES)).is_ok());
    let error = decode::<Claim>(&of_size(MAX_REQUEST_BYTES + 1)).unwrap_err();
    assert_eq!(error.code, Code::BadRequest);
    assert!(error.message.contains("65536"), "{}", error.message);
    let rules = |size: usize| format!(r#"{{"rules":"{}"}}"#, "x".repeat(size - 12)).into_bytes();
    assert!(decode::<ApplyRules>(&rules(APPLY_BYTES_MAX)).is_ok());
    let error = decode::<ApplyRules>(&rules(APPLY_BYTES_MAX + 1)).unwrap_err();
    assert!(error.message.contains("at most 196608"), "{error}");
    let error = ApiError::bad_request("x".repeat(MAX_REQUEST_BYTES));
    assert!(
        decode::<ErrorReply>(&encode(&ErrorReply { error }, Format::Json)).is_ok(),
        "replies may be larger"
    );
}

#[test]
fn errors_do_not_echo_a_whole_payload() {
    let message = refusal::<Info>(
        json!({"consistency": "x".repeat(50_000)})
            .to_string()
            .as_bytes(),
    );
    assert!(message.len() < 500);
}

proptest! {
    #[test]
    fn no_payload_is_too_strange(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Enter>(&payload);
        let _ = decode::<StatusRequest>(&payload);
        let mut json = vec![b'{'];
        json.extend_from_slice(&payload);
        let _ = decode::<StatusRequest>(&json);
    }

    #[test]
    fn an_altered_payload_is_answered(at in 0_usize..40, byte: u8) {
        let request = StatusRequest {
            token: TokenBy::Ticket("ticket".to_owned()), consistency: Some(Consistency::Leader), holes: true,
            pass: true,
        };
        for format in [Format::Json, Format::MsgPack] {
            let mut payload = encode(&request, format);
            let at = at % payload.len();
            payload[at] = byte;
            let _: Result<StatusRequest, ApiError> = decode(&payload);
        }
    }
}
