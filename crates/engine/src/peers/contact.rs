//! Decides whether this node may take part: only once a quorum has confirmed that it belongs to their
//! cluster and has the disk that they know. Otherwise it could serve lines of its own, or vote with a disk
//! that has lost its promises.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

pub use super::electorates::Electorates;
use super::electorates::most;
pub use super::refusal::Refusal;
use crate::envelope::Verdict;

/// A refusal is repeated to its sender, and shown to operators, for this long after the last refused
/// frame.
const REFUSAL_KEPT_US: Micros = 5_000_000;
const OTHER_CLUSTER: &str = "the cluster existed before, and nodes that had lost their disks founded it a second \
     time: this node is of the second one";

/// A frame's statements about its sender and its receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerHeader {
    /// The identity of the sender's cluster; 0 while it knows none.
    pub cluster_id: u64,
    /// The start of the peer that sent it; `None` if the frame could not be opened.
    pub start: Option<u64>,
    /// A quorum has accepted that start.
    pub in_touch: bool,
    /// The peer has nothing of any group yet: it was never a voter.
    pub in_no_group: bool,
    /// The peer's verdicts on starts of this node.
    pub verdicts: Vec<Verdict>,
    /// The version of the members that the peer knows.
    pub members_version: u64,
    /// These members, if the peer believes that this node has older ones.
    pub members: Option<Members>,
}

/// Whether a node takes part, with the reason if it does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// A quorum has accepted this start: it votes and serves.
    InTouch,
    /// No quorum has yet.
    Waiting(String),
    /// Peers that are in touch with a quorum refuse this start.
    Refused(Refusal),
}

impl Standing {
    #[must_use]
    pub fn is_in_touch(&self) -> bool {
        *self == Standing::InTouch
    }

    /// Whether the disk of this node is refused, for good.
    #[must_use]
    pub fn is_disk_refused(&self) -> bool {
        matches!(self, Standing::Refused(refusal) if refusal.disk)
    }
}

/// Acceptance between this node and its peers, from which [`Standing`] follows.
#[derive(Debug)]
pub struct Contact {
    me: u64,
    start: u64,
    electorates: Electorates,
    in_touch: bool,
    /// A quorum has accepted this start once.
    was_in_touch: bool,
    /// Why its peers refuse the disk of this node, if they do: then it never takes part.
    disk_refused: Option<String>,
    /// This node's cluster gives way to an older one of the same name.
    other_cluster: bool,
    peers: BTreeMap<u64, Acceptance>,
}

#[derive(Debug, Default)]
struct Acceptance {
    /// The start of the peer whose frames are taken.
    accepted: Option<u64>,
    refused: Option<Refused>,
    says: Option<Says>,
    /// The refusal of this start in the newest of its frames that were refused themselves.
    objects: Option<Objection>,
    /// It has nothing of any group yet, as its newest frame that was taken says.
    in_no_group: bool,
}

#[derive(Debug)]
struct Refused {
    start: Option<u64>,
    refusal: Refusal,
    at: Micros,
}

/// A peer's latest verdict on this start of this node, in frames that were taken.
#[derive(Debug)]
enum Says {
    Accepted,
    Refused(Objection),
}

/// A refusal of this start of this node.
#[derive(Debug)]
struct Objection {
    refusal: Refusal,
    /// A quorum has accepted the node that refuses.
    in_touch: bool,
    removed: bool,
}

impl Contact {
    /// `start`: the random number of this start of node `me`. `disk_refused`: why its peers refused its disk in an
    /// earlier start. It has no peers yet.
    #[must_use]
    pub fn new(me: u64, start: u64, disk_refused: Option<String>) -> Self {
        Contact {
            me,
            start,
            electorates: Electorates::default(),
            in_touch: false,
            was_in_touch: false,
            disk_refused,
            other_cluster: false,
            peers: BTreeMap::new(),
        }
    }

    /// Whether such nodes are a majority of every group on this node: only they can commit entries.
    pub fn majority_of_groups(&self, such: impl Fn(u64) -> bool) -> bool {
        self.electorates.groups.iter().all(|it| most(it, &such))
    }

    /// Sets the peers, and those whose majority decides.
    pub fn set_members(&mut self, peers: &BTreeSet<u64>, electorates: Electorates) {
        self.peers.retain(|id, _| peers.contains(id));
        for id in peers {
            self.peers.entry(*id).or_default();
        }
        self.electorates = electorates;
        self.decide();
    }

    /// An older cluster of the same name has a quorum: this node takes no part any more.
    pub fn note_other_cluster(&mut self) {
        self.other_cluster = true;
        self.decide();
    }

    /// Whether a peer that takes part says that this node was removed from the cluster.
    #[must_use]
    pub fn says_removed(&self) -> bool {
        let mut objections = self.peers.values().flat_map(Acceptance::objections);
        objections.any(|it| it.in_touch && it.removed)
    }

    /// Takes note of a frame that was accepted, or `refused` for this reason. Returns true if the peer does
    /// not know this node's verdict yet, so that it should be answered at once.
    pub fn note_header(
        &mut self,
        from: u64,
        header: &PeerHeader,
        refused: Option<&Refusal>,
        now: Micros,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else {
            return false;
        };
        let news = match refused {
            None => {
                peer.in_no_group = header.in_no_group;
                peer.accept(header.start)
            }
            Some(refusal) => peer.refuse(header.start, refusal, now),
        };
        let verdict = header.verdicts.iter().find(|v| v.start == self.start);
        match refused {
            None => peer.note_verdict(verdict, header.in_touch),
            Some(refusal) => peer.note_objection(verdict, header, refusal),
        }
        self.decide();
        news
    }

    /// This node's verdicts on starts of the peer `to`. What a refused disk knows of the peer's may be old: it accepts
    /// nobody.
    #[must_use]
    pub fn verdicts(&self, to: u64, now: Micros) -> Vec<Verdict> {
        let Some(peer) = self.peers.get(&to) else {
            return Vec::new();
        };
        let accepted = peer.accepted.filter(|_| self.disk_refused.is_none());
        let accepted = accepted.map(|start| (start, Refusal::default()));
        let refused = peer.refused_lately(now);
        let refused = refused.and_then(|it| Some((it.start?, it.refusal.clone())));
        let verdicts = accepted.into_iter().chain(refused);
        verdicts
            .map(|(start, refusal)| Verdict {
                start,
                refused: refusal.reason,
                removed: false,
                disk: refusal.disk,
            })
            .collect()
    }

    /// The reason for which frames under the number of peer `id` were refused lately, if some were.
    #[must_use]
    pub fn refused(&self, id: u64, now: Micros) -> Option<&str> {
        let refused = self.peers.get(&id)?.refused_lately(now)?;
        Some(&refused.refusal.reason)
    }

    #[must_use]
    pub fn is_in_touch(&self) -> bool {
        self.in_touch
    }

    /// Whether the disk of this node is refused, for good.
    #[must_use]
    pub fn is_disk_refused(&self) -> bool {
        self.disk_refused.is_some()
    }

    #[must_use]
    pub fn standing(&self, now: Micros) -> Standing {
        if self.in_touch {
            Standing::InTouch
        } else if let Some(reason) = &self.disk_refused {
            Standing::Refused(Refusal::of_disk(reason.clone()))
        } else if self.other_cluster {
            Standing::Refused(Refusal::of_cluster(OTHER_CLUSTER.to_owned()))
        } else if self.refusing().next().is_some() {
            Standing::Refused(Refusal::passing(self.reasons(now)))
        } else {
            let wanted = &self.electorates.wanted;
            let (all, need) = (wanted.len(), wanted.len() / 2 + 1);
            let have = wanted.iter().filter(|id| self.accepts(**id)).count();
            let reasons = self.reasons(now);
            Standing::Waiting(format!(
                "{have} of {all} nodes agree that this one belongs to the cluster, {need} are needed: {reasons}"
            ))
        }
    }

    /// A node that is in touch remains so while the nodes that do not refuse it are a quorum: one misled
    /// peer must not stop it, and lost connections are left to Raft. Before that, the refusal of a single
    /// peer that is in touch keeps it out: that peer may be the only one left that knows which disk voted.
    fn decide(&mut self) {
        let refusing: BTreeSet<u64> = self.refusing().map(|(id, _)| id).collect();
        let accepted = self.in_touch || self.is_accepted();
        let refused = match self.in_touch {
            true => self.no_quorum_without(&refusing),
            false => !refusing.is_empty(),
        };
        self.note_refused_disk();
        self.in_touch = accepted && !refused && self.disk_refused.is_none() && !self.other_cluster;
        self.was_in_touch |= self.in_touch;
    }

    /// A node that is to be removed counts as long as no group can have the new members, as each of those says: it is a
    /// voter then, like any other, and knows the disks that vote. Otherwise three nodes of which one is being replaced
    /// would not bear the loss of a second one.
    fn is_accepted(&self) -> bool {
        let accepts = |id| self.accepts(id);
        let mut newcomers = self.electorates.newcomers().peekable();
        let none_has_changed = newcomers.peek().is_some() && newcomers.all(|id| self.is_new(*id));
        self.electorates.accepted_by(accepts)
            || (none_has_changed && self.electorates.majority(accepts))
    }

    /// Whether a peer says that it is in no group, and does not refuse this node.
    fn is_new(&self, id: u64) -> bool {
        let peer = self.peers.get(&id);
        peer.is_some_and(|it| it.in_no_group && it.objections().next().is_none())
    }

    /// A refusal of the disk is for good, if it is to count: once a quorum has accepted this start, only those of so
    /// many peers that the others are no quorum.
    fn note_refused_disk(&mut self) {
        let of_disk = self.refusing().filter(|(_, refusal)| refusal.disk);
        let (ids, reasons): (BTreeSet<u64>, Vec<String>) = of_disk
            .map(|(id, refusal)| (id, refused_by(id, refusal)))
            .unzip();
        let counts = !self.was_in_touch || self.no_quorum_without(&ids);
        if !ids.is_empty() && counts {
            self.disk_refused.get_or_insert(reasons.join("; "));
        }
    }

    fn no_quorum_without(&self, refusing: &BTreeSet<u64>) -> bool {
        !self.electorates.majority(|id| !refusing.contains(&id))
    }

    /// Whether a node accepts this one, as it does itself.
    fn accepts(&self, id: u64) -> bool {
        let accepts = |peer: &Acceptance| matches!(peer.says, Some(Says::Accepted));
        id == self.me || self.peers.get(&id).is_some_and(accepts)
    }

    /// Peers whose refusal counts. A node that no quorum has accepted may itself be the wrong one.
    fn refusing(&self) -> impl Iterator<Item = (u64, &Refusal)> {
        let peers = self.peers.iter();
        let all = peers.flat_map(|(id, peer)| peer.objections().map(|it| (*id, it)));
        all.filter(|(_, it)| it.in_touch)
            .map(|(id, it)| (id, &it.refusal))
    }

    fn reasons(&self, now: Micros) -> String {
        let notes = self.peers.iter().filter_map(|(id, peer)| {
            if let Some(objection) = peer.objections().next() {
                return Some(refused_by(*id, &objection.refusal));
            }
            let note = match (&peer.says, peer.refused_lately(now)) {
                (Some(_), _) => return None,
                (None, Some(refused)) => refused.refusal.reason.clone(),
                (None, None) if peer.accepted.is_some() => {
                    format!("node {id} has not said yet whether it accepts this node")
                }
                (None, None) => format!("nothing heard from node {id}"),
            };
            Some(note)
        });
        notes.collect::<Vec<_>>().join("; ")
    }
}

fn refused_by(id: u64, refusal: &Refusal) -> String {
    format!("node {id} refuses this node: {refusal}")
}

impl Acceptance {
    fn accept(&mut self, start: Option<u64>) -> bool {
        if self.refused.as_ref().is_some_and(|it| it.start == start) {
            self.refused = None;
        }
        let before = std::mem::replace(&mut self.accepted, start);
        before != start
    }

    fn refuse(&mut self, start: Option<u64>, refusal: &Refusal, at: Micros) -> bool {
        let known = self.refused_lately(at).is_some_and(|it| it.start == start);
        self.refused = Some(Refused {
            start,
            refusal: refusal.clone(),
            at,
        });
        !known
    }

    /// Takes the verdict of a frame that is taken.
    fn note_verdict(&mut self, verdict: Option<&Verdict>, in_touch: bool) {
        let Some(verdict) = verdict else { return };
        self.objects = None;
        self.says = Some(match verdict.refused.is_empty() {
            true => Says::Accepted,
            false => Says::Refused(Objection::of(verdict, in_touch, verdict.disk)),
        });
    }

    /// Takes the verdict of a frame that was refused. The acceptance of a node that is refused itself counts for
    /// nothing; but the node takes back its refusal with it, or by taking part no longer.
    fn note_objection(
        &mut self,
        verdict: Option<&Verdict>,
        header: &PeerHeader,
        refused: &Refusal,
    ) {
        match verdict {
            Some(verdict) if !verdict.refused.is_empty() => {
                // A node with another disk may be the wrong one: its refusal is not for good.
                let disk = verdict.disk && !refused.disk;
                self.objects = Some(Objection::of(verdict, header.in_touch, disk));
            }
            Some(_) => self.objects = None,
            // Of a frame that was not opened nothing is known.
            None if header.start.is_some() && !header.in_touch => self.objects = None,
            None => {}
        }
    }

    fn objections(&self) -> impl Iterator<Item = &Objection> {
        let says = match &self.says {
            Some(Says::Refused(objection)) => Some(objection),
            Some(Says::Accepted) | None => None,
        };
        says.into_iter().chain(&self.objects)
    }

    fn refused_lately(&self, now: Micros) -> Option<&Refused> {
        let refused = self.refused.as_ref();
        refused.filter(|it| now.saturating_sub(it.at) < REFUSAL_KEPT_US)
    }
}

impl Objection {
    /// `disk`: it is for good.
    fn of(verdict: &Verdict, in_touch: bool, disk: bool) -> Objection {
        Objection {
            refusal: Refusal {
                reason: verdict.refused.clone(),
                disk,
                ..Refusal::default()
            },
            in_touch,
            removed: verdict.removed,
        }
    }
}

#[cfg(test)]
#[path = "contact_tests.rs"]
mod tests;
