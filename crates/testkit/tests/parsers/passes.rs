//! Signed passes and key sets.

use data_encoding::BASE64URL_NOPAD;
use ed25519_dalek::{Signer as _, SigningKey};
use nowserving_line::{LaneName, LineName};
use nowserving_pass::{Jwk, Jwks, PassClaims, PassKey, PassKeys, PassVerifier};
use nowserving_protocol::keys::ClusterKey;
use nowserving_testkit::target;

const NOW_S: u64 = 1_766_222_333;

fn key() -> PassKey {
    PassKey::of(&ClusterKey::new([7; 32]))
}

fn claims() -> PassClaims {
    let line = LineName::try_from("shop").unwrap();
    PassClaims {
        iss: "nowserving/main".to_owned(),
        aud: "shop".to_owned(),
        sub: "shop/1/normal/18".to_owned(),
        line,
        incarnation: 1,
        lane: LaneName::try_from("normal").unwrap(),
        token: 18,
        epoch: 7,
        iat: NOW_S,
        nbf: NOW_S,
        exp: NOW_S + 120,
    }
}

fn good() -> Vec<u8> {
    key().sign(&claims()).into_string().into_bytes()
}

/// Only the exact text of a pass is one.
#[test]
fn pass() {
    target!(vec![good()], |bytes| {
        let verifier = PassVerifier::new(&PassKeys::one(key()).jwks()).unwrap();
        let text = String::from_utf8_lossy(bytes);
        if let Ok(claims) = verifier.verify(&text, None, NOW_S) {
            assert_eq!(key().sign(&claims).as_str(), text);
        }
    });
}

/// Header and claims that are signed after they were changed, as by a release with a fault or a cluster that lies.
#[test]
fn signed() {
    let text = |header: &str| {
        let header = header.as_bytes().to_vec();
        [
            header,
            b"\n".to_vec(),
            serde_json::to_vec(&claims()).unwrap(),
        ]
        .concat()
    };
    let seeds = vec![
        text(r#"{"alg":"EdDSA","typ":"JWT","kid":"k"}"#),
        text(r#"{"alg":"EdDSA","kid":"k","crit":null}"#),
    ];
    target!(seeds, |bytes| {
        let pair = SigningKey::from_bytes(&[7; 32]);
        let jwk = Jwk {
            x: BASE64URL_NOPAD.encode(&pair.verifying_key().to_bytes()),
            kid: "k".to_owned(),
            ..key().jwk()
        };
        let verifier = PassVerifier::new(&Jwks { keys: vec![jwk] }).unwrap();
        let at = bytes.iter().position(|byte| *byte == b'\n');
        let (header, claims) = bytes.split_at(at.unwrap_or(bytes.len()));
        let claims = claims.get(1..).unwrap_or_default();
        let message = [header, claims]
            .map(|part| BASE64URL_NOPAD.encode(part))
            .join(".");
        let signature = BASE64URL_NOPAD.encode(&pair.sign(message.as_bytes()).to_bytes());
        let pass = format!("{message}.{signature}");
        if let Ok(read) = verifier.verify(&pass, None, NOW_S) {
            assert!(read.nbf <= NOW_S && NOW_S < read.exp && read.aud == read.line.as_str());
            assert_eq!(serde_json::from_slice::<PassClaims>(claims).unwrap(), read);
            let of_a_cluster = verifier
                .of_cluster("main")
                .verify(&pass, Some(&read.line), NOW_S);
            assert_eq!(of_a_cluster.is_ok(), read.iss == "nowserving/main");
        }
    });
}

#[test]
fn key_set() {
    let jwks = serde_json::to_vec(&PassKeys::one(key()).jwks()).unwrap();
    target!(vec![jwks], |bytes| {
        if let Ok(jwks) = serde_json::from_slice::<Jwks>(bytes) {
            drop(PassVerifier::new(&jwks));
        }
    });
}
