//! The command line tool, as a script uses it: `--json`, and the exit code.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::nats::{Nats, inbox_of};
use crate::process::leashed;
use crate::program::program;

/// No command that is run to its end takes longer; the demo plays for about a minute.
const PATIENCE: Duration = Duration::from_secs(200);

/// The tool and the cluster that it talks to.
#[derive(Clone, Debug)]
pub struct Cli {
    url: String,
    /// `--inbox-prefix`, if it is another.
    inbox: Option<String>,
    /// `RUST_LOG`, if it has one.
    logs: Option<String>,
}

/// The result of a command that has ended.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    /// The lines of stdout, each one a JSON value.
    pub lines: Vec<Value>,
    pub stderr: String,
}

/// A command that goes on: `watch`.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Cli {
    /// For the cluster behind this NATS server.
    #[must_use]
    pub fn new(url: String) -> Cli {
        Cli {
            url,
            inbox: None,
            logs: None,
        }
    }

    /// For this server, with the login and the inbox of a role of deploy/nats.
    #[must_use]
    pub fn of_role(nats: &Nats, role: &str) -> Cli {
        Cli::new(nats.url_as(role)).with_inbox_of(role)
    }

    /// The tool with the inbox of a role of deploy/nats.
    #[must_use]
    pub fn with_inbox_of(self, role: &str) -> Cli {
        Cli {
            inbox: Some(inbox_of(role)),
            ..self
        }
    }

    /// The tool with this `RUST_LOG`.
    #[must_use]
    pub fn with_logs(self, filter: &str) -> Cli {
        Cli {
            logs: Some(filter.to_owned()),
            ..self
        }
    }

    /// Runs a command with `--json` to its end. Each line on stdout must be JSON.
    ///
    /// # Errors
    /// It cannot be started, does not end, or prints something else.
    pub async fn run<W: AsRef<OsStr>>(&self, words: &[W]) -> Result<Output> {
        let read =
            |line: &str| serde_json::from_str(line).with_context(|| format!("not JSON: {line:?}"));
        ended(self.command(words, true).await?, read).await
    }

    /// Runs a command as people do, without `--json`, to its end. Each line is a string.
    ///
    /// # Errors
    /// It cannot be started or does not end.
    pub async fn run_as_text<W: AsRef<OsStr>>(&self, words: &[W]) -> Result<Output> {
        let read = |line: &str| Ok(Value::from(line));
        ended(self.command(words, false).await?, read).await
    }

    /// Starts a command with `--json` that goes on by itself.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start<W: AsRef<OsStr>>(&self, words: &[W]) -> Result<Running> {
        let mut command = self.command(words, true).await?;
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = BufReader::new(child.stdout.take().context("stdout")?).lines();
        Ok(Running { child, out })
    }

    /// Runs a command with `--json` that gets its server from the contexts in this folder, to its end.
    ///
    /// # Errors
    /// Those of [`Cli::run`].
    pub async fn run_by_contexts<W: AsRef<OsStr>>(dir: &Path, words: &[W]) -> Result<Output> {
        let read =
            |line: &str| serde_json::from_str(line).with_context(|| format!("not JSON: {line:?}"));
        let mut command = leashed(program().await?.as_os_str()).await?;
        command.arg("--json").args(words);
        command.env("NOWSERVING_CONFIG_DIR", dir);
        ended(command, read).await
    }

    async fn command<W: AsRef<OsStr>>(&self, words: &[W], json: bool) -> Result<Command> {
        let mut command = leashed(program().await?.as_os_str()).await?;
        command.args(json.then_some("--json"));
        command.envs(self.logs.iter().map(|filter| ("RUST_LOG", filter)));
        command.args(["--nats", &self.url]);
        if let Some(inbox) = &self.inbox {
            command.args(["--inbox-prefix", inbox]);
        }
        command.args(words);
        Ok(command)
    }
}

async fn ended(mut command: Command, read: impl Fn(&str) -> Result<Value>) -> Result<Output> {
    let done = tokio::time::timeout(PATIENCE, command.output()).await;
    let done = done.with_context(|| format!("{command:?} does not end"))??;
    let stdout = String::from_utf8(done.stdout)?;
    let lines: Result<_> = stdout.lines().map(read).collect();
    let code = done.status.code();
    Ok(Output {
        code: code.with_context(|| format!("{}", done.status))?,
        lines: lines.with_context(|| format!("{command:?}"))?,
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}

impl Output {
    /// The one line of a command that succeeded.
    ///
    /// # Errors
    /// It failed, or printed more.
    pub fn done(mut self) -> Result<Value> {
        ensure!(self.code == 0 && self.lines.len() == 1, "{self:?}");
        self.lines.pop().context("no line")
    }

    /// The error of a command that ended with this exit code.
    ///
    /// # Errors
    /// It did not, or its error has another form than the contract's.
    pub fn failed(mut self, code: i32, error: &str) -> Result<Value> {
        ensure!(self.code == code && self.lines.len() == 1, "{self:?}");
        let refusal = self.lines.pop().context("no line")?["error"].clone();
        ensure!(refusal["code"] == error, "want {error}: {refusal}");
        let message = refusal["message"].as_str();
        ensure!(message.is_some_and(|text| !text.is_empty()), "{refusal}");
        Ok(refusal)
    }
}

impl Running {
    /// The next line; none once the command has closed its stdout.
    ///
    /// # Errors
    /// It does not come, or is not JSON.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        let line = tokio::time::timeout(PATIENCE, self.out.next_line());
        let line = line.await.context("prints nothing")??;
        let line = line
            .map(|line| serde_json::from_str(&line).with_context(|| format!("not JSON: {line:?}")));
        line.transpose()
    }
}
