//! Waits for the cluster to come into a state, and shows how far it is.

use std::time::Duration;

use nowserving_client::{Admin, ClusterStatus};
use tokio::time::{Instant, timeout_at};

use crate::tables;
pub use nowserving_insight::words::absence;
use nowserving_terminal::output::NotInTime;
use nowserving_terminal::progress::Progress;

/// The state of the cluster is asked for this often.
const INTERVAL: Duration = Duration::from_millis(300);
/// Without a terminal, a changed state is printed this often.
const PRINT_INTERVAL: Duration = Duration::from_secs(5);
/// Without a terminal, an unchanged state is printed again this often: the command is seen to live.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// A node that has died seems alive for less than this.
const WELL_FOR: Duration = Duration::from_secs(2);

/// What is left until the state is there.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// The shards that have it.
    pub shards: usize,
    /// What the others lack.
    pub text: String,
}

/// Shows what is waited for: on a terminal a bar, elsewhere lines now and then.
pub struct Display {
    progress: Progress,
    printed: Printed,
}

impl Display {
    /// `template`: what indicatif shows.
    pub fn new(template: &str) -> Display {
        Display {
            progress: Progress::new(None, template),
            printed: Printed {
                text: String::new(),
                at: Instant::now(),
            },
        }
    }

    pub fn show(&mut self, text: &str) {
        self.progress.bar.set_message(text.to_owned());
        if self.progress.bar.is_hidden() && self.printed.is_due(text, Instant::now()) {
            eprintln!("{text}");
        }
    }
}

/// What is printed without a terminal.
struct Printed {
    text: String,
    at: Instant,
}

impl Printed {
    /// Whether `text` is printed now.
    fn is_due(&mut self, text: &str, now: Instant) -> bool {
        let interval = match text == self.text {
            true => REPEAT_INTERVAL,
            false => PRINT_INTERVAL,
        };
        let is_due = now.duration_since(self.at) >= interval;
        if is_due {
            (self.text, self.at) = (text.to_owned(), now);
        }
        is_due
    }
}

/// Returns the state once nothing was `left` for as long as `steady`. `what`: what is waited for, in the error after
/// `within`.
pub async fn until(
    admin: &Admin,
    (within, steady): (Duration, Duration),
    what: &str,
    left: impl Fn(&ClusterStatus) -> Option<Left>,
) -> anyhow::Result<ClusterStatus> {
    let mut display = Display::new("{bar:30} {pos} of {len} shards  {wide_msg}");
    let deadline = Instant::now() + within;
    let mut well_since = None;
    let mut text = "no node has answered yet".to_owned();
    loop {
        match timeout_at(deadline, admin.cluster_status()).await {
            Ok(Ok(status)) => {
                let bar = &display.progress.bar;
                bar.set_length(status.shards.len() as u64);
                let left = left(&status);
                let shards = left.as_ref().map_or(status.shards.len(), |it| it.shards);
                bar.set_position(shards as u64);
                if let Some(left) = left {
                    (well_since, text) = (None, left.text);
                } else {
                    let since = *well_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= steady {
                        return Ok(status);
                    }
                    text = format!(
                        "nothing is missing, but not for {} seconds yet",
                        steady.as_secs()
                    );
                }
            }
            Ok(Err(error)) => (well_since, text) = (None, error.to_string()),
            Err(_) => {}
        }
        display.show(&text);
        if Instant::now() >= deadline {
            return Err(NotInTime(format!("{what}: {text}")).into());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until the cluster is well: all nodes are there and have caught up, so that one of them can be stopped.
pub async fn until_well(admin: &Admin, within: Duration) -> anyhow::Result<ClusterStatus> {
    let what = "the cluster is not well yet";
    until(admin, (within, WELL_FOR), what, ills).await
}

/// Everything that is wrong with the cluster.
fn ills(status: &ClusterStatus) -> Option<Left> {
    let leaderless = status.shards.iter().filter(|it| it.leader.is_none());
    let leaderless = leaderless.count();
    let differ = status.shards.iter().filter(|it| !it.differs.is_empty());
    let changing = status.members.shards_changing;
    let mut ills = Vec::new();
    let shards = |count: usize| tables::many(count as u64, "shard");
    if leaderless > 0 {
        ills.push(format!("{} without a leader", shards(leaderless)));
    }
    if changing > 0 {
        ills.push(format!(
            "members are changing in {}",
            shards(changing as usize)
        ));
    }
    for node in &status.nodes {
        let id = node.id;
        if let Some(absence) = absence(node, None) {
            ills.push(absence);
        } else if node.leaving {
            ills.push(format!("node {id} is leaving"));
        } else if tables::lags(node, status) {
            let caught_up = tables::caught_up(node, status);
            ills.push(format!("node {id} has caught up in {caught_up}"));
        }
        if node.disk_full {
            ills.push(format!("the disk of node {id} is full"));
        }
    }
    ills.extend(differ.map(|it| format!("the states of shard {} differ", it.shard)));
    let caught_up = status.nodes.iter().map(|it| it.caught_up_in as usize);
    (!ills.is_empty()).then(|| Left {
        shards: caught_up.min().unwrap_or_default(),
        text: ills.join("; "),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn without_a_terminal_something_is_printed_at_least_every_30_seconds() {
        let start = Instant::now();
        let mut printed = Printed {
            text: String::new(),
            at: start,
        };
        let at = |secs| start + Duration::from_secs(secs);
        assert!(!printed.is_due("a", at(4)));
        assert!(printed.is_due("a", at(5)));
        assert!(!printed.is_due("a", at(34)), "nothing new");
        assert!(printed.is_due("a", at(35)));
        assert!(!printed.is_due("b", at(39)));
        assert!(printed.is_due("b", at(40)));
    }

    fn status(node: Value, leader: Option<u64>) -> ClusterStatus {
        let shard = json!({"shard": 0, "leader": leader, "term": 2, "applied": 5, "committed": 5});
        serde_json::from_value(json!({
            "cluster": "dev", "lines": 3, "answered_by": 2, "nodes": [node], "shards": [shard, shard]
        }))
        .unwrap()
    }

    #[test]
    fn a_cluster_is_well_once_every_node_could_take_over() {
        let node = json!({"id": 1, "alive": true, "leads": 2, "caught_up_in": 2});
        assert_eq!(ills(&status(node.clone(), Some(1))), None);
        for (field, value, word) in [
            ("alive", json!(false), "node 1 is silent: start it"),
            ("refused", json!("another disk"), "refused: another disk"),
            ("leaving", json!(true), "leaving"),
            ("caught_up_in", json!(1), "caught up in 1 of 2 shards"),
            ("disk_full", json!(true), "full"),
        ] {
            let mut node = node.clone();
            node[field] = value;
            let left = ills(&status(node, Some(1))).unwrap();
            assert!(left.text.contains(word), "{word}: {}", left.text);
        }
        let left = ills(&status(node, None)).unwrap();
        assert_eq!(left.text, "2 shards without a leader");
    }
}
