//! `admin.cluster.jwks`: the keys by which others check passes. Any node answers by itself, also without a quorum.

use std::sync::Arc;

use async_nats::Message;
use nowserving_protocol::admin::ClusterStatusRequest;
use nowserving_protocol::codec::{decode_request, encode};
use nowserving_protocol::subject::Subjects;

use super::message::reply_to;
use super::respond::Responder;

/// Answers `jwks`.
#[derive(Debug, Clone)]
pub struct PublicKeys {
    subject: Arc<str>,
    responder: Responder,
}

impl PublicKeys {
    /// Of the key that `responder` signs with.
    pub fn new(subjects: &Subjects, responder: Responder) -> Self {
        PublicKeys {
            subject: subjects.admin_cluster("jwks").into(),
            responder,
        }
    }

    /// Whether the message is such a request.
    pub fn takes(&self, message: &Message) -> bool {
        message.subject.as_str() == &*self.subject
    }

    /// Answers it.
    pub async fn handle(&self, message: &Message) {
        let mut reply = reply_to(message);
        reply.admin = true;
        reply.op = "jwks";
        let format = reply.format;
        let read = decode_request::<ClusterStatusRequest>(&message.payload);
        let encoded = read.map(|_| encode(&self.responder.keys.in_use().passes.jwks(), format));
        self.responder.finish(&reply, encoded).await;
    }
}
