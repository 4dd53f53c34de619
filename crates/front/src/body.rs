//! What a request's body asks for.

use nowserving_engine::{Ask, Question, ReplyTo};
use nowserving_line::{LineName, Op, OperatorNote, TokenBy, TokenRef};
use nowserving_protocol::codec::{Payload, decode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::RequestId;
use nowserving_protocol::kv::{KvDelete, KvGet, KvKey, KvPut, KvRestore, kv_shard_of};
use nowserving_protocol::operation::{On, Operation};
use nowserving_protocol::subject::{shard_of, unknown_op};
use nowserving_protocol::user;

use crate::parse::Reading;

/// A request whose subject and headers are read.
pub(crate) struct Body<'a> {
    pub op: Operation,
    /// The line, bucket or domain.
    pub name: &'a LineName,
    /// As the subject says.
    pub shard: Option<u32>,
    pub shards: u32,
    pub payload: &'a [u8],
    pub reading: &'a Reading<'a>,
    pub named: Option<&'a RequestId>,
    /// Who asks, and why.
    pub note: Option<&'a OperatorNote>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "taken apart at once: a box would cost each request an allocation"
)]
pub(crate) enum Asked {
    /// This shard.
    Shard(u32, Ask),
    /// The node that reads it.
    Node(Question),
}

impl Body<'_> {
    pub fn read(&self, reply: &mut ReplyTo) -> Result<Asked, ApiError> {
        let (home, ask) = match self.op.on() {
            On::Line => (self.home()?, self.user_ask(reply)?),
            On::AdminLine => (self.home()?, self.admin_ask()?),
            // As if it were about a line there.
            On::Members => (0, self.members_ask()?),
            On::Kv if self.op == Operation::KvList => {
                let (bucket, ask) = (self.name.clone(), self.decode()?);
                return Ok(Asked::Node(Question::KvList { bucket, ask }));
            }
            On::Kv | On::AdminKv => self.kv_ask()?,
            On::Cluster => return Ok(Asked::Node(self.question()?)),
            On::LimitShard | On::LimitLeader => self.limit_ask()?,
            On::AdminLimit if self.shard.is_some() => self.limit_ask()?,
            // Those are answered before.
            On::Limit | On::AdminLimit | On::Nothing => return Err(unknown_op(self.op.word())),
        };
        Ok(Asked::Shard(home, ask))
    }

    pub fn decode<Q: Payload>(&self) -> Result<Q, ApiError> {
        decode(self.payload)
    }

    /// The shard of the line, which must be the one in the subject.
    fn home(&self) -> Result<u32, ApiError> {
        let name = self.name.as_str();
        self.is_home(shard_of(name, self.shards), || format!("line {name}"))
    }

    fn is_home(&self, home: u32, what: impl FnOnce() -> String) -> Result<u32, ApiError> {
        match self.shard.is_some_and(|shard| shard != home) {
            true => Err(ApiError::bad_request(format!(
                "subject: {} is in shard {home} of {}",
                what(),
                self.shards
            ))),
            false => Ok(home),
        }
    }

    fn at(&self, ticket: &str) -> Result<TokenRef, ApiError> {
        self.reading.keys.tickets.verify_for(ticket, self.name)
    }

    fn token_by(&self, token: user::TokenBy) -> Result<TokenBy, ApiError> {
        Ok(match token {
            user::TokenBy::Ticket(ticket) => TokenBy::At(self.at(&ticket)?),
            user::TokenBy::Key(key) => TokenBy::Key(key.into_bytes()),
        })
    }

    fn user_ask(&self, reply: &mut ReplyTo) -> Result<Ask, ApiError> {
        let line = self.name.clone();
        Ok(Ask::Write(match self.op {
            Operation::Status => {
                let ask: user::StatusRequest = self.decode()?;
                reply.pass = ask.pass;
                return Ok(Ask::Status {
                    token: self.token_by(ask.token)?,
                    consistency: ask.consistency.unwrap_or_default(),
                    holes: ask.holes,
                });
            }
            Operation::Seen => {
                let ask: user::Seen = self.decode()?;
                ask.check()?;
                let token = |ticket: &String| Some(TokenBy::At(self.at(ticket).ok()?));
                return Ok(Ask::Seen(ask.tickets.iter().map(token).collect()));
            }
            Operation::Find => {
                let ask: user::Find = self.decode()?;
                return Ok(Ask::Find(ask.key.as_bytes().into()));
            }
            Operation::Info => {
                let ask: user::Info = self.decode()?;
                return Ok(Ask::Info(ask.consistency.unwrap_or_default()));
            }
            Operation::Enter => {
                let ask: user::Enter = self.decode()?;
                let key = ask.key.map(user::Key::into_bytes);
                let lane = ask.lane;
                Op::Enter { line, key, lane }
            }
            Operation::Callback => {
                let ask: user::Callback = self.decode()?;
                let (key, lane) = (ask.key.into_bytes(), ask.lane);
                Op::Callback { line, key, lane }
            }
            Operation::Claim => {
                let ask: user::Claim = self.decode()?;
                reply.pass = ask.pass;
                let at = self.at(&ask.ticket)?;
                Op::Claim { line, at }
            }
            Operation::Renew => {
                let ask: user::Renew = self.decode()?;
                let (at, epoch) = (self.at(&ask.ticket)?, ask.epoch);
                Op::Renew { line, at, epoch }
            }
            Operation::Complete => {
                let ask: user::Complete = self.decode()?;
                let (at, epoch) = (self.at(&ask.ticket)?, ask.epoch);
                let units = ask.units;
                Op::Complete {
                    line,
                    at,
                    epoch,
                    units,
                }
            }
            Operation::Leave => {
                let ask: user::Leave = self.decode()?;
                let at = self.at(&ask.ticket)?;
                Op::Leave { line, at }
            }
            Operation::Jump => {
                let ask: user::Jump = self.decode()?;
                let (by, to) = (self.token_by(ask.token)?, ask.to);
                Op::Jump { line, by, to }
            }
            op => return Err(unknown_op(op.word())),
        }))
    }

    fn kv_ask(&self) -> Result<(u32, Ask), ApiError> {
        let home = |key: &KvKey| {
            let home = kv_shard_of(self.name, key.as_str(), self.shards);
            self.is_home(home, || "the key".to_owned())
        };
        Ok(match self.op {
            Operation::KvGet => {
                let ask: KvGet = self.decode()?;
                (home(&ask.key)?, Ask::KvGet(ask))
            }
            Operation::KvPut => {
                let ask: KvPut = self.decode()?;
                (home(&ask.key)?, Ask::Kv(ask.into_op(self.name)))
            }
            Operation::KvDelete => {
                let ask: KvDelete = self.decode()?;
                (home(&ask.key)?, Ask::Kv(ask.into_op(self.name)))
            }
            Operation::KvRestore => {
                let ask: KvRestore = self.decode()?;
                (home(&ask.key)?, Ask::Kv(ask.into_op(self.name)))
            }
            op => return Err(unknown_op(op.word())),
        })
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
