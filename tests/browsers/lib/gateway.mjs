// A real gateway, which can be stopped and started again at the same addresses.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { eventually } from "./wait.mjs";
import { Program, freePort } from "./program.mjs";

export class Gateway {
  /** `lines`: the names, each with its part of the configuration. They must exist. */
  static async start(cluster, lines, ...flags) {
    const gateway = new Gateway();
    const [port, metrics, admin] = [await freePort(), await freePort(), await freePort()];
    gateway.origin = `http://127.0.0.1:${port}`;
    gateway.dashboard = `http://127.0.0.1:${admin}/`;
    gateway.scraped = `http://127.0.0.1:${metrics}/metrics`;
    writeFileSync(join(cluster.folder, `${port}.secret`), "5e".repeat(32), { mode: 0o600 });
    const config = join(cluster.folder, `${port}.toml`);
    writeFileSync(config, [
      `listen = "127.0.0.1:${port}"`,
      `admin_listen = "127.0.0.1:${admin}"`,
      `secret_file = "${port}.secret"`,
      `trusted_proxies = ["127.0.0.1/32"]`,
      `shop = { name = "Nordlicht", url = "/" }`,
      ...Object.entries(lines).map(([line, more]) => `[[line]]\nline = "${line}"\npaths = ["/${line}/*"]\n${more}`),
    ].join("\n"));
    gateway.args = ["gateway", "--config", config, "--nats", cluster.url, "--metrics-addr", `127.0.0.1:${metrics}`, ...flags];
    await gateway.start();
    return gateway;
  }

  async start() {
    this.program = new Program(this.args);
    await eventually("the gateway is ready", async () => (await fetch(`${this.origin}/readyz`)).ok);
  }

  stop(signal) {
    return this.program.stop(signal);
  }

  /** The sum of a metric over its labels. */
  async metric(name) {
    const text = await (await fetch(this.scraped)).text();
    const found = text.split("\n").filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
    return found.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
  }
}
