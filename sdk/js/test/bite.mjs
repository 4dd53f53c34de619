// Breaks the SDK on purpose, once or more for each scenario, and checks that the scenario fails then.
//
//     NOWSERVING=…/nowserving node test/bite.mjs [words of the scenarios]
//
// It works on a packed and installed copy, in a folder of its own. Some minutes; not a part of `check.sh`.

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const HERE = join(import.meta.dirname, "..");

/** A scenario, a file, and what is put there in place of what. */
const BREAKS = [
  ["shard-hashes", "subjects", "hash >>> 0", "hash"],
  ["shard-hashes", "subjects", "(encoded.length >> 8) & 0xff", "0"],
  ["place-from-boards", "place", "first <= previous[1] + 1", "false"],
  ["place-from-boards", "place", "last = Math.min(to, before - 1)", "last = to"],
  ["place-from-boards", "view", "const stale = last !== undefined && last.version > status.version", "const stale = false"],
  ["gaps-in-boards", "place", "if (isGap(this.version, prevVersion))", "if (false)"],
  ["gaps-in-boards", "view", "if (board.incarnation !== last.incarnation)", "if (false)"],
  ["gaps-in-boards", "view", "board.whole && last.token", "false && last.token"],
  ["place-and-draw", "view", "if (wasUndrawn)", "if (false)"],
  ["place-and-draw", "view", "if (last === undefined || moved)", "if (last === undefined)"],
  ["places-from-events", "places", "low = middle + 1", "low = middle + 2"],
  ["places-from-events", "places", "this.whole = count + lane.waiting ===", "this.whole = true || count ==="],
  ["places-from-events", "places", 'event.event === "restored"', "false"],
  ["visit", "line", '#call("claim", body', '#call("status", body'],
  ["visit", "view", "return changed ? status : undefined;\n        }\n        // A board has", "return undefined;\n        }\n        // A board has"],
  ["refusals", "attempts", "!REPEATED.has(failure.error.code)", "false"],
  ["refusals", "attempts", "reason } = failure.error", "nothing: reason } = failure.error"],
  ["exact-places", "feed", 'this.#push(error ? "resync" : board(message))', "void [error, message]"],
  ["exact-places", "place", "[...this.#holes, ...holes]", "holes"],
  ["exact-places", "view", "board.lanes.length === 1 && !capped ? { turn: position }", "true ? { turn: last.turn }"],
  ["moved-ticket", "view", "this.pollAt = now;\n", "\n"],
  ["leader-killed", "attempts", "const pause = this.#pause(failure)", "throw this.#outOfTime(failure)"],
  ["outcome-unknown", "connection", 'headers.set("Nowserving-Request-Id", requestId)', 'headers.set("Nowserving-Request-Id", randomHex(16))'],
  ["outcome-unknown", "connection", "call.isWrite ? randomHex(16) : undefined", "randomHex(16)"],
  ["outcome-unknown", "attempts", "lastCode: code, mayHaveHappened: this.uncertain", "lastCode: code"],
  ["nothing-happened", "attempts", "Math.max(pause, retryAfterMs * (1 + Math.random() / 4))", "pause"],
  ["nothing-happened", "attempts", "pause + ATTEMPT_MIN_MS >= leftMs", "ATTEMPT_MIN_MS >= leftMs"],
  ["nothing-happened", "connection", "if ((metadata.prefix ?? prefix) !== prefix)", "if (false)"],
  ["nothing-happened", "connection", "shards === undefined ? undefined : call.onShard(shards)", "undefined"],
  ["deadlines", "attempts", "if (this.#isWrite && isUncertain(failure))", "if (isUncertain(failure))"],
  ["deadlines", "attempts", 'failure.type === "no_answer" ||', ""],
  ["deadlines", "connection", "Math.min(Math.max(deadline - sentAt, 1), ATTEMPT_MAX_MS)", "ATTEMPT_MAX_MS"],
  ["missing-right", "connection", "this.#refused(operation, subject)", ""],
  ["missing-right", "connection", "if (this.#inbox && subject", "if (false && subject"],
  ["missing-right", "feed", "if (subjects.includes(subject))", "if (false)"],
  ["limits", "limiter", "shardOfCheck(this.domain, body.descriptors[0] ?? [], shards)", "(shardOfCheck(this.domain, body.descriptors[0] ?? [], shards) + 1) % shards"],
  ["limits", "limiter", "...(hits === undefined ? {} : { hits }),", ""],
  ["limits", "limiter", "...(dryRun ? { dry_run: true } : {}),", ""],
  ["guard", "guard", "lease = renewedLease(lease, sent, left)", "await sleep(60_000, ended)"],
  ["guard", "guard", "lose();\n", "\n"],
  ["guard", "guard", "this.#line.track(place.ticket, { signal: caller.gone })", "this.#line.track(place.ticket)"],
  ["guard", "guard", "await this.#giveBack(leastMs,", "await sleep(60_000); await this.#giveBack(leastMs,"],
];

const folder = mkdtempSync(join(tmpdir(), "nowserving-bite-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const npm = (cwd, ...args) => execFileSync("npm", [...args, "--loglevel=error"], { cwd, stdio: ["ignore", "ignore", "inherit"] });
npm(HERE, "pack", "--pack-destination", folder);
cpSync(join(HERE, "test"), join(folder, "test"), { recursive: true });
writeFileSync(join(folder, "package.json"), '{ "private": true, "type": "module" }');
npm(folder, "install", "--no-audit", "--no-fund", "./nowserving-0.1.0.tgz", "@nats-io/transport-node@3.4.0");

const contract = process.env.CONTRACT ?? join(HERE, "../../contract");
const words = process.argv.slice(2);
let passed = 0;
for (const [scenario, file, old, broken] of BREAKS) {
  if (words.length > 0 && !words.some((word) => scenario.includes(word))) continue;
  const path = join(folder, "node_modules/nowserving/dist", `${file}.js`);
  const text = readFileSync(path, "utf8");
  assert.ok(text.includes(old), `${file} has no ${old}`);
  writeFileSync(path, text.replaceAll(old, broken));
  const env = { ...process.env, SCENARIO: scenario, CONTRACT: contract };
  const done = spawnSync(process.execPath, ["--test", "--test-force-exit", "test/contract.test.mjs"], { cwd: folder, env, encoding: "utf8" });
  writeFileSync(path, text);
  const why = /step \d+ .*/.exec(done.stdout)?.[0];
  console.log(`${done.status === 0 ? "PASSES" : "fails"}: ${scenario}: ${file}: ${JSON.stringify(old)}: ${why}`);
  if (done.status === 0) passed += 1;
}
const names = readdirSync(contract).filter((name) => name.endsWith(".json")).map((name) => name.slice(0, -5));
for (const name of names) assert.ok(BREAKS.some(([scenario]) => scenario === name), `no break for ${name}`);
process.exitCode = passed;
