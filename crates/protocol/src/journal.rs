//! `journal`: what happened in a line, and why one token was admitted before another.

use nowserving_line::{
    self as line, AdmittedBy, Explanation, JournalEntry, Journaled, JournaledToken, KickNote,
    KickSelector, LaneName, LineName, OperatorNote, Overtaker, OvertookBy, Refused, SETTING_NAMES,
    SettingsChange, TokenRef,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ApiError, Code};
use crate::event::{admitted_by, moved_by};
use crate::page::{PAGE_BYTES_MAX, Room, json_bytes};
use crate::settings::{self, SettingsReply};
use crate::wire;

/// The entries on a page of `journal` if the request does not say.
pub const JOURNAL_LIMIT_DEFAULT: u64 = 100;

/// The most entries on one page, which ends earlier where they do not [fit](crate::page::PAGE_BYTES_MAX).
pub const JOURNAL_LIMIT_MAX: u64 = 1_000;

/// A changed setting's value is shown whole up to this length in JSON, where not all do fit.
const VALUE_SHOWN_BYTES: usize = 128;

/// `journal`: a page of the line's journal, oldest entry first; only one lane or token, if named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Journal {
    /// The page begins after this version; by default with the oldest entry kept.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub after: Option<u64>,
    /// How many entries, 1 to [`JOURNAL_LIMIT_MAX`]; by default [`JOURNAL_LIMIT_DEFAULT`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, JOURNAL_LIMIT_MAX>"
    )]
    pub limit: Option<u64>,
    /// Only this lane, which may be a removed one. With `token`: the token's lane, by default the
    /// line's default lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// Only this token, by any number that it has had; the reply then has `explain`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub token: Option<u64>,
    /// Only entries about the line as a whole: what operators and the schedule did. Without `lane` and `token`.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub of_line: bool,
}

/// The answer to `journal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JournalReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// Which creation of it.
    pub incarnation: u64,
    /// The page's entries, oldest first.
    pub entries: Vec<JournalEntryReply>,
    /// The `after` of the next page; null on the last one.
    pub next: Option<u64>,
    /// With `token`: which tokens were admitted before it, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explain: Option<Explained>,
}

/// An entry of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JournalEntryReply {
    /// The line's version right after it; each entry has its own.
    pub version: u64,
    /// When, on the wall clock of the leader at that time.
    pub at_ms: u64,
    /// `created`, `configured`, `capacity_told`, `schedule_failed`, `quota_renewed`, `draw_sealed`, `draw_begun`, `drawn`, `kicked`, `imported` or `restored` (of the line),
    /// `entered`, `admitted`,
    /// `taken`, `claimed`, `gone` or `moved` (of a token); later releases may have more.
    pub what: String,
    /// Of a token: its lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// Of a token: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Of a token: when it entered, as `at_ms` of an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entered_at_ms: Option<u64>,
    /// With `configured`: the changes, with `schedule_failed` those that were not made; missing once they
    /// are no longer kept. If they are very long, values are told by their lengths alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<SettingChangeReply>>,
    /// With `entered`: 1 + the number of tokens that waited before it in its lane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// With `configured` by the schedule, and with `schedule_failed`: the time of the change there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at_ms: Option<u64>,
    /// With `claimed`: the fencing number of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// With `gone` and the reason `completed`: how many units of the quota it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u32>,
    /// With `kicked`: which tokens; missing once that is no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<KickSelectorReply>,
    /// With `created`, `configured`, `capacity_told`, `restored`, `imported` and `kicked`: who asked, if that was said. With `moved`: `jump`, if its holder moved it, and `draw`, if the draw at the opening did. With
    /// `admitted`: `call`, if an operator called its lane alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// With `gone`: why; with those of the line: what the operator gave as the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `admitted`, `taken`, `moved` and `entered` by an operator: who asked, if that was said. Of the entries of one call the
    /// first on a page has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// What that operator gave as the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_reason: Option<String>,
    /// With `capacity_told`: the seats; missing: the setting is in force again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seats: Option<u32>,
    /// With `imported`: so many of the import's first rows are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// With `draw_begun`: how many waited then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_part: Option<u64>,
    /// With `imported`: of these, rows that got a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entered: Option<u64>,
    /// With `admitted` and `taken`: whether its lane was absolute then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absolute: bool,
    /// With `admitted` and `taken`: its lane's boost then, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost_ms: Option<u64>,
    /// With `moved`: its lane since then.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub to_lane: Option<LaneName>,
    /// With `moved`: its number since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_token: Option<u64>,
}

/// How the operator of a `kicked` entry chose the tokens: one of the first five is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KickSelectorReply {
    /// So many tokens were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// So many keys were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u32>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_over_ms: Option<u64>,
    /// As in the request.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// As in the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// As in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl KickSelectorReply {
    fn new(line: &line::Line, note: &KickNote) -> KickSelectorReply {
        let mut selector = KickSelectorReply {
            state: note.state.map(|state| state.as_str().to_owned()),
            ..KickSelectorReply::default()
        };
        match note.selector {
            KickSelector::Tokens(count) => selector.tokens = Some(count),
            KickSelector::Keys(count) => selector.keys = Some(count),
            KickSelector::IdleOverMs(ms) => selector.idle_over_ms = Some(ms),
            KickSelector::Lane(id) => selector.lane = Some(lane_name(line, id)),
            KickSelector::All => selector.all = true,
        }
        selector
    }
}

/// A setting that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SettingChangeReply {
    /// The setting's name.
    pub setting: String,
    /// Its value before, as in the `settings` of a reply to `show`; null: it was not set.
    pub from: Value,
    /// Its value since then.
    pub to: Value,
}

impl SettingChangeReply {
    /// What one takes in JSON at most once it is [shortened](SettingChangeReply::shorten).
    pub(crate) const SHORT_BYTES_MAX: usize = 2 * VALUE_SHOWN_BYTES + 96;

    /// The settings that differ between these two, in the order of the contract.
    pub fn between(before: &SettingsReply, after: &SettingsReply) -> Vec<SettingChangeReply> {
        // Settings are always JSON.
        let values = |it: &SettingsReply| serde_json::to_value(it).unwrap_or_default();
        let (before, after) = (values(before), values(after));
        let names = SETTING_NAMES.iter();
        let differ = names.filter(|name| before[**name] != after[**name]);
        let changes = differ.map(|name| SettingChangeReply {
            setting: (*name).to_owned(),
            from: before[*name].clone(),
            to: after[*name].clone(),
        });
        changes.collect()
    }

    /// Long values are told by their lengths alone, if these changes take more than so many bytes of JSON. What is in
    /// force is in the reply to `show`.
    pub fn shorten(changes: &mut [SettingChangeReply], bytes_max: usize) {
        if json_bytes(&changes) <= bytes_max {
            return;
        }
        for value in changes
            .iter_mut()
            .flat_map(|change| [&mut change.from, &mut change.to])
        {
            let bytes = json_bytes(value);
            if bytes > VALUE_SHOWN_BYTES {
                *value = Value::String(format!("{bytes} bytes, too many for a list"));
            }
        }
    }

    fn all(change: &SettingsChange) -> Vec<SettingChangeReply> {
        let before = settings::named_values(&change.from).map(|(_, from)| from);
        let after = settings::named_values(&change.to);
        let both = before
            .zip(after)
            .map(|(from, (name, to))| SettingChangeReply {
                setting: name.to_owned(),
                from,
                to,
            });
        both.collect()
    }
}

/// Which tokens were admitted before a token, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explained {
    /// The lane that it is in now.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number in `lane`.
    pub token: u64,
    /// When it entered, as `at_ms` of an entry; null if that is no longer known, and then neither is
    /// the rest.
    pub entered_at_ms: Option<u64>,
    /// How many tokens of its own lane that had entered before it were admitted since then and
    /// before it.
    pub own_lane_before: u64,
    /// The tokens that entered later and were admitted earlier, oldest first: at most 256, and as many as fit.
    pub overtakers: Vec<OvertakerReply>,
    /// How many those are, listed or not.
    pub overtakers_total: u64,
    /// The journal may not reach back to when it entered: there may be more.
    pub cut: bool,
}

/// A token that entered later and was admitted earlier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvertakerReply {
    /// The overtaker's lane.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number in `lane`.
    pub token: u64,
    /// When it entered, as `at_ms` of an entry.
    pub entered_at_ms: u64,
    /// When it was admitted, as `at_ms` of an entry.
    pub admitted_at_ms: u64,
    /// The line's version right after that.
    pub version: u64,
    /// Why it was admitted first: `absolute` (its lane was), `boost` (its lane's was larger, by
    /// `boost_ms`), `listed_first` (they tied, and its lane is listed first), `call` (an operator called its lane
    /// alone), `take` (an operator took it out of order), `draw` (the draw at the opening put it first), or `behind_its_lane`:
    /// the explained token was behind a token of its lane whose turn had not come.
    pub by: String,
    /// With `boost`: by how much it was larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost_ms: Option<u64>,
}

impl JournalReply {
    /// The requested page. `bad_request` if the line never had such a lane, or with `of_line` and a lane or token,
    /// `token_not_found` if the number was never given.
    pub fn new(line: &line::Line, request: &Journal) -> Result<JournalReply, ApiError> {
        if request.of_line && (request.lane.is_some() || request.token.is_some()) {
            return Err(ApiError::bad_request("of_line: not with lane or token"));
        }
        let lane = request
            .lane
            .as_ref()
            .map(|lane| lane_id(line, "lane", lane));
        let lane = lane.transpose()?;
        let after = request.after.unwrap_or(0);
        let limit = request.limit.unwrap_or(JOURNAL_LIMIT_DEFAULT);
        // JOURNAL_LIMIT_MAX at most if it was decoded, so nothing is cut by this.
        let limit = usize::try_from(limit.min(JOURNAL_LIMIT_MAX)).unwrap_or(usize::MAX);
        let explanation = match request.token {
            Some(token) => Some(explain(line, lane, token)?),
            None => None,
        };
        let entries: Vec<JournalEntry> = match &explanation {
            Some(explanation) => {
                let entries = explanation.entries.iter().copied();
                entries.filter(|entry| entry.version > after).collect()
            }
            None => line
                .journal_after(after)
                .filter(|entry| lane.is_none_or(|lane| is_of(entry, lane)))
                .filter(|entry| !(request.of_line && entry.is_of_token()))
                .take(limit.saturating_add(1))
                .collect(),
        };
        let mut room = Room::new();
        let page = entry_replies(line, &entries[..entries.len().min(limit)], &mut room);
        let more = page.len() < entries.len();
        Ok(JournalReply {
            line: line.name().clone(),
            incarnation: line.incarnation(),
            next: page.last().filter(|_| more).map(|last| last.version),
            entries: page,
            explain: explanation.map(|explanation| explained(line, explanation, &mut room)),
        })
    }
}

fn explain(line: &line::Line, lane: Option<u8>, token: u64) -> Result<Explanation, ApiError> {
    let lane = match (lane, line.settings().effective_default_lane()) {
        (Some(lane), _) => lane,
        (None, Some(name)) => lane_id(line, "lane", name)?,
        (None, None) => 0,
    };
    let at = TokenRef {
        incarnation: line.incarnation(),
        lane,
        token,
    };
    line.explain(at).map_err(|refused| match refused {
        // Nobody showed a ticket.
        Refused::TicketInvalid => ApiError::new(Code::TokenNotFound, "there is no such token"),
        refused => refused.into(),
    })
}

/// The id of a lane that the line has or had; `field` names it in the refusal.
pub(crate) fn lane_id(
    line: &line::Line,
    field: &'static str,
    name: &LaneName,
) -> Result<u8, ApiError> {
    let mut lanes = (0..).zip(line.lane_names());
    let found = lanes.find(|(_, lane)| *lane == name);
    found
        .map(|(id, _): (u8, _)| id)
        .ok_or_else(|| line.no_lane(field, name).into())
}

pub(crate) fn lane_name(line: &line::Line, id: u8) -> LaneName {
    let name = line.lane_names().nth(usize::from(id));
    // The table only grows, and a journal names only what is in it.
    name.cloned().unwrap_or_default()
}

/// Also if it came into the lane by being moved: then it is a part of its story.
fn is_of(entry: &JournalEntry, wanted: u8) -> bool {
    match entry.what {
        Journaled::Token { lane, what, .. } => {
            let into = matches!(what, JournaledToken::Moved { to_lane, .. } if to_lane == wanted);
            lane == wanted || into
        }
        _ => false,
    }
}

/// As many as there is room for. A note is shown with the first of its entries: a call has up to a thousand.
fn entry_replies(
    line: &line::Line,
    page: &[JournalEntry],
    room: &mut Room,
) -> Vec<JournalEntryReply> {
    let mut shown = None;
    let replies = page.iter().map(|entry| {
        let mut reply = entry_reply(line, entry);
        if let Some(noted) = line.operator_note(entry.version)
            && shown != Some(noted.version)
        {
            shown = Some(noted.version);
            tell_of_operator(&noted.note, entry, &mut reply);
        }
        reply
    });
    replies.take_while(|reply| room.takes(reply)).collect()
}

/// Fills in who asked for it, and why. Entries about tokens have other uses for `by` and `reason`.
fn tell_of_operator(note: &OperatorNote, entry: &JournalEntry, reply: &mut JournalEntryReply) {
    let by = note.by.as_deref().map(str::to_owned);
    let reason = note.reason.as_deref().map(str::to_owned);
    match entry.what {
        Journaled::Token { .. } => (reply.operator, reply.operator_reason) = (by, reason),
        _ => (reply.by, reply.reason) = (by, reason),
    }
}

fn entry_reply(line: &line::Line, entry: &JournalEntry) -> JournalEntryReply {
    let mut reply = JournalEntryReply {
        version: entry.version,
        at_ms: entry.at_ms,
        ..JournalEntryReply::default()
    };
    let what = match entry.what {
        Journaled::Configured { scheduled_at_ms } => {
            reply.scheduled_at_ms = scheduled_at_ms;
            "configured"
        }
        Journaled::ScheduleFailed { scheduled_at_ms } => {
            reply.scheduled_at_ms = Some(scheduled_at_ms);
            "schedule_failed"
        }
        Journaled::Kicked => {
            tell_of_kick(line, entry.version, &mut reply);
            "kicked"
        }
        Journaled::Created => "created",
        Journaled::CapacityTold { seats } => {
            reply.seats = seats;
            "capacity_told"
        }
        Journaled::Imported { rows, entered } => {
            (reply.rows, reply.entered) = (Some(rows), Some(entered));
            "imported"
        }
        Journaled::QuotaRenewed => "quota_renewed",
        Journaled::DrawSealed => "draw_sealed",
        Journaled::DrawBegun { took_part } => {
            reply.took_part = Some(took_part);
            "draw_begun"
        }
        Journaled::Drawn => "drawn",
        Journaled::Restored => "restored",
        Journaled::Token {
            lane,
            token,
            entered,
            what,
        } => {
            reply.lane = Some(lane_name(line, lane));
            reply.token = Some(token);
            reply.entered_at_ms = Some(entered.at.wall_ms);
            tell_of_token(line, what, &mut reply)
        }
    };
    reply.what = what.to_owned();
    let change = line.settings_change(entry.version);
    reply.changes = change.map(SettingChangeReply::all);
    if let Some(changes) = &mut reply.changes {
        SettingChangeReply::shorten(changes, PAGE_BYTES_MAX / 2);
    }
    reply
}

/// Fills in who asked for a kick, of whom, and why, if that is still kept.
fn tell_of_kick(line: &line::Line, version: u64, reply: &mut JournalEntryReply) {
    if let Some(note) = line.kick_note(version) {
        reply.selector = Some(KickSelectorReply::new(line, note));
        reply.reason = note.reason.as_deref().map(str::to_owned);
        reply.by = note.by.as_deref().map(str::to_owned);
    }
}

/// Fills in the fields of an entry about a token, and returns the word for it.
fn tell_of_token(
    line: &line::Line,
    what: JournaledToken,
    reply: &mut JournalEntryReply,
) -> &'static str {
    match what {
        JournaledToken::Entered { position } => {
            reply.position = Some(position);
            "entered"
        }
        JournaledToken::Admitted {
            absolute,
            boost_ms,
            by,
        } => {
            reply.absolute = absolute;
            reply.boost_ms = (boost_ms > 0).then_some(boost_ms);
            match by {
                AdmittedBy::Take => "taken",
                by => {
                    reply.by = admitted_by(by);
                    "admitted"
                }
            }
        }
        JournaledToken::Claimed { epoch } => {
            reply.epoch = Some(epoch);
            "claimed"
        }
        JournaledToken::Gone { reason, units } => {
            reply.reason = Some(reason.as_str().to_owned());
            reply.units = units;
            "gone"
        }
        JournaledToken::Moved { to_lane, to, by } => {
            reply.by = moved_by(by);
            reply.to_lane = Some(lane_name(line, to_lane));
            reply.to_token = Some(to);
            "moved"
        }
    }
}

fn explained(line: &line::Line, explanation: Explanation, room: &mut Room) -> Explained {
    let overtakers = explanation.overtakers.into_iter();
    let overtakers = overtakers.map(OvertakerReply::from);
    Explained {
        lane: lane_name(line, explanation.at.lane),
        token: explanation.at.token,
        entered_at_ms: explanation.entered_at_ms,
        own_lane_before: explanation.own_lane_before,
        overtakers: overtakers.take_while(|it| room.takes(it)).collect(),
        overtakers_total: explanation.overtakers_total,
        cut: explanation.cut,
    }
}

impl From<Overtaker> for OvertakerReply {
    fn from(overtaker: Overtaker) -> OvertakerReply {
        let (by, boost_ms) = match overtaker.by {
            OvertookBy::Absolute => ("absolute", None),
            OvertookBy::Boost { ms } => ("boost", Some(ms)),
            OvertookBy::ListedFirst => ("listed_first", None),
            OvertookBy::Called => ("call", None),
            OvertookBy::Taken => ("take", None),
            OvertookBy::Drawn => ("draw", None),
            OvertookBy::BehindItsLane => ("behind_its_lane", None),
        };
        OvertakerReply {
            lane: overtaker.lane,
            token: overtaker.token,
            entered_at_ms: overtaker.entered_at_ms,
            admitted_at_ms: overtaker.admitted_at_ms,
            version: overtaker.version,
            by: by.to_owned(),
            boost_ms,
        }
    }
}
