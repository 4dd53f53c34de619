//! Messages and rules for tests.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nowserving_engine::{Input, Now, Via};
use nowserving_line::LineName;
use nowserving_protocol::keys::{ClusterKey, KeyRing};
use nowserving_shard::limits::DomainRules;

use crate::keys::InUse;
use crate::limits::{KnownDomain, KnownRules, read_one};
use crate::parse::{Parser, Reading, Refused};
use crate::{Headers, Message};

/// A message that owns its parts.
#[derive(Debug, Clone)]
pub struct Owned {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
}

impl Headers for Owned {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a str, &'a str)) {
        for (name, value) in &self.headers {
            see(name, value);
        }
    }
}

impl Owned {
    pub fn new(subject: &str, payload: Vec<u8>) -> Owned {
        Owned {
            subject: subject.to_owned(),
            headers: Vec::new(),
            payload: payload.into(),
        }
    }

    pub fn with(mut self, name: &str, value: &str) -> Owned {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn view(&self) -> Message<'_> {
        Message {
            subject: &self.subject,
            reply: Some("_INBOX.1"),
            headers: self,
            payload: &self.payload,
        }
    }
}

pub const ROUTED_AFTER: u64 = 7;

pub fn keys() -> InUse {
    let ring = KeyRing::new(&ClusterKey::new([7; 32]).into(), None).unwrap();
    InUse::new(ring, 0)
}

/// Reads a message that came by this subscription.
pub fn read(parser: &Parser, message: &Owned, via: Via) -> Result<Input, Box<Refused>> {
    let reading = Reading {
        via,
        routed_after: ROUTED_AFTER,
        now: Now { us: 0, wall_ms: 0 },
        trace: None,
        keys: &keys(),
        rules: Some(&KnownRules::default()),
    };
    parser.parse(&message.view(), reading)
}

const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5, name: by_ip}}
  - {key: id, rate_limit: {unit: day, requests_per_unit: 5, exact: true}}
";

pub fn known() -> KnownDomain {
    known_of(TEXT)
}

pub fn known_of(text: &str) -> KnownDomain {
    let (_, rules) = read_one(text).unwrap();
    KnownDomain {
        of: DomainRules {
            version: 1,
            text: text.into(),
            at_ms: 0,
            by: String::new(),
            reason: String::new(),
        },
        rules,
    }
}

pub fn shop() -> LineName {
    LineName::try_from("shop").unwrap()
}
