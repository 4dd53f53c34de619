//! The SDK of nowserving: enter lines, wait, claim a seat, watch the board.
//!
//! ```no_run
//! # async fn checkout() -> nowserving_client::Result<()> {
//! use futures::StreamExt;
//! use nowserving_client::{Client, State};
//!
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let line = client.line("shop-1")?;
//! let ticket = line.enter("order-4711").await?.ticket.unwrap_or_default();
//!
//! let mut place = line.track(&ticket);
//! while let Some(now) = place.next().await {
//!     let now = now?;
//!     println!("{:?}, position {:?}", now.state, now.position);
//!     if now.state == State::Admitted {
//!         break;
//!     }
//! }
//! let seat = line.claim(&ticket).await?;
//! // … take the money …
//! line.complete(&ticket, seat.epoch, None).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Every call has one deadline over all its attempts ([`ClientOptions::deadline`]). Until then it
//! finds the leader of the line's shard, follows a change of leader, and repeats the request. A
//! refusal by the cluster is final and comes back as an [`Error`] at once. Each write carries a
//! request id, the same in all its attempts, by which the cluster recognises a copy.
//!
//! Nothing is queued without bound: a call is a future that its caller holds, and a watcher that
//! falls behind skips boards and gets a gap in their place.

#![warn(missing_docs)]

mod admin;
mod call;
mod client;
mod denials;
mod discovery;
mod error;
mod events;
mod every;
mod feed;
mod guard;
mod kv;
mod limiter;
mod line;
mod pass;
pub mod place;
pub mod places;
mod retry;
mod track;
mod transport;
mod watch;

pub use admin::{Admin, AdminLine};
pub use client::{Client, ClientOptions};
pub use denials::Denials;
pub use error::{Error, Kind, Result};
pub use events::EventStream;
pub use every::AnyEvent;
pub use guard::{
    Ask, Guard, GuardCounts, GuardEvent, GuardOptions, Lost, OnUnavailable, Refused, Slot, SlotKind,
};
pub use kv::Kv;
pub use limiter::{LimitFallback, Limiter, LimiterCounts, LimiterOptions, LocalLimit, Slices};
pub use line::Line;
pub use nowserving_security::Security;
pub use pass::{Following, PassChecker};
pub use places::{PlacesFromEvents, Standing};
pub use track::Tracker;
pub use watch::{BoardStream, BoardUpdate};

// The types of arguments and results, so that callers need no other dependency.
pub use nowserving_adapt::{AutoSeats, BadAutoSeats, Outcome, Target};
pub use nowserving_line::{
    Admission, AdmissionRate, Change, Gate, LaneName, LaneSettings, LineName, Opening,
    OperatorNote, Phase, Quota, ScheduledChange, Settings, SettingsPatch, State,
};
pub use nowserving_pass::{BadPass, Jwk, Jwks, NoPassKey, PassClaims, PassVerifier};
pub use nowserving_protocol::admin::{
    AdmissionRateReply, CALL_NEXT_MAX, CallNext, CalledReply, CalledTokenReply, CandidateStatus,
    CapacityTold, CapacityToldReply, ChangeMembers, ClusterStatus, Configure, ConfigureLines,
    ConfigureLinesReply, ConfiguredLine, CountsReply, Create, Delete, DeleteReply, DiskId,
    Explained, ForecastReply, IMPORT_ROWS_MAX, Import, ImportRow, ImportedReply, JOURNAL_LIMIT_MAX,
    Journal, JournalEntryReply, JournalReply, KeyReply, KeyStatus, Kick, KickReply,
    KickSelectorReply, KickedToken, LIST_LINES_MAX, LIST_TOKENS_MAX, LaneSettingsReply, LineList,
    LineReply, LineSummary, ListLines, ListTokens, ListedToken, LiveState, Mapping,
    MembersChangeReply, MembersChangesReply, MembersReply, MembersStatus, Move, NodeStatus,
    OtherCluster, OvertakerReply, PerSecond, QuotaReply, RenewReply, SettingChangeReply,
    SettingsChanges, SettingsReply, ShadowReply, ShardStatus, SnapshotsSent, Take, TokenName,
    TokenOrder, TokensReply,
};
pub use nowserving_protocol::error::{ApiError, Code};
pub use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
pub use nowserving_protocol::kv::{
    KV_LIST_MAX, KvDelete, KvEvent, KvGet, KvGetReply, KvKey, KvList, KvListReply, KvListed,
    KvPrefix, KvPut, KvReply, KvRestore, KvValue,
};
pub use nowserving_protocol::limits;
pub use nowserving_protocol::operation::Operation;
pub use nowserving_protocol::pass::Pass;
pub use nowserving_protocol::user::*;
