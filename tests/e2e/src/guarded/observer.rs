//! Counts from outside how many handlers run at once.
//!
//! A handler connects to the observer's socket when it begins, says who it is, and works only once that is
//! acknowledged; when it ends, it says so and waits for that to be acknowledged, before its slot is given back. The
//! connection of a killed process is closed by the system. So a handler's work lies within the time in which it is
//! counted, and that within the time in which it holds its slot.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The answer to everything that a handler says.
const SEEN: &[u8] = b".";

/// What a handler says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handler {
    pub process: usize,
    pub token: u64,
    /// It does not end by itself.
    pub hangs: bool,
}

#[derive(Clone)]
pub struct Observer {
    books: Arc<Mutex<Books>>,
    started: watch::Receiver<u64>,
}

#[derive(Default)]
struct Books {
    next: u64,
    running: BTreeMap<u64, Handler>,
    most: usize,
    /// Of all handlers that began.
    tokens: Vec<u64>,
}

impl Observer {
    /// Listens on this socket, until the runtime ends.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn listen(socket: &Path) -> Result<Observer> {
        let listener = UnixListener::bind(socket)?;
        let books = Arc::new(Mutex::new(Books::default()));
        let (starts, started) = watch::channel(0);
        let observer = Observer { books, started };
        let accepts = observer.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (observer, starts) = (accepts.clone(), starts.clone());
                tokio::spawn(async move {
                    if let Err(error) = observer.follow(stream, &starts).await {
                        eprintln!("observer: {error:#}");
                    }
                });
            }
        });
        Ok(observer)
    }

    /// How many handlers have begun; changes with each.
    #[must_use]
    pub fn started(&self) -> watch::Receiver<u64> {
        self.started.clone()
    }

    /// The most that ran at once.
    #[must_use]
    pub fn most(&self) -> usize {
        self.lock().most
    }

    /// The tokens of all handlers so far, in the order in which they began. 0 for one without a seat.
    #[must_use]
    pub fn tokens(&self) -> Vec<u64> {
        self.lock().tokens.clone()
    }

    /// Those that run now.
    #[must_use]
    pub fn running(&self) -> Vec<Handler> {
        self.lock().running.values().copied().collect()
    }

    async fn follow(&self, stream: UnixStream, starts: &watch::Sender<u64>) -> Result<()> {
        let (reads, mut writes) = stream.into_split();
        let mut lines = BufReader::new(reads).lines();
        let Some(line) = lines.next_line().await? else {
            return Ok(());
        };
        let id = self.begin(read(&line).with_context(|| line.clone())?);
        starts.send_modify(|count| *count += 1);
        // A process that was killed neither takes the answer nor says that it ends.
        let _ = writes.write_all(SEEN).await;
        let _ = lines.next_line().await;
        self.lock().running.remove(&id);
        let _ = writes.write_all(SEEN).await;
        Ok(())
    }

    fn begin(&self, handler: Handler) -> u64 {
        let mut books = self.lock();
        books.next += 1;
        let id = books.next;
        books.running.insert(id, handler);
        books.tokens.push(handler.token);
        books.most = books.most.max(books.running.len());
        id
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(line: &str) -> Option<Handler> {
    let mut words = line.split(' ');
    Some(Handler {
        process: words.next()?.parse().ok()?,
        token: words.next()?.parse().ok()?,
        hangs: words.next()? == "hangs",
    })
}
