// A real cluster: `nowserving dev`, and its operator, who has the command line.
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { eventually } from "./wait.mjs";
import { NOWSERVING, Program, freePort } from "./program.mjs";

const run = promisify(execFile);

export class Cluster {
  static async start(...flags) {
    const cluster = new Cluster();
    cluster.folder = mkdtempSync(join(tmpdir(), "nowserving-browsers-"));
    const port = await freePort();
    cluster.url = `nats://127.0.0.1:${port}`;
    const data = join(cluster.folder, "data");
    // A node that is killed comes back.
    cluster.args = ["dev", "--nats-port", String(port), "--data-dir", data, "--restart", ...flags];
    await cluster.up();
    return cluster;
  }

  /** The nodes and NATS, with all that they knew before. */
  async up() {
    this.dev = new Program(this.args);
    await this.dev.line(/^ready nats:/);
  }

  /** Ends the nodes and NATS. */
  down() {
    return this.dev.stop();
  }

  async stop() {
    await this.down();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** A command, with its answer. */
  async ask(...words) {
    const { stdout } = await run(NOWSERVING, [...words, "--json", "--nats", this.url]);
    const answers = stdout.trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
    return answers.length === 1 ? answers[0] : answers;
  }

  create(line, ...flags) {
    return this.ask("line", "create", line, "--queue-limit", "100", ...flags);
  }

  /** Others in the line, in this order: the first as many as there are seats hold one. Each can leave. */
  async others(line, count) {
    const others = [];
    for (let n = 0; n < count; n++) {
      const { ticket } = await this.ask("enter", line, "--key", `other-${n}`);
      others.push({ leave: () => this.ask("leave", line, ticket) });
    }
    return others;
  }

  /** kill -9 of the node that leads the line; when another one leads it, that is known. */
  async killLeader(line) {
    const { leader } = await eventually("a leader", async () => {
      const shown = await this.ask("line", "show", line);
      return shown.leader && shown;
    });
    process.kill(this.#pids().get(leader), "SIGKILL");
    await eventually("another leader", async () => {
      const shown = await this.ask("line", "show", line);
      return shown.leader && shown.leader !== leader;
    });
  }

  /** Sends all nodes this signal; NATS stays as it is. */
  signal(signal) {
    for (const pid of this.#pids().values()) {
      try {
        process.kill(pid, signal);
      } catch (error) {
        if (error.code !== "ESRCH") throw error; // it has ended already
      }
    }
  }

  /** By node: of one that was started again, the last. */
  #pids() {
    const printed = this.dev.lines.map((line) => /^node (\d+) pid (\d+)$/.exec(line)).filter(Boolean);
    return new Map(printed.map(([, node, pid]) => [Number(node), Number(pid)]));
  }
}
