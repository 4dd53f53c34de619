//! Signed passes and key sets.

use nowserving_fuzz::target;
use nowserving_line::{LaneName, LineName};
use nowserving_pass::{Jwks, PassClaims, PassKey, PassKeys, PassVerifier};
use nowserving_protocol::keys::ClusterKey;

const NOW_S: u64 = 1_766_222_333;

fn key() -> PassKey {
    PassKey::of(&ClusterKey::new([7; 32]))
}

fn good() -> Vec<u8> {
    let line = LineName::try_from("shop").unwrap();
    let claims = PassClaims {
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
    };
    key().sign(&claims).into_string().into_bytes()
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

#[test]
fn key_set() {
    let jwks = serde_json::to_vec(&PassKeys::one(key()).jwks()).unwrap();
    target!(vec![jwks], |bytes| {
        if let Ok(jwks) = serde_json::from_slice::<Jwks>(bytes) {
            drop(PassVerifier::new(&jwks));
        }
    });
}
