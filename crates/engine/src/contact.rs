//! Decides whether this node may take part: only once a quorum has confirmed that it belongs to their
//! cluster and has the disk that they know. Otherwise it could serve lines of its own, or vote with a disk
//! that has lost its promises.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

pub use crate::electorates::Electorates;
use crate::electorates::most;
use crate::envelope::Verdict;
pub use crate::peer_refusal::Refusal;

/// A refusal is repeated to its sender, and shown to operators, for this long after the last refused
/// frame.
const REFUSAL_KEPT_US: Micros = 5_000_000;
const OTHER_CLUSTER: &str = "the cluster existed before, and nodes that had lost their disks founded it a second \
     time: this node is of the second one";

/// A frame's statements about its sender and its receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerHeader {
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
    /// It has nothing of any group yet, as its newest frame that was taken says.
    in_no_group: bool,
}

#[derive(Debug)]
struct Refused {
    start: Option<u64>,
    refusal: Refusal,
    at: Micros,
}

/// A peer's latest verdict on this start of this node.
#[derive(Debug, PartialEq, Eq)]
enum Says {
    Accepted,
    Refused {
        refusal: Refusal,
        in_touch: bool,
        removed: bool,
    },
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
        let removed = |says: &Says| matches!(says, Says::Refused { in_touch, removed, .. } if *in_touch && *removed);
        let mut peers = self.peers.values();
        peers.any(|peer| peer.says.as_ref().is_some_and(removed))
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
        match verdict {
            Some(verdict) if !verdict.refused.is_empty() => {
                peer.says = Some(Says::Refused {
                    refusal: Refusal {
                        reason: verdict.refused.clone(),
                        // Who has another disk itself may be the wrong one: its refusal is not for good.
                        disk: verdict.disk && !refused.is_some_and(|it| it.disk),
                        other_cluster: false,
                    },
                    in_touch: header.in_touch,
                    removed: verdict.removed,
                });
            }
            // The acceptance of a node that is refused itself counts for nothing.
            Some(_) if refused.is_none() => peer.says = Some(Says::Accepted),
            _ => {}
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
        peer.is_some_and(|it| it.in_no_group && !matches!(it.says, Some(Says::Refused { .. })))
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
        let says = self.peers.get(&id).map(|peer| &peer.says);
        id == self.me || says == Some(&Some(Says::Accepted))
    }

    /// Peers whose refusal counts. A node that no quorum has accepted may itself be the wrong one.
    fn refusing(&self) -> impl Iterator<Item = (u64, &Refusal)> {
        let peers = self.peers.iter();
        peers.filter_map(|(id, peer)| match &peer.says {
            Some(Says::Refused {
                refusal,
                in_touch: true,
                ..
            }) => Some((*id, refusal)),
            _ => None,
        })
    }

    fn reasons(&self, now: Micros) -> String {
        let notes = self.peers.iter().filter_map(|(id, peer)| {
            let note = match (&peer.says, peer.refused_lately(now)) {
                (Some(Says::Accepted), _) => return None,
                (Some(Says::Refused { refusal, .. }), _) => refused_by(*id, refusal),
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

    fn refused_lately(&self, now: Micros) -> Option<&Refused> {
        let refused = self.refused.as_ref();
        refused.filter(|it| now.saturating_sub(it.at) < REFUSAL_KEPT_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This node's start.
    const ME: u64 = 100;
    const NOW: Micros = 1_000_000;

    /// One frame.
    #[derive(Debug)]
    enum Frame {
        /// Taken; its sender accepts this start.
        Accepts(u64),
        /// Taken; its sender does not know this start yet, or speaks of an earlier one or an impostor.
        OfOthers(u64),
        /// Taken; its sender refuses this start, and is in touch itself or not.
        Refuses(u64, bool),
        /// Taken; its sender, in touch or not, refuses the disk of this start.
        RefusesDisk(u64, bool),
        /// Not taken, of another disk or with other facts; its sender accepts this start.
        BadAccepts(u64),
        /// Not taken; its sender refuses this start, and is in touch itself or not.
        BadRefuses(u64, bool),
        /// Not opened.
        Unreadable(u64),
        /// Taken; its sender does not know this start yet, and is in no group.
        OfANewcomer(u64),
    }
    use Frame::*;

    fn receive(contact: &mut Contact, frame: &Frame) -> bool {
        let bad = Refusal::passing("bad".to_owned());
        let unreadable = Refusal::passing("unreadable".to_owned());
        let disk = matches!(frame, RefusesDisk(..));
        let (from, verdict, in_touch, refused) = match frame {
            Accepts(from) => (from, Some((ME, "")), true, None),
            OfOthers(from) => (from, Some((ME - 1, "an impostor")), true, None),
            OfANewcomer(from) => (from, None, false, None),
            Refuses(from, in_touch) | RefusesDisk(from, in_touch) => {
                (from, Some((ME, "another disk")), *in_touch, None)
            }
            BadAccepts(from) => (from, Some((ME, "")), false, Some(&bad)),
            BadRefuses(from, in_touch) => (from, Some((ME, "8 shards")), *in_touch, Some(&bad)),
            Unreadable(from) => (from, None, false, Some(&unreadable)),
        };
        let verdicts = verdict.map(|(start, refused)| Verdict {
            start,
            refused: refused.to_owned(),
            removed: false,
            disk,
        });
        let word = PeerHeader {
            start: (!matches!(frame, Unreadable(_))).then_some(*from),
            in_touch,
            in_no_group: matches!(frame, OfANewcomer(_)),
            verdicts: verdicts.into_iter().collect(),
            ..PeerHeader::default()
        };
        contact.note_header(*from, &word, refused, NOW)
    }

    /// The last one of so many nodes.
    fn of(nodes: u64) -> Contact {
        let mut contact = Contact::new(nodes, ME, None);
        let electorates = Electorates {
            wanted: (1..=nodes).collect(),
            groups: BTreeSet::new(),
        };
        contact.set_members(&(1..nodes).collect(), electorates);
        contact
    }

    #[test]
    fn that_a_node_was_removed_counts_from_peers_that_take_part() {
        for in_touch in [true, false] {
            let mut contact = of(3);
            let verdict = Verdict {
                start: ME,
                refused: "removed".to_owned(),
                removed: true,
                disk: false,
            };
            let header = PeerHeader {
                start: Some(1),
                in_touch,
                verdicts: vec![verdict],
                ..PeerHeader::default()
            };
            contact.note_header(1, &header, None, NOW);
            assert_eq!(contact.says_removed(), in_touch);
            let refused = matches!(contact.standing(NOW), Standing::Refused(_));
            assert_eq!(refused, in_touch);
        }
    }

    #[test]
    fn while_members_change_the_groups_or_the_wanted_members_will_do_but_not_who_is_to_be_removed()
    {
        let set = |nodes: &[u64]| nodes.iter().copied().collect::<BTreeSet<u64>>();
        // Node 3 of 1, 2, 3; 1 is replaced by 4, which some of its groups have.
        let electorates = |groups: &[&[u64]]| Electorates {
            wanted: set(&[2, 3, 4]),
            groups: groups.iter().map(|nodes| set(nodes)).collect(),
        };
        for (groups, frames, in_touch) in [
            // Node 1 may have been removed long ago, and not know that a newer disk of this node has voted since.
            (&[&[1, 2, 3][..]][..], vec![Accepts(1)], false),
            (&[&[1, 2, 3]], vec![Accepts(2)], true),
            (&[&[1, 2, 3]], vec![Accepts(4)], true),
            (&[&[1, 2, 3], &[2, 3, 4]], vec![Accepts(1)], false),
            (&[&[1, 2, 3], &[2, 3, 4]], vec![Accepts(2)], true),
            (&[], vec![Accepts(1)], false),
            (&[], vec![Accepts(4)], true),
            // Not as long as node 4 is in no group: then node 1 is a voter of all.
            (&[&[1, 2, 3]], vec![OfANewcomer(4), Accepts(1)], true),
            (&[&[1, 2, 3]], vec![OfANewcomer(4)], false),
            (
                &[&[1, 2, 3]],
                vec![OfANewcomer(4), OfOthers(4), Accepts(1)],
                false,
            ),
            (
                &[&[1, 2, 3]],
                vec![OfANewcomer(4), Refuses(4, false), Accepts(1)],
                false,
            ),
            (
                &[&[1, 2, 3], &[2, 3, 4]],
                vec![OfANewcomer(4), Accepts(1)],
                false,
            ),
        ] {
            let mut contact = Contact::new(3, ME, None);
            contact.set_members(&set(&[1, 2, 4]), electorates(groups));
            for frame in &frames {
                receive(&mut contact, frame);
            }
            assert_eq!(contact.is_in_touch(), in_touch, "{groups:?} {frames:?}");
        }
    }

    /// The last one of so many nodes, after it has received these.
    fn after(nodes: u64, frames: &[Frame]) -> Contact {
        let mut contact = of(nodes);
        for frame in frames {
            receive(&mut contact, frame);
        }
        contact
    }

    fn standing(nodes: u64, frames: &[Frame]) -> Standing {
        after(nodes, frames).standing(NOW)
    }

    #[test]
    fn a_quorum_must_have_accepted_this_very_start() {
        for (nodes, frames) in [
            (1, vec![]),
            (2, vec![Accepts(1)]),
            (3, vec![Accepts(2)]),
            (5, vec![Accepts(1), Accepts(4)]),
            // A stranger that no quorum has accepted refuses everybody.
            (3, vec![BadRefuses(1, false), Accepts(2)]),
            (3, vec![Refuses(1, false), Accepts(2)]),
            // A peer that changes its verdict.
            (3, vec![Refuses(1, true), Accepts(1)]),
            (3, vec![Unreadable(1), Accepts(1)]),
            // One peer cannot revoke it.
            (3, vec![Accepts(1), Refuses(2, true)]),
            (3, vec![Accepts(1), BadRefuses(2, true)]),
            (
                5,
                vec![Accepts(1), Accepts(2), Refuses(3, true), Refuses(4, true)],
            ),
        ] {
            assert_eq!(standing(nodes, &frames), Standing::InTouch, "{nodes}");
        }
    }

    #[test]
    fn without_one_it_waits_and_says_for_whom() {
        for (nodes, frames, words) in [
            (
                2,
                vec![],
                &["1 of 2", "2 are needed", "nothing heard from node 1"][..],
            ),
            (3, vec![], &["node 1", "node 2"]),
            (
                3,
                vec![OfOthers(1)],
                &["node 1 has not said yet", "nothing heard from node 2"],
            ),
            (5, vec![Accepts(1)], &["2 of 5", "3 are needed", "node 2"]),
            // A wiped node's acceptance does not count.
            (3, vec![BadAccepts(1)], &["1 of 3", "bad"]),
            (
                3,
                vec![BadRefuses(1, false)],
                &["node 1 refuses this node: 8 shards"],
            ),
            (3, vec![Unreadable(1), Unreadable(2)], &["unreadable"]),
        ] {
            let Standing::Waiting(reason) = standing(nodes, &frames) else {
                panic!("{words:?}: {:?}", standing(nodes, &frames));
            };
            for word in words {
                assert!(reason.contains(word), "{word}: {reason}");
            }
        }
    }

    #[test]
    fn refused_by_a_quorum_or_before_one_has_accepted_it_stays_out() {
        for (nodes, frames, word) in [
            (
                3,
                vec![Refuses(1, true)],
                "node 1 refuses this node: another disk",
            ),
            (
                3,
                vec![BadRefuses(1, true), BadRefuses(2, true)],
                "8 shards",
            ),
            // The only one that remembers the disk.
            (3, vec![Refuses(1, true), Accepts(2)], "another disk"),
            // Later on: its disk was started elsewhere while it stood still.
            (
                3,
                vec![Accepts(1), Refuses(1, true), Refuses(2, true)],
                "another disk",
            ),
            (2, vec![Accepts(1), Refuses(1, true)], "another disk"),
        ] {
            let Standing::Refused(reason) = standing(nodes, &frames) else {
                panic!("{word}: {:?}", standing(nodes, &frames));
            };
            assert!(reason.reason.contains(word), "{word}: {reason}");
        }
    }

    #[test]
    fn a_disk_that_is_refused_before_a_quorum_has_accepted_it_never_takes_part() {
        for frames in [
            &[RefusesDisk(1, true), Accepts(1), Accepts(2)][..],
            &[Accepts(4), RefusesDisk(1, true), Accepts(1), Accepts(2)],
            // Once it was accepted, one misled peer cannot revoke that, and so many can.
            &[
                Accepts(1),
                Accepts(2),
                RefusesDisk(1, true),
                RefusesDisk(2, true),
                RefusesDisk(3, true),
                Accepts(1),
                Accepts(2),
                Accepts(3),
            ],
        ] {
            let contact = after(5, frames);
            let standing = contact.standing(NOW);
            assert!(standing.is_disk_refused(), "{standing:?}");
            let verdicts = contact.verdicts(1, NOW);
            assert!(verdicts.is_empty(), "what it knows of others may be old");
        }
    }

    #[test]
    fn a_disk_that_was_refused_in_an_earlier_start_never_takes_part() {
        let mut contact = Contact::new(3, ME, Some("an older copy".to_owned()));
        let electorates = Electorates {
            wanted: [1, 2, 3].into(),
            groups: BTreeSet::new(),
        };
        contact.set_members(&[1, 2].into(), electorates);
        receive(&mut contact, &Accepts(1));
        receive(&mut contact, &Accepts(2));
        let older = Refusal::of_disk("an older copy".to_owned());
        assert_eq!(contact.standing(NOW), Standing::Refused(older));
    }

    #[test]
    fn of_a_disk_that_was_accepted_no_single_peer_decides_nor_do_passing_refusals() {
        for frames in [
            &[RefusesDisk(1, false), Accepts(2), Accepts(3)][..],
            &[Accepts(1), Accepts(2), RefusesDisk(3, true)],
            // Out of touch for another reason meanwhile.
            &[
                Accepts(1),
                Accepts(2),
                RefusesDisk(1, true),
                Refuses(2, true),
                Refuses(3, true),
                Accepts(1),
                Accepts(2),
                Accepts(3),
            ],
        ] {
            assert_eq!(standing(5, frames), Standing::InTouch);
        }
    }

    #[test]
    fn each_start_of_a_peer_gets_its_own_verdict_at_once_and_while_it_sends_frames() {
        let mut contact = of(3);
        assert!(contact.verdicts(1, NOW).is_empty());
        assert!(receive(&mut contact, &OfOthers(1)));
        assert!(!receive(&mut contact, &OfOthers(1)));
        let impostor = PeerHeader {
            start: Some(7),
            ..PeerHeader::default()
        };
        let another_disk = Refusal::of_disk("another disk".to_owned());
        assert!(contact.note_header(1, &impostor, Some(&another_disk), NOW));
        assert!(!contact.note_header(1, &impostor, Some(&another_disk), NOW + 1));
        assert!(contact.verdicts(1, NOW + 1)[1].disk);
        let verdicts = |contact: &Contact, now| -> Vec<(u64, String)> {
            let of_peer = contact.verdicts(1, now).into_iter();
            of_peer.map(|v| (v.start, v.refused)).collect()
        };
        let (good, bad) = ((1, String::new()), (7, "another disk".to_owned()));
        assert_eq!(verdicts(&contact, NOW + 1), [good.clone(), bad]);
        assert_eq!(contact.refused(1, NOW + 1), Some("another disk"));
        let later = NOW + 1 + REFUSAL_KEPT_US;
        assert_eq!(verdicts(&contact, later), [good]);
        assert_eq!(contact.refused(1, later), None);
        assert!(contact.note_header(1, &impostor, Some(&another_disk), later));
        // It has its old disk again, or the files agree.
        assert!(contact.note_header(1, &impostor, None, later));
        assert_eq!(verdicts(&contact, later), [(7, String::new())]);
        assert!(!contact.note_header(9, &impostor, None, later), "no member");
    }
}
