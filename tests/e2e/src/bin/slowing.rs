//! One process with a service that slows down beyond eight handlers at once, behind two guards with `auto_seats`, which
//! stand for two processes. Runs until it is terminated, and prints then what it saw, as one line of JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use nowserving_client::{Ask, AutoSeats, Client, Guard, GuardOptions, Target};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

const KNEE: u64 = 8;
const ALONE: Duration = Duration::from_millis(200);
/// Requests under way at once: two thirds of them by the first guard.
const CALLERS: usize = 100;

#[derive(Parser)]
struct Args {
    #[arg(long)]
    nats: String,
    #[arg(long)]
    line: String,
    #[arg(long)]
    min: u32,
    #[arg(long)]
    max: u32,
}

impl Args {
    /// Seats so that 70 % of eight handlers run.
    fn auto_seats(&self) -> Result<AutoSeats> {
        Ok(AutoSeats::new(self.min, self.max, Target::Load(0.7))?)
    }
}

/// How many handlers run, and the most that ever did.
#[derive(Default)]
struct Service {
    running: AtomicU64,
    most: AtomicU64,
    done: AtomicU64,
}

impl Service {
    async fn handler(&self) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(ALONE * running.max(KNEE) as u32 / KNEE as u32).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }

    fn load(&self) -> f64 {
        (self.running.load(Ordering::SeqCst) as f64 / KNEE as f64).min(1.0)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let args = Args::parse();
    let service = Arc::new(Service::default());
    let mut guards = Vec::new();
    for _ in 0..2 {
        let mut options = GuardOptions::default();
        options.auto_seats = Some(args.auto_seats()?);
        let line = Client::connect(&args.nats).await?.line(&args.line)?;
        let guard = Guard::new(line, options);
        guard.check().await?;
        guards.push(guard);
    }
    for nth in 0..CALLERS {
        let guard = guards[usize::from(nth % 3 == 0)].clone();
        tokio::spawn(come_again(guard, service.clone()));
    }
    let (reported, service_of_reports) = (guards.clone(), service.clone());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for guard in &reported {
                guard.report_load(service_of_reports.load());
            }
        }
    });
    let mut terminated = signal(SignalKind::terminate())?;
    terminated.recv().await;
    let sum = |of: fn(&Guard) -> u64| guards.iter().map(of).sum::<u64>();
    let report = json!({
        "done": service.done.load(Ordering::SeqCst),
        "most": service.most.load(Ordering::SeqCst),
        "seats_told": sum(|guard| guard.counts().seats_told),
    });
    println!("{report}");
    Ok(())
}

async fn come_again(guard: Guard, service: Arc<Service>) {
    loop {
        match guard.acquire(Ask::default()).await {
            // Its seat is not lost while it runs; if it were, the service would count it for ever.
            Ok(slot) => {
                service.handler().await;
                drop(slot);
            }
            Err(_) => tokio::time::sleep(ALONE).await,
        }
    }
}
