//! Two disks that refuse each other: either may be the wrong one.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use nowserving_shard::clock::Micros;

use crate::envelope::Verdict;
use crate::peers::contact::{Contact, Electorates, PeerHeader, Refusal, Standing};

const START: u64 = 100;
const NOW: Micros = 1_000_000;

/// The third of three nodes.
fn node() -> Contact {
    let mut contact = Contact::new(3, START, None);
    let electorates = Electorates {
        wanted: [1, 2, 3].into(),
        groups: BTreeSet::new(),
    };
    contact.set_members(&[1, 2].into(), electorates);
    contact
}

/// From a peer that takes part, with its verdict on the disk of this start: empty if it accepts it.
fn header(peer: u64, reason: &str) -> PeerHeader {
    PeerHeader {
        start: Some(peer),
        in_touch: true,
        verdicts: vec![Verdict {
            start: START,
            refused: reason.to_owned(),
            removed: false,
            disk: !reason.is_empty(),
        }],
        ..PeerHeader::default()
    }
}

#[test]
fn two_disks_that_refuse_each_other_keep_out_and_neither_refusal_is_for_good() {
    let mut contact = node();
    let refusal = Refusal::of_disk("another disk".to_owned());
    for peer in [1, 2] {
        contact.note_header(peer, &header(peer, "another disk"), Some(&refusal), NOW);
        let standing = contact.standing(NOW);
        assert!(matches!(standing, Standing::Refused(_)), "{standing:?}");
        assert!(!contact.is_disk_refused());
    }
    for peer in [1, 2] {
        contact.note_header(peer, &header(peer, ""), None, NOW);
    }
    assert_eq!(contact.standing(NOW), Standing::InTouch);
}

#[test]
fn a_peer_that_is_refused_for_its_configuration_can_refuse_a_disk_for_good() {
    let mut contact = node();
    let refusal = Refusal::passing("8 shards".to_owned());
    contact.note_header(1, &header(1, "another disk"), Some(&refusal), NOW);
    assert!(contact.is_disk_refused());
}

/// The peer's disk is refused here, and it keeps this node out; another one accepts this node.
fn kept_out() -> Contact {
    let mut contact = node();
    let refusal = Refusal::of_disk("another disk".to_owned());
    contact.note_header(1, &header(1, "no member"), Some(&refusal), NOW);
    contact.note_header(2, &header(2, ""), None, NOW);
    assert!(!contact.is_in_touch());
    contact
}

#[test]
fn a_refused_peer_takes_back_its_refusal() {
    let away = PeerHeader {
        start: Some(1),
        ..PeerHeader::default()
    };
    // Of whom it comes is not known.
    let unopened = PeerHeader::default();
    let silent = PeerHeader {
        in_touch: true,
        ..away.clone()
    };
    for (later, in_touch) in [
        (header(1, ""), true),
        (away, true),
        (silent, false),
        (unopened, false),
    ] {
        let mut contact = kept_out();
        let refusal = Refusal::of_disk("another disk".to_owned());
        contact.note_header(1, &later, Some(&refusal), NOW);
        assert_eq!(contact.is_in_touch(), in_touch, "{later:?}");
    }
}

#[test]
fn a_wrong_disk_does_not_take_back_the_refusal_of_the_right_one() {
    let mut contact = node();
    let mut passing = header(1, "8 shards");
    passing.verdicts[0].disk = false;
    contact.note_header(1, &passing, None, NOW);
    contact.note_header(2, &header(2, ""), None, NOW);
    let refusal = Refusal::of_disk("another disk".to_owned());
    for reason in ["no member", ""] {
        let mut wrong = header(7, reason);
        wrong.in_touch = false;
        contact.note_header(1, &wrong, Some(&refusal), NOW);
        assert!(!contact.is_in_touch());
    }
}
