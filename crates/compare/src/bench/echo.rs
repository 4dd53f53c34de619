//! The measure: a NATS responder that does nothing but answer, in a process of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::Subject;
use bytes::Bytes;
use futures::StreamExt as _;
use nowserving_e2e::{Process, eventually};

use crate::cpu;

const START: Duration = Duration::from_secs(15);
/// One for the connection, one for the subscription's task, as a service with tokio's defaults has on two cores.
const THREADS: usize = 2;

/// A running echo. It ends when this is dropped.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens; as long as the subject that it is compared with.
    pub subject: Subject,
    process: Process,
}

impl Echo {
    /// Starts it, with a subject and answers of that many bytes; it listens when this returns.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start(
        nats: &async_nats::Client,
        url: &str,
        folder: &Path,
        subject_bytes: usize,
        answer_bytes: usize,
    ) -> Result<Echo> {
        let mut subject = "echo.".to_owned();
        let more = subject_bytes.saturating_sub(subject.len());
        subject.push_str(&"x".repeat(more.max(1)));
        let program = std::env::current_exe().context("where is this program?")?;
        let args: [OsString; 4] = [
            "echo".into(),
            url.into(),
            subject.clone().into(),
            answer_bytes.to_string().into(),
        ];
        let log = folder.join("echo.log");
        let process = Process::start("echo", program.as_os_str(), args, &log).await?;
        let subject: Subject = subject.into();
        let answer = eventually("the echo answers", START, async || {
            Ok(Some(nats.request(subject.clone(), Bytes::new()).await?))
        });
        answer.await.with_context(|| process.tail(5))?;
        Ok(Echo { subject, process })
    }

    /// Where its processor time stands.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu(&self) -> Result<PathBuf> {
        cpu::of(&self.process)
    }
}

/// The echo's own process.
#[derive(Debug, clap::Args)]
pub struct EchoArgs {
    nats: String,
    subject: String,
    answer_bytes: usize,
}

/// Answers until the process is ended.
///
/// # Errors
/// No connection.
pub fn run(args: EchoArgs) -> Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(THREADS).enable_all().build()?;
    runtime.block_on(async {
        let client = async_nats::connect(&args.nats).await?;
        let messages = client.subscribe(args.subject).await?;
        client.flush().await?;
        let answer = Bytes::from(vec![b'x'; args.answer_bytes]);
        // In a task: what `block_on` drives itself has a thread beside the workers.
        Ok(tokio::spawn(serve(client, messages, answer)).await?)
    })
}

async fn serve(client: async_nats::Client, mut messages: async_nats::Subscriber, answer: Bytes) {
    while let Some(message) = messages.next().await {
        if let Some(reply) = message.reply
            && client.publish(reply, answer.clone()).await.is_err()
        {
            return;
        }
    }
}
