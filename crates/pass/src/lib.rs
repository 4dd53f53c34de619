//! The signed pass: a JWT by which a shop's edge knows, without asking, that a token holds a seat.
//!
//! ```text
//! StatusReply ─► PassKeys::add_to ─► Pass: the text of a JWT, EdDSA over Ed25519
//! PassKeys ────► jwks ─────────────► Jwks: the public keys, as RFC 7517 has them
//! Jwks ────────► PassVerifier ─────► PassClaims, or BadPass
//! ```
//!
//! No I/O and no clock: the caller passes the time. It is apart from the protocol because replicas need no signatures.
//!
//! `ed25519-dalek` signs and verifies. The compact form around the signature is here, and takes one algorithm only: a library
//! for JWT brings RSA, ECDSA and HMAC as well, and with them the choice of the algorithm by the token.

#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use nowserving_line::{LaneName, LineName};
use nowserving_protocol::SerdeName;
use nowserving_protocol::keys::ClusterKey;
use nowserving_protocol::pass::Pass;
pub use nowserving_protocol::pass::{Jwk, Jwks};
use nowserving_protocol::user::StatusReply;
use serde::{Deserialize, Serialize};

/// No pass is valid for longer, in milliseconds. While the seat is held, `status` gives another one.
pub const PASS_MS_MAX: u64 = 3_600_000;
/// A longer text is no pass, in bytes.
pub const PASS_BYTES_MAX: usize = 2_048;
/// Of a key set, so many keys are read.
const KEYS_MAX: usize = 16;
const CONTEXT: &str = "nowserving cluster key v1: passes";
const ALGORITHM: &str = "EdDSA";

/// What a pass says. Times are in seconds since 1970, as RFC 7519 has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassClaims {
    /// `nowserving/<cluster>`.
    pub iss: String,
    /// The line's name, so that an edge that checks the audience takes no pass of another line.
    pub aud: String,
    /// `<line>/<incarnation>/<lane>/<token>`: who is let in, without the key, which is often personal data.
    pub sub: String,
    /// The line's name.
    #[serde(with = "SerdeName")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The lane's name.
    #[serde(with = "SerdeName")]
    pub lane: LaneName,
    /// The number in the lane.
    pub token: u64,
    /// The fencing number of the claim; 0: not claimed yet.
    pub epoch: u64,
    /// When it was signed, on the wall clock of the answering node.
    pub iat: u64,
    /// As `iat`.
    pub nbf: u64,
    /// When the seat is lost, rounded up; at most [`PASS_MS_MAX`] after `iat`.
    pub exp: u64,
}

impl PassClaims {
    /// Of a token as this status has it; `None` unless it holds a seat.
    pub fn new(status: &StatusReply, issuer: &str) -> Option<PassClaims> {
        let lasts_ms = status.expires_in_ms?.min(PASS_MS_MAX);
        let iat = status.at_ms / 1_000;
        let exp = status.at_ms.saturating_add(lasts_ms).div_ceil(1_000);
        let (line, lane) = (status.line.as_str(), status.lane.as_str());
        Some(PassClaims {
            iss: issuer.to_owned(),
            aud: line.to_owned(),
            sub: format!("{line}/{}/{lane}/{}", status.incarnation, status.token),
            line: status.line.clone(),
            incarnation: status.incarnation,
            lane: status.lane.clone(),
            token: status.token,
            epoch: status.epoch.unwrap_or(0),
            iat,
            nbf: iat,
            // A pass that ends when it begins would be of no use.
            exp: exp.max(iat + 1),
        })
    }
}

/// A key pair that signs passes. Never printed.
#[derive(Clone)]
pub struct PassKey(Arc<Inner>);

struct Inner {
    kid: String,
    /// The first part of every pass.
    header: String,
    pair: SigningKey,
}

impl fmt::Debug for PassKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PassKey({}, …)", self.0.kid)
    }
}

/// The header of a pass. Others are ignored, but for `crit`, which demands to be understood.
#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    typ: String,
    kid: String,
    #[serde(default, skip_serializing)]
    crit: Option<serde_json::Value>,
}

impl PassKey {
    /// The pair of this cluster's key: what is derived from it is the seed of Ed25519.
    pub fn of(key: &ClusterKey) -> PassKey {
        let pair = SigningKey::from_bytes(&key.derive(CONTEXT));
        // Two clusters have keys of the same id: their hashes differ.
        let hash = blake3::hash(&pair.verifying_key().to_bytes());
        let kid = format!("{}-{}", key.id(), HEXLOWER.encode(&hash.as_bytes()[..4]));
        let header = Header {
            alg: ALGORITHM.to_owned(),
            typ: "JWT".to_owned(),
            kid: kid.clone(),
            crit: None,
        };
        let header = part(&header);
        PassKey(Arc::new(Inner { kid, header, pair }))
    }

    /// The name of this key in passes and in the key set.
    pub fn kid(&self) -> &str {
        &self.0.kid
    }

    /// Signs these claims; some 20 µs.
    pub fn sign(&self, claims: &PassClaims) -> Pass {
        let mut text = format!("{}.{}", self.0.header, part(claims));
        let signature = self.0.pair.sign(text.as_bytes());
        text.push('.');
        BASE64URL_NOPAD.encode_append(&signature.to_bytes(), &mut text);
        Pass::from(text)
    }

    /// The public half.
    pub fn jwk(&self) -> Jwk {
        Jwk {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            x: BASE64URL_NOPAD.encode(&self.0.pair.verifying_key().to_bytes()),
            kid: self.0.kid.clone(),
            alg: ALGORITHM.to_owned(),
            usage: "sig".to_owned(),
        }
    }
}

fn part<T: Serialize>(value: &T) -> String {
    let json = serde_json::to_vec(value).expect("a type of this module is always JSON");
    BASE64URL_NOPAD.encode(&json)
}

/// The keys of a cluster for passes.
#[derive(Clone, Debug)]
pub struct PassKeys {
    /// Signs.
    pub current: PassKey,
    /// While the cluster's key is rotated: the one before or after it, whose passes are valid, too.
    pub other: Option<PassKey>,
}

impl PassKeys {
    /// Of a cluster that has one key.
    pub fn one(current: PassKey) -> PassKeys {
        PassKeys {
            current,
            other: None,
        }
    }

    /// The public halves.
    pub fn jwks(&self) -> Jwks {
        let keys = [Some(&self.current), self.other.as_ref()];
        Jwks {
            keys: keys.into_iter().flatten().map(PassKey::jwk).collect(),
        }
    }

    /// Adds a pass of this cluster to the status of a token that holds a seat; others stay without.
    pub fn add_to(&self, status: &mut StatusReply, cluster: &str) {
        let issuer = format!("nowserving/{cluster}");
        if let Some(claims) = PassClaims::new(status, &issuer) {
            let expires_ms = claims.exp.saturating_mul(1_000);
            status.pass_expires_in_ms = Some(expires_ms.saturating_sub(status.at_ms));
            status.pass = Some(self.current.sign(&claims));
        }
    }
}

/// The public key, if it is one for passes.
fn public_key(jwk: &Jwk) -> Option<VerifyingKey> {
    if jwk.kty != "OKP" || jwk.crv != "Ed25519" || jwk.kid.is_empty() {
        return None;
    }
    // Both are optional. A key that names another use is in the set for something else.
    let fits = |said: &str, ours: &str| said.is_empty() || said == ours;
    if !fits(&jwk.usage, "sig") || !fits(&jwk.alg, ALGORITHM) {
        return None;
    }
    let bytes = BASE64URL_NOPAD.decode(jwk.x.as_bytes()).ok()?;
    VerifyingKey::from_bytes(&bytes.try_into().ok()?).ok()
}

/// A key set has no key for passes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "keys: none of the first 16 is of type OKP, on the curve Ed25519, with a kid, for signatures by EdDSA"
)]
pub struct NoPassKey;

/// Why a pass is refused. Quotes nothing of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPass {
    /// It is not of the form.
    #[error("not a pass: no JWT, damaged, or longer than 2048 bytes")]
    Malformed,
    /// Another algorithm, `none` among them.
    #[error("not a pass: its algorithm is not EdDSA, or it demands an extension")]
    Algorithm,
    /// The cluster's key was rotated, or it is of another cluster.
    #[error("the pass is signed by a key that is not in the key set")]
    UnknownKey,
    /// It was altered.
    #[error("the signature of the pass is wrong")]
    Signature,
    /// Of another cluster.
    #[error("the pass is of another issuer")]
    Issuer,
    /// Of another line.
    #[error("the pass is for another line")]
    Audience,
    /// The clocks differ too much.
    #[error("the pass is not valid yet: compare the clocks")]
    NotYet,
    /// Its time is over.
    #[error("the pass has expired")]
    Expired,
    /// Events say that the token is gone, or has another epoch.
    #[error("the pass is revoked")]
    Revoked,
}

/// Checks passes by a key set alone.
#[derive(Clone, Debug)]
pub struct PassVerifier {
    keys: BTreeMap<String, VerifyingKey>,
    issuer: Option<String>,
    leeway_s: u64,
}

impl PassVerifier {
    /// By these keys.
    ///
    /// # Errors
    /// There is none for passes among them.
    pub fn new(jwks: &Jwks) -> Result<PassVerifier, NoPassKey> {
        let keys = jwks.keys.iter().take(KEYS_MAX);
        let keys = keys.filter_map(|key| Some((key.kid.clone(), public_key(key)?)));
        let keys: BTreeMap<_, _> = keys.collect();
        if keys.is_empty() {
            return Err(NoPassKey);
        }
        Ok(PassVerifier {
            keys,
            issuer: None,
            leeway_s: 0,
        })
    }

    /// Takes passes of the cluster with this name only. Without it the keys alone say whose they are.
    #[must_use]
    pub fn of_cluster(self, cluster: &str) -> PassVerifier {
        PassVerifier {
            issuer: Some(format!("nowserving/{cluster}")),
            ..self
        }
    }

    /// Takes passes for so many seconds before and after their time.
    #[must_use]
    pub fn with_leeway_s(self, leeway_s: u64) -> PassVerifier {
        PassVerifier { leeway_s, ..self }
    }

    /// What a pass says at `now_s`, in seconds since 1970, if it is good; with a `line`, only one for that line.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn verify(
        &self,
        pass: &str,
        line: Option<&LineName>,
        now_s: u64,
    ) -> Result<PassClaims, BadPass> {
        let claims = self.signed(pass)?;
        let other_issuer = |issuer: &String| *issuer != claims.iss;
        if self.issuer.as_ref().is_some_and(other_issuer) {
            return Err(BadPass::Issuer);
        }
        let for_line = claims.aud == claims.line.as_str();
        if !for_line || line.is_some_and(|line| *line != claims.line) {
            return Err(BadPass::Audience);
        }
        if claims.nbf > now_s.saturating_add(self.leeway_s) {
            return Err(BadPass::NotYet);
        }
        if claims.exp.saturating_add(self.leeway_s) <= now_s {
            return Err(BadPass::Expired);
        }
        Ok(claims)
    }

    /// Nothing of the claims is read before the signature is found good.
    fn signed(&self, pass: &str) -> Result<PassClaims, BadPass> {
        if pass.len() > PASS_BYTES_MAX {
            return Err(BadPass::Malformed);
        }
        let (message, signature) = pass.rsplit_once('.').ok_or(BadPass::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(BadPass::Malformed)?;
        if claims.contains('.') {
            return Err(BadPass::Malformed);
        }
        let header: Header = read(header)?;
        if header.alg != ALGORITHM || header.crit.is_some() {
            return Err(BadPass::Algorithm);
        }
        let key = self.keys.get(&header.kid).ok_or(BadPass::UnknownKey)?;
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes());
        let signature = signature.map_err(|_| BadPass::Malformed)?;
        let signature = Signature::from_slice(&signature).map_err(|_| BadPass::Signature)?;
        // Strict: no weak key, and one signature only for a message and a key.
        key.verify_strict(message.as_bytes(), &signature)
            .map_err(|_| BadPass::Signature)?;
        read(claims)
    }
}

fn read<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, BadPass> {
    let json = BASE64URL_NOPAD.decode(part.as_bytes());
    let json = json.map_err(|_| BadPass::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| BadPass::Malformed)
}

#[cfg(test)]
mod tests;
