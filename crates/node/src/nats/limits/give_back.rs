//! What was counted for a check that is refused elsewhere, or not answered, is given back: a check counts on all of its limits
//! or on none.
//!
//! Each part is asked once. Without an answer nobody knows whether it was given back, and what counted stays counted: the
//! strict side. The leader that counted knows its hits by their name, and gives them back once; the next leader does not know
//! them.

use std::time::Duration;

use futures::future::join_all;
use nowserving_engine::LimitRequest;
use nowserving_front::parse::hits_id;
use nowserving_line::LineName;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::header::RequestId;
use nowserving_protocol::limits::{Check, GiveBackHits, PartReply};
use nowserving_protocol::operation::Operation;
use tokio::time::Instant;

use super::super::node_request::NodeRequest;
use super::own::OwnPart;
use super::{Answered, Call, Home, Limits};

/// How long a refusal waits until what it gives back is answered, at most.
const WAIT: Duration = Duration::from_millis(250);
/// A leader that gets it later gives nothing back.
const VALID: Duration = Duration::from_secs(5);

impl Limits {
    /// Gives back what these parts have counted. Those that answer say what is left then.
    pub(super) async fn give_back(
        &self,
        domain: &LineName,
        ask: &Check,
        call: &Call,
        answered: &mut Answered,
    ) {
        let now = Instant::now();
        let until = now + VALID;
        let counted = answered.iter_mut().filter(|(_, answer)| answer.counted);
        let given = counted.map(|(part, answer)| async move {
            let name = call.id_of_hits(part, ask.hits());
            let names = (&name, &call.id_of_give_back(&name));
            let left = self.give_back_part(part.0, domain, names, until).await;
            let both = left.filter(|left| left.verdicts.len() == answer.reply.verdicts.len());
            if let Some(left) = both {
                answer.counted = false;
                for (told, left) in answer.reply.verdicts.iter_mut().zip(left.verdicts) {
                    (told.remaining, told.reset_us) = (left.remaining, left.reset_us);
                    told.delay_us = 0;
                }
            }
        });
        // It is sent before its answer is waited for, so also if the caller's time is over.
        let waits_until = (now + WAIT).min(call.until());
        let _ = tokio::time::timeout_at(waits_until, join_all(given)).await;
    }

    /// `None`: it may have been given back or not.
    async fn give_back_part(
        &self,
        Home { shard, exact, .. }: Home,
        domain: &LineName,
        (name, id): (&RequestId, &RequestId),
        until: Instant,
    ) -> Option<PartReply> {
        if !exact && self.own.leads(shard) {
            let key = hits_id(name, domain).key;
            let own = OwnPart {
                shard,
                domain: domain.clone(),
                request: LimitRequest::GiveBack { name: key, exact },
            };
            return self.own.ask(own, until).await?.ok();
        }
        let body = GiveBackHits {
            name: name.as_str().to_owned(),
        };
        let subject = match exact {
            // It is written: as with the question, a node that does not lead any more forwards it.
            true => self
                .subjects
                .leader(Operation::LimitExactGiveBack, shard, domain),
            false => self.forward.leader(Operation::LimitGiveBack, shard, domain),
        };
        let request = NodeRequest {
            subject,
            payload: encode(&body, Format::MsgPack).into(),
            id: Some(id),
            note: None,
            until,
        };
        request.send(&self.client).await.ok()
    }
}
