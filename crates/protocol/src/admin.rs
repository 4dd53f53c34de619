//! Requests and replies of operators: section 8 of the contract.
//!
//! Requests refuse fields that they don't know: what an operator misspelt must not
//! be taken for done. Readers of replies ignore them.

use std::collections::BTreeMap;

use nowserving_line::{
    self as line, Change, LaneName, LineName, Reason, Settings, SettingsPatch, Timestamp,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ApiError;
pub use crate::journal::{
    Explained, JOURNAL_LIMIT_DEFAULT, JOURNAL_LIMIT_MAX, Journal, JournalEntryReply, JournalReply,
    OvertakerReply, SettingChangeReply,
};
use crate::settings::{self, Body, BodyVisitor};
pub use crate::settings::{
    AdmissionRateReply, LaneSettingsReply, PerSecond, QuotaReply, SettingsReply,
};
use crate::user::{BoardReply, HeldBackReply, Home};
use crate::wire;

/// The most lines on one page of `list_lines`: so many fit a NATS message of 1 MiB
/// whatever their labels, in JSON with every byte of them escaped.
pub const LIST_LINES_MAX: u64 = 80;

/// The lines on a page of `list_lines` if the request does not say.
pub const LIST_LINES_DEFAULT: u64 = 80;

/// `create`: makes a line. `seats` and `queue_limit` are required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// What is not the default. Valid as far as it goes, if it was decoded.
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
        settings::serialize(&self.settings, &[], serializer)
    }
}

impl<'de> Deserialize<'de> for Create {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Create, D::Error> {
        let Body { patch, .. } =
            deserializer.deserialize_map(BodyVisitor { conditional: false })?;
        Ok(Create { settings: patch })
    }
}

/// `configure`: changes any subset of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configure {
    /// Only if the settings have not changed since the line had this version.
    pub if_version: Option<u64>,
    /// Only if the line has this incarnation.
    pub incarnation: Option<u64>,
    /// What changes. Valid, if it was decoded.
    pub settings: SettingsPatch,
}

impl Serialize for Configure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let conditions = [
            ("if_version", self.if_version),
            ("incarnation", self.incarnation),
        ];
        settings::serialize(&self.settings, &conditions, serializer)
    }
}

impl<'de> Deserialize<'de> for Configure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Configure, D::Error> {
        let body = deserializer.deserialize_map(BodyVisitor { conditional: true })?;
        let condition = |field| match field {
            Some(Change::Set(value)) => Some(value),
            Some(Change::Unset) | None => None,
        };
        Ok(Configure {
            if_version: condition(body.if_version),
            incarnation: condition(body.incarnation),
            settings: body.patch,
        })
    }
}

/// `show`: everything about a line.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {}

/// `delete`: takes a line away.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Also if somebody is in it; they go with reason `closed`.
    #[serde(default, deserialize_with = "wire::flag")]
    pub force: bool,
    /// Only if the line has this incarnation.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "wire::number_option"
    )]
    pub incarnation: Option<u64>,
}

/// `move`: puts a waiting token into another lane. Answered with a status and the new ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// The lane that it is in, or was given its number in.
    #[serde(with = "wire::name")]
    pub lane: LaneName,
    /// Its number there.
    #[serde(deserialize_with = "wire::number")]
    pub token: u64,
    /// The lane that it shall be in.
    #[serde(with = "wire::name")]
    pub to: LaneName,
}

/// `admin.cluster.status`: how the nodes and shards do.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterStatusRequest {}

/// `admin.cluster.list_lines`: a page of lines, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListLines {
    /// The page begins after this name; by default at the start.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::name_option"
    )]
    pub after: Option<LineName>,
    /// How many lines, 1 to [`LIST_LINES_MAX`]; by default [`LIST_LINES_DEFAULT`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "wire::whole_option::<1, LIST_LINES_MAX, _>"
    )]
    pub limit: Option<u64>,
    /// Only lines that have all these labels.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "wire::labels"
    )]
    pub labels: BTreeMap<String, String>,
}

/// What `create`, `configure` and `show` answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineReply {
    /// The line.
    #[serde(with = "wire::name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// Its version.
    pub version: u64,
    /// The version at which its settings last changed: what `if_version` is compared with.
    pub settings_version: u64,
    /// When it was made, on the wall clock of the leader at that time.
    pub created_at_ms: u64,
    /// While it is being deleted: how many live tokens are still to be ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting: Option<u64>,
    /// The shard that it is in.
    pub shard: u32,
    /// The id of the node that leads the shard; null while none is known.
    pub leader: Option<u64>,
    /// Why the one who is next is not admitted now.
    pub held_back_by: HeldBackReply,
    /// The lane of those who enter without naming one: as set, or the first.
    #[serde(default, with = "wire::name_option")]
    pub default_lane: Option<LaneName>,
    /// Its settings.
    pub settings: SettingsReply,
    /// Its board.
    pub board: BoardReply,
    /// How many tokens it has had, and where they are.
    pub counts: CountsReply,
    /// How good its forecasts have been.
    #[serde(default)]
    pub forecast: ForecastReply,
}

impl LineReply {
    /// What is to be told of a line now.
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
            board: BoardReply::new(&line.board(now.service_ms), now.wall_ms),
            counts: CountsReply::from(&line.counts()),
            forecast: line.forecast_record().into(),
        }
    }
}

/// What those who had to wait were told on entering, against how long it took until they were
/// admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastReply {
    /// Entrants who were told a forecast.
    pub told: u64,
    /// Entrants who had to wait when none could be told.
    pub untold: u64,
    /// Those told who have been admitted since.
    pub judged: u64,
    /// How many of these waited no longer than `eta_p90_ms` said.
    pub p90_covered: u64,
    /// Of these: told a time that was off by at most 5, 15, 30, 50, 100 percent of the true one, or
    /// more; each is in one of the six.
    pub off_by_percent: [u64; 6],
}

impl From<line::ForecastRecord> for ForecastReply {
    fn from(record: line::ForecastRecord) -> ForecastReply {
        ForecastReply {
            told: record.told,
            untold: record.untold,
            judged: record.judged,
            p90_covered: record.covered,
            off_by_percent: record.off_by,
        }
    }
}

/// How many tokens an incarnation has had, and where they are:
/// `issued = waiting + admitted + in_checkout + the sum of gone`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsReply {
    /// Numbers handed out.
    pub issued: u64,
    /// Tokens that wait.
    pub waiting: u64,
    /// Tokens that hold a seat and have not claimed it.
    pub admitted: u64,
    /// Tokens that hold a seat and have claimed it.
    pub in_checkout: u64,
    /// Tokens gone, by reason; every reason is listed.
    pub gone: BTreeMap<String, u64>,
}

impl From<&line::Counts> for CountsReply {
    fn from(counts: &line::Counts) -> CountsReply {
        let gone = Reason::ALL.map(|reason| (reason.as_str().to_owned(), counts.gone_for(reason)));
        CountsReply {
            issued: counts.issued,
            waiting: counts.waiting,
            admitted: counts.admitted,
            in_checkout: counts.in_checkout,
            gone: gone.into(),
        }
    }
}

/// What `delete` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteReply {
    /// The line.
    #[serde(with = "wire::name")]
    pub line: LineName,
    /// Whether it is no more; else it takes nobody any more, and goes when the rest has been ended.
    pub deleted: bool,
    /// Live tokens that are still to be ended.
    pub remaining: u64,
}

/// What `admin.cluster.status` answers, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The cluster's name.
    pub cluster: String,
    /// The nodes, by id.
    pub nodes: Vec<NodeStatus>,
    /// The shards, by number.
    pub shards: Vec<ShardStatus>,
    /// How many lines there are.
    pub lines: u64,
    /// The node whose view this is.
    pub answered_by: u64,
    /// What the NATS server of that node does with plain requests; null until it is known.
    #[serde(default)]
    pub mapping: Option<Mapping>,
    /// The line that should be in that server's configuration; missing if all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapping_line: Option<String>,
}

/// What a NATS server does with requests on plain subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// It maps them to their shards, so that they go straight to the leader.
    Ok,
    /// It leaves them as they are, so that any node gets them, one that stands still too.
    Missing,
    /// It maps them to other shards or elsewhere, so that they are refused or lost.
    Wrong,
}

/// One node, as the one who answers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its id.
    pub id: u64,
    /// Whether it was heard from lately.
    pub alive: bool,
    /// Why frames under its number are refused, if some were lately. With `alive`, another process
    /// uses its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// How long ago it was last heard from; missing if never, and for the one who answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_ms: Option<u64>,
    /// How many shards it leads.
    pub leads: u64,
    /// Where its metrics are scraped, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_addr: Option<String>,
    /// Its build, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// One shard, as the one who answers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    /// Its number.
    pub shard: u32,
    /// The node that leads it; null while none is known.
    pub leader: Option<u64>,
    /// Raft's term.
    pub term: u64,
    /// The last log index applied.
    pub applied: u64,
    /// The last log index known to be committed.
    pub committed: u64,
    /// The nodes whose state of this shard differed from that of the node that answers when they were
    /// last compared: an error on one of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<u64>,
}

/// What `admin.cluster.list_lines` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineList {
    /// The lines, by name.
    pub lines: Vec<LineSummary>,
    /// The `after` of the next page; null on the last one.
    #[serde(default, with = "wire::name_option")]
    pub next: Option<LineName>,
}

/// One line in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineSummary {
    /// The line.
    #[serde(with = "wire::name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// Its version.
    pub version: u64,
    /// As on its board.
    pub phase: String,
    /// How many may be in checkout at once.
    pub seats: u32,
    /// How many more than `seats` may be in the line.
    pub queue_limit: u32,
    /// Tokens that wait.
    pub waiting: u64,
    /// Tokens that hold a seat and have not claimed it.
    pub admitted: u64,
    /// Tokens that hold a seat and have claimed it.
    pub in_checkout: u64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl From<&line::Line> for LineSummary {
    fn from(line: &line::Line) -> LineSummary {
        // Only `accepts_through` depends on the time, which is not in a list.
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
