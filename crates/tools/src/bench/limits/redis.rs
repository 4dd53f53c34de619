//! A Redis server of our own, in memory only, and the two ways in which rate limits are kept there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use tokio::time::Instant;

use super::resp::{Redis, Reply, Request, encode};
use super::{Keys, PER_HOUR, user};
use crate::bench::load::Commands;
use crate::embedded::{Child, DataDir, free_addresses, last_lines, leash};

const START_DEADLINE: Duration = Duration::from_secs(15);
const HOUR_S: u64 = 3_600;
const GCRA: &str = include_str!("gcra.lua");

/// A running redis-server. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    pub version: String,
}

/// Where redis-server is: `REDIS_SERVER`, then `PATH`.
fn find() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("REDIS_SERVER").filter(|given| !given.is_empty()) {
        return Ok(given.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).map(|dir| dir.join("redis-server"));
    programs.find(|program| program.is_file()).context(
        "redis-server not found: install it, or set REDIS_SERVER=/path/to/redis-server \
         (`cargo xtask bench --limits` unpacks it from the system's packages)",
    )
}

impl Server {
    /// Starts it without persistence, and connects.
    ///
    /// # Errors
    /// It is not there, or does not come up.
    pub async fn start(dir: &DataDir) -> anyhow::Result<(Server, Redis)> {
        let port = free_addresses(1)?[0].port();
        let mut command = leash::command(&find()?)?;
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--port").arg(port.to_string());
        command.arg("--dir").arg(dir.path());
        let log = dir.log("redis-server");
        let mut child = Child::start("redis-server".to_owned(), None, command, &log)?;
        let deadline = Instant::now() + START_DEADLINE;
        let redis = loop {
            if let Ok(redis) = Redis::connect(port).await {
                break redis;
            }
            if !child.is_alive() || Instant::now() > deadline {
                bail!("redis-server did not start:\n{}", last_lines(&log, 5));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let version = match redis.command(&["INFO", "server"]).await? {
            Reply::Text(info) => version(&info).unwrap_or_default(),
            other => bail!("Redis answers INFO with {other:?}"),
        };
        Ok((Server { child, version }, redis))
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
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
pub async fn gcra(redis: &Redis, keys: Keys) -> anyhow::Result<Commands> {
    let script = match redis.command(&["SCRIPT", "LOAD", GCRA]).await? {
        Reply::Text(script) => script,
        other => bail!("Redis answers SCRIPT LOAD with {other:?}"),
    };
    let per_hour = PER_HOUR.to_string();
    let burst = (PER_HOUR - 1).to_string();
    Ok(Arc::new(move |number| {
        let key = format!("throttle_{}", user(keys(number)));
        let words = [
            "EVALSHA", &script, "1", &key, &burst, &per_hour, "3600", "1",
        ];
        Request {
            bytes: encode(&words).into(),
            commands: 1,
        }
    }))
}
