//! The probes that a loop sends itself by its service connection.

use bytes::Bytes;
use nowserving_engine::Input;
use nowserving_front::probe::{PROBE_EVERY_US, probe};

use crate::env::Env;
use crate::nats::{PROBES, node_inbox};
use crate::node::Node;
use crate::world::Process;

impl Node {
    /// Sends the next probe, and plans the one after it.
    pub fn probe(&mut self, env: &mut Env, at: usize) {
        if env.is_connected(self.loop_id(at)) {
            let sent_at = self.clock.monotonic(env.timeline.now());
            let inbox = node_inbox(self.loop_id(at), self.starts, PROBES);
            self.publish(
                env,
                at,
                (inbox, None),
                Vec::new(),
                Bytes::copy_from_slice(&probe(sent_at)),
            );
        }
        self.process_event(env, at, PROBE_EVERY_US, Process::Probe);
    }

    /// One has come back.
    pub(super) fn echoed(&mut self, env: &mut Env, at: usize, payload: &[u8]) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service(at) else {
            return;
        };
        let Some(echo) = service.echoes.read(payload, service.turned_away, now_us) else {
            return;
        };
        let sent_at = echo.sent_at;
        service.probed = service.probed.max(sent_at);
        let locals = service.open.values_mut();
        for local in locals.filter(|local| local.queue.is_empty()) {
            local.reader.found_empty(sent_at);
        }
        if echo.is_proof {
            self.push(env, at, Input::ProbeEchoed { sent_at });
        }
    }
}
