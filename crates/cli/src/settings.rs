//! A line's settings as flags.

mod values;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use nowserving_client::{
    AdmissionRate, Change, LaneName, LaneSettings, Phase, Quota, SettingsPatch,
};

pub use self::values::label;

use crate::output::WrongUsage;

/// Every setting of a line. What is not given keeps its value (at creation: the default).
#[derive(Debug, Default, Args)]
pub struct SettingsFlags {
    /// How many may be in checkout at once, 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = values::seats)]
    seats: Option<u32>,
    /// How many more than --seats may be in the line, 0 to 10,000,000.
    #[arg(long, value_name = "N")]
    queue_limit: Option<u32>,
    /// A waiting token not heard from for longer is recycled, 100ms to 7d
    /// (default 5m).
    #[arg(long = "waiting-idle-timeout", value_name = "TIME", value_parser = values::timeout())]
    waiting_idle_timeout_ms: Option<u64>,
    /// How long an admitted token has to claim its seat, 100ms to 7d (default 2m).
    #[arg(long = "claim-timeout", value_name = "TIME", value_parser = values::timeout())]
    claim_timeout_ms: Option<u64>,
    /// How long a claimed seat lasts without renewal, 100ms to 7d (default 10m).
    #[arg(long = "checkout-timeout", value_name = "TIME", value_parser = values::timeout())]
    checkout_timeout_ms: Option<u64>,
    /// Where renewing ends, counted from the claim, 100ms to 7d (default 1h).
    #[arg(long = "checkout-max", value_name = "TIME", value_parser = values::timeout())]
    checkout_max_ms: Option<u64>,
    /// How fast seats are given: admissions a second, 0.001 to 1,000,000, and how many can be saved
    /// up, 1 to 1,000,000 (default: as fast as seats become free).
    #[arg(long, value_name = "PER_SECOND/BURST", value_parser = values::rate)]
    admission_rate: Option<AdmissionRate>,
    /// A lane, up to 8 times; the first is the default unless --default-lane names another. Replaces all lanes that were set, with
    /// their options: name every lane each time. Options: `boost=10m` (its tokens count as having
    /// entered so much earlier, up to 7d), `absolute` (it is served before those that are not),
    /// `limit=N` (at most so many wait in it, 0 to 10,000,000).
    #[arg(long = "lane", value_name = "NAME[:OPTION]...", value_parser = values::lane)]
    lanes: Vec<LaneSettings>,
    /// The lane of those who enter without naming one (default: the first).
    #[arg(long, value_name = "LANE")]
    default_lane: Option<LaneName>,
    /// The first so many waiting positions of a lane are called to prepare, 0 to 10,000,000
    /// (default 0).
    #[arg(long, value_name = "N")]
    call_ahead: Option<u32>,
    /// How many can complete, 1 to 1,000,000,000; then the line is sold out (default: no end). Set
    /// anew, it takes --standby-percent back to 0 unless that is given too.
    #[arg(long, value_name = "N")]
    quota: Option<u64>,
    /// How many more than --quota may hope, as some will not complete: in percent of it, 0 to
    /// 1,000 (default 0).
    #[arg(long, value_name = "PERCENT", requires = "quota")]
    standby_percent: Option<u32>,
    /// Whether numbers and seats are given: `pre_open` and `paused` give numbers only, `draining`
    /// seats only, `closed` neither, and sends everybody away (default open).
    #[arg(long, value_parser = values::phase())]
    phase: Option<Phase>,
    /// Positions past it are not shown exactly, 1 to 10,000,000 (default: all are).
    #[arg(long, value_name = "N")]
    position_cap: Option<u32>,
    /// Whether a claim also completes, and gives the seat on at once (default false).
    #[arg(long, value_name = "BOOL")]
    release_on_claim: Option<bool>,
    /// Whether to publish an event per token, not only boards (default true).
    #[arg(long, value_name = "BOOL")]
    token_events: Option<bool>,
    /// A free word by which lines are listed, name and value of up to 64 bytes each; can be given up
    /// to 16 times, and replaces all that were set.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

/// A setting that can be put back to its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Setting {
    WaitingIdleTimeout,
    ClaimTimeout,
    CheckoutTimeout,
    CheckoutMax,
    AdmissionRate,
    Lanes,
    DefaultLane,
    CallAhead,
    Quota,
    Phase,
    PositionCap,
    ReleaseOnClaim,
    TokenEvents,
    Labels,
}

impl SettingsFlags {
    /// The patch that the flags ask for, with `unset` put back to their defaults.
    ///
    /// # Errors
    /// A setting is both set and unset.
    pub fn patch(self, unset: &[Setting]) -> Result<SettingsPatch, WrongUsage> {
        let mut patch = SettingsPatch {
            seats: self.seats.map(Change::Set),
            queue_limit: self.queue_limit.map(Change::Set),
            waiting_idle_timeout_ms: self.waiting_idle_timeout_ms.map(Change::Set),
            claim_timeout_ms: self.claim_timeout_ms.map(Change::Set),
            checkout_timeout_ms: self.checkout_timeout_ms.map(Change::Set),
            checkout_max_ms: self.checkout_max_ms.map(Change::Set),
            admission_rate: self.admission_rate.map(Change::Set),
            lanes: (!self.lanes.is_empty()).then_some(Change::Set(self.lanes)),
            default_lane: self.default_lane.map(Change::Set),
            call_ahead: self.call_ahead.map(Change::Set),
            quota: self.quota.map(|total| {
                Change::Set(Quota {
                    total,
                    standby_percent: self.standby_percent.unwrap_or(0),
                })
            }),
            phase: self.phase.map(Change::Set),
            position_cap: self.position_cap.map(Change::Set),
            release_on_claim: self.release_on_claim.map(Change::Set),
            token_events: self.token_events.map(Change::Set),
            labels: (!self.labels.is_empty())
                .then(|| Change::Set(self.labels.into_iter().collect::<BTreeMap<_, _>>())),
        };
        for &setting in unset {
            match setting {
                Setting::WaitingIdleTimeout => {
                    put_back(&mut patch.waiting_idle_timeout_ms, setting)?;
                }
                Setting::ClaimTimeout => put_back(&mut patch.claim_timeout_ms, setting)?,
                Setting::CheckoutTimeout => put_back(&mut patch.checkout_timeout_ms, setting)?,
                Setting::CheckoutMax => put_back(&mut patch.checkout_max_ms, setting)?,
                Setting::AdmissionRate => put_back(&mut patch.admission_rate, setting)?,
                Setting::Lanes => put_back(&mut patch.lanes, setting)?,
                Setting::DefaultLane => put_back(&mut patch.default_lane, setting)?,
                Setting::CallAhead => put_back(&mut patch.call_ahead, setting)?,
                Setting::Quota => put_back(&mut patch.quota, setting)?,
                Setting::Phase => put_back(&mut patch.phase, setting)?,
                Setting::PositionCap => put_back(&mut patch.position_cap, setting)?,
                Setting::ReleaseOnClaim => put_back(&mut patch.release_on_claim, setting)?,
                Setting::TokenEvents => put_back(&mut patch.token_events, setting)?,
                Setting::Labels => put_back(&mut patch.labels, setting)?,
            }
        }
        Ok(patch)
    }
}

fn put_back<T>(change: &mut Option<Change<T>>, setting: Setting) -> Result<(), WrongUsage> {
    if matches!(change, Some(Change::Set(_))) {
        let name = setting.to_possible_value();
        let name = name.as_ref().map_or("it", |value| value.get_name());
        return Err(WrongUsage(format!(
            "--unset {name}: it is set by another flag"
        )));
    }
    *change = Some(Change::Unset);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        flags: SettingsFlags,
        #[arg(long, value_delimiter = ',')]
        unset: Vec<Setting>,
    }

    fn patch(words: &str) -> Result<SettingsPatch, WrongUsage> {
        let words = words.split_whitespace();
        let probe = Probe::try_parse_from(std::iter::once("probe").chain(words)).unwrap();
        probe.flags.patch(&probe.unset)
    }

    #[test]
    fn nothing_given_changes_nothing() {
        assert_eq!(patch("").unwrap(), SettingsPatch::default());
    }

    #[test]
    fn every_setting_has_its_flag() {
        let all = "--seats 7 --queue-limit 15 --waiting-idle-timeout 1s --claim-timeout 2s \
            --checkout-timeout 3s --checkout-max 4s --token-events false \
            --admission-rate 0.5/3 --lane normal --lane vip:boost=10m:limit=9 --default-lane vip --call-ahead 5 \
            --quota 100 --standby-percent 20 --phase paused --position-cap 1000 \
            --release-on-claim true --label city=Oslo --label note=a=b";
        let patch = patch(&all.replace('\\', " ")).unwrap();
        let set = nowserving_client::Settings::create(&patch).unwrap();
        assert_eq!((set.seats, set.queue_limit), (7, 15));
        assert_eq!(
            (set.waiting_idle_timeout_ms, set.claim_timeout_ms),
            (1000, 2000)
        );
        assert_eq!((set.checkout_timeout_ms, set.checkout_max_ms), (3000, 4000));
        assert!(!set.token_events && set.release_on_claim);
        let rate = set.admission_rate.unwrap();
        assert_eq!((rate.per_second_micro, rate.burst), (500_000, 3));
        assert_eq!(set.lanes.len(), 2);
        assert_eq!(set.default_lane, Some(set.lanes[1].name.clone()));
        assert_eq!(set.lanes[1].boost_ms, 600_000);
        assert_eq!((set.call_ahead, set.position_cap), (5, Some(1000)));
        let quota = set.quota.unwrap();
        assert_eq!((quota.total, quota.standby_percent), (100, 20));
        assert_eq!(set.phase, Phase::Paused);
        assert_eq!(set.labels["note"], "a=b");
        assert_eq!(set.labels.len(), 2);
    }

    #[test]
    fn unset_puts_back_all_but_the_required_two() {
        let all = "--unset waiting_idle_timeout,claim_timeout,checkout_timeout \
            --unset checkout_max --unset token_events --unset labels \
            --unset admission_rate,lanes,default_lane,call_ahead,quota,phase,position_cap,release_on_claim";
        let patch = patch(&all.replace('\\', " ")).unwrap();
        assert_eq!(patch.seats, None);
        assert_eq!(patch.checkout_max_ms, Some(Change::Unset));
        assert_eq!(patch.labels, Some(Change::Unset));
        assert_eq!(patch.admission_rate, Some(Change::Unset));
        assert_eq!(patch.lanes, Some(Change::Unset));
        assert_eq!(patch.default_lane, Some(Change::Unset));
        let default = nowserving_client::Settings::new(1, 0);
        assert_eq!(default.with(&patch), Ok(default));
    }

    #[test]
    fn set_and_unset_together_is_wrong_usage() {
        let error = patch("--claim-timeout 500ms --unset claim_timeout").unwrap_err();
        assert!(error.to_string().contains("claim_timeout"), "{error}");
    }

    #[test]
    fn a_standby_share_is_one_of_a_quota() {
        let words = ["probe", "--standby-percent", "20"];
        assert!(Probe::try_parse_from(words).is_err());
    }
}
