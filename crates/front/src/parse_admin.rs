//! What operators' requests ask for.

use std::collections::BTreeSet;

use nowserving_engine::{Ask, Question};
use nowserving_line::{Op, Restore};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_protocol::members::OLD_KEY_FOR_MS_DEFAULT;
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::unknown_op;
use nowserving_protocol::{admin, backup};
use nowserving_shard::members::{MembersChange, MembersRequest};
use nowserving_shard::restore::{PART_BYTES_MAX, RestoreCommand, RestoreStep};

use crate::body::Body;
use crate::who::said;

impl Body<'_> {
    pub(crate) fn admin_ask(&self) -> Result<Ask, ApiError> {
        let line = self.name.clone();
        Ok(Ask::Write(match self.op {
            Operation::Create => {
                let ask: admin::Create = self.decode()?;
                let settings = ask.into_settings()?;
                Op::Create { line, settings }
            }
            Operation::Configure => {
                let ask: admin::Configure = self.decode()?;
                if ask.dry_run {
                    return Ok(Ask::TryConfigure(Box::new(ask)));
                }
                Op::Configure {
                    line,
                    patch: Box::new(ask.settings),
                    if_version: ask.if_version,
                    incarnation: ask.incarnation,
                }
            }
            Operation::Delete => {
                let admin::Delete { force, incarnation } = self.decode()?;
                Op::Delete {
                    line,
                    force,
                    incarnation,
                }
            }
            Operation::Move => {
                let admin::Move { lane, token, to } = self.decode()?;
                Op::Move {
                    line,
                    lane,
                    token,
                    to,
                }
            }
            Operation::CapacityTold => {
                let ask: admin::CapacityTold = self.decode()?;
                let told = ask.told()?;
                Op::CapacityTold { line, told }
            }
            Operation::Import => self.decode::<admin::Import>()?.into_op(line)?,
            Operation::CallNext => self.decode::<admin::CallNext>()?.into_op(line)?,
            Operation::Take => self.decode::<admin::Take>()?.into_op(line)?,
            _ => return self.admin_read(),
        }))
    }

    fn admin_read(&self) -> Result<Ask, ApiError> {
        Ok(match self.op {
            Operation::Show => {
                let admin::Show {} = self.decode()?;
                Ask::Show
            }
            Operation::Kick => {
                let ask: admin::Kick = self.decode()?;
                ask.check()?;
                Ask::Kick(Box::new(ask))
            }
            Operation::Journal => Ask::Journal(self.decode()?),
            Operation::ListTokens => {
                let ask: admin::ListTokens = self.decode()?;
                ask.check()?;
                Ask::ListTokens(Box::new(ask))
            }
            Operation::Backup => {
                let backup::Backup { index } = self.decode()?;
                Ask::Backup { index }
            }
            Operation::BackupChunk => {
                let backup::BackupChunk { id, offset } = self.decode()?;
                Ask::BackupChunk { id, offset }
            }
            Operation::RestorePart | Operation::Restore => self.restore()?,
            op => return Err(unknown_op(op.word())),
        })
    }

    fn restore(&self) -> Result<Ask, ApiError> {
        let (upload, step) = match self.op {
            Operation::RestorePart => {
                let ask: backup::RestorePart = self.decode()?;
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
                (ask.upload, step)
            }
            _ => {
                let ask: backup::RestoreLine = self.decode()?;
                let step = RestoreStep::Finish {
                    parts: ask.parts,
                    digest: ask.digest.0,
                    how: Restore {
                        clock_ms: ask.clock_ms,
                        overwrite: ask.overwrite,
                    },
                };
                (ask.upload, step)
            }
        };
        Ok(Ask::Restore(Box::new(RestoreCommand {
            line: self.name.clone(),
            upload: u128::from_be_bytes(upload.0),
            step,
        })))
    }

    /// A change of the cluster's members.
    pub(crate) fn members_ask(&self) -> Result<Ask, ApiError> {
        let ask: admin::ChangeMembers = self.decode()?;
        ask.check(self.op)?;
        let (id, disk_id) = (
            ask.node.unwrap_or_default(),
            ask.disk.map_or(0, |disk| disk.0),
        );
        let change = match self.op {
            Operation::AddNode => MembersChange::Add { disk_id },
            Operation::RemoveNode => MembersChange::Remove { id },
            Operation::ReplaceNode => MembersChange::Replace { id, disk_id },
            Operation::Drain => MembersChange::Drain {
                id,
                drained: ask.drained.unwrap_or(true),
            },
            Operation::RotateKey => {
                MembersChange::RotateKey(rotation(&ask, self.reading.now.wall_ms))
            }
            _ => MembersChange::Prefer {
                shards: some_of(self.shards, ask.shards.unwrap_or_default())?,
                to: ask.node,
            },
        };
        let (by, reason) = said(self.note);
        Ok(Ask::Members(Box::new(MembersRequest {
            change,
            if_version: ask.if_version,
            by,
            reason,
        })))
    }

    pub(crate) fn question(&self) -> Result<Question, ApiError> {
        Ok(match self.op {
            Operation::ListLines => Question::ListLines(self.decode()?),
            Operation::ClusterStatus => {
                let admin::ClusterStatusRequest {} = self.decode()?;
                Question::ClusterStatus
            }
            Operation::MembersChanges => {
                let admin::ListMembersChanges {} = self.decode()?;
                Question::MembersChanges
            }
            // Those are answered before.
            op => return Err(unknown_op(op.word())),
        })
    }
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
