//! A line's settings as options of the command line, made from `nowserving_line::SETTINGS`: a
//! setting of a kind that is here already needs no change in this crate.

mod values;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::LazyLock;

use clap::builder::{BoolValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use nowserving_client::{Change, LaneSettings, Quota, SettingsPatch};
use nowserving_line::{
    LABEL_BYTES_MAX, LABELS_MAX, LANES_MAX, PER_VISIT_MAX, POSITION_EVENT_MAX, POSITION_EVENTS_MAX,
    QUEUE_LIMIT_MAX, QUOTA_TOTAL_MAX, RATE_BURST_MAX, Renew, SCHEDULE_MAX, SETTINGS,
    STANDBY_PERCENT_MAX, ScheduledChange, Setting, SettingDefault, SettingKind, SettingValue,
};
use nowserving_rehearse::count;

pub use self::values::{label, labels, wall_clock};

use crate::help::usage_text;
use nowserving_terminal::output::WrongUsage;
use nowserving_terminal::{duration, number};

/// The names of options, by those of their settings: clap wants names that live as long as the
/// program.
static OPTION_NAMES: LazyLock<BTreeMap<&str, String>> = LazyLock::new(|| {
    let names = SETTINGS.iter();
    names
        .map(|setting| (setting.name, name(setting).replace('_', "-")))
        .collect()
});
/// The second option of a quota.
const STANDBY_PERCENT: &str = "standby_percent";
/// The third one.
const QUOTA_RENEW: &str = "quota_renew";
const QUOTA_PER_VISIT: &str = "quota_per_visit";
/// Puts settings back to their defaults.
const UNSET: &str = "unset";

/// Every setting of a line that was given. What is not given keeps its value (at creation: the
/// default).
#[derive(Debug, Default)]
pub struct SettingsFlags(Vec<(&'static Setting, SettingValue)>);

impl SettingsFlags {
    /// Those that were given.
    fn given(
        settings: impl Iterator<Item = &'static Setting>,
        matches: &ArgMatches,
    ) -> Result<Self, String> {
        let given = |setting| {
            let value = given(setting, matches).transpose()?;
            Some(value.map(|value| (setting, value)))
        };
        Ok(SettingsFlags(
            settings.filter_map(given).collect::<Result<_, _>>()?,
        ))
    }

    /// The patch that the flags ask for, with `unset` put back to their defaults.
    ///
    /// # Errors
    /// A setting is both set and unset.
    pub fn patch(self, unset: &[&Setting]) -> Result<SettingsPatch, WrongUsage> {
        let mut patch = SettingsPatch::default();
        for (setting, value) in self.0 {
            change(setting, &mut patch, Change::Set(value))?;
        }
        for setting in unset {
            if matches!(setting.change(&patch), Some(Change::Set(_))) {
                let name = name(setting);
                return Err(WrongUsage(format!(
                    "--unset {name}: it is set by another flag"
                )));
            }
            change(setting, &mut patch, Change::Unset)?;
        }
        Ok(patch)
    }
}

fn change(
    setting: &Setting,
    patch: &mut SettingsPatch,
    change: Change<SettingValue>,
) -> Result<(), WrongUsage> {
    let set = setting.set_change(patch, change);
    set.map_err(|wrong| WrongUsage(wrong.to_string()))
}

impl Args for SettingsFlags {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().flat_map(options))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingsFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = SettingsFlags::given(SETTINGS.iter(), matches);
        given.map_err(|wrong| clap::Error::raw(ErrorKind::ArgumentConflict, format!("{wrong}\n")))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A value parser for the names of settings that can be put back to their defaults.
pub fn unset() -> impl TypedValueParser<Value = &'static Setting> {
    let is_required = |setting: &Setting| setting.default == SettingDefault::Required;
    let words = SETTINGS.iter();
    let words =
        words.map(move |setting| PossibleValue::new(name(setting)).hide(is_required(setting)));
    PossibleValuesParser::new(words).try_map(move |word| {
        let setting = SETTINGS.iter().find(|setting| name(setting) == word);
        let setting = setting.ok_or("no setting")?;
        match is_required(setting) {
            false => Ok(setting),
            true => Err(format!(
                "it has no default: set it, by --{}",
                OPTION_NAMES[setting.name]
            )),
        }
    })
}

/// The name of a setting on the command line, where times have units of their own.
fn name(setting: &Setting) -> &'static str {
    nowserving_insight::settings::shown_name(setting.name)
}

/// The options by which a setting is set. A number or a time out of its range is wrong usage.
fn options(setting: &'static Setting) -> Vec<Arg> {
    let option = Arg::new(setting.name)
        .long(OPTION_NAMES[setting.name].as_str())
        .help(help(setting));
    let option = match setting.kind {
        // The one number whose refusal has advice.
        SettingKind::Number { .. } if setting.name == "seats" => {
            let seats = |text: &str| values::seats(text).map(SettingValue::Number);
            option.value_name("N").value_parser(seats)
        }
        SettingKind::Number { least, most } => {
            let number = number::between(least..=most);
            let number = move |text: &str| number(text).map(SettingValue::Number);
            option.value_name("N").value_parser(number)
        }
        SettingKind::TimeMs { least, most } => {
            let time = duration::between(least..=most);
            let time = move |text: &str| time(text).map(SettingValue::Number);
            option.value_name("TIME").value_parser(time)
        }
        SettingKind::Flag => {
            let flag = BoolValueParser::new().map(SettingValue::Flag);
            option.value_name("BOOL").value_parser(flag)
        }
        SettingKind::Phase => {
            let phase = values::phase().map(SettingValue::Phase);
            option.value_name("PHASE").value_parser(phase)
        }
        SettingKind::Admission => {
            let admission = values::admission().map(SettingValue::Admission);
            option.value_name("HOW").value_parser(admission)
        }
        SettingKind::Gate => {
            let gate = values::gate().map(SettingValue::Gate);
            option.value_name("GATE").value_parser(gate)
        }
        SettingKind::Opening => {
            let opening = values::opening().map(SettingValue::Opening);
            option.value_name("HOW").value_parser(opening)
        }
        SettingKind::Text { .. } => {
            let text = |text: &str| Ok::<_, Infallible>(SettingValue::Text(text.to_owned()));
            option.value_name("TEXT").value_parser(text)
        }
        SettingKind::LaneName => {
            let lane = |text: &str| text.parse().map(SettingValue::LaneName);
            option.value_name("LANE").value_parser(lane)
        }
        SettingKind::AdmissionRate => {
            let rate = |text: &str| values::rate(text).map(SettingValue::AdmissionRate);
            option.value_name("PER_SECOND/BURST").value_parser(rate)
        }
        SettingKind::Quota => {
            let total = number::between::<u64>(1..=QUOTA_TOTAL_MAX);
            option.value_name("N").value_parser(total)
        }
        SettingKind::Lanes => {
            let lane = option.long("lane").value_name("NAME[:OPTION]...");
            lane.value_parser(values::lane).action(ArgAction::Append)
        }
        SettingKind::Positions => {
            let positions = |text: &str| values::positions(text).map(SettingValue::Positions);
            option.value_name("N,...").value_parser(positions)
        }
        SettingKind::Schedule => {
            let change = option.value_name("TIME OPTIONS");
            change.value_parser(scheduled).action(ArgAction::Append)
        }
        SettingKind::Labels => {
            let label = option.long("label").value_name("NAME=VALUE");
            label.value_parser(values::label).action(ArgAction::Append)
        }
    };
    let standby = || {
        Arg::new(STANDBY_PERCENT)
            .long("standby-percent")
            .value_name("PERCENT")
            .value_parser(number::between::<u32>(0..=STANDBY_PERCENT_MAX.into()))
            .requires(setting.name)
            .help(format!(
                "How many more than --quota may enter, as some will not complete: in percent of \
                 it, 0 to {} (default 0)",
                count(STANDBY_PERCENT_MAX.into())
            ))
    };
    let renew = || {
        Arg::new(QUOTA_RENEW)
            .long("quota-renew")
            .value_name("WHEN")
            .value_parser(values::renew)
            .requires(setting.name)
            .help(
                "When what counts against --quota starts at 0 again: a time of day with its time zone, \
                 as in '06:00 Asia/Taipei', or how often, 1s to 31d (default: never)",
            )
    };
    let per_visit = || {
        Arg::new(QUOTA_PER_VISIT)
            .long("quota-per-visit")
            .value_name("UNITS")
            .value_parser(number::between::<u32>(1..=PER_VISIT_MAX.into()))
            .requires(setting.name)
            .help(format!(
                "How many units of --quota a seat reserves, and so the most that `complete --units` can say, 1 to {} \
                 (default 1)",
                count(PER_VISIT_MAX.into())
            ))
    };
    let more = (setting.kind == SettingKind::Quota).then(|| [standby(), renew(), per_visit()]);
    std::iter::once(option)
        .chain(more.into_iter().flatten())
        .collect()
}

/// A time, and the options by which settings are changed at that time.
fn scheduled(text: &str) -> Result<ScheduledChange, String> {
    let (at, words) = text.split_once(' ').unwrap_or((text, ""));
    let at_ms = wall_clock(at)?;
    let settings = SETTINGS.iter();
    let settings = settings.filter(|setting| setting.kind != SettingKind::Schedule);
    let command = Command::new("change")
        .no_binary_name(true)
        .disable_help_flag(true)
        .args(settings.clone().flat_map(options))
        .arg(
            Arg::new(UNSET)
                .long(UNSET)
                .value_delimiter(',')
                .value_parser(unset()),
        );
    let words = shlex::split(words).ok_or("a quote that is not closed")?;
    if words.is_empty() {
        let example = "'2026-11-22T12:00:00+08:00 --seats 40'";
        return Err(format!(
            "no settings: quote the time together with its settings, as {example}"
        ));
    }
    let matches = number::accept_negative(command).try_get_matches_from(words);
    let matches = matches.map_err(|wrong| usage_text(&wrong.to_string()))?;
    let given = SettingsFlags::given(settings, &matches)?;
    let unset: Vec<&Setting> = matches
        .get_many::<&'static Setting>(UNSET)
        .map_or(Vec::new(), |unset| unset.copied().collect());
    let set = given.patch(&unset);
    let set = set.map_err(|wrong| wrong.to_string())?;
    Ok(ScheduledChange { at_ms, set })
}

/// The value that was given for a setting.
fn given(setting: &Setting, matches: &ArgMatches) -> Result<Option<SettingValue>, String> {
    if setting.kind != SettingKind::Labels {
        return Ok(given_otherwise(setting, matches));
    }
    let labels = matches.get_many::<(String, String)>(setting.name);
    let labels = labels.map(|labels| values::labels(labels.cloned()));
    Ok(labels.transpose()?.map(SettingValue::Labels))
}

/// The same, of a setting that cannot be given wrongly as a whole.
fn given_otherwise(setting: &Setting, matches: &ArgMatches) -> Option<SettingValue> {
    let name = setting.name;
    Some(match setting.kind {
        SettingKind::Quota => {
            let standby_percent = matches.get_one::<u32>(STANDBY_PERCENT);
            SettingValue::Quota(Quota {
                total: *matches.get_one::<u64>(name)?,
                standby_percent: standby_percent.copied().unwrap_or(0),
                renew: matches.get_one::<Renew>(QUOTA_RENEW).copied(),
                per_visit: matches
                    .get_one::<u32>(QUOTA_PER_VISIT)
                    .copied()
                    .unwrap_or(1),
            })
        }
        SettingKind::Lanes => {
            let lanes = matches.get_many::<LaneSettings>(name)?;
            SettingValue::Lanes(lanes.cloned().collect())
        }
        SettingKind::Schedule => {
            let changes = matches.get_many::<ScheduledChange>(name)?;
            SettingValue::Schedule(changes.cloned().collect())
        }
        _ => matches.get_one::<SettingValue>(name)?.clone(),
    })
}

/// The setting's text, its range and its default.
fn help(setting: &Setting) -> String {
    let text = setting.text;
    let range = match setting.kind {
        SettingKind::Number { least, most } => format!(", {} to {}", count(least), count(most)),
        SettingKind::TimeMs { least, most } => {
            format!(", {} to {}", duration::typed(least), duration::typed(most))
        }
        SettingKind::Flag | SettingKind::LaneName => String::new(),
        SettingKind::Phase => {
            ": `pre_open` and `paused` issue numbers only, `draining` admits only, \
                               `closed` does neither and ends every live token"
                .to_owned()
        }
        SettingKind::Admission => {
            ": `auto` as soon as seats are free, `called` by `line call-next` and `line take` only"
                .to_owned()
        }
        SettingKind::Gate => {
            ": `on`; `shadow` admits everybody at once and counts whom it would have held back; `off` \
             only admits"
                .to_owned()
        }
        SettingKind::Opening => {
            ": `order` as they entered, `draw` by lot: those who entered in phase `pre_open` are numbered anew"
                .to_owned()
        }
        SettingKind::Text { most } => format!(": up to {most} visible ASCII characters"),
        SettingKind::AdmissionRate => format!(
            ": admissions a second, 0.001 to 1,000,000, and how many can be saved up, 1 to {}",
            count(RATE_BURST_MAX.into())
        ),
        SettingKind::Quota => format!(
            ", 1 to {}. Setting it puts --standby-percent, --quota-renew and --quota-per-visit back unless they \
             are given too",
            count(QUOTA_TOTAL_MAX)
        ),
        SettingKind::Lanes => format!(
            ". One lane each time, up to {LANES_MAX}; they replace all lanes of the line, so name \
             every one. Options: `boost=10m` (its tokens count as having entered so much earlier, \
             up to 7d), `absolute` (it is served before those that are not), `limit=N` (at most so \
             many wait in it, 0 to {}), `jump` (waiting tokens may jump into it)",
            count(QUEUE_LIMIT_MAX.into())
        ),
        SettingKind::Positions => format!(
            ": up to {POSITION_EVENTS_MAX}, each 1 to {}, as in 100,10,3,1",
            count(POSITION_EVENT_MAX.into())
        ),
        SettingKind::Schedule => format!(
            ". One change each time, up to {SCHEDULE_MAX}: a time with its offset from UTC and then the \
             options of the change, as in '2026-11-22T12:00:00+08:00 --phase open --seats 40'. They \
             replace all changes that are still to come"
        ),
        SettingKind::Labels => format!(
            ". One each time, up to {LABELS_MAX}, name and value of up to {LABEL_BYTES_MAX} bytes; \
             they replace all labels of the line"
        ),
    };
    let default = match (setting.default, setting.default_value()) {
        (SettingDefault::Unset(meaning), _) => format!(" (default: {meaning})"),
        (_, Some(SettingValue::Number(ms))) if setting.name.ends_with("_ms") => {
            format!(" (default {})", duration::typed(ms))
        }
        (_, Some(SettingValue::Number(number))) => format!(" (default {number})"),
        (_, Some(SettingValue::Flag(flag))) => format!(" (default {flag})"),
        (_, Some(SettingValue::Admission(it))) => format!(" (default {})", it.as_str()),
        (_, Some(SettingValue::Opening(it))) => format!(" (default {})", it.as_str()),
        (_, Some(SettingValue::Gate(it))) => format!(" (default {})", it.as_str()),
        (_, Some(SettingValue::Phase(phase))) => format!(" (default {})", phase.as_str()),
        _ => String::new(),
    };
    format!("{text}{range}{default}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory, Parser};
    use nowserving_client::{Admission, AdmissionRate, Configure, Gate, Opening, Phase, Settings};
    use nowserving_protocol::codec::{Format, decode, encode};

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        flags: SettingsFlags,
        #[arg(long, value_delimiter = ',', value_parser = unset())]
        unset: Vec<&'static Setting>,
    }

    fn patch(words: &str) -> Result<SettingsPatch, WrongUsage> {
        patch_of(words.split_whitespace())
    }

    fn patch_of<'a>(words: impl Iterator<Item = &'a str>) -> Result<SettingsPatch, WrongUsage> {
        let probe = Probe::try_parse_from(std::iter::once("probe").chain(words)).unwrap();
        probe.flags.patch(&probe.unset)
    }

    #[test]
    fn scheduled_changes_take_words_in_quotes_and_say_what_is_wrong() {
        let noon = "2026-11-22T12:00:00Z";
        let change = format!("{noon} --quota 5 --quota-renew '06:00 Asia/Taipei'");
        let set = scheduled(&change).unwrap().set;
        let Some(Change::Set(quota)) = set.quota else {
            panic!("{:?}", set.quota);
        };
        assert!(quota.renew.is_some());
        for (words, wrong) in [
            ("--seats many", "--seats"),
            ("--seats -1", "--seats <N>': must be 1 to"),
            ("--quota 0", "--quota <N>': must be 1 to"),
            ("--seats 'many", "a quote that is not closed"),
            ("", "quote the time together with its settings"),
            ("--chairs 3", "--chairs"),
            ("--phase opened", "[possible values: pre_open, open,"),
            (
                "--quota 5 --quota-renew daily",
                "how often, as 24h (1s to 31d), or a time of day",
            ),
            ("--quota-per-visit 2", "not provided: --quota <N>"),
            ("--unset seats", "it has no default: set it, by --seats"),
            ("--label a=1 --label a=2", "\"a\" is given twice"),
        ] {
            let error = scheduled(&format!("{noon} {words}")).unwrap_err();
            assert!(error.contains(wrong) && !error.contains('\n'), "{error}");
        }
        let error = scheduled("2026-11-22T12:00:00 --seats 1").unwrap_err();
        assert!(
            error.contains("is not a time from 1970 to 9999 with an offset"),
            "{error}"
        );
    }

    #[test]
    fn a_label_that_is_given_twice_is_refused() {
        let probe = |words: &str| Probe::try_parse_from(words.split(' ')).map(|_| ());
        assert!(probe("probe --label a=1 --label b=1").is_ok());
        let wrong = probe("probe --label a=1 --label b=1 --label a=2").unwrap_err();
        assert!(
            wrong.to_string().contains("--label: \"a\" is given twice"),
            "{wrong}"
        );
    }

    #[test]
    fn a_number_out_of_its_range_is_refused_with_the_option_and_the_range() {
        for setting in SETTINGS {
            let SettingKind::Number { least, most } = setting.kind else {
                continue;
            };
            let option = format!("--{}", OPTION_NAMES[setting.name]);
            let (above, below) = ((most + 1).to_string(), i128::from(least) - 1);
            for value in [above, below.to_string(), "-1".to_owned()] {
                let command = number::accept_negative(Probe::command());
                let wrong = command.try_get_matches_from(["probe", &option, &value]);
                let wrong = wrong.unwrap_err().to_string();
                let says = format!("'{option} <N>': must be {least} to {most}");
                assert!(wrong.contains(&says), "{wrong}");
            }
        }
    }

    #[test]
    fn nothing_given_changes_nothing() {
        assert_eq!(patch("").unwrap(), SettingsPatch::default());
    }

    /// A value of each kind as it is typed, other than every default.
    fn typed(kind: SettingKind) -> (&'static str, SettingValue) {
        match kind {
            SettingKind::Number { .. } => ("7", SettingValue::Number(7)),
            SettingKind::TimeMs { .. } => ("20s", SettingValue::Number(20_000)),
            SettingKind::Flag => ("true", SettingValue::Flag(true)),
            SettingKind::Admission => ("called", SettingValue::Admission(Admission::Called)),
            SettingKind::Gate => ("off", SettingValue::Gate(Gate::Off)),
            SettingKind::Opening => ("draw", SettingValue::Opening(Opening::Draw)),
            SettingKind::Text { .. } => ("7 12", SettingValue::Text("7 12".to_owned())),
            SettingKind::Phase => ("paused", SettingValue::Phase(Phase::Paused)),
            SettingKind::LaneName => ("vip", SettingValue::LaneName("vip".parse().unwrap())),
            SettingKind::AdmissionRate => (
                "0.5/3",
                SettingValue::AdmissionRate(AdmissionRate {
                    per_second_micro: 500_000,
                    burst: 3,
                }),
            ),
            SettingKind::Quota => (
                "100",
                SettingValue::Quota(Quota {
                    total: 100,
                    standby_percent: 0,
                    renew: None,
                    per_visit: 1,
                }),
            ),
            SettingKind::Lanes => (
                "vip:boost=10m:limit=9",
                SettingValue::Lanes(vec![LaneSettings {
                    boost_ms: 600_000,
                    queue_limit: Some(9),
                    ..LaneSettings::new("vip".parse().unwrap())
                }]),
            ),
            SettingKind::Positions => ("1,50,7", SettingValue::Positions(vec![50, 7, 1])),
            SettingKind::Schedule => (
                "2026-11-22T12:00:00+08:00 --seats 7 --unset quota",
                SettingValue::Schedule(vec![ScheduledChange {
                    at_ms: 1_795_320_000_000,
                    set: SettingsPatch {
                        seats: Some(Change::Set(7)),
                        quota: Some(Change::Unset),
                        ..SettingsPatch::default()
                    },
                }]),
            ),
            SettingKind::Labels => (
                "note=a=b",
                SettingValue::Labels([("note".to_owned(), "a=b".to_owned())].into()),
            ),
        }
    }

    /// For every entry of the table, and so for the next one: it has an option with help, is sent
    /// and read in both formats, changes that setting and no other, and can be unset.
    #[test]
    fn the_table_is_all_that_is_needed() {
        let command = Probe::command();
        for setting in SETTINGS {
            let option = options(setting).remove(0);
            let long = option.get_long().unwrap().to_owned();
            let help = command.get_arguments().find(|arg| *arg == &option).unwrap();
            let help = help.get_help().unwrap().to_string();
            assert!(help.starts_with(setting.text), "{help}");

            let (word, value) = typed(setting.kind);
            let patch_of_one = patch_of([&*format!("--{long}"), word].into_iter()).unwrap();
            for other in SETTINGS {
                let expected = (other.name == setting.name).then(|| Change::Set(value.clone()));
                assert_eq!(other.change(&patch_of_one), expected, "{long}");
            }
            for format in [Format::Json, Format::MsgPack] {
                let sent = Configure {
                    settings: patch_of_one.clone(),
                    ..Configure::default()
                };
                let read: Configure = decode(&encode(&sent, format)).unwrap();
                assert_eq!(read, sent, "{long}");
            }
            let mut base = Settings::new(1, 0);
            base.lanes.push(LaneSettings::new("vip".parse().unwrap()));
            let set = base.with(&patch_of_one).unwrap();
            assert_eq!(setting.value(&set), Some(value), "{long}");

            let words = format!("probe --unset {}", name(setting));
            let unset = Probe::try_parse_from(words.split(' '));
            if setting.default == SettingDefault::Required {
                assert!(unset.is_err(), "{long}");
            } else {
                let patch = unset.map(|probe| probe.flags.patch(&probe.unset)).unwrap();
                let back = set.with(&patch.unwrap()).unwrap();
                assert_eq!(setting.value(&back), setting.default_value(), "{long}");
            }
        }
    }

    #[test]
    fn options_that_repeat_or_belong_together_are_one_setting() {
        let words = "--lane normal --lane vip --label city=Oslo --label note=x \
                     --quota 100 --standby-percent 20 --quota-per-visit 4";
        let patch = patch(words).unwrap();
        let set = Settings::new(1, 0).with(&patch).unwrap();
        assert_eq!((set.lanes.len(), set.labels.len()), (2, 2));
        let quota = set.quota.unwrap();
        assert_eq!((quota.total, quota.standby_percent), (100, 20));
        assert_eq!(quota.per_visit, 4);
        let words = ["probe", "--standby-percent", "20"];
        assert!(Probe::try_parse_from(words).is_err());
    }

    #[test]
    fn help_names_range_and_default() {
        let help = |name| help(Setting::named(name).unwrap());
        assert_eq!(
            help("seats"),
            "How many tokens may be in checkout at once, 1 to 1,000,000"
        );
        assert_eq!(
            help("claim_timeout_ms"),
            "How long an admitted token has to claim its seat, 100ms to 7d (default 2m)"
        );
        assert!(help("token_events").ends_with("(default true)"));
        assert!(help("phase").ends_with("(default open)"));
        assert!(help("position_cap").ends_with("1 to 10,000,000 (default: all are)"));
    }

    #[test]
    fn set_and_unset_together_is_wrong_usage() {
        let error = patch("--claim-timeout 500ms --unset claim_timeout").unwrap_err();
        assert!(error.to_string().contains("claim_timeout"), "{error}");
    }
}
