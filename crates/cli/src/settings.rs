//! A line's settings as flags.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use nowserving_client::{Change, SettingsPatch};

use crate::output::WrongUsage;

/// Every setting of a line. What is not given keeps its value (at creation: the default).
#[derive(Debug, Default, Args)]
pub struct SettingsFlags {
    /// How many may be in checkout at once, 1 to 1,000,000.
    #[arg(long, value_name = "N")]
    seats: Option<u32>,
    /// How many more than --seats may be in the line, 0 to 10,000,000.
    #[arg(long, value_name = "N")]
    queue_limit: Option<u32>,
    /// A waiting token not heard from for longer is recycled (default 300000 = 5 min).
    #[arg(long, value_name = "MS")]
    waiting_idle_timeout_ms: Option<u64>,
    /// How long an admitted token has to claim its seat (default 120000 = 2 min).
    #[arg(long, value_name = "MS")]
    claim_timeout_ms: Option<u64>,
    /// How long a claimed seat lasts without renewal (default 600000 = 10 min).
    #[arg(long, value_name = "MS")]
    checkout_timeout_ms: Option<u64>,
    /// Where renewing ends, counted from the claim (default 3600000 = 1 h).
    #[arg(long, value_name = "MS")]
    checkout_max_ms: Option<u64>,
    /// Whether to publish an event per token, not only boards (default true).
    #[arg(long, value_name = "BOOL")]
    token_events: Option<bool>,
    /// A free word by which lines are listed; can be given up to 16 times, and replaces all that
    /// were set.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

/// A setting that can be put back to its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Setting {
    WaitingIdleTimeoutMs,
    ClaimTimeoutMs,
    CheckoutTimeoutMs,
    CheckoutMaxMs,
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
            token_events: self.token_events.map(Change::Set),
            labels: (!self.labels.is_empty())
                .then(|| Change::Set(self.labels.into_iter().collect::<BTreeMap<_, _>>())),
        };
        for &setting in unset {
            match setting {
                Setting::WaitingIdleTimeoutMs => {
                    put_back(&mut patch.waiting_idle_timeout_ms, setting)?;
                }
                Setting::ClaimTimeoutMs => put_back(&mut patch.claim_timeout_ms, setting)?,
                Setting::CheckoutTimeoutMs => put_back(&mut patch.checkout_timeout_ms, setting)?,
                Setting::CheckoutMaxMs => put_back(&mut patch.checkout_max_ms, setting)?,
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

/// `name=value`
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("not NAME=VALUE".to_owned()),
    }
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
        let all = "--seats 7 --queue-limit 15 --waiting-idle-timeout-ms 1000 --claim-timeout-ms 2000 \
            --checkout-timeout-ms 3000 --checkout-max-ms 4000 --token-events false \
            --label city=Oslo --label note=a=b";
        let patch = patch(&all.replace('\\', " ")).unwrap();
        let set = nowserving_client::Settings::create(&patch).unwrap();
        assert_eq!((set.seats, set.queue_limit), (7, 15));
        assert_eq!(
            (set.waiting_idle_timeout_ms, set.claim_timeout_ms),
            (1000, 2000)
        );
        assert_eq!((set.checkout_timeout_ms, set.checkout_max_ms), (3000, 4000));
        assert!(!set.token_events);
        assert_eq!(set.labels["note"], "a=b");
        assert_eq!(set.labels.len(), 2);
    }

    #[test]
    fn unset_puts_back_all_but_the_required_two() {
        let all = "--unset waiting_idle_timeout_ms,claim_timeout_ms,checkout_timeout_ms \
            --unset checkout_max_ms --unset token_events --unset labels";
        let patch = patch(&all.replace('\\', " ")).unwrap();
        assert_eq!(patch.seats, None);
        assert_eq!(patch.checkout_max_ms, Some(Change::Unset));
        assert_eq!(patch.labels, Some(Change::Unset));
    }

    #[test]
    fn set_and_unset_together_is_wrong_usage() {
        let error = patch("--claim-timeout-ms 500 --unset claim_timeout_ms").unwrap_err();
        assert!(error.to_string().contains("claim_timeout_ms"), "{error}");
    }

    #[test]
    fn labels_need_a_name() {
        assert!(label("=x").is_err());
        assert!(label("x").is_err());
        assert_eq!(label("x="), Ok(("x".to_owned(), String::new())));
    }
}
