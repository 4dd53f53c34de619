//! S7, S9, S10, S12: a line that was put back from a backup is as it was then, and what was issued since stays issued.

use std::fmt::Debug;

use nowserving_line::{Line, LiveRecord, Stage};

use super::Place;
use super::shadow::{Broken, Shadow};
use crate::env::Env;
use crate::replay::{PutBack, State};
use crate::timeline::Time;

/// A shard as it was downloaded.
#[derive(Debug)]
pub struct BackedUp {
    /// Its state.
    pub state: State,
    /// The same, kept by hand.
    pub shadow: Shadow,
    /// When its last entry came into a log.
    pub at: Time,
}

impl Shadow {
    /// A line was put back.
    pub fn put_back(
        &mut self,
        env: &mut Env,
        place: Place,
        put_back: &PutBack<'_>,
        backup: Option<&BackedUp>,
    ) {
        let name = &put_back.command.line;
        let put = backup
            .ok_or(("S10", "nobody sent it".to_owned()))
            .and_then(|backup| self.take_back(place, put_back, backup));
        if let Err((invariant, what)) = put {
            let (shard, index) = (place.shard, place.index);
            let what = format!("shard {shard}, entry {index}: {name} is put back: {what}");
            env.violated(invariant, what);
        }
    }

    fn take_back(
        &mut self,
        place: Place,
        put_back: &PutBack<'_>,
        backup: &BackedUp,
    ) -> Result<(), Broken> {
        let name = &put_back.command.line;
        let lines = (
            put_back.state.lines().get(name),
            backup.state.lines().get(name),
        );
        let (Some(line), Some(saved)) = lines else {
            return Err(("S10", "it is not there".to_owned()));
        };
        let least = self.last_version(name).max(saved.version());
        if line.version() <= least {
            let what = format!("version {} is not above {least}", line.version());
            return Err(("S7", what));
        }
        same_tokens(
            (line, put_back.state.now_ms()),
            (saved, backup.state.now_ms()),
        )?;
        let since_us = place.appended_at.saturating_sub(backup.at);
        let now_ms = put_back.state.now_ms();
        self.replace((line, now_ms), &backup.shadow, since_us)
    }
}

/// Everybody is in line as in the backup, with what was left of their times.
fn same_tokens(ours: (&Line, u64), saved: (&Line, u64)) -> Result<(), Broken> {
    let (line, saved_line) = (ours.0.dump(), saved.0.dump());
    if line.incarnation != saved_line.incarnation || line.settings != saved_line.settings {
        return Err(("S10", "it has another incarnation or settings".to_owned()));
    }
    for (id, saved_lane) in saved_line.lanes.iter().enumerate() {
        let lane = line.lanes.get(id).map_or(&[][..], |lane| &lane.live);
        let ours = lane
            .iter()
            .map(|(token, live)| (token, as_of(live, ours.1)));
        let theirs = saved_lane.live.iter();
        let theirs = theirs.map(|(token, live)| (token, as_of(live, saved.1)));
        let differing = ours.clone().zip(theirs.clone()).find(|(a, b)| a != b);
        if differing.is_some() || lane.len() != saved_lane.live.len() {
            let (have, had) = (lane.len(), saved_lane.live.len());
            let what = format!("lane {id} has {have} live tokens, and had {had}: {differing:?}");
            return Err(("S10", what));
        }
    }
    Ok(())
}

/// A token's key, former numbers and stage, its times as of a reading of the service clock, its epoch and
/// its units.
fn as_of(live: &LiveRecord, now_ms: u64) -> impl Debug + PartialEq {
    let of = |ms: u64| i128::from(ms) - i128::from(now_ms);
    let (stage, times, epoch) = match live.stage {
        Stage::Waiting { last_seen_ms } => (0, [of(last_seen_ms), 0], 0),
        Stage::Admitted { deadline_ms, .. } => (1, [of(deadline_ms), 0], 0),
        Stage::InCheckout {
            deadline_ms,
            claimed_at_ms,
            epoch,
            ..
        } => (2, [of(deadline_ms), of(claimed_at_ms)], epoch),
    };
    let former = live.moved_from.clone();
    (
        live.key.clone(),
        former,
        stage,
        times,
        epoch,
        live.stage.units(),
    )
}
