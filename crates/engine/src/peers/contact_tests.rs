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
fn while_members_change_the_groups_or_the_wanted_members_will_do_but_not_who_is_to_be_removed() {
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
