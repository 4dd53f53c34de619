//! The programs in `examples/`: each tells a story, and fails if a step of it goes wrong.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, example, leashed};

const PATIENCE: Duration = Duration::from_secs(60);

/// Each comes to its end, and once more: it clears up behind itself.
pub async fn tell_their_stories(cluster: &mut Cluster) -> Result<()> {
    for (name, part) in [
        (
            "ride-hailing",
            "A driver is free and takes order 9, lane absolute.",
        ),
        (
            "shop-sale",
            "The next day there are four pieces again. Shopper 8 is called back.",
        ),
    ] {
        for _ in 0..2 {
            let story = story(name, &cluster.nats.url()).await?;
            ensure!(story.contains(part), "{name}: {story}");
        }
    }
    Ok(())
}

async fn story(name: &str, url: &str) -> Result<String> {
    let mut command = leashed(example(name).await?.as_os_str()).await?;
    let done = tokio::time::timeout(PATIENCE, command.arg(url).output()).await;
    let done = done.with_context(|| format!("{name} does not end"))??;
    let story = String::from_utf8_lossy(&done.stdout).into_owned();
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{name}: {story}{error}");
    Ok(story)
}
