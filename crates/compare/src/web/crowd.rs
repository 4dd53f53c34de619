//! The crowd itself, with trouble: the leader is killed, and a gateway.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use nowserving_tools::crowd::audit::audit;
use nowserving_tools::crowd::ledger::Ledger;
use nowserving_tools::crowd::plan::{Plan, Size};
use nowserving_tools::crowd::report::Report;
use nowserving_tools::crowd::{Crowd, Outcome, Troubles, create_line};
use serde::Serialize;
use tokio::task::JoinSet;

use super::stage::{LINE, Stage};
use super::{CrowdHttpArgs, Found, Steps, shopper};

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often it is said how far the crowd is.
const TELL_EVERY: Duration = Duration::from_secs(5);
const NODE_AWAY: Duration = Duration::from_secs(7);
const GATEWAY_AWAY: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
pub struct Section {
    #[serde(flatten)]
    report: Report,
    /// Visitors who could not go on, and the first of them in words.
    troubles: Troubles,
    /// What was done to the cluster and the gateways.
    events: Vec<String>,
}

impl Found for Section {
    fn is_well(&self) -> bool {
        self.report.faults().is_empty() && self.troubles.count == 0
    }

    fn text(&self) -> String {
        let mut text = format!("\n## crowd\n\n{}", self.report.table());
        let faults = self.report.faults().into_iter();
        let faults = faults.map(|fault| format!("FAULT: {fault}"));
        let troubles = self.troubles.first.iter();
        let troubles = troubles.map(|trouble| format!("could not go on: {trouble}"));
        let events = self.events.iter().cloned();
        for line in events.chain(faults).chain(troubles) {
            text += &format!("\n- {line}");
        }
        text
    }
}

pub async fn run(steps: &Steps, args: &CrowdHttpArgs) -> Result<Section> {
    steps.begin("crowd: starting nats-server, three nodes and two gateways");
    let mut stage = Stage::start().await?;
    let size = Size {
        shoppers: args.visitors,
        seats: args.seats,
        lasts: Duration::from_millis(args.lasts_ms),
    };
    let Plan { parts, mut times } = Plan::draw(args.seed, size);
    // The visitors of a gateway that dies come back after up to ten seconds, and none of them is to be taken for gone.
    times.waiting_idle = Duration::from_secs(40);
    times.claim = Duration::from_secs(12);
    times.checkout = Duration::from_secs(15);
    times.deadline = size.lasts * 4 + Duration::from_secs(60);
    let line = create_line(&stage.client, LINE, size, times).await?;
    stage.ready().await?;
    let nodes = stage.cluster.ids().count();
    let crowd = Arc::new(Crowd::new(line, times, Ledger::new(nodes, size)));
    let doors = Arc::clone(&stage.doors);
    let visit = |part| shopper::visit(Arc::clone(&crowd), Arc::clone(&doors), part);
    let mut visits: JoinSet<()> = parts.into_iter().map(visit).collect();
    let mut trouble = Trouble::of(size.lasts);
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let mut told = Duration::ZERO;
    while !visits.is_empty() || !trouble.acts.is_empty() {
        tokio::select! {
            Some(visit) = visits.join_next() => if let Err(error) = visit {
                crowd.trouble(format!("a visitor broke down: {error}"));
            },
            // Never cut short: a process half started would be killed.
            _ = looks.tick() => {
                trouble.play(steps, &mut stage, &crowd).await?;
                if crowd.now() >= told {
                    told = crowd.now() + TELL_EVERY;
                    let (inside, waiting) =
                        crowd.note(|book, at| book.in_checkout_and_waiting(at));
                    let left = visits.len();
                    steps.begin(&format!(
                        "crowd: {inside} in the shop, {waiting} wait, {left} visits to end"
                    ));
                }
            }
        }
    }
    steps.begin("crowd: asking about every number once more");
    audit(Arc::clone(&crowd)).await;
    let Outcome { report, troubles } = Outcome::of(&crowd);
    Ok(Section {
        report,
        troubles,
        events: trouble.events,
    })
}

/// What happens to cluster and gateways, and when.
struct Trouble {
    /// What is still to come, in order.
    acts: VecDeque<(Duration, Act)>,
    killed: Option<u64>,
    events: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    KillLeader,
    StartNode,
    KillGateway,
    StartGateway,
}

impl Trouble {
    fn of(lasts: Duration) -> Trouble {
        let (leader, gateway) = (lasts.mul_f64(0.4), lasts.mul_f64(0.6));
        let mut acts = [
            (leader, Act::KillLeader),
            (leader + NODE_AWAY, Act::StartNode),
            (gateway, Act::KillGateway),
            (gateway + GATEWAY_AWAY, Act::StartGateway),
        ];
        acts.sort_unstable();
        Trouble {
            acts: acts.into(),
            killed: None,
            events: Vec::new(),
        }
    }

    /// Does what is due.
    async fn play(&mut self, steps: &Steps, stage: &mut Stage, crowd: &Crowd) -> Result<()> {
        let due = |(at, _): &mut (Duration, Act)| *at <= crowd.now();
        let Some((_, act)) = self.acts.pop_front_if(due) else {
            return Ok(());
        };
        let at = crowd.now();
        let what = match act {
            Act::KillLeader => {
                let killed = || crowd.note(|book, at| book.killed(at));
                let leader = stage.kill_leader(killed).await?;
                self.killed = Some(leader);
                format!("kill -9 of node {leader}, which led the line")
            }
            Act::StartNode => match self.killed.take() {
                Some(node) => {
                    stage.cluster.start_node(node).await?;
                    format!("node {node} was started again")
                }
                None => return Ok(()),
            },
            Act::KillGateway => {
                stage.gateways[1].kill().await?;
                "kill -9 of the second gateway".to_owned()
            }
            Act::StartGateway => {
                stage.gateways[1].start_again().await?;
                "the second gateway was started again".to_owned()
            }
        };
        let event = format!("{what}, {:.1} s after the first visitor", at.as_secs_f64());
        steps.say(&format!("crowd: {event}"));
        self.events.push(event);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_killed_comes_back_also_in_a_short_crowd() {
        for lasts in [10, 60, 3_600].map(Duration::from_secs) {
            let acts: Vec<Act> = Trouble::of(lasts)
                .acts
                .into_iter()
                .map(|(_, act)| act)
                .collect();
            let at = |wanted| acts.iter().position(|act| *act == wanted);
            assert!(at(Act::KillLeader) < at(Act::StartNode), "{acts:?}");
            assert!(at(Act::KillGateway) < at(Act::StartGateway), "{acts:?}");
        }
    }
}
