// The program in the README does what the README says.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { connect } from "@nats-io/transport-node";
import { Client, Guard } from "nowserving";

import { Cluster } from "./processes.mjs";

test("the programs of the README", { timeout: 90_000, skip: process.env.SCENARIO !== undefined }, async () => {
  const readme = await readFile(join(import.meta.dirname, "../node_modules/nowserving/README.md"), "utf8");
  const [program, ...others] = [...readme.matchAll(/```js\n(.*?)```/gs)].map(([, text]) => text);
  assert.ok(program.includes("nats://127.0.0.1:4222"));
  const cluster = await Cluster.start();
  try {
    const file = join(import.meta.dirname, "program.mjs");
    await writeFile(file, program.replace("nats://127.0.0.1:4222", cluster.url));
    const nc = await connect({ servers: cluster.url });
    const settings = JSON.stringify({ seats: 1, queue_limit: 5 });
    await nc.request("nowserving.admin.line.shop-1.create", settings, { timeout: 5_000 });
    const line = new Client(nc).line("shop-1");
    const { ticket } = await line.enter("order-1000");
    const running = spawn(process.execPath, [file], { stdio: ["ignore", "pipe", "inherit"], timeout: 40_000 });
    const exited = once(running, "exit");
    const lines = [];
    for await (const text of createInterface({ input: running.stdout })) {
      if (lines.push(text) === 1) await line.leave(ticket);
    }
    assert.deepEqual(await exited, [0, null]);
    assert.match(lines[0], /^waiting 1 /);
    assert.match(lines.at(-1), /^admitted undefined/);
    const info = await line.info();
    assert.deepEqual([info.admitted, info.in_checkout, info.lanes[0].next_token], [0, 0, 3]);

    // The other programs, with what they leave out around them.
    assert.equal(others.length, 2);
    const AsyncFunction = (async () => {}).constructor;
    const names = ["client", "Guard", "respond", "makeReport"];
    const run = new AsyncFunction(...names, `${others.join("\n")}\nreturn { reply, report };`);
    await nc.request("nowserving.admin.line.reports.create", settings, { timeout: 5_000 });
    const client = new Client(nc);
    const { reply, report } = await run(client, Guard, assert.fail, ({ signal, epoch }) => [signal.aborted, epoch]);
    assert.deepEqual([reply.allowed, reply.unmatched, report], [true, true, [false, 1]]);
    const after = await client.line("reports").info();
    assert.deepEqual([after.in_checkout, after.lanes[0].done_through], [0, 1]);
    await nc.close();
  } finally {
    await cluster.stop();
  }
});
