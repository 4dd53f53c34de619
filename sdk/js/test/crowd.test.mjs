// A crowd in one process, and a leader that is killed: nobody is overtaken or lost, and no seat is held twice.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { connect } from "@nats-io/transport-node";
import { Client, Guard } from "nowserving";

import { Cluster } from "./processes.mjs";

const options = { timeout: 90_000, skip: process.env.SCENARIO !== undefined };
let cluster, nc;
before(async () => {
  if (options.skip) return;
  cluster = await Cluster.start();
  nc = await connect({ servers: cluster.url, maxReconnectAttempts: -1 });
});
after(async () => {
  await nc?.close();
  await cluster?.stop();
});

async function lineOf(settings) {
  const name = `crowd-${randomBytes(4).toString("hex")}`;
  const body = JSON.stringify({ queue_limit: 1_000, ...settings });
  await nc.request(`nowserving.admin.line.${name}.create`, body, { timeout: 5_000 });
  return new Client(nc, { deadlineMs: 20_000 }).line(name);
}

const killLeader = async (line) => cluster.kill((await line.info()).leader);

test("visitors", options, async () => {
  const line = await lineOf({ seats: 10 });
  let [held, most] = [0, 0];
  const seats = [];
  const visit = async (key) => {
    const { ticket } = await line.enter(key);
    let position = Infinity;
    for await (const place of line.track(ticket)) {
      if (place.state === "waiting") {
        assert.ok(place.position <= position);
        position = place.position;
        continue;
      }
      assert.equal(place.state, "admitted");
      const { token, epoch } = await line.claim(ticket);
      seats.push({ token, epoch });
      most = Math.max(most, ++held);
      await sleep(150);
      held -= 1;
      await line.complete(ticket, epoch);
      break;
    }
  };
  const visits = Promise.all(Array.from({ length: 200 }, (_, nth) => visit(`v${nth}`)));
  await sleep(1_500);
  await killLeader(line);
  await visits;
  assert.ok(most <= 10, `${most}`);
  const tokens = seats.map(({ token }) => token).sort((a, b) => a - b);
  assert.deepEqual(tokens, Array.from({ length: 200 }, (_, nth) => nth + 1));
  assert.equal(new Set(seats.map(({ epoch }) => epoch)).size, 200);
  const { admitted, in_checkout, lanes } = await line.info();
  assert.deepEqual([admitted, in_checkout, lanes[0].done_through], [0, 0, 200]);
});

test("handlers", options, async () => {
  const line = await lineOf({ seats: 4, checkout_timeout_ms: 5_000 });
  const guard = new Guard(line, { onUnavailable: "deny" });
  let [running, most] = [0, 0];
  const work = async () => {
    most = Math.max(most, ++running);
    await sleep(100);
    running -= 1;
  };
  const works = Promise.all(Array.from({ length: 80 }, () => guard.run(work)));
  await sleep(700);
  await killLeader(line);
  await works;
  await guard.drained();
  assert.equal(most, 4);
  const { admitted, in_checkout, lanes } = await line.info();
  assert.deepEqual([admitted, in_checkout, lanes[0].done_through], [0, 0, 80]);
});
