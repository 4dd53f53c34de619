//! Bounds on the work of one entry and on the memory of a line.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, GONE_KEPT, Limits, Lines, Op, RECYCLE_MAX, Reason, Refused, Reply, Settings,
    SettingsPatch, Stamp, State, WORK_MAX,
};

const CROWD: u64 = 100_000;
const WORK: u64 = WORK_MAX as u64;

fn raise_seats(seats: u32) -> Op {
    Op::Configure {
        line: shop(),
        patch: Box::new(SettingsPatch {
            seats: Some(Change::Set(seats)),
            ..SettingsPatch::default()
        }),
        if_version: None,
        incarnation: None,
    }
}

fn crowd(seats: u32, keyed: bool) -> Shard {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(seats, CROWD as u32));
    for n in 0..CROWD {
        let key = keyed.then(|| format!("user-{n}"));
        shard.enter_as(key.as_deref()).unwrap();
    }
    shard
}

#[test]
fn raised_seats_admit_a_crowd_over_many_entries_without_barging() {
    let mut shard = crowd(1, false);
    shard.apply(&raise_seats(150_000)).unwrap();
    assert_eq!(shard.line().counts().admitted, 1 + WORK);
    assert_eq!(shard.events.len() as u64, 1 + WORK);
    assert_eq!(shard.lines.background_work(shard.now_ms).count(), 1);
    // Seats are free, but others were here first.
    let newcomer = shard.enter().unwrap();
    assert_eq!(newcomer.state, State::Waiting);
    assert_eq!(newcomer.position, Some(CROWD - WORK));
    assert_eq!(newcomer.admitted_through, 1 + WORK);
    // A token that leaves a seat admits one, not the rest of the background work.
    shard.serve(1);
    assert_eq!(shard.line().counts().admitted, 1 + WORK);
    // The job survives a restart.
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    let left = shard.line().counts().waiting;
    assert_eq!(shard.finish_jobs(), left.div_ceil(WORK));
    assert_eq!(shard.line().counts().admitted, CROWD);
    let newcomer = shard.enter().unwrap();
    assert_eq!(newcomer.state, State::Admitted);
    let lane = shard.lane();
    assert_eq!(
        lane.admitted_through,
        lane.next_token - 1 + 150_000 - CROWD - 1
    );
}

#[test]
fn deleting_a_crowd_takes_many_entries() {
    let mut shard = crowd(10, true);
    let line = shop();
    let op = Op::Delete {
        line,
        force: true,
        incarnation: None,
    };
    let remaining = CROWD - WORK;
    assert_eq!(shard.apply(&op), Ok(Reply::Deleted { remaining }));
    assert_eq!(shard.line().deleting(), Some(remaining));
    assert_eq!(shard.apply(&op), Ok(Reply::Deleted { remaining }), "again");
    assert_eq!(shard.enter(), Err(Refused::LineClosed));
    assert_eq!(shard.leave(CROWD), Err(Refused::LineClosed));
    assert_eq!(shard.apply(&raise_seats(20)), Err(Refused::LineClosed));
    let (line, settings) = (shop(), Settings::new(1, 1));
    let create = Op::Create { line, settings };
    assert_eq!(shard.apply(&create), Err(Refused::LineExists));
    assert_eq!(shard.status(1).reason, Some(Some(Reason::Closed)));
    assert_eq!(shard.status(CROWD).state, State::Waiting);
    let lane = shard.lane();
    assert_eq!(lane.accepts_through, lane.next_token - 1);
    assert_eq!(lane.admitted_through, WORK, "nothing is promised any more");
    assert_eq!(shard.enter_as(Some("user-99999")).unwrap().at.token, CROWD);
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(shard.finish_jobs(), remaining.div_ceil(WORK));
    assert!(shard.lines.is_empty());
    shard.apply(&create).unwrap();
}

#[test]
fn the_jobs_of_one_entry_share_its_limit() {
    let mut shard = crowd(1, false);
    let incarnation = shard.line().incarnation();
    let index = shard.index + 1;
    let line = shop();
    let step = Op::RunBackground { line, incarnation };
    let batch = [raise_seats(200_000), step.clone(), step.clone(), step];
    for (op_no, op) in (0..).zip(&batch) {
        let stamp = Stamp {
            index,
            op_no,
            now_ms: 0,
            wall_ms: 0,
        };
        shard.lines.apply(stamp, op, None).unwrap();
    }
    assert_eq!(shard.line().counts().admitted, 1 + WORK);
}

#[test]
fn a_recycle_list_is_cut() {
    let mut shard = crowd(1, false);
    shard.now_ms += 1_000_000;
    let items = (2..5_000).map(|token| shard.item(token)).collect();
    assert_eq!(shard.recycle(items), RECYCLE_MAX as u64);
    assert_eq!(
        shard.line().counts().gone_for(Reason::Idle),
        RECYCLE_MAX as u64
    );
}

#[test]
fn the_newest_65536_gone_are_remembered() {
    let mut shard = Shard::with_shop(Limits::default(), Settings::new(1, 10));
    shard.enter().unwrap();
    shard.claim(1).unwrap();
    let kept = GONE_KEPT as u64;
    assert_eq!(kept, 65_536);
    for token in 2..=kept + 2 {
        shard.enter().unwrap();
        shard.leave(token).unwrap();
    }
    let forgotten = shard.status(2);
    assert_eq!(
        (forgotten.state, forgotten.reason),
        (State::Gone, Some(None))
    );
    assert_eq!(shard.leave(2), Err(Refused::TokenGone(None)));
    assert_eq!(shard.status(3).reason, Some(Some(Reason::Left)));
    // By order of going: token 1 is the oldest number, and gone last.
    shard.complete(1, None).unwrap();
    assert_eq!(shard.status(1).reason, Some(Some(Reason::Completed)));
    assert_eq!(shard.status(1).epoch, Some(1));
    assert_eq!(shard.status(3).reason, Some(None));
    assert_eq!(shard.lane().done_through, kept + 2);
    let restored = Lines::restore(shard.lines.dump()).unwrap();
    assert_eq!(restored.dump(), shard.lines.dump());
}
