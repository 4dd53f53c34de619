#![allow(clippy::unwrap_used)]
use nowserving_line::{Lines, Op, Settings, Stamp, Timestamp};
use proptest::prelude::*;

use super::*;

const NOW_S: u64 = 1_766_222_333;

fn key(seed: u8) -> PassKey {
    PassKey::of(&ClusterKey::new([seed; 32]))
}

fn line(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

fn claims() -> PassClaims {
    PassClaims {
        iss: "nowserving/main".to_owned(),
        aud: "shop".to_owned(),
        sub: "shop/1/normal/18".to_owned(),
        line: line("shop"),
        incarnation: 1,
        lane: LaneName::try_from("normal").unwrap(),
        token: 18,
        epoch: 7,
        iat: NOW_S,
        nbf: NOW_S,
        exp: NOW_S + 120,
    }
}

fn verifier(keys: &[PassKey]) -> PassVerifier {
    let keys = keys.iter().map(PassKey::jwk).collect();
    PassVerifier::new(&Jwks { keys }).unwrap()
}

fn check(pass: &str) -> Result<PassClaims, BadPass> {
    verifier(&[key(7)]).verify(pass, Some(&line("shop")), NOW_S)
}

/// A token of these parts, signed by the key.
fn signed(header: &str, claims: &str) -> String {
    let parts = [header, claims].map(|part| BASE64URL_NOPAD.encode(part.as_bytes()));
    let message = parts.join(".");
    let signature = key(7).0.pair.sign(message.as_bytes());
    format!(
        "{message}.{}",
        BASE64URL_NOPAD.encode(&signature.to_bytes())
    )
}

#[test]
fn a_pass_says_what_it_was_given() {
    let pass = key(7).sign(&claims());
    assert_eq!(check(pass.as_str()), Ok(claims()));
    let parts: Vec<&str> = pass.as_str().split('.').collect();
    assert_eq!(parts.len(), 3);
    let header = BASE64URL_NOPAD.decode(parts[0].as_bytes()).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&header).unwrap();
    let kid = key(7).kid().to_owned();
    let expected = serde_json::json!({"alg": "EdDSA", "typ": "JWT", "kid": kid});
    assert_eq!(header, expected);
    assert!(kid.starts_with("1-") && kid.len() == 10, "{kid}");
    // Nothing of it is printed.
    let printed = format!("{pass:?}");
    assert!(!printed.contains(parts[2]) && !printed.contains(parts[1]));
}

#[test]
fn the_key_set_has_the_key_that_signs_first() {
    let (new, old) = (key(7), key(8));
    assert_ne!(new.kid(), old.kid(), "of the same id");
    let keys = PassKeys {
        current: new.clone(),
        other: Some(old.clone()),
    };
    let jwks = keys.jwks();
    let kids: Vec<&str> = jwks.keys.iter().map(|key| key.kid.as_str()).collect();
    assert_eq!(kids, [new.kid(), old.kid()]);
    let json = serde_json::to_value(&jwks).unwrap();
    assert_eq!(json["keys"][0]["use"], "sig");
    assert_eq!(json["keys"][0]["kty"], "OKP");
    assert_eq!(json["keys"][0]["crv"], "Ed25519");
    assert_eq!(json["keys"][0]["alg"], "EdDSA");
    assert_eq!(json["keys"][0]["x"].as_str().unwrap().len(), 43);
    assert_eq!(serde_json::from_value::<Jwks>(json).unwrap(), jwks);
    let both = PassVerifier::new(&jwks).unwrap();
    for key in [new, old] {
        let pass = key.sign(&claims());
        assert_eq!(both.verify(pass.as_str(), None, NOW_S), Ok(claims()));
    }
    assert_eq!(PassKeys::one(key(7)).jwks().keys.len(), 1);
}

#[test]
fn a_key_is_printed_by_its_name_alone() {
    let printed = format!("{:?}", key(7));
    assert_eq!(printed, format!("PassKey({}, …)", key(7).kid()));
}

#[test]
fn the_same_secret_makes_the_same_key_and_no_other_purpose_has_it() {
    assert_eq!(key(7).jwk(), key(7).jwk());
    let secret = ClusterKey::new([7; 32]);
    let ticket_seed = secret.derive("nowserving cluster key v1: tickets");
    assert_ne!(ticket_seed, secret.derive(CONTEXT));
}

#[test]
fn an_altered_pass_is_refused_wherever_it_is_altered() {
    let pass = key(7).sign(&claims()).into_string();
    for at in 0..pass.len() {
        let mut altered = pass.clone().into_bytes();
        altered[at] = match altered[at] {
            b'A' => b'B',
            _ => b'A',
        };
        let altered = String::from_utf8(altered).unwrap();
        assert!(check(&altered).is_err(), "at {at}");
    }
    for cut in 0..pass.len() {
        assert!(check(&pass[..cut]).is_err(), "{cut} bytes of it");
    }
    assert_eq!(check(&format!("{pass}.")), Err(BadPass::Malformed));
    assert_eq!(check(&format!("{pass}=")), Err(BadPass::Malformed));
    let long = "a".repeat(PASS_BYTES_MAX + 1);
    assert_eq!(check(&long), Err(BadPass::Malformed));
}

#[test]
fn the_token_does_not_choose_the_algorithm_or_the_key() {
    let claims_text = serde_json::to_string(&claims()).unwrap();
    let kid = key(7).kid().to_owned();
    for (header, refused) in [
        (
            format!(r#"{{"alg":"none","kid":"{kid}"}}"#),
            BadPass::Algorithm,
        ),
        (
            format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#),
            BadPass::Algorithm,
        ),
        (
            format!(r#"{{"alg":"eddsa","kid":"{kid}"}}"#),
            BadPass::Algorithm,
        ),
        (
            format!(r#"{{"alg":"EdDSA","kid":"{kid}","crit":["b64"],"b64":false}}"#),
            BadPass::Algorithm,
        ),
        (r#"{"alg":"EdDSA"}"#.to_owned(), BadPass::Malformed),
        (
            r#"{"alg":"EdDSA","kid":"2-0"}"#.to_owned(),
            BadPass::UnknownKey,
        ),
        (
            format!(r#"{{"alg":"EdDSA","alg":"EdDSA","kid":"{kid}"}}"#),
            BadPass::Malformed,
        ),
    ] {
        assert_eq!(
            check(&signed(&header, &claims_text)),
            Err(refused),
            "{header}"
        );
    }
    // Without a signature.
    let good = format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#);
    assert_eq!(check(&signed(&good, &claims_text)), Ok(claims()));
    let whole = signed(&good, &claims_text);
    let (message, _) = whole.rsplit_once('.').unwrap();
    assert_eq!(check(&format!("{message}.")), Err(BadPass::Signature));
    // By the key of another cluster, under this one's name.
    let parts = [good, claims_text].map(|part| BASE64URL_NOPAD.encode(part.as_bytes()));
    let message = parts.join(".");
    let signature = key(8).0.pair.sign(message.as_bytes());
    let signature = BASE64URL_NOPAD.encode(&signature.to_bytes());
    let forged = format!("{message}.{signature}");
    assert_eq!(check(&forged), Err(BadPass::Signature));
}

#[test]
fn a_pass_is_for_its_time_its_line_and_its_cluster() {
    let pass = key(7).sign(&claims());
    let pass = pass.as_str();
    let keys = verifier(&[key(7)]);
    let shop = line("shop");
    let at = |now_s| keys.verify(pass, Some(&shop), now_s).map(|_| ());
    assert_eq!(at(NOW_S - 1), Err(BadPass::NotYet));
    assert_eq!(at(NOW_S), Ok(()));
    assert_eq!(at(NOW_S + 119), Ok(()));
    assert_eq!(at(NOW_S + 120), Err(BadPass::Expired));
    let wide = keys.clone().with_leeway_s(5);
    let at = |now_s| wide.verify(pass, Some(&shop), now_s).map(|_| ());
    assert_eq!(at(NOW_S - 6), Err(BadPass::NotYet));
    assert_eq!(at(NOW_S - 5), Ok(()));
    assert_eq!(at(NOW_S + 124), Ok(()));
    assert_eq!(at(NOW_S + 125), Err(BadPass::Expired));
    let other = keys.verify(pass, Some(&line("shop-2")), NOW_S);
    assert_eq!(other, Err(BadPass::Audience));
    let elsewhere = keys.clone().of_cluster("other");
    let other = elsewhere.verify(pass, None, NOW_S);
    assert_eq!(other, Err(BadPass::Issuer));
    assert!(keys.of_cluster("main").verify(pass, None, NOW_S).is_ok());
    // Its two names of the line must be one.
    let torn = PassClaims {
        aud: "shop-2".to_owned(),
        ..claims()
    };
    let torn = key(7).sign(&torn);
    assert_eq!(check(torn.as_str()), Err(BadPass::Audience));
}

#[test]
fn a_key_set_with_others_is_read_and_one_without_is_refused() {
    let rsa = Jwk {
        kty: "RSA".to_owned(),
        ..key(7).jwk()
    };
    let short = Jwk {
        x: "AAAA".to_owned(),
        ..key(7).jwk()
    };
    let mut jwks = Jwks {
        keys: vec![rsa, short],
    };
    assert_eq!(PassVerifier::new(&jwks).err(), Some(NoPassKey));
    jwks.keys.push(key(7).jwk());
    let pass = key(7).sign(&claims());
    let keys = PassVerifier::new(&jwks).unwrap();
    assert!(keys.verify(pass.as_str(), None, NOW_S).is_ok());
    let foreign = r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#;
    let foreign: Jwks = serde_json::from_str(foreign).unwrap();
    assert_eq!(PassVerifier::new(&foreign).err(), Some(NoPassKey));
}

#[test]
fn a_key_for_something_else_is_passed_over() {
    let with = |usage: &str, alg: &str| {
        let jwk = Jwk {
            usage: usage.to_owned(),
            alg: alg.to_owned(),
            ..key(7).jwk()
        };
        PassVerifier::new(&Jwks { keys: vec![jwk] })
    };
    for (usage, alg) in [("sig", "EdDSA"), ("", "EdDSA"), ("sig", ""), ("", "")] {
        assert!(with(usage, alg).is_ok(), "{usage} {alg}");
    }
    for (usage, alg) in [
        ("enc", "EdDSA"),
        ("sig", "ES256"),
        ("enc", ""),
        ("", "none"),
    ] {
        assert_eq!(with(usage, alg).err(), Some(NoPassKey), "{usage} {alg}");
    }
}

/// The statuses of the first two tokens of a line with one seat.
fn statuses(wall_ms: u64) -> [StatusReply; 2] {
    let mut lines = Lines::new();
    let create = Op::Create {
        line: line("shop"),
        settings: Settings::new(1, 10),
    };
    let enter = |key: &[u8]| Op::Enter {
        line: line("shop"),
        key: Some(key.into()),
        lane: None,
    };
    for (index, op) in [create, enter(b"a"), enter(b"b")].iter().enumerate() {
        let stamp = Stamp {
            op_no: 0,
            now_ms: 1_000,
            wall_ms,
            index: index as u64 + 1,
        };
        lines.apply(stamp, op, None).unwrap();
    }
    let shop = lines.get(&line("shop")).unwrap();
    let now = Timestamp {
        service_ms: 1_000,
        wall_ms,
    };
    [b"a", b"b"].map(|key| {
        let at = shop.find(key).unwrap();
        StatusReply::new(&shop.status(at, now.service_ms).unwrap(), now)
    })
}

#[test]
fn a_pass_lasts_as_long_as_the_seat_and_no_longer_than_an_hour() {
    let wall_ms = NOW_S * 1_000 + 400;
    let [admitted, waiting] = statuses(wall_ms);
    assert_eq!(PassClaims::new(&waiting, "nowserving/main"), None);
    let expected = PassClaims {
        token: 1,
        incarnation: admitted.incarnation,
        epoch: 0,
        lane: admitted.lane.clone(),
        ..claims()
    };
    for (expires_in_ms, lasts_s) in [
        (120_000, 121),
        (119_600, 120),
        (100, 1),
        (0, 1),
        (3_600_000, 3_601),
        (86_400_000, 3_601),
    ] {
        let status = StatusReply {
            expires_in_ms: Some(expires_in_ms),
            ..admitted.clone()
        };
        let made = PassClaims::new(&status, "nowserving/main").unwrap();
        let exp = NOW_S + lasts_s;
        let expected = PassClaims {
            exp,
            sub: made.sub.clone(),
            ..expected.clone()
        };
        assert_eq!(made, expected, "{expires_in_ms}");
    }
    let made = PassClaims::new(&admitted, "nowserving/main").unwrap();
    let lane = admitted.lane.as_str();
    assert_eq!(made.sub, format!("shop/{}/{lane}/1", admitted.incarnation));
}

#[test]
fn a_signer_adds_a_pass_to_those_who_hold_a_seat() {
    let [mut admitted, mut waiting] = statuses(NOW_S * 1_000);
    let keys = PassKeys::one(key(7));
    keys.add_to(&mut waiting, "main");
    assert_eq!((waiting.pass, waiting.pass_expires_in_ms), (None, None));
    keys.add_to(&mut admitted, "main");
    let pass = admitted.pass.clone().unwrap();
    let claims = check(pass.as_str()).unwrap();
    assert_eq!(claims.iss, "nowserving/main");
    let lasts_ms = (claims.exp - NOW_S) * 1_000;
    assert_eq!(admitted.pass_expires_in_ms, Some(lasts_ms));
    assert_eq!(
        admitted.expires_in_ms.unwrap().div_ceil(1_000) * 1_000,
        lasts_ms
    );
    let json = serde_json::to_string(&admitted).unwrap();
    assert!(json.contains(r#""pass":"ey"#), "{json}");
    assert!(!format!("{admitted:?}").contains(pass.as_str()));
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "\\PC{0,300}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(check(&text).is_err());
        let pass = key(7).sign(&claims()).into_string();
        let (header, _) = pass.split_once('.').unwrap();
        let part = BASE64URL_NOPAD.encode(&bytes);
        let token = format!("{header}.{text}");
        prop_assert!(check(&token).is_err());
        let token = format!("{header}.{part}.{part}");
        prop_assert!(check(&token).is_err());
        let token = format!("{part}.{part}.{part}");
        prop_assert!(check(&token).is_err());
        let _ = serde_json::from_slice::<Jwks>(&bytes);
    }

    /// Signed by the right key, so that the claims are read: in them whatever there is.
    #[test]
    fn no_claims_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let header = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, key(7).kid());
        let parts = [header.as_bytes(), &bytes].map(|part| BASE64URL_NOPAD.encode(part));
        let message = parts.join(".");
        let signature = BASE64URL_NOPAD.encode(&key(7).0.pair.sign(message.as_bytes()).to_bytes());
        prop_assert_eq!(check(&format!("{message}.{signature}")), Err(BadPass::Malformed));
    }
}

#[test]
fn claims_of_a_wrong_type_are_refused() {
    let header = format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, key(7).kid());
    let good = serde_json::to_value(claims()).unwrap();
    assert!(check(&signed(&header, &good.to_string())).is_ok());
    for field in [
        "iss",
        "aud",
        "sub",
        "line",
        "incarnation",
        "lane",
        "token",
        "epoch",
        "iat",
        "nbf",
        "exp",
    ] {
        for wrong in [
            serde_json::json!(null),
            serde_json::json!([]),
            serde_json::json!(-1.5),
        ] {
            let mut claims = good.clone();
            claims[field] = wrong;
            let refused = check(&signed(&header, &claims.to_string()));
            assert_eq!(refused, Err(BadPass::Malformed), "{field}");
        }
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(field);
        let refused = check(&signed(&header, &claims.to_string()));
        assert_eq!(refused, Err(BadPass::Malformed), "without {field}");
    }
    // A list of audiences, which a pass of ours never has.
    let mut claims = good.clone();
    claims["aud"] = serde_json::json!(["shop"]);
    let refused = check(&signed(&header, &claims.to_string()));
    assert_eq!(refused, Err(BadPass::Malformed));
}
