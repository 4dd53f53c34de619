//! Key-values are put back one by one: each by an operator's request to its shard.

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nowserving_client::{Client, Code, Error, Kv, KvGetReply, KvKey, KvRestore, KvValue};
use nowserving_kv::REVISION_ABOVE_MAX;
use nowserving_shard::state::State;
use serde::Serialize;

use super::file::Reader;
use super::{RestoreArgs, is_refusal};

/// Requests under way at once.
const AT_ONCE: usize = 64;

/// What became of the key-values of a backup.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Keys {
    /// Put back; with `--dry-run`: would be.
    restored: u64,
    /// They were left alone.
    exist: u64,
    refused: u64,
    /// Why the first of them was.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Keys {
    /// Whether some were left alone or refused.
    pub fn lacks_some(&self) -> bool {
        self.exist + self.refused > 0
    }

    pub fn is_empty(&self) -> bool {
        *self == Keys::default()
    }

    /// How many were left alone.
    pub fn exist(&self) -> u64 {
        self.exist
    }

    /// How many were put back.
    pub fn restored(&self) -> u64 {
        self.restored
    }

    pub fn text(&self, dry_run: bool) -> String {
        let done = match dry_run {
            true => "would be restored",
            false => "restored",
        };
        let mut text = format!("key-values: {} {done}", self.restored);
        if self.exist > 0 {
            text += &format!(
                ", {} exist, left alone (--overwrite replaces them)",
                self.exist
            );
        }
        if self.refused > 0 {
            let error = self.error.as_deref().unwrap_or_default();
            text += &format!(", {} refused: {error}", self.refused);
        }
        text
    }

    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Restored => self.restored += 1,
            Outcome::Exists => self.exist += 1,
            Outcome::Refused(error) => {
                self.refused += 1;
                self.error.get_or_insert(error);
            }
        }
    }
}

enum Outcome {
    Restored,
    Exists,
    Refused(String),
}

/// Puts back the keys of one shard that had not expired.
pub async fn restore(
    client: &Client,
    state: &State,
    above_revision: u64,
    args: &RestoreArgs,
    done: &mut Keys,
) -> anyhow::Result<()> {
    let entries = state.kv().iter_from(0).filter_map(|(bucket, key, entry)| {
        let left_ms = |at_ms: u64| at_ms.checked_sub(state.now_ms()).filter(|ms| *ms > 0);
        let expires_in_ms = match entry.expires_at_ms {
            Some(at_ms) => Some(left_ms(at_ms)?),
            None => None,
        };
        let request = || {
            Ok(KvRestore {
                key: KvKey::new(key)?,
                value: KvValue::new(entry.value.clone())?,
                expires_in_ms,
                above_revision,
                overwrite: args.overwrite,
            })
        };
        Some((bucket, request()))
    });
    let mut outcomes = stream::iter(entries)
        .map(async |(bucket, request)| {
            let request =
                request.map_err(|error: nowserving_client::ApiError| anyhow::anyhow!(error))?;
            let put = put_back(client, bucket, &request, args.dry_run).await;
            match put {
                Err(error) if is_refusal(&error) => Ok(Outcome::Refused(format!("{error:#}"))),
                put => put.with_context(|| {
                    let key = request.key.as_str();
                    format!("key {key:?} of bucket {bucket} is not restored")
                }),
            }
        })
        .buffer_unordered(AT_ONCE);
    while let Some(outcome) = outcomes.try_next().await? {
        done.count(outcome);
    }
    Ok(())
}

async fn put_back(
    client: &Client,
    bucket: &str,
    request: &KvRestore,
    dry_run: bool,
) -> anyhow::Result<Outcome> {
    let kv = client.kv(bucket)?;
    if dry_run {
        // One that is there would be replaced.
        let exists = !request.overwrite && is_there(&kv, request, |_| true).await?;
        return Ok(match exists {
            true => Outcome::Exists,
            false => Outcome::Restored,
        });
    }
    match kv.restore(request).await {
        Ok(_) => Ok(Outcome::Restored),
        Err(error) if error.code() == Some(Code::VersionConflict) => {
            // An attempt whose answer was lost may have put it back.
            let is_same = |got: &KvGetReply| {
                got.value == request.value && got.revision > request.above_revision
            };
            match error.may_have_happened() && is_there(&kv, request, is_same).await? {
                true => Ok(Outcome::Restored),
                false => Ok(Outcome::Exists),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the cluster has the key, and it `is` so.
async fn is_there(
    kv: &Kv,
    request: &KvRestore,
    is: impl Fn(&KvGetReply) -> bool,
) -> Result<bool, Error> {
    match kv.get(request.key.as_str()).await {
        Ok(got) => Ok(is(&got)),
        Err(error) if error.code() == Some(Code::KeyNotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The largest revision that any shard of the backup has given, as far as one counts: a key can come into another shard.
pub fn newest_revision(mut reader: Reader) -> anyhow::Result<u64> {
    let mut newest = 0;
    while let Some((_, state)) = reader.shard()? {
        newest = newest.max(state.kv().revision());
    }
    Ok(newest.min(REVISION_ABOVE_MAX))
}
