//! Nodes that ask to be added: new ones, and those that were refused as their disks lost what they had promised. Both get
//! a number of their own from the cluster, and start anew under it.

use bytes::Bytes;
use nowserving_engine::envelope::{self, Candidate, FrameKeys, Welcome};
use nowserving_engine::{Input, Refusal, Standing};
use nowserving_protocol::admin::DiskId;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use super::identity::Identity;
use super::{File, Out};

/// A node asks this often.
const INTERVAL_US: Micros = 1_000_000;
/// A node that is refused for so long asks for a new number.
const REFUSED_BEFORE_ASKING_US: Micros = 3_000_000;

/// A node that asks until the cluster has added it. The keys that it is handed are those of a node that does not know which
/// one is in force.
#[derive(Debug)]
pub struct Asking {
    candidate: Candidate,
    asks_at: Micros,
}

impl Asking {
    #[must_use]
    pub fn new(candidate: Candidate, now: Micros) -> Asking {
        Asking {
            candidate,
            asks_at: now,
        }
    }

    /// Where the answers come. Subscribed to before the first question.
    #[must_use]
    pub fn subject(&self, subjects: &Subjects) -> String {
        subjects.welcome(self.candidate.disk_id)
    }

    /// Asks, with each key, when it is due.
    pub fn on_time(
        &mut self,
        now: Micros,
        (keys, subjects): (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) {
        if now < self.asks_at {
            return;
        }
        self.asks_at = now + INTERVAL_US;
        out.extend(keys.each().map(|key| Out::Publish {
            subject: subjects.join(),
            payload: envelope::seal(key, &self.candidate).into(),
        }));
    }

    /// An answer: the node was added.
    pub fn on_answer(&self, payload: &Bytes, keys: &FrameKeys) -> Option<Welcome> {
        match keys.open::<Welcome>(payload.clone()) {
            Ok((welcome, _)) => Some(welcome).filter(|it| it.disk_id == self.candidate.disk_id),
            Err(error) => {
                tracing::warn!(%error, "an answer of the cluster is not taken");
                None
            }
        }
    }

    #[must_use]
    pub fn next_due(&self) -> Micros {
        self.asks_at
    }
}

/// A candidate that asks a member, if it has the key in force: without it one could take no part.
#[must_use]
pub fn candidate(payload: &Bytes, joining: &FrameKeys) -> Option<Input> {
    match envelope::open(joining.current(), payload.clone()) {
        Ok(candidate) => Some(Input::Candidate(candidate)),
        Err(error) => {
            tracing::debug!(%error, "a node that asks to be added is not heard");
            None
        }
    }
}

/// Tells a candidate that it was added.
#[must_use]
pub fn welcome(welcome: &Welcome, (joining, subjects): (&FrameKeys, &Subjects)) -> Out {
    Out::Publish {
        subject: subjects.welcome(welcome.disk_id),
        payload: envelope::seal(joining.current(), welcome).into(),
    }
}

/// A node that runs: it asks for a new number while it needs one. A refusal that passes does not count: with the number, the
/// node deletes what its disk holds.
#[derive(Debug)]
pub struct Renumbering {
    identity: Identity,
    version: String,
    /// With which disk it would ask.
    drawn: u64,
    /// What it is refused for, and since when.
    refused: Option<(Refusal, Micros)>,
    asking: Option<Asking>,
}

impl Renumbering {
    /// `drawn`: a random number. `version`: of this build.
    #[must_use]
    pub fn new(identity: Identity, drawn: u64, version: String) -> Renumbering {
        Renumbering {
            identity,
            version,
            drawn,
            refused: None,
            asking: None,
        }
    }

    pub fn on_standing(
        &mut self,
        now: Micros,
        standing: &Standing,
        members: &Members,
        out: &mut Vec<Out>,
    ) {
        match standing {
            Standing::Refused(refusal) if refusal.needs_number() => {
                let known = self.refused.as_ref();
                // It may come to be its disk that is refused.
                if known.is_some_and(|(known, _)| known.disk == refusal.disk) {
                    return;
                }
                self.stop_asking();
                self.refused = Some((refusal.clone(), now));
                if refusal.disk && self.identity.note_refused(&refusal.reason) {
                    self.write(out);
                }
            }
            Standing::InTouch => {
                self.stop_asking();
                // The disk of a member was added under a new number, which this node has not heard yet.
                let was_added = members.with_disk(self.identity.candidate).is_some();
                if !was_added && self.identity.forget_candidate() {
                    self.write(out);
                }
            }
            Standing::Refused(_) | Standing::Waiting(_) => self.stop_asking(),
        }
    }

    fn stop_asking(&mut self) {
        (self.refused, self.asking) = (None, None);
    }

    fn write(&self, out: &mut Vec<Out>) {
        out.push(Out::Write(File::Identity, self.identity.write()));
    }

    /// Asks, once it is refused for long enough.
    pub fn on_time(
        &mut self,
        now: Micros,
        members: &Members,
        around: (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) {
        if self.asking.is_none()
            && let Some((refusal, since)) = &self.refused
            && now >= since + REFUSED_BEFORE_ASKING_US
        {
            let (disk_id, is_new) = self.identity.ask_as(self.drawn);
            let candidate = Candidate {
                disk_id,
                number: self.identity.node,
                reason: refusal.reason.clone(),
                version: self.version.clone(),
            };
            if is_new {
                self.write(out);
            }
            tracing::warn!(
                "this node lost its number. To add it under a new one: {}",
                command_for(&candidate, members)
            );
            let asking = Asking::new(candidate, now);
            out.push(Out::Subscribe(asking.subject(around.1)));
            self.asking = Some(asking);
        }
        if let Some(asking) = &mut self.asking {
            asking.on_time(now, around, out);
        }
    }

    /// Where the answers come, while it asks.
    #[must_use]
    pub fn subject(&self, subjects: &Subjects) -> Option<String> {
        Some(self.asking.as_ref()?.subject(subjects))
    }

    /// An answer: the node was added under a new number, and ends to start anew.
    pub fn on_answer(&self, payload: &Bytes, keys: &FrameKeys) -> Option<Welcome> {
        self.asking.as_ref()?.on_answer(payload, keys)
    }

    #[must_use]
    pub fn next_due(&self) -> Micros {
        match (&self.asking, &self.refused) {
            (Some(asking), _) => asking.next_due(),
            (None, Some((_, since))) => since + REFUSED_BEFORE_ASKING_US,
            (None, None) => Micros::MAX,
        }
    }
}

/// The operator's command that gives a candidate its new number. One that was removed cannot be replaced.
fn command_for(candidate: &Candidate, members: &Members) -> String {
    let (number, disk) = (candidate.number, DiskId(candidate.disk_id));
    match members.was_removed(number) {
        true => format!("nowserving cluster add-node {disk}"),
        false => format!("nowserving cluster replace-node {number} {disk}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::envelope::FrameKey;
    use nowserving_protocol::keys::ClusterKey;

    use super::*;

    #[test]
    fn the_command_names_a_number_only_if_it_can_be_replaced() {
        let members = Members::begin(&[1, 2, 4], 9);
        let removed = Members {
            first: [1, 2, 3, 4].into(),
            ..members.clone()
        };
        let candidate = Candidate {
            disk_id: 0x9204_9069_54ad_98bb,
            number: 3,
            ..Candidate::default()
        };
        for (members, command) in [
            (&members, "replace-node 3 9204906954ad98bb"),
            (&removed, "add-node 9204906954ad98bb"),
        ] {
            let command = format!("nowserving cluster {command}");
            assert_eq!(command_for(&candidate, members), command);
        }
    }

    #[test]
    fn a_node_whose_disk_is_refused_notes_that_at_once_and_asks_after_a_while() {
        let subjects = Subjects::default();
        let keys = FrameKeys::new(FrameKey::for_joining(&ClusterKey::new([1; 32])), None);
        let around = (&keys, &subjects);
        let members = Members::begin(&[1, 2, 3], 9);
        let mut node = Renumbering::new(Identity::default(), 5, String::new());
        let mut out = Vec::new();
        let refused = Standing::Refused(Refusal::of_disk("another disk".to_owned()));
        node.on_standing(0, &refused, &members, &mut out);
        assert!(
            matches!(out[..], [Out::Write(File::Identity, _)]),
            "{out:?}"
        );
        // Again: since then.
        node.on_standing(1, &refused, &members, &mut out);
        out.clear();
        let due = node.next_due();
        assert_eq!(due, REFUSED_BEFORE_ASKING_US);
        node.on_time(due - 1, &members, around, &mut out);
        assert!(out.is_empty());
        node.on_time(due, &members, around, &mut out);
        let [
            Out::Write(..),
            Out::Subscribe(_),
            Out::Publish { payload, .. },
        ] = &out[..]
        else {
            panic!("{out:?}");
        };
        let asked = candidate(payload, &keys).unwrap();
        assert!(matches!(asked, Input::Candidate(it) if it.disk_id == 5));
        for (disk_id, is_it) in [(5, true), (6, false)] {
            let added = Welcome {
                disk_id,
                ..Welcome::default()
            };
            let Out::Publish { payload, .. } = welcome(&added, around) else {
                panic!("nothing is published");
            };
            assert_eq!(node.on_answer(&payload, &keys), is_it.then_some(added));
        }
        node.on_standing(due, &Standing::InTouch, &members, &mut out);
        assert_eq!(node.next_due(), Micros::MAX);
    }
}
