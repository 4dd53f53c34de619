//! Copies the growing log files of a cluster to stderr.
//!
//! The children write to files, not into pipes of this process: a pipe that nobody empties (a
//! terminal on hold, a harness that reads only stdout) would in the end stop the nodes. The copying
//! thread may hang on stderr as long as it likes; nothing waits for it, and nothing is lost.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(50);
/// How long a stderr that takes nothing is waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Tail {
    ending: Arc<AtomicBool>,
    /// How often all files were copied as far as they went.
    rounds: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Tail {
    /// Copies the lines written to `files` from now on, each with the file's name before it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(files: Vec<(String, PathBuf)>) -> std::io::Result<Tail> {
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        let rounds = Arc::new(AtomicU64::new(0));
        let done = Arc::clone(&rounds);
        let thread = std::thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || {
                let mut files: Vec<Follower> = files.into_iter().map(Follower::new).collect();
                loop {
                    // Read the flag first, so that lines written before it was set are still copied.
                    let last = seen.load(Ordering::Acquire);
                    for file in &mut files {
                        file.copy();
                    }
                    done.fetch_add(1, Ordering::Release);
                    if last {
                        return;
                    }
                    std::thread::sleep(INTERVAL);
                }
            })?;
        Ok(Tail {
            ending,
            rounds,
            thread,
        })
    }

    /// Returns once all that was written before the call is copied, or stderr takes nothing.
    pub async fn catch_up(&self) {
        // The round under way may have passed a file already; the one after it has not begun.
        let enough = self.rounds.load(Ordering::Acquire) + 2;
        let deadline = Instant::now() + LAST_WORDS;
        while self.rounds.load(Ordering::Acquire) < enough && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Copies the remaining lines, then ends.
    pub fn finish(self) {
        self.ending.store(true, Ordering::Release);
        let deadline = Instant::now() + LAST_WORDS;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Follower {
    name: String,
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl Follower {
    fn new((name, path): (String, PathBuf)) -> Follower {
        Follower {
            name,
            path,
            file: None,
            partial: Vec::new(),
        }
    }

    fn copy(&mut self) {
        if self.file.is_none() {
            // Not there yet: its process has not started.
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else { return };
        let mut chunk = [0; 16 * 1024];
        while let Ok(read @ 1..) = file.read(&mut chunk) {
            self.partial.extend_from_slice(&chunk[..read]);
            let lines = complete_lines(&mut self.partial, &self.name);
            // Nobody to tell if stderr is closed; the files have it all.
            let _ = std::io::stderr().write_all(&lines);
        }
    }
}

/// Takes the complete lines out of `text`, each with `name` put before it. A line that does not
/// end within 64 KiB is cut.
fn complete_lines(text: &mut Vec<u8>, name: &str) -> Vec<u8> {
    const LONGEST: usize = 64 * 1024;
    let mut end = text
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    if end == 0 && text.len() > LONGEST {
        text.push(b'\n');
        end = text.len();
    }
    let mut out = Vec::with_capacity(end + 64);
    for line in text[..end].split_inclusive(|&byte| byte == b'\n') {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b" | ");
        out.extend_from_slice(line);
    }
    text.drain(..end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_copied() {
        let mut text = b"one\ntwo\nthr".to_vec();
        assert_eq!(complete_lines(&mut text, "n"), b"n | one\nn | two\n");
        assert_eq!(text, b"thr");
        assert_eq!(complete_lines(&mut text, "n"), b"");
        text.extend_from_slice(b"ee\n");
        assert_eq!(complete_lines(&mut text, "n"), b"n | three\n");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut text = vec![b'x'; 70_000];
        assert_eq!(complete_lines(&mut text, "n").len(), 70_000 + 5);
        assert!(text.is_empty());
    }
}
