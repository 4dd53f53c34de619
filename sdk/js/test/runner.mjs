// Runs the scenarios of `contract/` with this SDK. The format is in `contract/README.md`.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { AuthorizationError, connect, headers as natsHeaders } from "@nats-io/transport-node";
import { Client, Guard, NowservingError, PlacesFromEvents, readBoard, readStatus, shardOfCheck, shardOfLine, View } from "nowserving";

import { NatsServer } from "./processes.mjs";

const CONTRACT = process.env.CONTRACT ?? join(import.meta.dirname, "../../../contract");
const REPEATED = ["unavailable", "not_leader", "overloaded", "outcome_unknown"];

/** All by name; those that kill a leader come last, as the others expect a cluster at rest. */
export async function scenarios() {
  const names = (await readdir(CONTRACT)).filter((name) => name.endsWith(".json")).sort();
  assert.notEqual(names.length, 0, `no scenarios in ${CONTRACT}`);
  const read = async (name) => [name.slice(0, -5), JSON.parse(await readFile(join(CONTRACT, name), "utf8"))];
  const kills = ([, { steps }]) => steps.some((step) => step.do === "kill_leader");
  return (await Promise.all(names.map(read))).sort((a, b) => kills(a) - kills(b));
}

// ---- matchers

const show = (value) => JSON.stringify(value) ?? "nothing";

/** Why the value does not match; undefined if it does. */
export function mismatch(matcher, value, at = "") {
  const where = at || "the result";
  if (Array.isArray(matcher)) {
    if (!Array.isArray(value) || value.length !== matcher.length) {
      return `${where}: ${show(value)} is no list of ${matcher.length}`;
    }
    return matcher.map((part, nth) => mismatch(part, value[nth], `${at}[${nth}]`)).find(Boolean);
  }
  if (matcher !== null && typeof matcher === "object") {
    const signs = Object.keys(matcher).filter((name) => name.startsWith("$"));
    if (signs.length > 0) return signs.map((name) => sign(name, matcher[name], value, where)).find(Boolean);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return `${where}: ${show(value)} is no object`;
    const parts = Object.entries(matcher);
    return parts.map(([name, part]) => mismatch(part, value[name], at ? `${at}.${name}` : name)).find(Boolean);
  }
  return (value ?? null) === matcher ? undefined : `${where}: ${show(value)}, expected ${show(matcher)}`;
}

function sign(name, expected, value, where) {
  const holds = {
    $missing: () => (value ?? null) === null === expected,
    $at_least: () => typeof value === "number" && value >= expected,
    $at_most: () => typeof value === "number" && value <= expected,
    $contains: () => typeof value === "string" && value.includes(expected),
    $is: () => typeof value === { text: "string", number: "number" }[expected],
    $not: () => mismatch(expected, value) !== undefined,
    $any: () => expected.some((each) => mismatch(each, value) === undefined),
  }[name];
  assert.ok(holds, `no matcher ${name}`);
  return holds() ? undefined : `${where}: ${show(value)}, expected ${name} ${show(expected)}`;
}

// ---- the stand-in

/** Stands between the SDK and the cluster. */
class StandIn {
  #nc;
  #prefix;
  #answers;
  #seen = [];

  constructor(nc, { prefix, answers, shards }) {
    this.#nc = nc;
    this.#prefix = prefix;
    this.#answers = [...answers];
    nc.subscribe(`${prefix}.>`, { callback: (_, message) => void this.#onRequest(message) });
    if (shards !== undefined) {
      const info = JSON.stringify({ name: "nowserving", metadata: { prefix, shards: String(shards) } });
      nc.subscribe("$SRV.INFO.nowserving", { callback: (_, message) => message.respond(info) });
    }
  }

  seen() {
    const ids = this.#seen.map(({ id }) => id);
    return {
      subjects: this.#seen.map(({ subject }) => subject),
      request_ids: ids,
      distinct_ids: new Set(ids.filter((id) => id !== null)).size,
      distinct_bodies: new Set(this.#seen.map(({ body }) => body)).size,
    };
  }

  async #onRequest(message) {
    const words = message.subject.slice(this.#prefix.length + 1).split(".");
    if (!message.reply || words[0] === "event") return;
    const id = message.headers?.get("Nowserving-Request-Id") || null;
    this.#seen.push({ subject: message.subject, id, body: message.string() });
    const answer = this.#answers.shift() ?? "pass";
    if (answer === "silence") return;
    if (answer === "pass" || answer === "lose" || answer.passed_on) {
      const plain = { shard: ["line", ...words.slice(2)], leader: words.slice(2) }[words[0]] ?? words;
      const options = { timeout: 5_000, headers: message.headers };
      const reply = await this.#nc.request(`nowserving.${plain.join(".")}`, message.data, options);
      if (answer === "pass") message.respond(reply.data, { headers: reply.headers });
      if (answer === "pass" || answer === "lose") return;
    }
    const { passed_on: _, ...error } = answer;
    const marks = natsHeaders();
    marks.set("Nats-Service-Error", error.message);
    marks.set("Nats-Service-Error-Code", "503");
    message.respond(JSON.stringify({ error }), { headers: marks });
  }
}

// ---- one scenario

class Run {
  #scenario;
  #cluster;
  #names;
  #clients = new Map();
  #connections = [];
  #trackers = new Map();
  #last = new Map();
  #guard;
  #slots = new Map();
  #asking = new Map();
  #places = new PlacesFromEvents();
  #view = new View(performance.now());
  #standIn;
  #server;
  #url;
  #nc;

  constructor(scenario, cluster) {
    this.#scenario = scenario;
    this.#cluster = cluster;
    const random = randomBytes(16).toString("hex");
    this.#names = new Map([["random", random], ["line", `l${random.slice(0, 12)}`], ["domain", `d${random.slice(0, 12)}`]]);
  }

  get #line() {
    return this.#names.get("line");
  }

  async all() {
    const { needs, line, rules, users, steps } = this.#scenario;
    try {
      if (needs === "cluster") {
        this.#url = (await this.#cluster()).url;
        this.#nc = await this.#connected({});
        this.#clients.set("", new Client(await this.#connected({})));
        if (line) await this.#admin(`nowserving.admin.line.${this.#line}.create`, line);
        if (rules) {
          await this.#admin("nowserving.admin.limit.apply", { rules: this.#put(rules) });
          // Each node learns of them soon after.
          await sleep(1_000);
        }
      } else if (needs === "nats") {
        this.#server = await NatsServer.start(users);
        this.#url = this.#server.url;
      } else assert.equal(needs, "nothing");
      await this.#steps(steps, "");
    } finally {
      for (const { abort } of this.#asking.values()) abort.abort();
      for (const nc of this.#connections) await nc.close();
      await this.#server?.stop();
    }
  }

  async #connected(options) {
    const nc = await connect({ servers: this.#url, reconnectTimeWait: 250, maxReconnectAttempts: -1, ...options });
    this.#connections.push(nc);
    return nc;
  }

  async #steps(steps, within) {
    for (const [nth, step] of steps.entries()) {
      const at = `${within}${nth + 1} (${step.do})`;
      if (step.do !== "repeat") await this.#step(step, at);
      else {
        for (let time = 1; time <= step.with.times; time += 1) {
          this.#names.set("nth", time);
          await this.#steps(step.with.steps, `${at}, ${time}. time: `);
        }
      }
    }
  }

  async #step(step, at) {
    const known = ["do", "with", "client", "expect", "fails", "keep", "within_ms", "at_least_ms", "why"];
    for (const name of Object.keys(step)) assert.ok(known.includes(name), `step ${at}: unknown ${name}`);
    const most = step.within_ms ?? 10_000;
    const begin = performance.now();
    const timer = new AbortController();
    const late = sleep(most, "late", { signal: timer.signal }).catch(() => undefined);
    const done = this.#do(step).then(
      (result) => ({ result }),
      (error) => ({ error }),
    );
    const outcome = await Promise.race([done, late]);
    timer.abort();
    assert.notEqual(outcome, "late", `step ${at}: took more than ${most} ms`);
    let { result } = outcome;
    const { error } = outcome;
    if (error && !(error instanceof NowservingError)) throw new Error(`step ${at}: ${error.message}`, { cause: error });
    const took = performance.now() - begin;
    assert.ok(took >= (step.at_least_ms ?? 0), `step ${at}: took only ${took} ms`);
    if (step.fails) {
      assert.ok(error, `step ${at}: succeeded with ${show(result)}`);
      const { code, message, retryAfterMs: retry_after_ms, reason, mayHaveHappened: may_have_happened } = error;
      result = { code, message, retry_after_ms, reason, may_have_happened };
    } else if (error) throw new Error(`step ${at}: ${error.code}: ${error.message}`, { cause: error });
    const matcher = step.fails ?? step.expect;
    const why = matcher === undefined ? undefined : mismatch(this.#put(matcher), result);
    assert.equal(why, undefined, `step ${at}: ${why}`);
    for (const [name, path] of Object.entries(step.keep ?? {})) {
      const part = path.split(".").filter(Boolean).reduce((value, word) => value?.[word], result);
      assert.notEqual(part, undefined, `step ${at}: no ${path}`);
      this.#names.set(this.#put(name), part);
    }
  }

  /** Puts what the names stand for. */
  #put(value) {
    if (Array.isArray(value)) return value.map((part) => this.#put(part));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, this.#put(part)]));
    }
    if (typeof value !== "string") return value;
    const [, alone] = /^\$([a-z][a-z0-9_]*)$/.exec(value) ?? [];
    if (this.#names.has(alone)) return this.#names.get(alone);
    return value.replace(/\$([a-z][a-z0-9_]*)/g, (all, name) => (this.#names.has(name) ? this.#names.get(name) : all));
  }

  async #do(step) {
    const args = this.#put(step.with ?? {});
    const client = this.#clients.get(step.client ?? "");
    assert.ok(client || step.client === undefined, `no client ${step.client}`);
    const [word, more] = step.do.split(".");
    switch (word) {
      case "shard_of_line":
        return shardOfLine(args.line, args.shards);
      case "shard_of_check":
        return shardOfCheck(args.domain, args.descriptor, args.shards);
      case "watcher":
        return this.#watcher(more, args);
      case "places":
        return this.#ofPlaces(more, args);
      case "stand_in":
        if (more === "seen") return this.#standIn.seen();
        this.#standIn = new StandIn(this.#nc, args);
        return this.#nc.flush();
      case "connect":
        return this.#connect(args);
      case "wait":
        return sleep(args.ms);
      case "operator":
        return this.#admin(`nowserving.admin.line.${this.#line}.${args.op}`, args.body);
      case "request":
        return this.#request(args.subject, args.body, args.headers);
      case "kill_leader":
        return (await this.#cluster()).kill((await client.line(this.#line).info()).leader);
      case "check": {
        const { descriptors, hits, dry_run: dryRun } = args;
        const options = { ...(hits === undefined ? {} : { hits }), ...(dryRun ? { dryRun } : {}) };
        return client.limiter(this.#names.get("domain"), { onUnavailable: "fail", patienceMs: 5_000 }).check(descriptors, options);
      }
      case "track":
        return this.#track(more, client, args);
      case "guard":
        return this.#ofGuard(more, client, args);
    }
    const line = client.line(this.#line);
    const { key, ticket, tickets, lane, epoch, units, to } = args;
    switch (step.do) {
      case "enter":
        return line.enter(key, lane === undefined ? {} : { lane });
      case "find":
        return line.find(key);
      case "status":
        return line.status(ticket);
      case "claim":
        return line.claim(ticket);
      case "renew":
        return line.renew(ticket, epoch);
      case "complete":
        return line.complete(ticket, epoch, units === undefined ? {} : { units });
      case "leave":
        return line.leave(ticket);
      case "jump":
        return line.jump(ticket, to);
      case "seen":
        return line.seen(tickets);
      case "info":
        return line.info();
    }
    throw new Error(`no operation ${step.do}`);
  }

  #watcher(what, args) {
    const laidOver = { ...this.#scenario[what], ...args[what] };
    if (what === "status") this.#view.status(readStatus(laidOver), performance.now());
    else this.#view.board(readBoard(laidOver), performance.now());
    return { position: this.#view.last?.position, asks: this.#view.asksSoon };
  }

  #ofPlaces(what, args) {
    if (what === "standing") return this.#places.standing(args.lane, args.token);
    const event = what === "board" ? { ...this.#scenario.board, ...args.board } : { ...this.#scenario.event, ...args.event };
    const subject = what === "token" ? `token.${event.lane}.${event.token}` : what;
    this.#places.message(`nowserving.event.${event.line}.${subject}`, event);
    return undefined;
  }

  async #connect({ name, prefix, user, password, deadline_ms: deadlineMs }) {
    const login = user === undefined ? {} : { user, pass: password ?? user };
    try {
      const nc = await this.#connected(login);
      const options = { ...(prefix === undefined ? {} : { prefix }), ...(deadlineMs === undefined ? {} : { deadlineMs }) };
      this.#clients.set(name, new Client(nc, options));
    } catch (error) {
      // The connection is made by its own package, which has its own error for this.
      if (!(error instanceof AuthorizationError)) throw error;
      throw new NowservingError("forbidden", "forbidden", error.message);
    }
  }

  async #track(what, client, { name, ticket, until }) {
    if (what === undefined) {
      this.#trackers.set(name, client.line(this.#line).track(ticket));
      return undefined;
    }
    const tracker = this.#trackers.get(name);
    for (;;) {
      const { done, value: status } = await tracker.next();
      if (what === "end") {
        assert.ok(done, `it goes on: ${show(status)}`);
        return undefined;
      }
      assert.equal(what, "until");
      assert.ok(!done, `the tracker has ended with ${show(this.#last.get(name))}`);
      const last = this.#last.get(name);
      this.#last.set(name, status);
      const grows = last?.lane === status.lane && (status.position ?? 0) > (last.position ?? Infinity);
      assert.ok(!grows, `the position grows: ${last?.position}, ${status.position}`);
      if (mismatch(until, status) === undefined) return status;
    }
  }

  async #ofGuard(what, client, { name, max_wait_ms: maxWaitMs }) {
    if (what === "begin" || what === "acquire") {
      this.#guard ??= new Guard(client.line(this.#line), { patienceMs: 5_000 });
      const abort = new AbortController();
      const ask = { signal: abort.signal, ...(maxWaitMs === undefined ? {} : { maxWaitMs }) };
      const slot = this.#guard.acquire(ask);
      slot.catch(() => {});
      this.#asking.set(name, { slot, abort });
      if (what === "begin") return undefined;
    }
    if (what === "acquire" || what === "await") {
      const slot = await this.#asking.get(name).slot;
      this.#slots.set(name, slot);
      return { epoch: slot.epoch };
    }
    if (what === "abandon") return this.#asking.get(name).abort.abort();
    const slot = this.#slots.get(name);
    if (what === "release") return slot.release();
    assert.equal(what, "lost");
    if (!slot.signal.aborted) await new Promise((resolve) => slot.signal.addEventListener("abort", resolve));
    assert.equal(slot.signal.reason.kind, "seat_lost");
    return undefined;
  }

  async #admin(subject, body) {
    const headers = { "Nowserving-Request-Id": randomBytes(16).toString("hex") };
    for (let nth = 0; nth < 100; nth += 1) {
      const reply = await this.#request(subject, body, headers).catch(() => ({ error: { code: "unavailable" } }));
      if (!REPEATED.includes(reply.error?.code)) {
        assert.equal(reply.error, undefined, `${subject}: ${show(reply.error)}`);
        return reply;
      }
      await sleep(100);
    }
    throw new Error(`${subject}: no answer`);
  }

  async #request(subject, body, fields = {}) {
    const headers = natsHeaders();
    for (const [name, value] of Object.entries(fields)) headers.set(name, value);
    return (await this.#nc.request(subject, JSON.stringify(body), { timeout: 2_200, headers })).json();
  }
}

/** Runs one scenario, and throws what is wrong. */
export async function run(scenario, cluster) {
  await new Run(scenario, cluster).all();
}
