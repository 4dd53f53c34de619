//! Requests and replies of operators: docs/protocol/operators.md.
//!
//! Requests with unknown fields are refused by `codec::decode`. Readers of replies ignore unknown fields.

use std::collections::BTreeMap;

use nowserving_line::{
    self as line, Change, GoneFrom, LaneName, LineName, Reason, RefusedCode, RefusedCounts,
    SEATS_MAX, Settings, SettingsPatch, State, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN, Timestamp,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::calls::{CALL_NEXT_MAX, CallNext, CalledReply, CalledTokenReply, Take};
pub use crate::configure_lines::{
    ConfigureLines, ConfigureLinesReply, ConfiguredLine, SettingsChanges,
};
use crate::error::ApiError;
pub use crate::import::{IMPORT_ROWS_MAX, Import, ImportRow, ImportedReply, ShadowReply};
pub use crate::journal::{
    Explained, JOURNAL_LIMIT_DEFAULT, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, JournalReply,
    KickSelectorReply, OvertakerReply, SettingChangeReply,
};
pub use crate::kick::{Kick, KickReply, KickedToken, LiveState, TokenName};
pub use crate::members::{
    CandidateStatus, ChangeMembers, DiskId, KeyReply, KeyStatus, MembersChangeReply,
    MembersChangesReply, MembersReply, MembersStatus, SnapshotsSent,
};
use crate::settings::{self, Beside, BodyVisitor};
pub use crate::settings::{
    AdmissionRateReply, LaneSettingsReply, PerSecond, QuotaReply, RenewReply, ScheduledChangeReply,
    SettingsReply,
};
pub use crate::tokens::{
    LIST_TOKENS_DEFAULT, LIST_TOKENS_MAX, ListTokens, ListedToken, TokenOrder, TokensReply,
};
use crate::user::{BoardReply, DrawReply, HeldBackReply, Home};
use crate::wire;

/// The most lines on one page of `list_lines`: so many fit a NATS message of 1 MiB
/// whatever their labels, in JSON with every byte of them escaped.
pub const LIST_LINES_MAX: u64 = 80;

/// The lines on a page of `list_lines` if the request has no limit.
pub const LIST_LINES_DEFAULT: u64 = 80;

/// `create`: makes a line. `seats` and `queue_limit` are required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "settings::described::CreateBody")
)]
pub struct Create {
    /// The settings other than defaults. Their ranges are checked if it was decoded.
    pub settings: SettingsPatch,
}

impl Create {
    /// The settings of the new line; `bad_request` if a required one is missing.
    pub fn into_settings(self) -> Result<Settings, ApiError> {
        Ok(Settings::create(&self.settings)?)
    }
}

impl Serialize for Create {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        settings::serialize(&self.settings, &Beside::default(), serializer)
    }
}

impl<'de> Deserialize<'de> for Create {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Create, D::Error> {
        let body = BodyVisitor { conditional: false }.read(deserializer)?;
        Ok(Create {
            settings: body.patch,
        })
    }
}

/// `configure`: changes any subset of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "settings::described::ConfigureBody")
)]
pub struct Configure {
    /// Only if the settings have not changed since the line had this version.
    pub if_version: Option<u64>,
    /// Only if the line has this incarnation.
    pub incarnation: Option<u64>,
    /// Changes nothing: the answer has the settings as they would be.
    pub dry_run: bool,
    /// The changes. Their ranges are checked if it was decoded.
    pub settings: SettingsPatch,
}

impl Serialize for Configure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let conditions = [
            ("if_version", self.if_version),
            ("incarnation", self.incarnation),
        ];
        let beside = Beside {
            dry_run: self.dry_run,
            conditions: &conditions,
        };
        settings::serialize(&self.settings, &beside, serializer)
    }
}

impl<'de> Deserialize<'de> for Configure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Configure, D::Error> {
        let body = BodyVisitor { conditional: true }.read(deserializer)?;
        let condition = |field| match field {
            Some(Change::Set(value)) => Some(value),
            Some(Change::Unset) | None => None,
        };
        Ok(Configure {
            if_version: condition(body.if_version),
            incarnation: condition(body.incarnation),
            dry_run: body.dry_run.is_some_and(|wire::Flag(dry_run)| dry_run),
            settings: body.patch,
        })
    }
}

/// `show`: everything about a line.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Show {}

/// `delete`: deletes a line. Its journal goes with it, so the operator's note is in the log of the node that does it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Delete {
    /// Also a line with live tokens; they go with reason `closed`.
    #[serde(default, deserialize_with = "wire::flag")]
    pub force: bool,
    /// Only if the line has this incarnation.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub incarnation: Option<u64>,
}

/// `move`: puts a waiting token into another lane. Answered with a status and the new ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Move {
    /// The lane in which it has this number, or had it before it was moved.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number in `lane`.
    #[serde(with = "wire::Number")]
    pub token: u64,
    /// The lane to move it to.
    #[serde(with = "wire::Name")]
    pub to: LaneName,
}

/// `admin.cluster.status`: the state of nodes and shards.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterStatusRequest {}

/// `admin.cluster.members_changes`: the newest changes of the members.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListMembersChanges {}

/// `admin.cluster.jwks`: the public keys of passes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShowJwks {}

/// `admin.cluster.list_lines`: a page of lines, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListLines {
    /// The page begins after this name; by default at the start.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub after: Option<LineName>,
    /// How many lines, 1 to [`LIST_LINES_MAX`]; by default [`LIST_LINES_DEFAULT`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, LIST_LINES_MAX>"
    )]
    pub limit: Option<u64>,
    /// Only lines that have all these labels.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        with = "wire::LabelMap"
    )]
    pub labels: BTreeMap<String, String>,
}

/// The answer to `create`, `configure`, `import` and `show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version: it grows with every change of the line.
    pub version: u64,
    /// The version at which its settings last changed, which `if_version` is compared with.
    pub settings_version: u64,
    /// When it was created, on the wall clock of the leader at that time.
    pub created_at_ms: u64,
    /// While it is being deleted: how many live tokens remain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<u64>,
    /// The shard that serves the line.
    pub shard: u32,
    /// The id of the node that leads the shard; null while none is known.
    pub leader: Option<u64>,
    /// Why the next token is not admitted now.
    pub held_back_by: HeldBackReply,
    /// The lane of entrants that name none: as set, or the first.
    #[serde(default, with = "wire::NameOption")]
    pub default_lane: Option<LaneName>,
    /// The settings in force.
    pub settings: SettingsReply,
    /// The capacity that a backend has told, which is in force instead of the setting `seats`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_told: Option<CapacityToldReply>,
    /// How many units of the quota were used since it was last renewed. Missing without one, and in replies of older
    /// releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_used: Option<u64>,
    /// How many units of the quota are neither used nor reserved by seats; null without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_left: Option<u64>,
    /// The draw at its opening; missing if it opens in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<DrawReply>,
    /// When the quota is renewed, on the leader's wall clock; null while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_renews_at_ms: Option<u64>,
    /// What it has counted while its gate was `shadow`; null if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowReply>,
    /// How far its newest import has come; null without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedReply>,
    /// The board at `version`.
    pub board: BoardReply,
    /// How many tokens it has had, by state.
    pub counts: CountsReply,
    /// How accurate its forecasts have been.
    #[serde(default)]
    pub forecast: ForecastReply,
}

impl LineReply {
    /// The line as operators see it now, but with these settings.
    pub fn with_settings(
        line: &line::Line,
        settings: &Settings,
        now: Timestamp,
        home: Home,
    ) -> LineReply {
        LineReply {
            default_lane: settings.effective_default_lane().cloned(),
            settings: settings.into(),
            ..LineReply::new(line, now, home)
        }
    }

    /// The line as operators see it now.
    pub fn new(line: &line::Line, now: Timestamp, home: Home) -> LineReply {
        LineReply {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            version: line.version(),
            settings_version: line.settings_version(),
            created_at_ms: line.created_at_ms(),
            deleting: line.deleting(),
            shard: home.shard,
            leader: home.leader,
            held_back_by: HeldBackReply::new(line, now),
            default_lane: line.settings().effective_default_lane().cloned(),
            settings: line.settings().into(),
            quota_used: line.settings().quota.map(|_| line.used_lately()),
            quota_left: line.settings().quota.map(|_| line.quota_left()),
            draw: DrawReply::new(line),
            quota_renews_at_ms: line.renews_at_ms(),
            capacity_told: line.told().map(|told| CapacityToldReply::new(told, now)),
            shadow: ShadowReply::new(line),
            imported: line.imported().map(Into::into),
            board: BoardReply::new(&line.board(now.service_ms), now.wall_ms),
            counts: CountsReply::from(&line.counts()),
            forecast: line.forecast_record().into(),
        }
    }
}

/// `capacity_told`: a backend tells its capacity. With an operator's note the journal has an entry of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapacityTold {
    /// How many tokens may hold seats, 0 to [`SEATS_MAX`]; null: the setting `seats` is in force again.
    #[serde(with = "wire::WithinOption::<0, { SEATS_MAX as u64 }>")]
    pub seats: Option<u32>,
    /// After so many milliseconds without another such request the backend counts as silent: 100 to 7 days. Required
    /// with `seats`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<TIMEOUT_MS_MIN, TIMEOUT_MS_MAX>"
    )]
    pub for_ms: Option<u64>,
}

impl CapacityTold {
    /// The seats, and for how long they hold; `None`: the setting is in force again.
    ///
    /// # Errors
    /// `bad_request` for one without the other.
    pub fn told(&self) -> Result<Option<(u32, u64)>, ApiError> {
        match (self.seats, self.for_ms) {
            (Some(seats), Some(for_ms)) => Ok(Some((seats, for_ms))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(ApiError::bad_request("for_ms: required with `seats`")),
            (None, Some(_)) => Err(ApiError::bad_request("for_ms: not without `seats`")),
        }
    }
}

/// The capacity that a backend has told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapacityToldReply {
    /// What it told last.
    pub seats: u32,
    /// It has been silent for too long.
    pub silent: bool,
    /// When it counts as silent, on the answering node's wall clock.
    pub expires_at_ms: u64,
    /// In how long; 0: it is silent.
    pub expires_in_ms: u64,
}

impl CapacityToldReply {
    fn new(told: line::Told, now: Timestamp) -> CapacityToldReply {
        let expires_in_ms = now.until_ms(told.until_ms);
        CapacityToldReply {
            seats: told.seats,
            silent: told.silent || expires_in_ms == 0,
            expires_at_ms: now.wall_at_ms(told.until_ms),
            expires_in_ms,
        }
    }
}

/// The forecasts that entrants who had to wait were given, compared with their true waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForecastReply {
    /// Entrants that were given a forecast by measurements.
    pub told: u64,
    /// Entrants that were given one that was mostly the operator's guess, `checkout_expected_ms`. They are not judged.
    #[serde(default)]
    pub told_expected: u64,
    /// Entrants that had to wait while no forecast was possible.
    pub untold: u64,
    /// Entrants with a forecast by measurements that have been admitted since.
    pub judged: u64,
    /// How many of these waited no longer than their `eta_p90_ms`.
    pub p90_covered: u64,
    /// Of these: how many forecasts differed from the true wait by at most 5, 15, 30, 50, 100
    /// percent of it, or more; each is counted in one of the six.
    pub off_by_percent: [u64; 6],
}

impl From<line::ForecastRecord> for ForecastReply {
    fn from(record: line::ForecastRecord) -> ForecastReply {
        ForecastReply {
            told: record.eta_given,
            told_expected: record.eta_expected,
            untold: record.eta_unknown,
            judged: record.judged,
            p90_covered: record.covered,
            off_by_percent: record.off_by,
        }
    }
}

/// How many tokens an incarnation has had, by state:
/// `issued = waiting + admitted + in_checkout + the sum of gone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountsReply {
    /// Numbers issued since the creation.
    pub issued: u64,
    /// Of these, those that the draw at the opening replaces by others.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drawn: u64,
    /// Waiting tokens.
    pub waiting: u64,
    /// Tokens that hold a seat and have not claimed it.
    pub admitted: u64,
    /// Tokens that hold a seat and have claimed it.
    pub in_checkout: u64,
    /// Tokens gone, by reason; every reason is listed.
    pub gone: BTreeMap<String, u64>,
    /// Tokens gone, by the state that they left and by reason; of each state the reasons that have any. Not counted:
    /// what went before all nodes ran a release that counts them, and numbers that a restore skipped.
    #[serde(default)]
    pub gone_from: BTreeMap<String, BTreeMap<String, u64>>,
    /// Requests to enter that the line refused, by the code of the error; every code that there can be is listed.
    /// After the loss of a leader, those of its last seconds are missing.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl CountsReply {
    /// Shows these refusals instead.
    pub fn set_refused(&mut self, refused: &RefusedCounts) {
        let counts = RefusedCode::ALL.map(|code| (code.as_str().to_owned(), refused.get(code)));
        self.refused = counts.into();
    }
}

impl From<&line::Counts> for CountsReply {
    fn from(counts: &line::Counts) -> CountsReply {
        let gone = Reason::ALL.map(|reason| (reason.as_str().to_owned(), counts.gone_for(reason)));
        let mut reply = CountsReply {
            issued: counts.issued,
            drawn: counts.drawn,
            waiting: counts.waiting,
            admitted: counts.admitted,
            in_checkout: counts.in_checkout,
            gone: gone.into(),
            gone_from: GoneFrom::STATES
                .map(|state| (state.as_str().to_owned(), reasons(&counts.gone_from, state)))
                .into(),
            refused: BTreeMap::new(),
        };
        reply.set_refused(&counts.refused);
        reply
    }
}

fn reasons(gone: &GoneFrom, from: State) -> BTreeMap<String, u64> {
    let of_state = gone.iter().filter(|(state, _, _)| *state == from);
    of_state
        .map(|(_, reason, count)| (reason.as_str().to_owned(), count))
        .collect()
}

/// The answer to `delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Whether it is deleted; else it issues no numbers and is deleted once its live tokens have
    /// been ended.
    pub deleted: bool,
    /// Live tokens that remain.
    pub remaining: u64,
}

/// The answer to `admin.cluster.status`, as one node sees the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterStatus {
    /// The cluster's name.
    pub cluster: String,
    /// The nodes, by id.
    pub nodes: Vec<NodeStatus>,
    /// The members that the operators want, and who asks to be one.
    #[serde(default)]
    pub members: MembersStatus,
    /// The shards, by number.
    pub shards: Vec<ShardStatus>,
    /// How many lines there are.
    pub lines: u64,
    /// The node that answered.
    pub answered_by: u64,
    /// When it answered, on its wall clock; 0 by nodes of an older release.
    #[serde(default)]
    pub at_ms: u64,
    /// How the NATS server of that node maps plain requests; null until that is known.
    #[serde(default)]
    pub mapping: Option<Mapping>,
    /// The line that is missing in that server's configuration, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping_line: Option<String>,
    /// The cluster's key; missing until that node has loaded its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyStatus>,
    /// Others that answered that node lately on the same prefix: each serves the other's users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_clusters: Vec<OtherCluster>,
}

/// Another cluster that service discovery names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OtherCluster {
    /// Its name, which may be the same.
    pub cluster: String,
    /// Its identity; missing until it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// How many of its nodes answered.
    pub nodes: u64,
}

/// How a NATS server maps requests on plain subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// To their shards, so that they reach the leader directly.
    Ok,
    /// Not at all, so that any node gets them, also one that is paused.
    Missing,
    /// To other shards or elsewhere, so that they are refused or lost.
    Wrong,
}

/// One node, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeStatus {
    /// The node's id.
    pub id: u64,
    /// Whether frames of it have arrived recently.
    pub alive: bool,
    /// Why frames under its number are refused, if some were recently. With `alive`, another process
    /// uses its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The age of its last frame; missing if there was none, and for the answering node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_ms: Option<u64>,
    /// How many shards it leads.
    pub leads: u64,
    /// Whether its disk is full: it takes no writes, and leads only if no other node can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk_full: bool,
    /// In how many shards it lacks entries and has refused the snapshot that has them within the last minute. Its log
    /// says why.
    #[serde(default)]
    pub refuses_snapshots: u32,
    /// Where its metrics are scraped, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_addr: Option<String>,
    /// Its build, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What its NATS server takes in one message (`max_payload`), in bytes, if known. With less than 65,536 it serves
    /// nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u64>,
    /// In how many shards it votes.
    #[serde(default)]
    pub votes_in: u32,
    /// In how many shards it has caught up: it lacks only what its leader wrote a moment ago. 0 while it takes no part.
    #[serde(default)]
    pub caught_up_in: u32,
    /// The snapshots that leaders are sending it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsSent>,
    /// In how many shards it has not caught up yet, and has no vote.
    #[serde(default)]
    pub joining_in: u32,
    /// It is removed once no shard has it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// It shall lead no shard.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// The keys that it has loaded, the older one first, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyReply>,
}

/// One shard, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShardStatus {
    /// The shard's number, from 0.
    pub shard: u32,
    /// The node that leads it; null while none is known.
    pub leader: Option<u64>,
    /// Raft's term.
    pub term: u64,
    /// The last log index applied.
    pub applied: u64,
    /// The last log index known to be committed.
    pub committed: u64,
    /// The nodes that vote.
    #[serde(default)]
    pub voters: Vec<u64>,
    /// The nodes that catch up, and have no vote yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learners: Vec<u64>,
    /// The nodes whose state of this shard differed from the answering node's when they were last
    /// compared: one of them is wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<u64>,
}

/// The answer to `admin.cluster.list_lines`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineList {
    /// The lines, by name.
    pub lines: Vec<LineSummary>,
    /// The `after` of the next page; null on the last one.
    #[serde(default, with = "wire::NameOption")]
    pub next: Option<LineName>,
}

/// One line in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineSummary {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The line's version: it grows with every change of the line.
    pub version: u64,
    /// As on its board.
    pub phase: String,
    /// How many may be in checkout at once.
    pub seats: u32,
    /// How many more than `seats` may be in the line.
    pub queue_limit: u32,
    /// Waiting tokens.
    pub waiting: u64,
    /// Tokens that hold a seat and have not claimed it.
    pub admitted: u64,
    /// Tokens that hold a seat and have claimed it.
    pub in_checkout: u64,
    /// The labels from the line's settings.
    pub labels: BTreeMap<String, String>,
}

impl From<&line::Line> for LineSummary {
    fn from(line: &line::Line) -> LineSummary {
        // Only `accepts_through` depends on the time, and a list does not have it.
        let board = line.board(0);
        LineSummary {
            line: board.line,
            incarnation: board.incarnation,
            version: board.version,
            phase: board.phase.as_str().to_owned(),
            seats: board.seats,
            queue_limit: line.settings().queue_limit,
            waiting: board.lanes.iter().map(|lane| lane.waiting).sum(),
            admitted: board.admitted,
            in_checkout: board.in_checkout,
            labels: line.settings().labels.clone(),
        }
    }
}
