//! `admin.cluster.configure_lines`: the node that gets it asks for each line what an operator's client would ask.
//!
//! The requests go out on the operators' own subjects, where any node finds the line's leader, also while that changes.

use std::sync::Arc;

use async_nats::{Client, Message};
use futures::{StreamExt as _, stream};
use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_engine::{ReplyTo, Via};
use nowserving_front::parse::{client_id, hash, header, message_id};
use nowserving_front::who::TrustRequestInfo;
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::admin::{
    Configure, ConfigureLines, ConfigureLinesReply, ConfiguredLine, LineList, LineReply, ListLines,
    SettingChangeReply, Show,
};
use nowserving_protocol::codec::{Format, decode_request, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::message::viewed;
use super::node_request::{Failed, NodeRequest, Times};
use super::respond::Responder;

/// Lines of one request that are changed at the same time.
const LINES_AT_ONCE: usize = 16;
/// Requests of a node at the same time; others are refused.
const REQUESTS_AT_ONCE: usize = 4;

/// Answers `configure_lines`.
#[derive(Debug, Clone)]
pub struct ManyLines {
    client: Client,
    subjects: Subjects,
    responder: Responder,
    trust: TrustRequestInfo,
    free: Arc<Semaphore>,
}

/// One request under way.
struct Work {
    ask: ConfigureLines,
    /// Who asks, and why.
    note: Option<Box<OperatorNote>>,
    /// Names the call: the name of each line's request is made from it.
    id: u128,
    until: Instant,
}

impl ManyLines {
    /// Sends its requests by `client`, and the answers by `responder`.
    pub fn new(
        client: Client,
        subjects: Subjects,
        responder: Responder,
        trust: TrustRequestInfo,
    ) -> Self {
        ManyLines {
            client,
            subjects,
            responder,
            trust,
            free: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
        }
    }

    /// Answers it, in a task of its own.
    pub async fn handle(&self, message: Message, mut reply: ReplyTo) {
        reply.op = Operation::ConfigureLines;
        let work = match Work::read(&message, &reply, self.trust) {
            Ok(work) => work,
            Err(error) => return self.responder.refuse(&reply, error).await,
        };
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            return self.responder.refuse(&reply, overloaded()).await;
        };
        let this = self.clone();
        tokio::spawn(async move {
            let done = this.configure_page(&work).await;
            let format = reply.format;
            let encoded = done.map(|done| encode(&done, format));
            this.responder.finish(&reply, encoded).await;
            drop(permit);
        });
    }

    async fn configure_page(&self, work: &Work) -> Result<ConfigureLinesReply, ApiError> {
        let page = ListLines {
            after: work.ask.after.clone(),
            limit: Some(work.ask.limit()),
            labels: work.ask.labels.clone(),
        };
        let subject = self.subjects.of_cluster(Operation::ListLines);
        let page: LineList = self.ask(subject, &page, None, work).await?;
        let names = page.lines.into_iter().map(|line| line.line);
        let lines = stream::iter(names)
            .map(|line| self.configure_line(line, work))
            .buffered(LINES_AT_ONCE);
        let lines = lines.filter_map(std::future::ready);
        let lines = lines.collect().await;
        Ok(ConfigureLinesReply::new(lines, page.next, work.ask.dry_run))
    }

    /// `None` if its leader knows that it has not the labels.
    async fn configure_line(&self, line: LineName, work: &Work) -> Option<ConfiguredLine> {
        let (changed, error) = match self.change(&line, work).await {
            Ok(changed) => (Some(changed?), None),
            Err(error) => (None, Some(error)),
        };
        let (settings_version, changes) = changed.unzip();
        Some(ConfiguredLine {
            line,
            settings_version,
            changes: changes.unwrap_or_default(),
            error,
        })
    }

    /// The line's `settings_version` afterwards, and what changed.
    async fn change(
        &self,
        line: &LineName,
        work: &Work,
    ) -> Result<Option<(u64, Vec<SettingChangeReply>)>, ApiError> {
        let subject = |op| self.subjects.plain(op, line);
        let before: LineReply = self
            .ask(subject(Operation::Show), &Show {}, None, work)
            .await?;
        let labels = &before.settings.labels;
        let has = |(name, value): (&String, &String)| labels.get(name) == Some(value);
        if !work.ask.labels.iter().all(has) {
            return Ok(None);
        }
        let configure = Configure {
            if_version: None,
            incarnation: Some(before.incarnation),
            dry_run: work.ask.dry_run,
            settings: work.ask.set.0.clone(),
        };
        let id = (!work.ask.dry_run).then(|| work.id_for(line));
        let after = self.ask(subject(Operation::Configure), &configure, id, work);
        let after: LineReply = after.await?;
        let changes = SettingChangeReply::between(&before.settings, &after.settings);
        Ok(Some((after.settings_version, changes)))
    }

    /// One request. With an `id` it is a write.
    async fn ask<R: DeserializeOwned>(
        &self,
        subject: String,
        body: &impl Serialize,
        id: Option<RequestId>,
        work: &Work,
    ) -> Result<R, ApiError> {
        let request = NodeRequest {
            subject,
            payload: encode(body, Format::MsgPack).into(),
            id: id.as_ref(),
            note: work.note.as_deref(),
            until: work.until,
        };
        let answered = request.send(&self.client).await;
        answered.map_err(|failed| match failed {
            Failed::Refused(error) => error,
            Failed::Unanswered if id.is_some() => outcome_unknown(),
            Failed::Unanswered | Failed::Unheard => unavailable(),
        })
    }
}

impl Work {
    fn read(message: &Message, reply: &ReplyTo, trust: TrustRequestInfo) -> Result<Self, ApiError> {
        let ask: ConfigureLines = decode_request(&message.payload)?;
        ask.check()?;
        let times = Times::of(message, reply.taken)?;
        let until = match ask.dry_run {
            true => times.until,
            false => times.for_writes()?,
        };
        let id = match viewed(message, |it| header(it, REQUEST_ID_HEADER, RequestId::new))? {
            Some(named) => client_id(&named, reply.op, "", &message.payload),
            None => viewed(message, message_id),
        };
        Ok(Work {
            ask,
            note: viewed(message, |it| trust.note(it, Via::Plain, reply.op))?,
            id: id.key,
            until,
        })
    }

    /// The same for each copy of the request, so that all of them together change a line once.
    fn id_for(&self, line: &LineName) -> RequestId {
        let call = self.id.to_le_bytes();
        RequestId::from_bits(hash([b"line", &call, line.as_str().as_bytes()]))
    }
}
