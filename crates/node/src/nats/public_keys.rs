//! `admin.cluster.jwks`: the keys by which others check passes. Any node answers by itself, also without a quorum.

use async_nats::Message;
use nowserving_protocol::admin::ShowJwks;
use nowserving_protocol::codec::{decode, encode};
use nowserving_protocol::operation::Operation;

use super::message::reply_to;
use super::respond::Responder;

/// Answers `jwks`.
#[derive(Debug, Clone)]
pub struct PublicKeys {
    /// Of the key that it signs with.
    responder: Responder,
}

impl PublicKeys {
    pub fn new(responder: Responder) -> Self {
        PublicKeys { responder }
    }

    /// Answers it.
    pub async fn handle(&self, message: &Message) {
        let mut reply = reply_to(message);
        reply.op = Operation::Jwks;
        let format = reply.format;
        let read = decode::<ShowJwks>(&message.payload);
        let encoded = read.map(|_| encode(&self.responder.keys.in_use().passes.jwks(), format));
        self.responder.finish(&reply, encoded).await;
    }
}
