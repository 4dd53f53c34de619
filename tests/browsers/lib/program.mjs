// Programs that run until they are stopped, and ports for them.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";

/** The binary that is tried. */
export const NOWSERVING = process.env.NOWSERVING ?? fail("NOWSERVING=/path/to/nowserving is missing");

function fail(text) {
  throw new Error(text);
}

/** How long a program may take to start, or to stop. */
const PATIENCE = 60_000;
/** So much of what one printed is shown when it fails. */
const TAIL = 40;

/** One `nowserving …` that stays. */
export class Program {
  lines = [];
  #waiting = new Set();

  constructor(args) {
    this.name = `nowserving ${args[0]}`;
    this.child = spawn(NOWSERVING, args, { stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [this.child.stdout, this.child.stderr]) {
      let rest = "";
      stream.setEncoding("utf8").on("data", (chunk) => {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop();
        this.lines.push(...lines);
        for (const look of this.#waiting) look();
      });
    }
    this.ended = once(this.child, "exit").then(() => {
      for (const look of this.#waiting) look();
    });
  }

  /** The first line that fits, already printed or still to come. */
  line(pattern) {
    return new Promise((resolve, reject) => {
      const done = (settle, value) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        settle(value);
      };
      const given = (why) => new Error(`${this.name}: ${why} without ${pattern}\n${this.lines.slice(-TAIL).join("\n")}`);
      const look = () => {
        const found = this.lines.map((line) => pattern.exec(line)).find(Boolean);
        if (found) done(resolve, found);
        else if (this.child.exitCode !== null || this.child.signalCode !== null) done(reject, given("ended"));
      };
      const timer = setTimeout(() => done(reject, given("went on")), PATIENCE);
      this.#waiting.add(look);
      look();
    });
  }

  async stop(signal = "SIGTERM") {
    this.child.kill(signal);
    const late = setTimeout(() => this.child.kill("SIGKILL"), PATIENCE);
    await this.ended;
    clearTimeout(late);
  }
}

/** A port of 127.0.0.1 that is free now. */
export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}
