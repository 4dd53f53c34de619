//! The settings of a line, each defined once.
//!
//! To add a plain setting (a number, a time, a flag), add its entry to [`for_each_setting!`] and
//! write the rule that uses it. All else comes from the entry: the field of [`Settings`],
//! [`SettingsPatch`] and of the reply to `show`, its default, the check of its range, its reader
//! and writer in requests, its place in the journal and in stored bytes, and its option on the
//! command line with help. (`the_table_is_all_that_is_needed` in crates/cli shows that for every
//! entry; docs/protocol/settings.md has a row for each, which a test in crates/protocol compares.)
//!
//! A setting of a new type also needs a [`SettingKind`], and what each crate does with it: the
//! compiler then names every place.

use nowserving_codec::{Codec, Malformed, Reader, Writer};

use super::{
    Admission, BadField, Gate, LaneSettings, Opening, Phase, Positions, Quota, Schedule, lanes,
    positions, schedule,
};
use super::{CALL_AHEAD_MAX, POSITION_CAP_MAX, QUEUE_LIMIT_MAX, SEATS_MAX};
use super::{Change, LABEL_BYTES_MAX, LABELS_MAX, Labels, Lanes, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN};
use super::{JUMPS_MAX_MAX, MAX_WAIT_MS_MAX, MAX_WAIT_MS_MIN};
use crate::eta::{POLL_MS_MAX, POLL_MS_MIN};
use crate::{AdmissionRate, BEACON_BYTES_MAX, CALLBACK_LIMIT_MAX, LaneName};

/// Calls the macro `$then` with all settings, in the order in which they are shown.
///
/// An entry is: the text for people (more lines are for readers of the code), the number in stored
/// bytes (the next one after [`LAST_OF_FORMATS`]; never used twice, never changed), the name, the type, the default, and
/// the [`SettingKind`] with its range. The default is `required`, `value(…)`, or `unset("…")` for
/// a setting that may have no value, with a text that describes the effect.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_setting {
    ($then:ident) => {
        $then! {
            /// How many tokens may be in checkout at once
            1 seats: u32 = required, Number { least: 1, most: SEATS_MAX as u64 };

            /// The seats while a backend that told its capacity is silent for too long
            2 seats_when_silent: u32 = unset("as it told last"),
                Number { least: 0, most: SEATS_MAX as u64 };

            /// How many tokens more than `seats` may be in the line
            3 queue_limit: u32 = required, Number { least: 0, most: QUEUE_LIMIT_MAX as u64 };

            /// A waiting token that has not been seen for longer is recycled
            4 waiting_idle_timeout_ms: u64 = value(300_000),
                TimeMs { least: TIMEOUT_MS_MIN, most: TIMEOUT_MS_MAX };

            /// A token that has waited longer goes, whether its client is seen or not
            5 max_wait_ms: u64 = unset("no limit"),
                TimeMs { least: MAX_WAIT_MS_MIN, most: MAX_WAIT_MS_MAX };

            /// How long an admitted token has to claim its seat
            6 claim_timeout_ms: u64 = value(120_000),
                TimeMs { least: TIMEOUT_MS_MIN, most: TIMEOUT_MS_MAX };

            /// How long a claimed seat lasts without renewal
            7 checkout_timeout_ms: u64 = value(600_000),
                TimeMs { least: TIMEOUT_MS_MIN, most: TIMEOUT_MS_MAX };

            /// The longest checkout with renewals, counted from the claim
            8 checkout_max_ms: u64 = value(3_600_000),
                TimeMs { least: TIMEOUT_MS_MIN, most: TIMEOUT_MS_MAX };

            /// The operator's guess of how long a seat is held, for ETAs before that is measured
            28 checkout_expected_ms: u64 = unset("ETAs begin with measurements"),
                TimeMs { least: TIMEOUT_MS_MIN, most: TIMEOUT_MS_MAX };

            /// Whether the line holds people back, only counts whom it would, or neither
            9 gate: Gate = value(Gate::On), Gate;

            /// Whether the line admits tokens, or operators call them
            10 admission: Admission = value(Admission::Auto), Admission;

            /// How fast seats are given
            11 admission_rate: AdmissionRate = unset("as fast as seats become free"), AdmissionRate;

            /// The lanes; their order decides ties and is that of the board
            12 lanes: Lanes = value(vec![LaneSettings::default()]), Lanes;

            /// The lane of entrants that name none
            13 default_lane: LaneName = unset("the first of `lanes`"), LaneName;

            /// How often a token can jump into lanes that allow it
            14 jumps_max: u32 = value(1), Number { least: 0, most: JUMPS_MAX_MAX as u64 };

            /// How many of the first waiting positions of a lane are called to prepare
            15 call_ahead: u32 = value(0), Number { least: 0, most: CALL_AHEAD_MAX as u64 };

            /// Tokens that have so little time left to wait are called to prepare, too
            16 call_ahead_ms: u64 = value(0), TimeMs { least: 0, most: TIMEOUT_MS_MAX };

            /// How many keys that cannot enter wait to be told of room
            17 callback_limit: u32 = value(0), Number { least: 0, most: CALLBACK_LIMIT_MAX as u64 };

            /// At which positions a token event says how far a waiting token has come
            18 position_events: Positions = value(Positions::new()), Positions;

            /// How many can complete; then the line is sold out
            19 quota: Quota = unset("no end"), Quota;

            /// Whether numbers are issued and tokens admitted
            20 phase: Phase = value(Phase::Open), Phase;

            /// In which order those who waited for the opening are served
            29 opening: Opening = value(Opening::Order), Opening;

            /// What is mixed into the draw: a text that nobody knows until shortly before the opening
            30 draw_beacon: String = unset("the draw has none"), Text { most: BEACON_BYTES_MAX };

            /// Changes of settings, each at its time
            21 schedule: Schedule = value(Schedule::new()), Schedule;

            /// Larger positions are not shown exactly
            22 position_cap: u32 = unset("all are"),
                Number { least: 1, most: POSITION_CAP_MAX as u64 };

            /// Whether a claim also completes, so that its seat is free at once
            23 release_on_claim: bool = value(false), Flag;

            /// Whether to publish an event per token, not only boards
            24 token_events: bool = value(true), Flag;

            /// Whether token events carry the key
            25 event_key: bool = value(false), Flag;

            /// Free-form tags by which lines are listed
            26 labels: Labels = value(Labels::new()), Labels;

            /// The shortest pause between polls that clients are told
            27 poll_min_ms: u64 = value(POLL_MS_MIN),
                TimeMs { least: POLL_MS_MIN, most: POLL_MS_MAX };
        }
    };
}

/// The type of a setting, and its range if it is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    Number {
        least: u64,
        most: u64,
    },
    /// A time in milliseconds; its name ends with `_ms`.
    TimeMs {
        least: u64,
        most: u64,
    },
    Flag,
    Phase,
    Admission,
    Gate,
    Opening,
    /// Visible ASCII characters and spaces, at least one.
    Text {
        most: usize,
    },
    LaneName,
    AdmissionRate,
    Quota,
    Lanes,
    Positions,
    Schedule,
    Labels,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// A number, or a time in milliseconds.
    Number(u64),
    Flag(bool),
    Phase(Phase),
    Admission(Admission),
    Gate(Gate),
    Opening(Opening),
    Text(String),
    LaneName(LaneName),
    AdmissionRate(AdmissionRate),
    Quota(Quota),
    Lanes(Lanes),
    Positions(Positions),
    Schedule(Schedule),
    Labels(Labels),
}

/// The value of a setting that no operator has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingDefault {
    /// A new line must set it, and it cannot be unset.
    Required,
    /// No value; the text describes the effect.
    Unset(&'static str),
    /// See [`Setting::default_value`].
    Value,
}

/// The definition of a setting.
#[derive(Debug)]
pub struct Setting {
    pub name: &'static str,
    /// Help text: one line without a full stop.
    pub text: &'static str,
    pub kind: SettingKind,
    pub default: SettingDefault,
    value: fn(&Settings) -> Option<SettingValue>,
    change: fn(&SettingsPatch) -> Option<Change<SettingValue>>,
    set_change: fn(&mut SettingsPatch, Change<SettingValue>) -> Option<()>,
}

impl Setting {
    pub fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// `None` if it has no value.
    pub fn value(&self, settings: &Settings) -> Option<SettingValue> {
        (self.value)(settings)
    }

    /// `None` if it has no default or is required.
    pub fn default_value(&self) -> Option<SettingValue> {
        match self.default {
            SettingDefault::Value => self.value(&Settings::new(1, 0)),
            SettingDefault::Required | SettingDefault::Unset(_) => None,
        }
    }

    /// The change of it in a patch; `None` if the patch leaves it as it is.
    pub fn change(&self, patch: &SettingsPatch) -> Option<Change<SettingValue>> {
        (self.change)(patch)
    }

    /// Puts a change of it into a patch. The range is not checked: see [`SettingsPatch::validate`].
    ///
    /// # Errors
    /// The value is not one of its type.
    pub fn set_change(
        &self,
        patch: &mut SettingsPatch,
        change: Change<SettingValue>,
    ) -> Result<(), BadField> {
        let set = (self.set_change)(patch, change);
        set.ok_or_else(|| BadField::new(self.name, self.kind.limit()))
    }

    pub(super) fn validate(&self, value: &SettingValue) -> Result<(), BadField> {
        match (self.kind, value) {
            (
                SettingKind::Number { least, most } | SettingKind::TimeMs { least, most },
                SettingValue::Number(value),
            ) if !(least..=most).contains(value) => {
                Err(BadField::new(self.name, self.kind.limit()))
            }
            (SettingKind::Text { most }, SettingValue::Text(text)) if !is_text(text, most) => {
                Err(BadField::new(self.name, self.kind.limit()))
            }
            (_, SettingValue::AdmissionRate(rate)) => rate.validate(),
            (_, SettingValue::Quota(quota)) => quota.validate(),
            (_, SettingValue::Lanes(lanes)) => lanes::validate(lanes),
            (_, SettingValue::Positions(positions)) => positions::validate(positions),
            (_, SettingValue::Schedule(schedule)) => schedule::validate(schedule),
            (_, SettingValue::Labels(labels)) => validate_labels(labels),
            _ => Ok(()),
        }
    }
}

impl SettingKind {
    /// The allowed values, in words.
    fn limit(self) -> String {
        match self {
            SettingKind::Number { least, most } => format!("{least} to {most}"),
            SettingKind::TimeMs { least, most } => format!("{least} to {most} milliseconds"),
            SettingKind::Text { most } => {
                format!("1 to {most} visible ASCII characters; spaces only between them")
            }
            kind => format!("of type {kind:?}"),
        }
    }
}

/// So that it looks the same to everybody, and whoever checks a draw takes the same bytes.
pub(crate) fn is_text(text: &str, most: usize) -> bool {
    let fits = (1..=most).contains(&text.len()) && text.trim_ascii() == text;
    fits && text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

fn validate_labels(labels: &Labels) -> Result<(), BadField> {
    if labels.len() > LABELS_MAX {
        return Err(BadField::new("labels", format!("at most {LABELS_MAX}")));
    }
    for (name, value) in labels {
        if name.is_empty() || name.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            return Err(BadField::new(
                "labels",
                format!(
                    "names of 1 to {LABEL_BYTES_MAX} bytes, values of at most {LABEL_BYTES_MAX}"
                ),
            ));
        }
    }
    Ok(())
}

/// A type that a setting's value can have.
trait Plain: Clone {
    fn to_value(&self) -> SettingValue;
    fn from_value(value: SettingValue) -> Option<Self>;
}

/// A field of [`Settings`]: a plain type, or an option of one, whose `None` is "unset".
trait Field {
    type Set: Plain;
    fn set(value: Self::Set) -> Self;
    fn get(&self) -> Option<&Self::Set>;
}

impl<T: Plain> Field for T {
    type Set = T;

    fn set(value: T) -> T {
        value
    }

    fn get(&self) -> Option<&T> {
        Some(self)
    }
}

impl<T: Plain> Field for Option<T> {
    type Set = T;

    fn set(value: T) -> Option<T> {
        Some(value)
    }

    fn get(&self) -> Option<&T> {
        self.as_ref()
    }
}

impl<T> Change<T> {
    fn try_map<U>(self, map: impl FnOnce(T) -> Option<U>) -> Option<Change<U>> {
        Some(match self {
            Change::Set(value) => Change::Set(map(value)?),
            Change::Unset => Change::Unset,
        })
    }
}

macro_rules! plain {
    ($($type:ident $variant:ident)*) => {$(
        impl Plain for $type {
            fn to_value(&self) -> SettingValue {
                SettingValue::$variant(self.clone())
            }

            fn from_value(value: SettingValue) -> Option<Self> {
                match value {
                    SettingValue::$variant(value) => Some(value),
                    _ => None,
                }
            }
        }
    )*};
}

plain! {
    u64 Number
    bool Flag
    Phase Phase
    Admission Admission
    Gate Gate
    Opening Opening
    String Text
    LaneName LaneName
    AdmissionRate AdmissionRate
    Quota Quota
    Lanes Lanes
    Positions Positions
    Schedule Schedule
    Labels Labels
}

impl Plain for u32 {
    fn to_value(&self) -> SettingValue {
        SettingValue::Number((*self).into())
    }

    fn from_value(value: SettingValue) -> Option<u32> {
        u64::from_value(value)?.try_into().ok()
    }
}

/// The type of a setting's field, by how its default is given.
macro_rules! field_type {
    (unset $type:ident) => { Option<$type> };
    ($default:ident $type:ident) => { $type };
}

/// The initial value of a setting; `Settings::new` overwrites that of a required one.
macro_rules! initial {
    (required) => {
        0
    };
    (unset $text:expr) => {
        None
    };
    (value $value:expr) => {
        $value
    };
}

macro_rules! default_of {
    (required) => {
        SettingDefault::Required
    };
    (unset $text:expr) => {
        SettingDefault::Unset($text)
    };
    (value $value:expr) => {
        SettingDefault::Value
    };
}

/// The last number of a setting that format 1 has, format 2, and so on.
const LAST_OF_FORMATS: &[u8] = &[30];
/// Stands after the last setting of a patch.
const END: u8 = 0;
const UNKNOWN: Malformed = Malformed("a setting that this build does not know");

/// The first format that has this setting.
fn first_format(number: u8) -> u32 {
    let later = LAST_OF_FORMATS.iter().take_while(|last| number > **last);
    later.count() as u32 + 1
}

/// The numbers that settings of a format have, in ascending order, whatever the order of the table: builds whose tables
/// differ in that must write the same bytes.
fn numbers_of(format: u32) -> std::ops::RangeInclusive<u8> {
    let formats = LAST_OF_FORMATS.iter().take(format as usize);
    1..=formats.copied().next_back().unwrap_or_default()
}

/// The number of the next setting in a patch; `None` after the last one.
fn next_number(last: &mut u8, from: &mut Reader<'_>) -> Result<Option<u8>, Malformed> {
    let number = from.byte()?;
    if number == END {
        return Ok(None);
    }
    if number <= *last {
        return Err(Malformed("settings out of order, or one twice"));
    }
    if first_format(number) > from.format() {
        return Err(UNKNOWN);
    }
    *last = number;
    Ok(Some(number))
}

macro_rules! define {
    ($(
        #[doc = $text:literal] $(#[doc = $more:literal])*
        $number:literal $name:ident: $type:ident = $default:ident $(($argument:expr))?,
        $kind:ident $({ $($range:tt)* })?;
    )*) => {
        /// All settings of a line.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $text] $(#[doc = $more])* pub $name: field_type!($default $type),)*
        }

        /// Any subset of the settings; `None` leaves one as it is (at creation: at its default).
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct SettingsPatch {
            $(#[doc = $text] $(#[doc = $more])* pub $name: Option<Change<$type>>,)*
        }

        /// Every setting, in the order in which they are shown.
        pub static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            text: $text.trim_ascii(),
            kind: SettingKind::$kind $({ $($range)* })?,
            default: default_of!($default $($argument)?),
            value: |settings| Field::get(&settings.$name).map(Plain::to_value),
            change: |patch| {
                patch.$name.clone().and_then(|change| change.try_map(|value| Some(value.to_value())))
            },
            set_change: |patch, change| {
                patch.$name = Some(change.try_map(Plain::from_value)?);
                Some(())
            },
        },)*];

        /// The names of [`SETTINGS`], in their order.
        pub static SETTING_NAMES: &[&str] = &[$(stringify!($name),)*];

        impl Codec for Settings {
            fn encode(&self, to: &mut Writer) {
                for number in numbers_of(to.format()) {
                    match number {
                        $($number => self.$name.encode(to),)*
                        _ => {}
                    }
                }
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut read = Self::new(1, 0);
                for number in numbers_of(from.format()) {
                    match number {
                        $($number => read.$name = Codec::decode(from)?,)*
                        _ => {}
                    }
                }
                Ok(read)
            }

            fn first_format(&self) -> u32 {
                let default = Self::new(1, 0);
                let mut format = 1;
                $(if self.$name != default.$name {
                    format = format.max(first_format($number)).max(self.$name.first_format());
                })*
                format
            }
        }

        impl Codec for SettingsPatch {
            fn encode(&self, to: &mut Writer) {
                for number in numbers_of(to.format()) {
                    match number {
                        $($number => {
                            if let Some(change) = &self.$name {
                                to.byte(number);
                                change.encode(to);
                            }
                        })*
                        _ => {}
                    }
                }
                to.byte(END);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut read = Self::default();
                let mut last = END;
                while let Some(number) = next_number(&mut last, from)? {
                    match number {
                        $($number => read.$name = Some(Codec::decode(from)?),)*
                        _ => return Err(UNKNOWN),
                    }
                }
                Ok(read)
            }

            fn first_format(&self) -> u32 {
                let mut format = 1;
                $(if let Some(change) = &self.$name {
                    format = format.max(first_format($number)).max(change.first_format());
                })*
                format
            }
        }

        impl Settings {
            /// The defaults, with the two settings that have none.
            pub fn new(seats: u32, queue_limit: u32) -> Self {
                let defaults = Self { $($name: initial!($default $($argument)?),)* };
                Self { seats, queue_limit, ..defaults }
            }

            /// With `patch` on top, whatever values it has: for readers of stored bytes, which leave
            /// it to the state machine to validate them.
            ///
            /// # Errors
            /// It unsets a required setting.
            pub fn with_unchecked(&self, patch: &SettingsPatch) -> Result<Self, BadField> {
                for setting in SETTINGS {
                    let is_unset = || setting.change(patch) == Some(Change::Unset);
                    if setting.default == SettingDefault::Required && is_unset() {
                        return Err(BadField::new(setting.name, "required"));
                    }
                }
                let mut new = self.clone();
                let default = Self::new(1, 0);
                $(match &patch.$name {
                    None => {}
                    Some(Change::Set(value)) => new.$name = Field::set(value.clone()),
                    Some(Change::Unset) => new.$name = default.$name,
                })*
                Ok(new)
            }

            /// The patch that sets the settings in which `self` differs from `other` to what they
            /// are in `self`.
            pub fn difference(&self, other: &Self) -> SettingsPatch {
                SettingsPatch {
                    $($name: (self.$name != other.$name).then(|| {
                        Field::get(&self.$name).cloned().map_or(Change::Unset, Change::Set)
                    }),)*
                }
            }
        }
    };
}

for_each_setting!(define);
