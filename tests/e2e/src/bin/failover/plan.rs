//! The command line: `[RUNS] [--json] [FAULT …] [idle|loaded …] [SYSTEM …]`.

use anyhow::{Context as _, Result};

const USAGE: &str =
    "[RUNS] [--json] [death|stop|cut-off …] [idle|loaded …] [nowserving|etcd|jetstream …]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9.
    Death,
    /// SIGSTOP.
    Stop,
    /// The node's connections pass nothing on and stay open. Of our own nodes alone.
    CutOff,
}

impl Fault {
    pub const ALL: [Fault; 3] = [Fault::Death, Fault::Stop, Fault::CutOff];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Death => "death",
            Fault::Stop => "stop",
            Fault::CutOff => "cut-off",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Nowserving,
    Etcd,
    JetStream,
}

impl System {
    const ALL: [System; 3] = [System::Nowserving, System::Etcd, System::JetStream];

    pub fn name(self) -> &'static str {
        match self {
            System::Nowserving => "nowserving",
            System::Etcd => "etcd",
            System::JetStream => "jetstream",
        }
    }
}

/// What is named is measured; of a kind of which nothing is named, all. Other systems only if they are named.
pub struct Plan {
    pub runs: usize,
    /// One line of JSON instead of the table.
    pub json: bool,
    pub faults: Vec<Fault>,
    pub loads: Vec<bool>,
    pub systems: Vec<System>,
}

impl Plan {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Plan> {
        let mut plan = Plan {
            runs: 30,
            json: false,
            faults: Vec::new(),
            loads: Vec::new(),
            systems: Vec::new(),
        };
        for arg in args {
            plan.take(&arg)?;
        }
        if plan.faults.is_empty() {
            plan.faults.extend(Fault::ALL);
        }
        if plan.loads.is_empty() {
            plan.loads.extend([false, true]);
        }
        if plan.systems.is_empty() {
            plan.systems.push(System::Nowserving);
        }
        Ok(plan)
    }

    fn take(&mut self, arg: &str) -> Result<()> {
        if let Some(fault) = Fault::ALL.into_iter().find(|it| it.name() == arg) {
            self.faults.push(fault);
        } else if let Some(system) = System::ALL.into_iter().find(|it| it.name() == arg) {
            self.systems.push(system);
        } else if let Some(loaded) = ["idle", "loaded"].iter().position(|it| *it == arg) {
            self.loads.push(loaded == 1);
        } else if arg == "--json" {
            self.json = true;
        } else {
            let number = arg.parse();
            self.runs = number.with_context(|| format!("{arg}: expected {USAGE}"))?;
        }
        Ok(())
    }
}
