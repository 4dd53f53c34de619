//! One process with a guarded service: its handlers return, fail, panic, hang, and are cancelled. Prints how each
//! request ended, as one line of JSON. The other side is `nowserving_e2e::guarded`.

use std::collections::BTreeMap;
use std::future::pending;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use nowserving_client::{Ask, Client, Guard, GuardOptions, OnUnavailable, Slot};
use nowserving_tower::{AskBy, Blocked, ConcurrencyGuardLayer};
use tower_layer::Layer as _;
use tower_service::Service;

/// Requests under way at once.
const CALLERS: usize = 8;
/// A request that a full line refuses comes again after this long.
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Parser, Clone)]
struct Args {
    #[arg(long)]
    nats: String,
    #[arg(long)]
    line: String,
    /// The observer's socket
    #[arg(long)]
    observer: PathBuf,
    /// The number of this process
    #[arg(long)]
    process: usize,
    #[arg(long)]
    handlers: usize,
    /// The middle handler never ends, and is renewed until this process is killed
    #[arg(long)]
    holds: bool,
    /// The guard's default options, and no handler that hangs until its seat is lost
    #[arg(long)]
    default_options: bool,
}

/// What a request's handler does, and its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Returns,
    Fails,
    Panics,
    /// Until its seat is lost.
    Hangs,
    /// It would hang, but its client goes, while it waits or runs.
    IsCancelled,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    nth: usize,
    does: Does,
    /// Once it is admitted.
    token: u64,
}

#[derive(Debug)]
enum Said {
    Done,
    Blocked(&'static str),
}

impl Request {
    fn new(args: &Args, nth: usize) -> Request {
        let does = match nth % 10 {
            _ if args.holds && nth == args.handlers / 2 => Does::Hangs,
            0 | 5 => Does::Fails,
            1 => Does::Panics,
            2 | 7 => Does::IsCancelled,
            // One in the whole process.
            3 if nth == 3 && !args.default_options => Does::Hangs,
            _ => Does::Returns,
        };
        Request {
            nth,
            does,
            token: 0,
        }
    }

    /// Between 5 and 40 ms, by its number.
    fn takes(self) -> Duration {
        Duration::from_millis(5 + (self.nth as u64 * 7_919) % 36)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let args = Args::parse();
    // The wanted panics would fill the log.
    std::panic::set_hook(Box::new(|_| {}));
    let client = Client::connect(&args.nats).await?;
    let mut options = GuardOptions::default();
    if !args.default_options {
        // No handler runs without a seat, however slow the machine is.
        options.on_unavailable = OnUnavailable::Deny;
        options.patience = Duration::from_secs(10);
    }
    let guard = Guard::new(client.line(&args.line)?, options);
    guard.check().await?;

    let next = Arc::new(AtomicUsize::new(0));
    let ended: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let callers = (0..CALLERS).map(|_| {
        let (args, guard) = (args.clone(), guard.clone());
        let (next, ended) = (next.clone(), ended.clone());
        tokio::spawn(async move {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= args.handlers {
                    return;
                }
                let how = call(&args, &guard, Request::new(&args, nth)).await;
                if let Ok(mut ended) = ended.lock() {
                    *ended.entry(how).or_default() += 1;
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await?;
    }
    guard.drained().await;
    let mut ended = ended.lock().ok().context("a caller has failed")?.clone();
    let counts = guard.counts();
    ended.insert("abandoned".to_owned(), counts.abandoned);
    ended.insert("without_cluster".to_owned(), counts.unavailable);
    println!("{}", serde_json::to_string(&ended)?);
    Ok(())
}

/// One request, until the line takes it.
async fn call(args: &Args, guard: &Guard, request: Request) -> String {
    loop {
        let mut service = ConcurrencyGuardLayer::new(guard.clone())
            .respond_with(|blocked: &Blocked| Said::Blocked(blocked.reason()))
            .ask_by(Numbered)
            .layer(Handlers(args.clone()));
        let mut task = tokio::spawn(service.call(request));
        let done = match request.does {
            Does::IsCancelled => match tokio::time::timeout(request.takes(), &mut task).await {
                Err(_) => {
                    task.abort();
                    return "cancelled".to_owned();
                }
                Ok(done) => done,
            },
            _ => task.await,
        };
        match done {
            Ok(Ok(Said::Blocked("full"))) => tokio::time::sleep(AGAIN).await,
            Ok(Ok(Said::Blocked(reason))) => return reason.to_owned(),
            Ok(Ok(Said::Done)) => return "returned".to_owned(),
            Ok(Err(Failed)) => return "failed".to_owned(),
            Err(_) => return "panicked".to_owned(),
        }
    }
}

/// Tells the handler its token, for the observer.
#[derive(Clone)]
struct Numbered;

impl AskBy<Request> for Numbered {
    fn ask(&self, _: &Request) -> Ask {
        Ask::default()
    }

    fn admitted(&self, request: &mut Request, slot: &Slot) {
        request.token = slot.token().unwrap_or_default();
    }
}

#[derive(Debug)]
struct Failed;

/// The service behind the guard.
#[derive(Clone)]
struct Handlers(Args);

impl Service<Request> for Handlers {
    type Response = Said;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Said, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let args = self.0.clone();
        Box::pin(async move {
            let _observed = Observed::begin(&args, request).expect("the observer listens");
            match request.does {
                Does::Returns => {
                    tokio::time::sleep(request.takes()).await;
                    Ok(Said::Done)
                }
                Does::Fails => {
                    tokio::time::sleep(request.takes()).await;
                    Err(Failed)
                }
                Does::Panics => {
                    tokio::time::sleep(request.takes()).await;
                    panic!("as the test wants")
                }
                Does::Hangs | Does::IsCancelled => pending().await,
            }
        })
    }
}

/// The observer counts the handler as long as this lives. Blocking: the work begins and ends with its answers.
struct Observed(UnixStream);

impl Observed {
    fn begin(args: &Args, request: Request) -> Result<Observed> {
        let stream = UnixStream::connect(&args.observer)?;
        let how = match request.does {
            Does::Hangs if args.holds && request.nth == args.handlers / 2 => "hangs",
            _ => "ends",
        };
        let mut observed = Observed(stream);
        observed.say(&format!("{} {} {how}\n", args.process, request.token))?;
        Ok(observed)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        self.0.write_all(line.as_bytes())?;
        self.0.read_exact(&mut [0])?;
        Ok(())
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        // Fails only once the observer has ended.
        let _ = self.say("ends\n");
    }
}
