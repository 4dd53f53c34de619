//! The cluster's operator: adds, removes, replaces and drains nodes, and says who shall lead. One change at a
//! time; a request without a clear answer is repeated, as a person would.

use std::collections::BTreeMap;
use std::rc::Rc;

use nowserving_line::LineName;
use nowserving_protocol::error::Code;
use nowserving_shard::members::{Members, MembersChange, MembersRequest};

use crate::calls::{Ended, Manner, What};
use crate::clock::Clock;
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::random::Random;
use crate::world::{Event, World};

/// The client number of the cluster's operator.
pub const OPERATOR: usize = usize::MAX - 1;

/// Members are kept between these numbers.
const MEMBERS_LEAST: usize = 3;
const MEMBERS_MOST: usize = 5;
/// While things go wrong, the operator gives a change up after so many tries.
const TRIES_MAX: u32 = 12;

/// What the operator is up to.
#[derive(Debug)]
pub struct Operator {
    goal: Option<Goal>,
    /// Waits for an answer.
    busy: bool,
    /// Machines that are switched off, as their change was given up: by their disks.
    switched_off: BTreeMap<u64, Clock>,
}

#[derive(Debug)]
struct Goal {
    change: MembersChange,
    tries: u32,
}

impl Operator {
    #[must_use]
    pub fn new() -> Operator {
        Operator {
            goal: None,
            busy: false,
            switched_off: BTreeMap::new(),
        }
    }

    /// Whether it wants something that is not done yet.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.goal.is_some() || self.busy
    }

    /// Whether it wants a node replaced by another.
    #[must_use]
    pub fn replaces(&self) -> bool {
        let change = self.goal.as_ref().map(|goal| &goal.change);
        matches!(change, Some(MembersChange::Replace { .. }))
    }

    /// What the members will be once the change under way is made.
    #[must_use]
    pub fn after(&self, members: &Members) -> Members {
        let mut after = members.clone();
        let change = self.goal.as_ref().map(|goal| &goal.change);
        if let Some(MembersChange::Remove { id } | MembersChange::Replace { id, .. }) = change {
            after.nodes.remove(id);
        }
        after
    }
}

impl World {
    /// The operator begins a change of this kind, unless another one is under way.
    pub fn operate(&mut self, kind: Fault) {
        if self.operator.is_at_work() {
            return;
        }
        self.lost_is_mended();
        if self.lost.is_some() {
            // What is broken first.
            return self.mend_lost();
        }
        let members = self.checks.members();
        let nodes: Vec<NodeId> = members.nodes.keys().copied().collect();
        let Some(id) = self.env.random.pick(&nodes).copied() else {
            return;
        };
        let change = match kind {
            Fault::OperatorAddsNode if nodes.len() < MEMBERS_MOST => MembersChange::Add {
                disk_id: self.new_machine(),
            },
            Fault::OperatorRemovesNode if nodes.len() > MEMBERS_LEAST => {
                MembersChange::Remove { id }
            }
            Fault::OperatorReplacesNode => MembersChange::Replace {
                id,
                disk_id: self.new_machine(),
            },
            Fault::OperatorDrains => MembersChange::Drain {
                id,
                drained: !members.nodes.get(&id).is_some_and(|it| it.drained),
            },
            Fault::OperatorTransfers => transfer(&mut self.env.random, self.setup.shards, id),
            _ => return,
        };
        self.env.counts.add(kind);
        self.begin(change);
    }

    fn begin(&mut self, change: MembersChange) {
        self.env.note(format_args!("operator: wants {change:?}"));
        self.operator.goal = Some(Goal { change, tries: 0 });
    }

    /// A node whose disk lost what it promised is replaced by itself under a new number, once it asks.
    fn mend_lost(&mut self) {
        self.lost_is_mended();
        let id = self.lost.map(|lost| lost.id);
        if let (Some(id), Some(disk_id)) = (id, self.lost_asks_as()) {
            self.begin(MembersChange::Replace { id, disk_id });
        }
    }

    /// The operator does the next thing towards what it wants.
    pub fn operator_acts(&mut self) {
        let again = self.env.random.around(400_000);
        self.env.timeline.after(again, Event::OperatorActs);
        if self.healed {
            self.switch_on_added();
        }
        if self.operator.busy {
            return;
        }
        if self.operator.goal.is_none() && self.healed {
            self.mend_lost();
        }
        let Some(goal) = &mut self.operator.goal else {
            return;
        };
        let members = self.checks.members();
        if members.made_already(&goal.change).is_some() {
            self.env.note(format_args!("operator: it is done"));
            return self.operator.goal = None;
        }
        goal.tries += 1;
        if goal.tries > TRIES_MAX && !self.healed {
            return self.give_up();
        }
        self.operator.busy = true;
        let random = &mut self.env.random;
        let request = MembersRequest {
            change: goal.change.clone(),
            if_version: (random.below(4) == 0).then_some(members.version),
            by: "operator".to_owned(),
            reason: format!("call {}", self.env.calls.all.len()),
        };
        let time_us = random.between(500_000, 4_000_000);
        let what = What::Members(Rc::new(request));
        if let Ok(no_line) = LineName::try_from("members") {
            let place = (no_line, 0);
            self.env.call(OPERATOR, place, what, Manner::SDK, time_us);
        }
    }

    /// The machine that asks to be added is switched off.
    fn give_up(&mut self) {
        self.env.note(format_args!("operator: gives it up"));
        let goal = self.operator.goal.take();
        if let Some(MembersChange::Add { disk_id } | MembersChange::Replace { disk_id, .. }) =
            goal.map(|goal| goal.change)
            && self.lost_asks_as() != Some(disk_id)
            && let Some(machine) = self.machines.remove(&disk_id)
        {
            self.operator.switched_off.insert(disk_id, machine.clock);
        }
    }

    /// A change that was given up may be made later: an entry with it can wait in a log for long. The cluster then
    /// waits for the machine.
    fn switch_on_added(&mut self) {
        let added = self.checks.members().nodes.into_values();
        for disk_id in added.map(|member| member.disk_id) {
            if let Some(clock) = self.operator.switched_off.remove(&disk_id) {
                self.env.note(format_args!(
                    "operator: it was done, and its machine is needed"
                ));
                self.switch_on(disk_id, clock);
            }
        }
    }

    /// The operator's call is over.
    pub fn operator_called(&mut self, ended: &Ended) {
        self.operator.busy = false;
        let removed = self
            .operator
            .goal
            .as_ref()
            .and_then(|it| it.change.removed());
        let mends = self.lost.is_some_and(|lost| removed == Some(lost.id));
        if matches!(ended, Ended::Refused(Code::MembersRefused)) && !mends {
            self.give_up();
        }
    }
}

fn transfer(random: &mut Random, shards: u32, id: NodeId) -> MembersChange {
    MembersChange::Prefer {
        shards: (0..shards).filter(|_| random.below(2) == 0).collect(),
        to: (random.below(3) > 0).then_some(id),
    }
}
