//! Snapshots from peer to peer: the thread of a node that stores and reads parts of them, and that which
//! verifies whole ones.

use nowserving_engine::{Input, NotInstalled, Output, ReceivedState};

use crate::env::{Env, FullDisk};
use crate::faults::Fault;
use crate::node::Node;
use crate::world::Process;

impl Node {
    /// Gives one of the threads a job.
    pub fn transfer_soon(&mut self, env: &mut Env, job: Output) {
        let delay = match job {
            Output::InstallSnapshot { .. } => env.random.around(30_000),
            _ => env.random.around(2_000),
        };
        self.process_event(env, 0, delay, Process::Transfer(Box::new(job)));
    }

    /// The thread carries it out.
    pub fn transfer(&mut self, env: &mut Env, job: Output) {
        let id = self.id;
        let shard = match &job {
            Output::OpenIncoming { shard, .. }
            | Output::DropIncoming { shard }
            | Output::InstallSnapshot { shard, .. } => *shard,
            Output::StoreIncoming { chunk, .. } => chunk.shard,
            Output::ReadSnapshot { request, .. } => request.shard,
            _ => return,
        };
        let no_room = env.full_disks.get(&id) == Some(&FullDisk::Nothing);
        let fails = no_room || env.strikes(Fault::SnapshotFailed);
        let input = match job {
            Output::OpenIncoming { shard, file } => Input::SnapshotStored {
                shard,
                file,
                offset: (!fails).then(|| self.disk.open_incoming(shard, file)),
            },
            Output::StoreIncoming { file, chunk } => Input::SnapshotStored {
                shard: chunk.shard,
                file,
                offset: self.disk.store_incoming(file, &chunk).filter(|_| !fails),
            },
            Output::DropIncoming { shard } => return self.disk.drop_incoming(shard),
            Output::ReadSnapshot {
                to,
                request,
                bytes_max,
            } => match self.disk.read_part(&request, bytes_max) {
                Some(chunk) => Input::SnapshotRead { to, chunk },
                None => return,
            },
            Output::InstallSnapshot { shard, meta, file } => {
                let state = match fails {
                    true => Err(NotInstalled::NotStored),
                    false => self.disk.install(shard, &meta, file),
                };
                env.note(format_args!(
                    "n{id}: a peer's snapshot of shard {shard} at {}: {:?}",
                    meta.index,
                    state.as_ref().err()
                ));
                Input::SnapshotReceived {
                    shard,
                    file,
                    state: state.map(Box::new).map(ReceivedState),
                }
            }
            _ => return,
        };
        self.push(env, self.loop_of(shard), input);
    }
}
