//! What a loaded cluster does meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nowserving_e2e::Api;
use serde_json::json;

/// The clients of a loaded cluster, each with one request under way.
const LOAD_CLIENTS: usize = 16;
/// Each of them enters once and then asks for its place so often.
const POLLS: usize = 9;

/// Clients on a thread of their own, until it is dropped.
pub struct Clients {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Clients {
    pub fn start(url: String) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            if let Err(error) = run_load(&url, &until) {
                eprintln!("the load ended: {error:#}");
            }
        });
        Clients {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run_load(url: &str, stop: &AtomicBool) -> Result<()> {
    let api = Api::new(async_nats::connect(url).await?).within(2_000);
    let clients = (0..LOAD_CLIENTS).map(|client| visit_for_ever(&api, client, stop));
    futures::future::join_all(clients).await;
    Ok(())
}

/// Errors are part of a failover.
async fn visit_for_ever(api: &Api, client: usize, stop: &AtomicBool) {
    let line = format!("load-{client}");
    let settings = json!({"seats": 1_000_000, "queue_limit": 1_000, "claim_timeout_ms": 10_000});
    let _ = api.admin(&line, "create", settings).await;
    for visit in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let body = json!({"key": format!("{client}-{visit}")});
        let Ok(entered) = api.ask(&line, "enter", &body).await else {
            continue;
        };
        let body = json!({"ticket": entered.body["ticket"]});
        for _ in 0..POLLS {
            let _ = api.ask(&line, "status", &body).await;
        }
    }
}
