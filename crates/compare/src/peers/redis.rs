//! A Redis server of our own, and what is asked of it: rate limits in two ways, and a line.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use nowserving_e2e::{Process, eventually, free_port};

use super::named;
use super::resp::{Redis, Reply, Request, encode};
use crate::bench::check::{Keys, PER_HOUR, user};
use crate::bench::lines::key;

/// Makes the commands with this number.
pub type Commands = Arc<dyn Fn(u64) -> Request + Send + Sync>;

const START: Duration = Duration::from_secs(15);
const HOUR_S: u64 = 3_600;
const GCRA: &str = include_str!("gcra.lua");
/// A token: its number, its place in the line, and what its key has.
const ENTER: &str = "local token = redis.call('INCR', KEYS[1])
redis.call('ZADD', KEYS[2], token, ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], token)
return token";

/// A running redis-server. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    pub process: Process,
    pub version: String,
    pub port: u16,
}

/// What a server keeps on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// Each command is synced before it is answered (`appendfsync always`).
    Synced,
}

impl Server {
    /// Starts `REDIS_SERVER`, or the one in `PATH`, and connects.
    ///
    /// # Errors
    /// It is not there, or does not come up.
    pub async fn start(folder: &Path, kept: Kept) -> Result<(Server, Redis)> {
        let program = named("REDIS_SERVER", "redis-server");
        let port = free_port()?;
        let args = ["--bind", "127.0.0.1", "--save", ""];
        let mut args: Vec<OsString> = args.map(OsString::from).into();
        if kept == Kept::Synced {
            args.extend(["--appendonly", "yes", "--appendfsync", "always"].map(OsString::from));
        }
        args.extend(["--port".into(), port.to_string().into()]);
        args.extend(["--dir".into(), folder.into()]);
        let log = folder.join("redis-server.log");
        let process = Process::start("redis-server", &program, &args, &log).await?;
        let redis = eventually("redis-server takes connections", START, async || {
            Redis::connect(port).await.map(Some)
        });
        let redis = redis.await.with_context(|| process.tail(5))?;
        let version = match redis.command(&["INFO", "server"]).await? {
            Reply::Text(info) => version(&info).unwrap_or_default(),
            other => bail!("Redis answers INFO with {other:?}"),
        };
        let server = Server {
            process,
            version,
            port,
        };
        Ok((server, redis))
    }
}

fn version(info: &str) -> Option<String> {
    let mut lines = info.lines();
    let version = lines.find_map(|line| line.strip_prefix("redis_version:"))?;
    Some(version.trim().to_owned())
}

/// As Lyft's server: a counter for each key and window, INCRBY and EXPIRE in one pipeline.
pub fn fixed_window(keys: Keys) -> Commands {
    Arc::new(move |number| {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH);
        let window = now_s.map_or(0, |now| now.as_secs() / HOUR_S * HOUR_S);
        let key = format!("bench_user_{}_{window}", user(keys(number)));
        let mut bytes = encode(&["INCRBY", &key, "1"]);
        bytes.extend(encode(&["EXPIRE", &key, "3600"]));
        Request {
            bytes: bytes.into(),
            commands: 2,
        }
    })
}

/// As redis-cell, by a script.
///
/// # Errors
/// Redis refuses the script.
pub async fn gcra(redis: &Redis, keys: Keys) -> Result<Commands> {
    let script = load(redis, GCRA).await?;
    let per_hour = PER_HOUR.to_string();
    let burst = (PER_HOUR - 1).to_string();
    Ok(Arc::new(move |number| {
        let key = format!("throttle_{}", user(keys(number)));
        one(&[
            "EVALSHA", &script, "1", &key, &burst, &per_hour, "3600", "1",
        ])
    }))
}

/// Loads the script by which a token enters a line; returns its name.
///
/// # Errors
/// Redis refuses the script.
pub async fn enter_script(redis: &Redis) -> Result<String> {
    load(redis, ENTER).await
}

/// A token enters a line, by that script.
pub fn enter(script: String) -> Commands {
    Arc::new(move |number| {
        one(&[
            "EVALSHA",
            &script,
            "3",
            "next",
            "waiting",
            "tokens",
            &key(number),
        ])
    })
}

fn one(words: &[&str]) -> Request {
    Request {
        bytes: encode(words).into(),
        commands: 1,
    }
}

async fn load(redis: &Redis, script: &str) -> Result<String> {
    match redis.command(&["SCRIPT", "LOAD", script]).await? {
        Reply::Text(script) => Ok(script),
        other => bail!("Redis answers SCRIPT LOAD with {other:?}"),
    }
}
