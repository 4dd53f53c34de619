//! The programs in `examples/` in Python and JavaScript, run unchanged.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, StreamExt};
use nowserving_e2e::{Api, Cluster, Language, Process, eventually};
use serde_json::{Value, json};

/// The line that the examples enter.
pub const LINE: &str = "shop-1";
/// Tokens that wait before the example's.
const BEFORE: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// Each of them enters, follows its place by boards, polls in time, claims and completes.
pub async fn examples(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    // Asked at least every five seconds: half of the time to claim.
    let settings = json!({"seats": 1, "queue_limit": 50, "claim_timeout_ms": 10_000});
    api.admin(LINE, "create", settings).await?;
    for (nth, language) in [Language::Python, Language::JavaScript]
        .into_iter()
        .enumerate()
    {
        let example = Example::start(cluster, language).await?;
        let followed = follow(&api, example).await;
        followed.with_context(|| format!("the example in {}", language.fence()))?;
        let shown = api.admin(LINE, "show", json!({})).await?;
        // It, and the one whose seat it got.
        ensure!(
            shown["counts"]["gone"]["completed"] == 2 * (nth + 1),
            "{shown}"
        );
    }
    Ok(())
}

/// A running example, and those before it in the line.
struct Example {
    process: Process,
    polls: async_nats::Subscriber,
    in_checkout: Value,
    waiting: Vec<Value>,
}

impl Example {
    async fn start(cluster: &Cluster, language: Language) -> Result<Example> {
        let api = cluster.api();
        let key = |nth: usize| format!("{}-{nth}", language.fence());
        let in_checkout = api.enter(LINE, &key(0)).await?["ticket"].clone();
        api.ok(LINE, "claim", json!({"ticket": in_checkout}))
            .await?;
        let mut waiting = Vec::new();
        for nth in 1..=BEFORE {
            waiting.push(api.enter(LINE, &key(nth)).await?["ticket"].clone());
        }
        let polls = format!("nowserving.shard.*.{LINE}.status");
        let polls = api.subscribe(polls).await?;
        let process = start(cluster, language, &key(BEFORE + 1)).await?;
        Ok(Example {
            process,
            polls,
            in_checkout,
            waiting,
        })
    }

    async fn prints(&self, words: &str) -> Result<()> {
        let what = format!("it prints {words:?}");
        let printed = eventually(&what, PATIENCE, async || {
            let printed = self.process.printed()?;
            ensure!(
                printed.lines().any(|line| line.starts_with(words)),
                "{printed}"
            );
            Ok(Some(()))
        });
        printed.await
    }

    /// How often it has asked since the last time that this was called.
    fn polls(&mut self) -> usize {
        std::iter::from_fn(|| self.polls.next().now_or_never().flatten()).count()
    }
}

async fn follow(api: &Api, mut example: Example) -> Result<()> {
    example.prints(&format!("position {}", BEFORE + 1)).await?;
    for (left, ticket) in example.waiting.iter().enumerate() {
        api.ok(LINE, "leave", json!({"ticket": ticket})).await?;
        example
            .prints(&format!("position {}", BEFORE - left))
            .await?;
    }
    let polls = example.polls();
    ensure!(
        polls <= BEFORE,
        "{polls} polls for {} places: no boards",
        BEFORE + 1
    );
    eventually("it asks again", PATIENCE, async || {
        Ok((example.polls() > 0).then_some(()))
    })
    .await?;
    let body = json!({"ticket": example.in_checkout});
    api.ok(LINE, "complete", body).await?;
    let ended = example.process.ended(PATIENCE).await;
    let ended = ended.with_context(|| example.process.tail(20))?;
    ensure!(ended.success(), "{ended}: {}", example.process.tail(20));
    example.prints("gone completed").await
}

/// Starts the example in this language, which enters with this key.
pub async fn start(cluster: &Cluster, language: Language, key: &str) -> Result<Process> {
    let (interpreter, file) = language.program(&text(language)?).await?;
    let log = cluster.folder().join(format!("{key}.log"));
    let args = [file.as_os_str(), cluster.nats.url().as_ref(), key.as_ref()].map(ToOwned::to_owned);
    Process::start(key, interpreter.as_os_str(), args, &log).await
}

/// The program in this language.
fn text(language: Language) -> Result<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let path = Path::new(folder).join(language.example());
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}
