//! The measure: a NATS responder that does nothing but answer.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;
use async_nats::Subject;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::oneshot;

/// A responder on a thread and a connection of its own, as lean as one can be: what it does a
/// second is what NATS and the requester leave room for.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens; as long as the subject that it is compared with.
    pub subject: Subject,
    /// Where Linux tells the processor time of its thread.
    pub cpu: Option<PathBuf>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts it, with a subject and answers of that many bytes; it listens when this returns.
    ///
    /// # Errors
    /// No thread, or no connection.
    pub fn start(url: &str, subject_bytes: usize, answer_bytes: usize) -> anyhow::Result<Echo> {
        let mut subject = "echo.".to_owned();
        let more = subject_bytes.saturating_sub(subject.len());
        subject.push_str(&"x".repeat(more.max(1)));
        let answer = Bytes::from(vec![b'x'; answer_bytes]);
        let (ready, wait) = std::sync::mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let (url, listens) = (url.to_owned(), subject.clone());
        let thread = std::thread::Builder::new()
            .name("echo".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(ready.send(Err(error.into()))),
                };
                runtime.block_on(async {
                    match listen(&url, listens).await {
                        Ok((client, messages)) => {
                            drop(ready.send(Ok(stat_of_this_thread())));
                            tokio::select! {
                                () = serve(client, messages, answer) => {}
                                _ = stopped => {}
                            }
                        }
                        Err(error) => drop(ready.send(Err(error))),
                    }
                });
            })?;
        let cpu = wait.recv().context("the echo's thread ended")??;
        Ok(Echo {
            subject: subject.into(),
            cpu,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, its requests have failed and are reported.
            let _ = thread.join();
        }
    }
}

async fn listen(
    url: &str,
    subject: String,
) -> anyhow::Result<(async_nats::Client, async_nats::Subscriber)> {
    let client = async_nats::connect(url).await?;
    let messages = client.subscribe(subject).await?;
    client.flush().await?;
    Ok((client, messages))
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

/// `None` where the system does not tell.
fn stat_of_this_thread() -> Option<PathBuf> {
    let thread = std::fs::read_link("/proc/thread-self").ok()?;
    Some(Path::new("/proc").join(thread).join("stat"))
}
