//! Full disks.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Op, Settings};
use nowserving_protocol::error::Code;
use nowserving_protocol::user::Consistency;

use crate::io::Input;
use crate::request::Ask;
use crate::rig::{Rig, SHARD, name};

fn leader(nodes: &[u64]) -> Rig {
    let mut rig = Rig::new(nodes);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 1_000));
    rig.write(Op::Create { line, settings });
    settle(&mut rig);
    rig.answers();
    rig
}

fn settle(rig: &mut Rig) {
    rig.turn();
    rig.acknowledge();
}

fn service_ms(rig: &Rig) -> Option<u64> {
    rig.shard().service_ms(&rig.engine.ctx.reachability)
}

/// Time passes in which clients can reach this node, in turns.
fn pass(rig: &mut Rig) {
    for _ in 0..10 {
        rig.now += 20_000;
        rig.input(Input::ProbeEchoed { sent_at: rig.now });
        rig.turn();
    }
}

/// Writes are refused, reads are answered, nothing is proposed, and the clock stands.
fn stands_still(rig: &mut Rig) {
    let (entries, clock) = (rig.replica().last_index(), service_ms(rig));
    rig.enter("refused");
    assert_eq!(rig.numbers(), [Err(Code::Unavailable)]);
    let far = rig.now + 1_000_000_000;
    rig.request(Ask::Info(Consistency::Leader), far, SHARD);
    assert_eq!(rig.numbers(), [Ok(0)]);
    pass(rig);
    assert_eq!(
        (rig.replica().last_index(), service_ms(rig)),
        (entries, clock)
    );
    assert!(rig.engine.next_due() > rig.now, "the loop does not spin");
}

fn goes_on(rig: &mut Rig) {
    let clock = service_ms(rig);
    pass(rig);
    assert!(service_ms(rig) > clock);
    rig.enter("taken");
    settle(rig);
    assert_eq!(rig.numbers(), [Ok(1)]);
}

#[test]
fn while_its_disk_is_full_a_leader_serves_polls_and_its_clock_stands_still() {
    let mut rig = leader(&[1]);
    rig.input(Input::DiskFull(true));
    stands_still(&mut rig);
    rig.input(Input::DiskFull(false));
    goes_on(&mut rig);
}

#[test]
fn a_leader_waits_for_as_many_disks_as_an_entry_needs() {
    let mut rig = leader(&[1, 2, 3]);
    rig.peer_disk(2, true);
    goes_on(&mut rig);
    rig.peer_disk(3, true);
    stands_still(&mut rig);
    rig.peer_disk(2, false);
    pass(&mut rig);
    rig.enter("again");
    settle(&mut rig);
    assert_eq!(rig.numbers(), [Ok(2)]);
}

/// It never gets ready to lead, as it cannot store the first entry of its term.
#[test]
fn a_node_that_is_elected_with_a_full_disk_hands_the_shard_over() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.ticks_until(|rig| rig.shard().leads());
    rig.disk_is_full = true;
    rig.input(Input::DiskFull(true));
    settle(&mut rig);
    for _ in 0..20 {
        pass(&mut rig);
        rig.hears(2, "", Vec::new());
    }
    assert!(!rig.shard().serves_as_leader());
    assert!(rig.shard().offer_of_term().is_some());
}
