//! The engine and all that its outputs need: one step, one turn.

use std::sync::Arc;
use std::time::Instant;

use nowserving_engine::{Engine, ExitReason, Input, Output};
use nowserving_log::DiskLog;
use nowserving_shard::clock::Micros;

use super::outputs::Outputs;
use super::persist::Persister;
use super::worker::Worker;
use super::{snapshots, transfers};
use crate::Removed;
use crate::clock::{monotonic_us, now, thread_cpu_time};
use crate::nats::connect::ConnectionNumber;
use crate::nats::payload_limit::Limits;

/// Drives an engine.
pub struct Turns {
    pub engine: Engine,
    pub outputs: Outputs,
    /// What came of a step, between steps empty.
    pub of_step: Vec<Output>,
    /// Of the service connection.
    pub connection: ConnectionNumber,
    /// The number that the engine knows.
    pub known_connection: u64,
    /// What NATS takes in one message.
    pub payload: Limits,
    /// The bytes that the engine knows.
    pub known_max_payload: usize,
    pub persister: Persister,
    /// Writes snapshots.
    pub snapshots: Worker<snapshots::Job>,
    /// Reads and stores parts of snapshots.
    pub transfers: Worker<transfers::Job>,
    /// Writes for which there is no room must not keep the node from ending.
    pub log: Arc<DiskLog>,
    /// Why the engine has ended.
    pub exit: Option<ExitReason>,
}

impl Turns {
    /// Gives the engine an input; before that, if it came by another service connection than the engine knows,
    /// the number of that, and what NATS takes in one message.
    ///
    /// # Errors
    /// A thread that died.
    pub fn step(&mut self, input: Input) -> anyhow::Result<()> {
        let (number, max_payload) = (self.connection.now(), self.payload.bytes());
        if max_payload != self.known_max_payload {
            self.known_max_payload = max_payload;
            self.step_one(Input::MaxPayload(max_payload))?;
        }
        if number != self.known_connection {
            self.known_connection = number;
            self.step_one(Input::ConnectionNumber(number))?;
        }
        self.step_one(input)
    }

    /// One step of the engine. The clock is read for each: a turn may be longer than a lease.
    fn step_one(&mut self, input: Input) -> anyhow::Result<()> {
        if let Input::Persisted { writes, .. } = &input {
            self.persister.note_written(*writes);
        }
        let mut outputs = std::mem::take(&mut self.of_step);
        self.engine.step(now(), input, &mut outputs);
        for output in outputs.drain(..) {
            if let Some(of_disk) = self.outputs.take(output) {
                self.give_to_disk(of_disk)?;
            }
        }
        self.of_step = outputs;
        Ok(())
    }

    fn give_to_disk(&mut self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Persist(writes) => self.persister.write(writes),
            Output::Compact { shard, through } => {
                self.persister.compact(shard, through);
                Ok(())
            }
            Output::WriteSnapshot {
                shard,
                index,
                members,
            } => self.snapshots.give(snapshots::Job::Make(snapshots::Make {
                shard,
                index,
                members,
            })),
            Output::InstallSnapshot { shard, meta, file } => {
                let install = snapshots::Job::Install { shard, meta, file };
                self.snapshots.give(install)
            }
            Output::OpenIncoming { shard, file } => {
                self.transfers.give(transfers::Job::Open { shard, file })
            }
            Output::StoreIncoming { file, chunk } => {
                self.transfers.give(transfers::Job::Store { file, chunk })
            }
            Output::DropIncoming { shard } => self.transfers.give(transfers::Job::Drop { shard }),
            Output::ReadSnapshot {
                to,
                request,
                bytes_max,
            } => {
                // Full: the peer asks again.
                self.transfers.give_if_room(transfers::Job::Read {
                    to,
                    request,
                    bytes_max,
                });
                Ok(())
            }
            Output::Exit(reason) => {
                self.exit.get_or_insert(reason);
                Ok(())
            }
            // The others are not for the disk.
            _ => Ok(()),
        }
    }

    /// Ends a turn. Returns when the next one is due at the latest.
    ///
    /// # Errors
    /// A thread that died.
    pub fn end_turn(
        &mut self,
        requests_dropped: bool,
        inbox_empty: bool,
    ) -> anyhow::Result<Micros> {
        let (began, cpu_before) = (Instant::now(), thread_cpu_time());
        let health = self.outputs.health.clone();
        let index = self.engine.place().index;
        health.turned(index, monotonic_us());
        if requests_dropped {
            self.step(Input::RequestsDropped)?;
        }
        self.step(Input::EndTurn { inbox_empty })?;
        self.outputs.end_turn();
        if health.facts.are_wanted() {
            let gathered = self.engine.gather(monotonic_us());
            for it in gathered {
                health.facts.take(index, it);
            }
        }
        metrics::histogram!("nowserving_turn_seconds").record(began.elapsed());
        let cpu_time = thread_cpu_time().saturating_sub(cpu_before);
        metrics::histogram!("nowserving_turn_cpu_seconds").record(cpu_time);
        Ok(self.engine.next_due())
    }

    /// Writes what the persister has left to the loop.
    ///
    /// # Errors
    /// A thread that died.
    pub fn write_own(&mut self) -> anyhow::Result<()> {
        match self.persister.write_own()? {
            Some(persisted) => self.step(persisted),
            None => Ok(()),
        }
    }

    /// Lets the threads finish.
    ///
    /// # Errors
    /// Why the engine ended, unless it was asked to.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.outputs.end_turn();
        self.persister.stop();
        self.log.wait_for_room(None);
        self.persister.join();
        self.snapshots.join();
        self.transfers.join();
        match self.exit {
            None | Some(ExitReason::Stopped) => Ok(()),
            Some(ExitReason::ReadFailed(failure)) => Err(anyhow::Error::new(failure)),
            Some(ExitReason::EntryUnreadable(error)) => Err(anyhow::anyhow!(error)),
            Some(ExitReason::Removed) => Err(Removed.into()),
            Some(ExitReason::StateDiffers(differs)) => Err(differs.into()),
        }
    }
}
