// The scenarios that every SDK runs.

import { after, test } from "node:test";

import { Cluster } from "./processes.mjs";
import { run, scenarios } from "./runner.mjs";

// One cluster for all that need one; it starts with the first.
let started;
const cluster = () => (started ??= Cluster.start());

after(async () => {
  if (started) await (await started).stop();
});

for (const [name, scenario] of await scenarios()) {
  if (process.env.SCENARIO && process.env.SCENARIO !== name) continue;
  test(name, { timeout: 120_000 }, () => run(scenario, cluster));
}
