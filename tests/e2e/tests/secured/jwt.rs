//! An operator, an account and users, as NATS's tool `nsc` would make them.

use anyhow::Result;
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::roles;

/// The operator with its one account.
pub struct Operator {
    account: KeyPair,
    /// The JWTs of both.
    jwts: [String; 2],
}

impl Operator {
    pub fn new() -> Result<Operator> {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        let own = json!({"type": "operator", "version": 2});
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1,
        });
        let of_account = json!({"type": "account", "version": 2, "limits": limits});
        let jwts = [
            signed(&operator, &operator.public_key(), "operator", own)?,
            signed(&operator, &account.public_key(), "nowserving", of_account)?,
        ];
        Ok(Operator { account, jwts })
    }

    /// A server that trusts the operator and knows the account.
    pub fn configuration(&self) -> String {
        let [operator, account] = &self.jwts;
        let key = self.account.public_key();
        format!(
            "operator: {operator:?}\nresolver: MEMORY\nresolver_preload: {{ {key}: {account:?} }}\n"
        )
    }

    /// The credentials file of a user with the rights of a role.
    pub fn credentials(&self, role: &str) -> Result<String> {
        let rights = roles::permissions_of(role)?;
        let [allow, deny] = &rights.publish;
        let claims = json!({
            "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1,
            "pub": {"allow": allow, "deny": deny}, "sub": {"allow": rights.subscribe},
        });
        let user = KeyPair::new_user();
        let jwt = signed(&self.account, &user.public_key(), role, claims)?;
        let seed = user.seed()?;
        Ok(format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        ))
    }
}

fn signed(by: &KeyPair, subject: &str, name: &str, nats: Value) -> Result<String> {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let claims = json!({
        "jti": name, "iat": 1_700_000_000, "iss": by.public_key(), "name": name, "sub": subject, "nats": nats,
    });
    let encoded = |part: &Value| BASE64URL_NOPAD.encode(part.to_string().as_bytes());
    let body = format!("{}.{}", encoded(&header), encoded(&claims));
    let signature = BASE64URL_NOPAD.encode(&by.sign(body.as_bytes())?);
    Ok(format!("{body}.{signature}"))
}
