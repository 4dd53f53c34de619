//! `admin.cluster.configure_lines`: the node that gets it asks for each line what an operator's client would ask.
//!
//! The requests go out on the operators' own subjects, where any node finds the line's leader, also while that changes.

use nowserving_engine::{Now, Via};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::admin::{
    Configure, ConfigureLines, ConfigureLinesReply, ConfiguredLine, LineList, LineReply, ListLines,
    SettingChangeReply, Show,
};
use nowserving_protocol::codec::{Format, decode, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{REQUEST_ID_HEADER, RequestId};
use nowserving_protocol::operation::Operation;
use nowserving_shard::clock::Micros;
use serde::Serialize;

use super::asks::{Answer, Ask, Effect};
use super::{Done, Io, Reply, Times, Work};
use crate::Message;
use crate::parse::{client_id, hash, header, message_id};
use crate::who::TrustRequestInfo;

/// Lines of one request that are changed at the same time.
const LINES_AT_ONCE: usize = 16;
/// The request for the page of lines, beside one a line.
const PAGE: usize = usize::MAX;

/// One request under way.
struct ManyLines {
    ask: ConfigureLines,
    /// Who asks, and why.
    note: Option<Box<OperatorNote>>,
    /// Names the call: the name of each line's request is made from it.
    id: u128,
    until: Micros,
    lines: Vec<LineWork>,
    next_page: Option<LineName>,
    /// So many have begun, and so many of those are done.
    begun: usize,
    done: usize,
}

struct LineWork {
    line: LineName,
    before: Option<LineReply>,
    /// `None` if its leader knows that it has not the labels.
    done: Option<ConfiguredLine>,
}

/// # Errors
/// It cannot be read, or comes too late.
pub(super) fn read(
    message: &Message<'_>,
    now: Now,
    trust: TrustRequestInfo,
) -> Result<Box<dyn Work>, ApiError> {
    let op = Operation::ConfigureLines;
    let ask: ConfigureLines = decode(message.payload)?;
    ask.check()?;
    let times = Times::of(message, now)?;
    let until = match ask.dry_run {
        true => times.until,
        false => times.for_writes()?,
    };
    let id = match header(message, REQUEST_ID_HEADER, RequestId::new)? {
        Some(named) => client_id(&named, op, "", message.payload),
        None => message_id(message),
    };
    Ok(Box::new(ManyLines {
        ask,
        note: trust.note(message, Via::Plain, op)?,
        id: id.key,
        until,
        lines: Vec::new(),
        next_page: None,
        begun: 0,
        done: 0,
    }))
}

impl Work for ManyLines {
    fn go_on(&mut self, io: &mut Io<'_>) -> Done {
        let page = ListLines {
            after: self.ask.after.clone(),
            limit: Some(self.ask.limit()),
            labels: self.ask.labels.clone(),
        };
        let subject = io.around.config.subjects.of_cluster(Operation::ListLines);
        self.send(PAGE, subject, &page, Effect::None, io);
        None
    }

    fn answered(&mut self, nth: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> Done {
        if nth == PAGE {
            let page: LineList = match result.and_then(|answer| answer.read()) {
                Ok(page) => page,
                Err(error) => return Some(Err(error)),
            };
            self.next_page = page.next;
            let lines = page.lines.into_iter().map(|line| LineWork {
                line: line.line,
                before: None,
                done: None,
            });
            self.lines = lines.collect();
        } else if !self.changed(nth, result, io) {
            return None;
        }
        while self.begun < self.lines.len() && self.begun - self.done < LINES_AT_ONCE {
            self.show(self.begun, io);
            self.begun += 1;
        }
        if self.done < self.lines.len() {
            return None;
        }
        let lines = std::mem::take(&mut self.lines).into_iter();
        let lines = lines.filter_map(|line| line.done).collect();
        let reply = ConfigureLinesReply::new(lines, self.next_page.take(), self.ask.dry_run);
        Some(Ok(Reply::of(reply)))
    }
}

impl ManyLines {
    fn show(&self, nth: usize, io: &mut Io<'_>) {
        if let Some(work) = self.lines.get(nth) {
            let subject = io.around.config.subjects.plain(Operation::Show, &work.line);
            self.send(nth, subject, &Show {}, Effect::None, io);
        }
    }

    /// What a line's leader has answered. Whether the line is done.
    fn changed(&mut self, nth: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> bool {
        let reply: Result<LineReply, ApiError> = result.and_then(|answer| answer.read());
        let Some(work) = self.lines.get_mut(nth) else {
            return false;
        };
        let (changed, error) = match (work.before.take(), reply) {
            (Some(before), Err(_)) if nowserving_bite::is(nowserving_bite::Break::S5Lines) => {
                (Some((before.settings_version, Vec::new())), None)
            }
            (_, Err(error)) => (None, Some(error)),
            (Some(before), Ok(after)) => {
                let changes = SettingChangeReply::between(&before.settings, &after.settings);
                (Some((after.settings_version, changes)), None)
            }
            (None, Ok(before)) => {
                let labels = &before.settings.labels;
                let mut wanted = self.ask.labels.iter();
                if wanted.all(|(name, value)| labels.get(name) == Some(value)) {
                    let incarnation = before.incarnation;
                    work.before = Some(before);
                    self.configure(nth, incarnation, io);
                    return false;
                }
                self.done += 1;
                return true;
            }
        };
        let (settings_version, changes) = changed.unzip();
        work.done = Some(ConfiguredLine {
            line: work.line.clone(),
            settings_version,
            changes: changes.unwrap_or_default(),
            error,
        });
        self.done += 1;
        true
    }

    fn configure(&self, nth: usize, incarnation: u64, io: &mut Io<'_>) {
        let Some(line) = self.lines.get(nth).map(|it| &it.line) else {
            return;
        };
        let configure = Configure {
            if_version: None,
            incarnation: Some(incarnation),
            dry_run: self.ask.dry_run,
            settings: self.ask.set.0.clone(),
        };
        let effect = match self.ask.dry_run {
            true => Effect::None,
            false => Effect::Once(self.id_for(line)),
        };
        let subject = io.around.config.subjects.plain(Operation::Configure, line);
        self.send(nth, subject, &configure, effect, io);
    }

    /// The same for each copy of the request, so that all of them together change a line once.
    fn id_for(&self, line: &LineName) -> RequestId {
        let call = self.id.to_le_bytes();
        RequestId::from_bits(hash([b"line", &call, line.as_str().as_bytes()]))
    }

    fn send(
        &self,
        nth: usize,
        subject: String,
        body: &impl Serialize,
        effect: Effect,
        io: &mut Io<'_>,
    ) {
        let ask = Ask {
            subject,
            payload: encode(body, Format::MsgPack).into(),
            effect,
            note: self.note.clone(),
            until: self.until,
            repeats: false,
        };
        io.ask(nth, ask);
    }
}
