// A cluster, or a nats-server alone, on this machine.

import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { connect as connectTo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

const exited = (child) =>
  new Promise((resolve) => (child.exitCode === null && child.signalCode === null ? child.once("exit", resolve) : resolve()));

/** `nowserving dev --restart`, of the program that the environment variable NOWSERVING names. */
export class Cluster {
  #pids = new Map();
  #child;
  #folder;

  static async start() {
    const cluster = new Cluster();
    cluster.#folder = await mkdtemp(join(tmpdir(), "nowserving-js-"));
    const port = await freePort();
    cluster.url = `nats://127.0.0.1:${port}`;
    const program = process.env.NOWSERVING ?? "nowserving";
    const options = ["dev", "--restart", "--nats-port", String(port), "--data-dir", join(cluster.#folder, "data")];
    const child = spawn(program, options, { stdio: ["ignore", "pipe", "ignore"] });
    cluster.#child = child;
    await new Promise((resolve, reject) => {
      child.once("error", reject);
      child.once("exit", (code) => reject(new Error(`nowserving dev has ended with ${code}`)));
      createInterface({ input: child.stdout }).on("line", (line) => {
        const [, node, pid] = /^node (\d+) pid (\d+)$/.exec(line) ?? [];
        if (node) cluster.#pids.set(Number(node), Number(pid));
        else if (line.startsWith("ready")) resolve();
      });
    });
    return cluster;
  }

  kill(node) {
    process.kill(this.#pids.get(node), "SIGKILL");
  }

  async stop() {
    this.#child.kill("SIGTERM");
    await exited(this.#child);
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** nats-server (NATS_SERVER, or in the PATH) without a cluster, with these users. */
export class NatsServer {
  #child;
  #folder;
  #file;
  #port;

  static async start(users) {
    const server = new NatsServer();
    server.#folder = await mkdtemp(join(tmpdir(), "nowserving-js-"));
    const port = await freePort();
    server.url = `nats://127.0.0.1:${port}`;
    const entries = Object.entries(users).map(([name, rights]) => ({
      user: name,
      password: name,
      permissions: Object.fromEntries(Object.entries(rights).map(([what, subjects]) => [what, { allow: subjects }])),
    }));
    const file = join(server.#folder, "nats.conf");
    // NATS reads JSON, too.
    const config = { host: "127.0.0.1", port, ...(entries.length > 0 ? { authorization: { users: entries } } : {}) };
    await writeFile(file, JSON.stringify(config));
    server.#file = file;
    server.#port = port;
    await server.up();
    return server;
  }

  /** Starts it, also again after `kill`. */
  async up() {
    this.#child = spawn(process.env.NATS_SERVER ?? "nats-server", ["-c", this.#file], { stdio: "ignore" });
    for (let nth = 0; nth < 200; nth += 1) {
      const isUp = await new Promise((resolve) => {
        const socket = connectTo(this.#port, "127.0.0.1", () => resolve(true)).on("error", () => resolve(false));
        socket.on("connect", () => socket.destroy());
      });
      if (isUp) return;
      await sleep(50);
    }
    throw new Error("nats-server does not listen");
  }

  async kill() {
    this.#child.kill("SIGKILL");
    await exited(this.#child);
  }

  async stop() {
    await this.kill();
    await rm(this.#folder, { recursive: true, force: true });
  }
}
