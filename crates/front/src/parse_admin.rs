//! The operators' side of `parse`.

use std::collections::BTreeSet;

use nowserving_line::{LineName, Op, OperatorNote, Restore};
use nowserving_protocol::codec::decode_request;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_protocol::members::OLD_KEY_FOR_MS_DEFAULT;
use nowserving_protocol::note::operator_note;
use nowserving_protocol::subject::unknown_op;
use nowserving_protocol::{admin, backup};

use nowserving_shard::members::{MembersChange, MembersRequest};

use nowserving_engine::{Ask, Question, ReplyTo};
use nowserving_shard::restore::{PART_BYTES_MAX, RestoreCommand, RestoreStep};

pub(super) fn admin_ask(
    op: &str,
    line: &LineName,
    payload: &[u8],
    (reply, note): (&mut ReplyTo, &mut Option<Box<OperatorNote>>),
) -> Result<Ask, ApiError> {
    let line = line.clone();
    let mut noted = |by, reason| -> Result<(), ApiError> {
        *note = operator_note(by, reason)?.map(Box::new);
        Ok(())
    };
    Ok(match op {
        "create" => {
            reply.op = "create";
            let ask: admin::Create = decode_request(payload)?;
            noted(ask.by.clone(), ask.reason.clone())?;
            let settings = ask.into_settings()?;
            Ask::Write(Op::Create { line, settings })
        }
        "configure" => {
            reply.op = "configure";
            let ask: admin::Configure = decode_request(payload)?;
            if ask.dry_run {
                return Ok(Ask::TryConfigure(Box::new(ask)));
            }
            noted(ask.by, ask.reason)?;
            Ask::Write(Op::Configure {
                line,
                patch: Box::new(ask.settings),
                if_version: ask.if_version,
                incarnation: ask.incarnation,
            })
        }
        "show" => {
            reply.op = "show";
            let _: admin::Show = decode_request(payload)?;
            Ask::Show
        }
        "delete" => {
            reply.op = "delete";
            let ask: admin::Delete = decode_request(payload)?;
            noted(ask.by, ask.reason)?;
            Ask::Write(Op::Delete {
                line,
                force: ask.force,
                incarnation: ask.incarnation,
            })
        }
        "move" => {
            reply.op = "move";
            let ask: admin::Move = decode_request(payload)?;
            noted(ask.by, ask.reason)?;
            Ask::Write(Op::Move {
                line,
                lane: ask.lane,
                token: ask.token,
                to: ask.to,
            })
        }
        "capacity_told" => {
            reply.op = "capacity_told";
            let ask: admin::CapacityTold = decode_request(payload)?;
            let told = ask.told()?;
            noted(ask.by, ask.reason)?;
            Ask::Write(Op::CapacityTold { line, told })
        }
        "kick" => {
            reply.op = "kick";
            let ask: admin::Kick = decode_request(payload)?;
            ask.check()?;
            Ask::Kick(Box::new(ask))
        }
        "import" => {
            reply.op = "import";
            let ask: admin::Import = decode_request(payload)?;
            noted(ask.by.clone(), ask.reason.clone())?;
            Ask::Write(ask.into_op(line)?)
        }
        "journal" => {
            reply.op = "journal";
            Ask::Journal(decode_request(payload)?)
        }
        "call_next" => {
            reply.op = "call_next";
            let ask: admin::CallNext = decode_request(payload)?;
            noted(ask.by.clone(), ask.reason.clone())?;
            Ask::Write(ask.into_op(line)?)
        }
        "take" => {
            reply.op = "take";
            let ask: admin::Take = decode_request(payload)?;
            noted(ask.by.clone(), ask.reason.clone())?;
            Ask::Write(ask.into_op(line)?)
        }
        "list_tokens" => {
            reply.op = "list_tokens";
            let ask: admin::ListTokens = decode_request(payload)?;
            ask.check()?;
            Ask::ListTokens(Box::new(ask))
        }
        "backup" => {
            reply.op = "backup";
            let ask: backup::Backup = decode_request(payload)?;
            Ask::Backup { index: ask.index }
        }
        "backup_chunk" => {
            reply.op = "backup_chunk";
            let ask: backup::BackupChunk = decode_request(payload)?;
            Ask::BackupChunk {
                id: ask.id,
                offset: ask.offset,
            }
        }
        "restore_part" => {
            reply.op = "restore_part";
            let ask: backup::RestorePart = decode_request(payload)?;
            let bytes = ask.data.0.len();
            if bytes > PART_BYTES_MAX {
                return Err(ApiError::bad_request(format!(
                    "data: {bytes} bytes, and a part has at most {PART_BYTES_MAX}"
                )));
            }
            let step = RestoreStep::Part {
                number: ask.part,
                data: bytes::Bytes::from(ask.data.0).into(),
            };
            restore(line, ask.upload, step)
        }
        "restore" => {
            reply.op = "restore";
            let ask: backup::RestoreLine = decode_request(payload)?;
            noted(ask.by, ask.reason)?;
            let step = RestoreStep::Finish {
                parts: ask.parts,
                digest: ask.digest.0,
                how: Restore {
                    clock_ms: ask.clock_ms,
                    overwrite: ask.overwrite,
                },
            };
            restore(line, ask.upload, step)
        }
        _ => return Err(unknown_op(op)),
    })
}

/// A change of the cluster's members; `None`: this operation is none.
pub(super) fn members_ask(
    op: &str,
    payload: &[u8],
    (shards, now_ms): (u32, u64),
    reply: &mut ReplyTo,
) -> Result<Option<Ask>, ApiError> {
    reply.op = match op {
        "add_node" => "add_node",
        "remove_node" => "remove_node",
        "replace_node" => "replace_node",
        "drain" => "drain",
        "transfer" => "transfer",
        "rotate_key" => "rotate_key",
        _ => return Ok(None),
    };
    let ask: admin::ChangeMembers = decode_request(payload)?;
    ask.check(op)?;
    let (id, disk_id) = (
        ask.node.unwrap_or_default(),
        ask.disk.map_or(0, |disk| disk.0),
    );
    let change = match op {
        "add_node" => MembersChange::Add { disk_id },
        "remove_node" => MembersChange::Remove { id },
        "replace_node" => MembersChange::Replace { id, disk_id },
        "drain" => MembersChange::Drain {
            id,
            drained: ask.drained.unwrap_or(true),
        },
        "rotate_key" => MembersChange::RotateKey(rotation(&ask, now_ms)),
        _ => MembersChange::Prefer {
            shards: some_of(shards, ask.shards.unwrap_or_default())?,
            to: ask.node,
        },
    };
    Ok(Some(Ask::Members(Box::new(MembersRequest {
        change,
        if_version: ask.if_version,
        by: ask.by.unwrap_or_default(),
        reason: ask.reason.unwrap_or_default(),
    }))))
}

/// The leader knows the rest: it reads the request by its own clock, also if another node passes it on.
fn rotation(ask: &admin::ChangeMembers, now_ms: u64) -> Rotation {
    let old_for_ms = ask.old_for_ms.unwrap_or(OLD_KEY_FOR_MS_DEFAULT);
    let old_until_ms = ask.old_until_ms;
    Rotation {
        current: KeyPrint {
            id: ask.key_id.unwrap_or_default(),
            fingerprint: 0,
        },
        old: KeyPrint::default(),
        old_until_ms: old_until_ms.unwrap_or_else(|| now_ms.saturating_add(old_for_ms)),
    }
}

/// The shards that are asked for, each once, of a cluster that has so many.
fn some_of(shards: u32, asked: Vec<u32>) -> Result<Vec<u32>, ApiError> {
    let asked: BTreeSet<u32> = asked.into_iter().collect();
    match asked.last() {
        Some(last) if *last < shards => Ok(asked.into_iter().collect()),
        _ => Err(ApiError::bad_request(format!(
            "shards: at least one number from 0 to {}",
            shards - 1
        ))),
    }
}

fn restore(line: LineName, upload: backup::Hex<16>, step: RestoreStep) -> Ask {
    Ask::Restore(Box::new(RestoreCommand {
        line,
        upload: u128::from_be_bytes(upload.0),
        step,
    }))
}

pub(super) fn cluster_question(
    op: &str,
    payload: &[u8],
    reply: &mut ReplyTo,
) -> Result<Question, ApiError> {
    match op {
        "status" => {
            reply.op = "cluster_status";
            let _: admin::ClusterStatusRequest = decode_request(payload)?;
            Ok(Question::ClusterStatus)
        }
        "list_lines" => {
            reply.op = "list_lines";
            Ok(Question::ListLines(decode_request(payload)?))
        }
        "members_changes" => {
            reply.op = "members_changes";
            let _: admin::ClusterStatusRequest = decode_request(payload)?;
            Ok(Question::MembersChanges)
        }
        _ => Err(unknown_op(op)),
    }
}
