//! What a client asks, as the bytes of its request.

use nowserving_kv as kv;
use nowserving_line::{Change, Op, Settings, SettingsPatch, TakeBy, TokenBy, TokenRef};
use nowserving_protocol::admin::{self, DiskId};
use nowserving_protocol::backup::{Backup, BackupChunk, Blob, Hex, RestoreLine, RestorePart};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::kv::{KvDelete, KvKey, KvPut, KvRestore, KvValue};
use nowserving_protocol::limits::{ApplyRules, Check, DeleteRules, ResetLimit};
use nowserving_protocol::ticket::{Ticket, TicketKeys};
use nowserving_protocol::user::{self, Key};
use nowserving_shard::members::{MembersChange, MembersRequest};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};
use serde::Serialize;

use super::{Hits, What};

fn bytes(body: &impl Serialize) -> Vec<u8> {
    encode(body, Format::MsgPack)
}

impl What {
    /// The payload of a request about this line. Clients have the tickets of these keys.
    ///
    /// # Errors
    /// No client can ask this.
    pub fn payload(
        &self,
        line: &nowserving_line::LineName,
        tickets: &TicketKeys,
    ) -> Result<Vec<u8>, ApiError> {
        let ticket = |at: &TokenRef| {
            tickets.sign(&Ticket {
                line: line.clone(),
                at: *at,
            })
        };
        Ok(match self {
            What::Write(op) => return write(op, &ticket),
            What::Status { token, consistency } => bytes(&user::StatusRequest {
                consistency: Some(*consistency),
                ..user::StatusRequest::new(token_by(token, &ticket)?)
            }),
            What::Find(key) => bytes(&user::Find {
                key: Key::new(key.clone())?,
            }),
            What::Tokens(list) => bytes(&**list),
            What::Kick(kick) => bytes(&**kick),
            What::Members(request) => bytes(&members(request)),
            What::Read { payload, .. } => payload.clone(),
            What::Backup { index } => bytes(&Backup { index: *index }),
            What::BackupChunk { id, offset } => bytes(&BackupChunk {
                id: id.clone(),
                offset: *offset,
            }),
            What::Restore(command) => restore(command),
            What::Kv(op) => return key_value(op),
            What::KvGet(ask) => bytes(ask),
            What::KvList { ask } => bytes(ask),
            What::ConfigureLines(ask) => bytes(&**ask),
            What::LimitRules {
                text: Some(text), ..
            } => bytes(&ApplyRules {
                rules: text.to_string(),
                ..ApplyRules::default()
            }),
            What::LimitRules { domain, text: None } => bytes(&DeleteRules {
                domain: domain.clone(),
                dry_run: false,
                if_version: None,
            }),
            What::Limit(all) => check(all.iter()),
            What::LimitChanging(all) => check(all.iter().filter_map(|any| any.first())),
            What::LimitReset {
                domain, counter, ..
            } => bytes(&ResetLimit {
                domain: domain.clone(),
                descriptor: counter.clone(),
            }),
        })
    }
}

fn check<'a>(all: impl Iterator<Item = &'a Hits>) -> Vec<u8> {
    let all: Vec<&Hits> = all.collect();
    bytes(&Check {
        hits: all.first().and_then(|it| u32::try_from(it.ask.hits).ok()),
        ..Check::new(all.iter().map(|it| it.counter.clone()).collect())
    })
}

fn token_by(
    token: &TokenBy,
    ticket: &impl Fn(&TokenRef) -> String,
) -> Result<user::TokenBy, ApiError> {
    Ok(match token {
        TokenBy::At(at) => user::TokenBy::Ticket(ticket(at)),
        TokenBy::Key(key) => user::TokenBy::Key(Key::new(key.clone())?),
    })
}

fn write(op: &Op, ticket: &impl Fn(&TokenRef) -> String) -> Result<Vec<u8>, ApiError> {
    Ok(match op {
        Op::Enter { key, lane, .. } => bytes(&user::Enter {
            key: key.clone().map(Key::new).transpose()?,
            lane: lane.clone(),
        }),
        Op::Callback { key, lane, .. } => bytes(&user::Callback {
            key: Key::new(key.clone())?,
            lane: lane.clone(),
        }),
        Op::Claim { at, .. } => bytes(&user::Claim {
            ticket: ticket(at),
            pass: false,
        }),
        Op::Renew { at, epoch, .. } => bytes(&user::Renew {
            ticket: ticket(at),
            epoch: *epoch,
        }),
        Op::Complete {
            at, epoch, units, ..
        } => bytes(&user::Complete {
            ticket: ticket(at),
            epoch: *epoch,
            units: *units,
        }),
        Op::Leave { at, .. } => bytes(&user::Leave { ticket: ticket(at) }),
        Op::Jump { by, to, .. } => bytes(&user::Jump {
            token: token_by(by, ticket)?,
            to: to.clone(),
        }),
        _ => return operators_write(op),
    })
}

fn operators_write(op: &Op) -> Result<Vec<u8>, ApiError> {
    Ok(match op {
        Op::Create { settings, .. } => bytes(&admin::Create {
            settings: all_of(settings),
        }),
        Op::Configure {
            patch,
            if_version,
            incarnation,
            ..
        } => bytes(&admin::Configure {
            if_version: *if_version,
            incarnation: *incarnation,
            dry_run: false,
            settings: SettingsPatch::clone(patch),
        }),
        Op::Delete {
            force, incarnation, ..
        } => bytes(&admin::Delete {
            force: *force,
            incarnation: *incarnation,
        }),
        Op::Move {
            lane, token, to, ..
        } => bytes(&admin::Move {
            lane: lane.clone(),
            token: *token,
            to: to.clone(),
        }),
        Op::CapacityTold { told, .. } => bytes(&admin::CapacityTold {
            seats: told.map(|(seats, _)| seats),
            for_ms: told.map(|(_, for_ms)| for_ms),
        }),
        Op::Import {
            import_id,
            first_row,
            rows,
            ..
        } => {
            let row = |row: &nowserving_line::ImportRow| {
                Ok::<_, ApiError>(admin::ImportRow {
                    key: Key::new(row.key.clone())?,
                    lane: row.lane.clone(),
                    entered_at_ms: row.entered_at_ms,
                })
            };
            bytes(&admin::Import {
                import_id: import_id.to_string(),
                first_row: *first_row,
                rows: rows.iter().map(row).collect::<Result<_, _>>()?,
            })
        }
        Op::CallNext {
            n, lane, call_id, ..
        } => bytes(&admin::CallNext {
            n: *n,
            lane: lane.clone(),
            call_id: call_id.to_string(),
        }),
        Op::Take {
            by: whom, call_id, ..
        } => {
            let (key, lane, token) = match whom {
                TakeBy::Key(key) => (Some(Key::new(key.clone())?), None, None),
                TakeBy::Number { lane, token } => (None, Some(lane.clone()), Some(*token)),
            };
            bytes(&admin::Take {
                key,
                lane,
                token,
                call_id: call_id.as_deref().map(str::to_owned),
            })
        }
        _ => return Err(ApiError::bad_request("op: one of leaders")),
    })
}

/// What makes a line with these settings.
fn all_of(settings: &Settings) -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(settings.seats)),
        queue_limit: Some(Change::Set(settings.queue_limit)),
        ..settings.difference(&Settings::new(settings.seats, settings.queue_limit))
    }
}

fn members(request: &MembersRequest) -> admin::ChangeMembers {
    let mut ask = admin::ChangeMembers {
        if_version: request.if_version,
        ..admin::ChangeMembers::default()
    };
    match &request.change {
        MembersChange::Add { disk_id } => ask.disk = Some(DiskId(*disk_id)),
        MembersChange::Remove { id } => ask.node = Some(*id),
        MembersChange::Replace { id, disk_id } => {
            (ask.node, ask.disk) = (Some(*id), Some(DiskId(*disk_id)));
        }
        MembersChange::Drain { id, drained } => {
            (ask.node, ask.drained) = (Some(*id), Some(*drained));
        }
        MembersChange::Prefer { shards, to } => {
            (ask.shards, ask.node) = (Some(shards.clone()), *to);
        }
        MembersChange::RotateKey(rotation) => {
            ask.key_id = Some(rotation.current.id);
            ask.old_until_ms = Some(rotation.old_until_ms);
        }
    }
    ask
}

fn restore(command: &RestoreCommand) -> Vec<u8> {
    let upload = Hex(command.upload.to_be_bytes());
    match &command.step {
        RestoreStep::Part { number, data } => bytes(&RestorePart {
            upload,
            part: *number,
            data: Blob(data.0.to_vec()),
        }),
        RestoreStep::Finish { parts, digest, how } => bytes(&RestoreLine {
            upload,
            parts: *parts,
            digest: Hex(*digest),
            clock_ms: how.clock_ms,
            overwrite: how.overwrite,
        }),
    }
}

fn key_value(op: &kv::Op) -> Result<Vec<u8>, ApiError> {
    Ok(match op {
        kv::Op::Put {
            key,
            value,
            if_revision,
            ttl_ms,
            above: 0,
            ..
        } => bytes(&KvPut {
            key: KvKey::new(&**key)?,
            value: KvValue::new(value.clone())?,
            if_revision: *if_revision,
            ttl_ms: *ttl_ms,
        }),
        kv::Op::Put {
            key,
            value,
            if_revision,
            ttl_ms,
            above,
            ..
        } => bytes(&KvRestore {
            key: KvKey::new(&**key)?,
            value: KvValue::new(value.clone())?,
            expires_in_ms: *ttl_ms,
            above_revision: *above,
            overwrite: if_revision.is_none(),
        }),
        kv::Op::Delete {
            key, if_revision, ..
        } => bytes(&KvDelete {
            key: KvKey::new(&**key)?,
            if_revision: *if_revision,
        }),
    })
}
