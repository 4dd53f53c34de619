//! Operations of operators.

use nowserving_line::{LaneName, LineName, OperatorNote};
use nowserving_pass::Jwks;
use nowserving_protocol::admin::{
    CallNext, CalledReply, CapacityTold, ChangeMembers, ClusterStatus, ClusterStatusRequest,
    Configure, ConfigureLines, ConfigureLinesReply, Create, Delete, DeleteReply, Import, Journal,
    JournalReply, Kick, KickReply, LineList, LineReply, ListLines, ListMembersChanges, ListTokens,
    MembersChangesReply, MembersReply, Move, Show, ShowJwks, Take, TokensReply,
};
use nowserving_protocol::backup::{
    Backup, BackupChunk, BackupChunkReply, BackupReply, RestoreLine, RestorePart, RestorePartReply,
};
use nowserving_protocol::limits::{
    ApplyRules, CheckReply, DeleteRules, LimitChangesReply, LimitStats, LimitStatsReply,
    ListLimitChanges, ResetLimit, ResetReply, RulesChanged, RulesReply, ShowRules, TestLimits,
};
use nowserving_protocol::operation::{Operation, Request};
use nowserving_protocol::user::StatusReply;

use crate::client::{Client, line_name};
use crate::error::{Error, Kind, Result};
use crate::retry::Effect;

/// Rules of rate limits that change while they are read are read again, up to so many pages in all. Most domains have one page,
/// and only texts of which YAML aliases make many rules more than a few.
const SHOW_PAGES_MAX: usize = 1_000;

/// The operators' side of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    client: Client,
}

/// The operators' side of one line. Cheap to clone.
#[derive(Clone)]
pub struct AdminLine {
    client: Client,
    name: LineName,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Admin {
        Admin { client }
    }

    /// The same, for requests of which this is noted: who asks, and why. Journals, lists of changes and logs show it.
    ///
    /// # Errors
    /// [`crate::Kind::BadArgument`] unless each text has 1 to 128 bytes without control characters.
    pub fn with_note(&self, note: OperatorNote) -> Result<Admin> {
        Ok(Admin {
            client: self.client.with_note(note)?,
        })
    }

    /// A line, which may not exist yet. Sends no request.
    ///
    /// # Errors
    /// [`crate::Kind::BadArgument`] if `name` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn line(&self, name: &str) -> Result<AdminLine> {
        Ok(AdminLine {
            client: self.client.clone(),
            name: line_name("line", name)?,
        })
    }

    /// The nodes and shards, in the view of the node that answers.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn cluster_status(&self) -> Result<ClusterStatus> {
        self.call(&ClusterStatusRequest {}).await
    }

    /// One page of lines, in the order of their names.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn list_lines(&self, page: &ListLines) -> Result<LineList> {
        self.call(page).await
    }

    /// Changes the settings of one page of the lines that have some labels, each line whole or not at all. The answer has
    /// each line's outcome; a repeated call changes nothing twice. [`ConfigureLinesReply::next`] is the
    /// [`ConfigureLines::after`] of the next page.
    ///
    /// # Errors
    /// `bad_request` naming the field; `overloaded` if the node works on too many such requests.
    pub async fn configure_lines(&self, page: &ConfigureLines) -> Result<ConfigureLinesReply> {
        self.call(page).await
    }

    /// Changes the members of the cluster: `add_node`, `remove_node`, `replace_node`, `drain` or `transfer`.
    /// The answer says that it is decided; [`Admin::cluster_status`] shows when it is made. A repeated
    /// request has one effect.
    ///
    /// # Errors
    /// `node_not_found`; `members_changing` while an earlier change is not finished; `members_refused` if the
    /// cluster cannot have such members; `version_conflict`; `bad_request`. Those that pass have
    /// [`crate::Error::retry_after`].
    pub async fn change_members(
        &self,
        op: Operation,
        change: &ChangeMembers,
    ) -> Result<MembersReply> {
        let subject = self.client.subjects().of_cluster(op);
        self.client.admin_call(subject, Effect::Write, change).await
    }

    /// Puts the key [`ChangeMembers::key_id`] in force, as [`Admin::change_members`] with `rotate_key` does. Tickets of the
    /// old key stay good until [`ChangeMembers::old_until_ms`], or for [`ChangeMembers::old_for_ms`].
    ///
    /// # Errors
    /// `members_refused` naming the nodes that have not loaded that key; `version_conflict`; `bad_request`.
    pub async fn rotate_key(&self, change: &ChangeMembers) -> Result<MembersReply> {
        self.change_members(Operation::RotateKey, change).await
    }

    /// The newest changes of the members.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn members_changes(&self) -> Result<MembersChangesReply> {
        self.call(&ListMembersChanges {}).await
    }

    /// The public keys by which passes are checked, the one that signs first.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn jwks(&self) -> Result<Jwks> {
        self.call(&ShowJwks {}).await
    }

    /// Replaces the rules of rate limits of one domain, or only compares them ([`ApplyRules::dry_run`]).
    ///
    /// # Errors
    /// `bad_request` with line and column of a mistake; `version_conflict`.
    pub async fn apply_limits(&self, request: &ApplyRules) -> Result<RulesChanged> {
        self.call(request).await
    }

    /// Removes the rules of a domain, or only shows them ([`DeleteRules::dry_run`]).
    ///
    /// # Errors
    /// `domain_not_found`, `version_conflict`.
    pub async fn delete_limits(&self, request: &DeleteRules) -> Result<RulesChanged> {
        self.call(request).await
    }

    /// The domains that have rules of rate limits, without these, or one domain with them, in the view of the nodes that answer.
    /// Reads all pages; if the rules change meanwhile, it begins again.
    ///
    /// # Errors
    /// `domain_not_found`; [`crate::Kind::Unavailable`] if the rules change all the time.
    pub async fn show_limits(&self, domain: Option<&LineName>) -> Result<RulesReply> {
        let mut ask = ShowRules {
            domain: domain.cloned(),
            ..ShowRules::default()
        };
        let mut whole = RulesReply::default();
        for _ in 0..SHOW_PAGES_MAX {
            let page: RulesReply = self.call(&ask).await?;
            for of in page.domains {
                match whole.domains.last_mut().filter(|it| it.domain == of.domain) {
                    None => whole.domains.push(of),
                    Some(begun) => {
                        if !begun.append(of) {
                            whole.domains.clear();
                        }
                    }
                }
            }
            ask.after = page.next;
            ask.from = whole.domains.last().and_then(|it| it.next);
            let begins_again = whole.domains.is_empty() && domain.is_some();
            if ask.after.is_none() && ask.from.is_none() && !begins_again {
                return Ok(whole);
            }
        }
        let what = "the rules change faster than they can be read";
        Err(Error::new(Kind::Unavailable, what))
    }

    /// How many counters of rate limits each shard has; those that did not answer are named
    /// ([`LimitStatsReply::unanswered`]). Reads all pages.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn limit_stats(&self) -> Result<LimitStatsReply> {
        let mut ask = LimitStats::default();
        let mut whole: LimitStatsReply = self.call(&ask).await?;
        while whole.next.is_some() {
            ask.from = whole.next;
            whole.append(self.call(&ask).await?);
        }
        Ok(whole)
    }

    /// What operators changed of rules and counters lately, of one domain or of all; shards that did not answer are named
    /// ([`LimitChangesReply::unanswered`]).
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node answers.
    pub async fn limit_changes(&self, request: &ListLimitChanges) -> Result<LimitChangesReply> {
        self.call(request).await
    }

    /// Forgets what was counted of one descriptor.
    ///
    /// # Errors
    /// `domain_not_found`; `bad_request` if no rule limits it.
    pub async fn reset_limit(&self, request: &ResetLimit) -> Result<ResetReply> {
        self.call(request).await
    }

    /// What a check would answer, and by which rules. Counts nothing.
    ///
    /// # Errors
    /// `bad_request` naming the field.
    pub async fn test_limits(&self, request: &TestLimits) -> Result<CheckReply> {
        self.call(request).await
    }

    async fn call<Q: Request>(&self, request: &Q) -> Result<Q::Reply> {
        let subject = self.client.subjects().of_cluster(Q::OPERATION);
        let effect = Effect::of(request);
        self.client.admin_call(subject, effect, request).await
    }
}

impl AdminLine {
    /// The same line, for a request of which this is noted: who asks, and why, for the journal.
    ///
    /// # Errors
    /// As [`Admin::with_note`].
    pub fn with_note(&self, note: OperatorNote) -> Result<AdminLine> {
        Ok(AdminLine {
            client: self.client.with_note(note)?,
            name: self.name.clone(),
        })
    }

    /// The line's name.
    #[must_use]
    pub fn name(&self) -> &LineName {
        &self.name
    }

    /// Creates the line.
    ///
    /// # Errors
    /// `line_exists`; `bad_request` naming the setting that is out of its range.
    pub async fn create(&self, settings: &Create) -> Result<LineReply> {
        self.call(settings).await
    }

    /// Changes any subset of the settings, at once and all or none.
    ///
    /// # Errors
    /// `line_not_found`; `bad_request`; `version_conflict` if the settings have changed since
    /// [`Configure::if_version`], or the line has another incarnation than [`Configure::incarnation`].
    pub async fn configure(&self, changes: &Configure) -> Result<LineReply> {
        self.call(changes).await
    }

    /// Settings, board and counts.
    ///
    /// # Errors
    /// `line_not_found`.
    pub async fn show(&self) -> Result<LineReply> {
        self.call(&Show {}).await
    }

    /// Deletes the line. With [`Delete::force`] also if it has live tokens; ending many of them takes
    /// a while: then the answer says how many remain, and the line is gone once [`AdminLine::show`]
    /// says `line_not_found`.
    ///
    /// # Errors
    /// `line_not_empty` without `force`; `version_conflict` if the line has another incarnation than
    /// [`Delete::incarnation`]; `line_not_found`.
    pub async fn delete(&self, request: &Delete) -> Result<DeleteReply> {
        self.call(request).await
    }

    /// Puts a waiting token into another lane, where it gets the next number. It keeps its key and order
    /// key; calls with its old ticket return the new one. The reply is its status in the new lane,
    /// with the ticket. A repeated call gets the same reply.
    ///
    /// # Errors
    /// `not_waiting`, `token_gone`, `token_not_found`; `line_full` if the other lane is;
    /// `bad_request` for a lane that the line does not have, or that the token is in.
    pub async fn move_token(
        &self,
        lane: LaneName,
        token: u64,
        to: LaneName,
    ) -> Result<StatusReply> {
        self.call(&Move { lane, token, to }).await
    }

    /// Ends tokens, or only counts them ([`Kick::dry_run`]). The leader works through the line in steps: for a long line
    /// give the call time ([`crate::ClientOptions::deadline`]). After [`crate::Kind::OutcomeUnknown`] repeat it: those that
    /// are gone are gone.
    ///
    /// # Errors
    /// `line_not_found`, `line_closed`; `bad_request` that names the field; `overloaded` while another kick of the line is
    /// under way.
    pub async fn kick(&self, request: &Kick) -> Result<KickReply> {
        self.call(request).await
    }

    /// Tells how many tokens may hold seats, as a backend that knows its capacity does every few seconds: that is in force
    /// instead of the setting `seats`. With `None` the setting is in force again. When no further call comes for `for_ms`, the
    /// seats fall to the setting `seats_when_silent`, if there is one.
    ///
    /// # Errors
    /// `line_not_found`; `bad_request`; `line_closed` while the line is being deleted.
    pub async fn capacity_told(&self, told: &CapacityTold) -> Result<LineReply> {
        self.call(told).await
    }

    /// Lets the next rows of a queue that runs elsewhere enter, in their order. A row that is refused ends the request: as its
    /// error, if no row before it was done; else [`LineReply::imported`] says how many rows are. Repeat it after
    /// [`crate::Kind::OutcomeUnknown`]: rows that are done are passed over.
    ///
    /// # Errors
    /// `bad_request` for a field of a row, which it names, and for a `first_row` beyond those that are done; as `enter` for the
    /// first row that is not.
    pub async fn import(&self, request: &Import) -> Result<LineReply> {
        self.call(request).await
    }

    /// A page of the line's journal, oldest entry first; with a token also the reasons why others were
    /// admitted before it. [`JournalReply::next`] is the `after` of the next page.
    ///
    /// # Errors
    /// `line_not_found`; `token_not_found` if the number was never issued; `bad_request` for a lane
    /// that the line never had.
    pub async fn journal(&self, page: &Journal) -> Result<JournalReply> {
        self.call(page).await
    }

    /// Admits the next waiting tokens in service order, as far as seats, quota and rate allow. A call with the id of an
    /// earlier one admits nobody and has the same answer: repeat it after [`crate::Kind::OutcomeUnknown`].
    ///
    /// # Errors
    /// `line_not_found`, `line_closed`; `bad_request` for a lane that the line does not have.
    pub async fn call_next(&self, request: &CallNext) -> Result<CalledReply> {
        self.call(request).await
    }

    /// Admits one waiting token, whoever waits before it. A token that holds a seat already is the answer, too.
    ///
    /// # Errors
    /// `not_admitted` if nobody can be admitted now (no seat is free, for example), `token_gone`, `token_not_found`,
    /// `line_closed`.
    pub async fn take(&self, request: &Take) -> Result<CalledReply> {
        self.call(request).await
    }

    /// A page of the line's live tokens: by number, or the waiting ones in the order in which they would be admitted now.
    /// [`TokensReply::next`] is the `after` of the next page; with a `state` a page can be empty and not the last.
    ///
    /// # Errors
    /// `line_not_found`; `bad_request` for a lane that the line never had.
    pub async fn list_tokens(&self, page: &ListTokens) -> Result<TokensReply> {
        self.call(page).await
    }

    /// A snapshot of the shard that the line's name belongs to; there need not be such a line.
    ///
    /// # Errors
    /// `overloaded` if the node keeps too many of them.
    pub async fn backup(&self, request: &Backup) -> Result<BackupReply> {
        self.call(request).await
    }

    /// A chunk of that snapshot.
    ///
    /// # Errors
    /// [`crate::Kind::Unavailable`] if no node leads the shard.
    pub async fn backup_chunk(&self, request: &BackupChunk) -> Result<BackupChunkReply> {
        self.call(request).await
    }

    /// Sends a part of the line, which [`AdminLine::restore`] puts in place.
    ///
    /// # Errors
    /// `bad_request` for a part that makes no sense; `overloaded` if the shard restores too many lines already.
    pub async fn restore_part(&self, part: &RestorePart) -> Result<RestorePartReply> {
        self.call(part).await
    }

    /// Puts the line in place of which all parts were sent.
    ///
    /// # Errors
    /// `line_exists` without [`RestoreLine::overwrite`]; `version_conflict` if the line has another incarnation than in
    /// the backup; `bad_request` if parts are missing.
    pub async fn restore(&self, request: &RestoreLine) -> Result<LineReply> {
        self.call(request).await
    }

    async fn call<Q: Request>(&self, request: &Q) -> Result<Q::Reply> {
        self.client.plain_call(&self.name, request).await
    }
}
