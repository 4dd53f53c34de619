//! A Redis server of our own, in memory only, and the two ways in which rate limits are kept there.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use nowserving_e2e::{Process, eventually, free_port};

use super::resp::{Redis, Reply, Request, encode};
use super::{Keys, PER_HOUR, user};

/// Makes the commands with this number.
pub type Commands = Arc<dyn Fn(u64) -> Request + Send + Sync>;

const START: Duration = Duration::from_secs(15);
const HOUR_S: u64 = 3_600;
const GCRA: &str = include_str!("gcra.lua");

/// A running redis-server. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    pub process: Process,
    pub version: String,
}

impl Server {
    /// Starts `REDIS_SERVER`, or the one in `PATH`, without persistence, and connects.
    ///
    /// # Errors
    /// It is not there, or does not come up.
    pub async fn start(folder: &Path) -> Result<(Server, Redis)> {
        let given = std::env::var_os("REDIS_SERVER").filter(|given| !given.is_empty());
        let program = given.unwrap_or_else(|| "redis-server".into());
        let port = free_port()?;
        let args = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let mut args: Vec<OsString> = args.map(OsString::from).into();
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
        Ok((Server { process, version }, redis))
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
