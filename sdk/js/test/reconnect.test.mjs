// The NATS server dies and comes back, with a made-up node behind it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect } from "@nats-io/transport-node";
import { Client } from "nowserving";

import { NatsServer } from "./processes.mjs";

test("places and calls go on after a reconnect", { timeout: 60_000 }, async () => {
  const server = await NatsServer.start({});
  const reconnecting = { servers: server.url, maxReconnectAttempts: -1, reconnectTimeWait: 100, ignoreServerUpdates: true };
  const [nodes, nc] = [await connect(reconnecting), await connect(reconnecting)];
  try {
    const node = { position: 5, version: 10, asked: [], left: [] };
    nodes.subscribe("nowserving.line.l.*", {
      callback: (_, message) => {
        const head = { line: "l", incarnation: 1, lane: "normal", token: 9, version: node.version };
        if (message.subject.endsWith("status")) {
          node.asked.push(message.json());
          const place = { position: node.position, admitted_through: 9 - node.position, holes: [] };
          message.respond(JSON.stringify({ ...head, state: "waiting", ...place, poll_after_ms: 60_000 }));
        } else {
          node.left.push(message.headers.get("Nowserving-Request-Id"));
          message.respond(JSON.stringify({ ...head, state: "gone", reason: "left" }));
        }
      },
    });
    await nodes.flush();
    const line = new Client(nc).line("l");
    const tracker = line.track("ticket");
    assert.equal((await tracker.next()).value.position, 5);
    const waiting = tracker.next();
    await server.kill();
    await sleep(500);
    await assert.rejects(line.withDeadline(300).leave("ticket"), {
      kind: "unavailable",
      mayHaveHappened: false,
      message: /no connection to NATS/,
    });
    // It waits for the connection, and is sent then, once.
    const leaving = line.leave("ticket");
    await sleep(300);
    Object.assign(node, { position: 3, version: 20 });
    await server.up();
    const { value } = await waiting;
    assert.deepEqual([value.position, value.version], [3, 20]);
    // It has missed boards, so it asked for the holes, and long before `poll_after_ms`.
    assert.deepEqual(node.asked.map(({ holes }) => holes), [true, true]);
    assert.equal((await leaving).reason, "left");
    assert.equal(node.left.length, 1);
    await tracker.return();
    await nc.close();
    await assert.rejects(line.info(), { kind: "connection" });
  } finally {
    await nodes.close();
    await nc.close();
    await server.stop();
  }
});

test("a tracker ends by its signal, and unsubscribes; large requests are refused", { timeout: 60_000 }, async () => {
  const server = await NatsServer.start({});
  const nc = await connect({ servers: server.url });
  try {
    nc.subscribe("nowserving.line.l.status", {
      callback: (_, message) => {
        const head = { line: "l", incarnation: 1, lane: "normal", token: 9, version: 5, state: "waiting", position: 4 };
        message.respond(JSON.stringify({ ...head, holes: [], poll_after_ms: 60_000 }));
      },
    });
    const abort = new AbortController();
    const tracker = new Client(nc).line("l").track("ticket", { signal: abort.signal });
    const seen = [];
    setTimeout(() => abort.abort(), 300);
    for await (const { position } of tracker) seen.push(position);
    assert.deepEqual(seen, [4]);
    await nc.flush();
    // Of the two subscriptions to events none is left: nobody gets this, which NATS says.
    await assert.rejects(nc.request("nowserving.event.l.board", "", { timeout: 2_000 }), /no responders/i);
    const line = new Client(nc).line("l");
    await assert.rejects(line.status("x".repeat(2_000_000)), { kind: "bad_argument", message: /max_payload/ });
    assert.equal((await line.status("ticket")).position, 4);
  } finally {
    await nc.close();
    await server.stop();
  }
});
