//! `nowserving kv`: the key-values of a bucket.

use std::io::{Read, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use nowserving_client::{
    ApiError, KV_LIST_MAX, KvDelete, KvGet, KvGetReply, KvKey, KvList, KvListReply, KvPrefix,
    KvPut, KvReply, KvValue,
};
use nowserving_kv::VALUE_BYTES_MAX;
use nowserving_line::NUMBER_MAX;

use crate::tables;
use crate::user::Freshness;
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};

/// Small values beside the lines, such as a visit's basket.
#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Prints the value of a key. Exit code 1 if there is none.
    #[command(after_help = "Example:\n  nowserving kv get visits order-4711")]
    Get {
        #[command(flatten)]
        of: KeyArgs,
        /// How fresh the answer must be.
        #[arg(long, value_enum, default_value_t)]
        consistency: Freshness,
    },
    /// Sets the value of a key, and prints its revision.
    #[command(after_help = "\
Examples:
  nowserving kv put visits order-4711 '{\"shoes\": 42}' --ttl 1h
  nowserving kv put visits order-4711 - < basket.json
  nowserving kv put visits order-4711 mine --if-revision 0      only if there is no such key")]
    Put {
        #[command(flatten)]
        of: KeyArgs,
        /// At most 10,240 bytes; `-` reads standard input.
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// Only if the key has this revision; 0: only if there is no such key.
        #[arg(long, value_name = "N", value_parser = number::between::<u64>(0..=NUMBER_MAX))]
        if_revision: Option<u64>,
        /// It expires after so long, 1ms to 365d.
        #[arg(
            long = "ttl", value_name = "TIME",
            value_parser = duration::between(1..=31_536_000_000)
        )]
        ttl_ms: Option<u64>,
    },
    /// Removes a key. Exit code 1 if there is none.
    #[command(after_help = "Example:\n  nowserving kv delete visits order-4711")]
    Delete {
        #[command(flatten)]
        of: KeyArgs,
        /// Only if the key has this revision.
        #[arg(long, value_name = "N", value_parser = number::between::<u64>(0..=NUMBER_MAX))]
        if_revision: Option<u64>,
    },
    /// Lists keys, without their values.
    ///
    /// Any node answers, from all shards; it may be behind.
    #[command(after_help = "Example:\n  nowserving kv list visits order-")]
    List {
        /// The bucket.
        bucket: String,
        /// Only keys that begin so.
        // Not a flag: all commands have a --prefix, which is that of the subjects.
        #[arg(value_name = "PREFIX")]
        begins: Option<String>,
        /// Begins after this key; an empty one: at the start.
        #[arg(long, value_name = "KEY")]
        after: Option<String>,
        /// How many keys, 1 to 1,000 [default: 100].
        #[arg(long, value_name = "N", value_parser = number::between::<u64>(1..=KV_LIST_MAX))]
        limit: Option<u64>,
    },
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The bucket.
    bucket: String,
    /// The key, 1 to 512 bytes.
    key: String,
}

fn usage(field: &'static str) -> impl Fn(ApiError) -> WrongUsage {
    move |error| WrongUsage(format!("{field}: {}", error.message))
}

fn key(text: &str) -> Result<KvKey, WrongUsage> {
    KvKey::new(text).map_err(usage("key"))
}

/// Runs one of them.
pub async fn run(command: KvCommand, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let open = async |bucket: &str| anyhow::Ok(global.connect().await?.kv(bucket)?);
    match command {
        KvCommand::Get { of, consistency } => {
            let request = KvGet {
                key: key(&of.key)?,
                consistency: Some(consistency.into()),
            };
            let reply = open(&of.bucket).await?.get_with(&request).await?;
            show(&reply, output)?;
        }
        KvCommand::Put {
            of,
            value,
            if_revision,
            ttl_ms,
        } => {
            let request = KvPut {
                key: key(&of.key)?,
                value: KvValue::new(read(value)?).map_err(|error| WrongUsage(error.message))?,
                if_revision,
                ttl_ms,
            };
            let reply = open(&of.bucket).await?.put_with(&request).await?;
            output.answer(&reply, revision)?;
        }
        KvCommand::Delete { of, if_revision } => {
            let request = KvDelete {
                key: key(&of.key)?,
                if_revision,
            };
            let reply = open(&of.bucket).await?.delete_with(&request).await?;
            output.answer(&reply, revision)?;
        }
        KvCommand::List {
            bucket,
            begins,
            after,
            limit,
        } => {
            let prefix = begins.map(KvPrefix::new).transpose();
            let after = after.map(KvPrefix::new).transpose();
            let page = KvList {
                prefix: prefix.map_err(usage("PREFIX"))?,
                after: after.map_err(usage("--after"))?,
                limit,
            };
            let reply = open(&bucket).await?.list(&page).await?;
            output.answer(&reply, |reply| table(reply, output))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(value: String) -> anyhow::Result<Vec<u8>> {
    if value != "-" {
        return Ok(value.into_bytes());
    }
    read_from(std::io::stdin().lock())
}

/// Reads no more than shows that it is too long.
fn read_from(input: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    input.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > VALUE_BYTES_MAX {
        let what = format!("value: standard input has more than {VALUE_BYTES_MAX} bytes");
        return Err(WrongUsage(what).into());
    }
    Ok(bytes)
}

/// The value alone, as it is: it can go into a file.
fn show(reply: &KvGetReply, output: &Output) -> anyhow::Result<()> {
    if output.json {
        return output.answer(reply, |_| String::new());
    }
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(reply.value.as_bytes())?;
    if output.live {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

fn revision(reply: &KvReply) -> String {
    format!("revision {}", reply.revision)
}

fn table(reply: &KvListReply, output: &Output) -> String {
    let rows = reply.entries.iter().map(|entry| {
        let expires = entry.expires_in_ms.map(tables::duration);
        vec![
            shown(entry.key.as_str()),
            entry.revision.to_string(),
            entry.bytes.to_string(),
            expires.unwrap_or_else(|| "-".to_owned()),
        ]
    });
    let mut text = tables::plain("key, revision, bytes, expires in", rows.collect(), output);
    if let Some(next) = &reply.next {
        text.push('\n');
        text.push_str(&more(next.as_str()));
    }
    text
}

/// A key in one line. What could change the terminal is escaped, and a backslash, so that no two keys look the same.
fn shown(key: &str) -> String {
    let shown = |c: char| match c {
        '\'' | '"' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    key.chars().map(shown).collect()
}

/// How to get the next page: as words for a shell, unless the key would change what the terminal shows.
fn more(next: &str) -> String {
    match shlex::try_quote(next) {
        Ok(quoted) if !next.chars().any(char::is_control) => format!("more: --after={quoted}"),
        _ => "more: --after with the key in `next`, which --json prints".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_next_page_is_said_in_words_for_a_shell() {
        for key in ["order-1", "--x", "it's", "a b", "$HOME", "\"", "票", "*"] {
            let words = shlex::split(&more(key)).unwrap();
            assert_eq!(words, ["more:".to_owned(), format!("--after={key}")]);
        }
        for key in ["a\nb", "\u{1b}[2J", "\0"] {
            assert!(more(key).contains("--json"), "{key:?}");
        }
    }

    #[test]
    fn keys_are_shown_as_they_are_but_for_what_changes_the_terminal() {
        for (key, expected) in [
            ("it's \"a\" 票", "it's \"a\" 票"),
            ("a\nb", "a\\nb"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\\n", "a\\\\n"),
        ] {
            assert_eq!(shown(key), expected);
        }
    }

    #[test]
    fn a_value_from_stdin_has_a_limit() {
        let longest = vec![7; VALUE_BYTES_MAX];
        assert_eq!(read_from(&longest[..]).unwrap(), longest);
        let endless = std::io::repeat(7);
        let error = read_from(endless).unwrap_err();
        assert!(error.is::<WrongUsage>());
        assert!(error.to_string().contains("more than 10240 bytes"));
    }
}
