// What needs no server: places against a slow computation of them, guards over a made-up line, arguments.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, Guard, NowservingError, PlacesFromEvents, readBoard, readStatus, View } from "nowserving";

// ---- places

/** The same numbers for the same seed. */
function randomOf(seed) {
  let state = seed + 1;
  return () => {
    state = Math.imul(state ^ (state >>> 15), state | 1);
    state ^= state + Math.imul(state ^ (state >>> 7), state | 61);
    return ((state ^ (state >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A lane that knows each of its tokens. */
class Naive {
  nextToken = 1;
  admittedThrough = 0;
  version = 1;
  published = 1;
  waiting = new Set();
  holes = new Set();
  allHoles = new Set();

  constructor(random) {
    this.random = random;
  }

  step() {
    this.version += 1 + Math.floor(this.random() * 3);
    const what = this.random();
    const waiting = [...this.waiting].sort((a, b) => a - b);
    if (what < 0.5 || waiting.length === 0) this.waiting.add(this.nextToken++);
    else if (what < 0.8) {
      const gone = waiting[Math.floor(this.random() * waiting.length)];
      this.waiting.delete(gone);
      this.holes.add(gone);
      this.allHoles.add(gone);
    } else this.waiting.delete(waiting[0]);
    this.admittedThrough = Math.min(this.nextToken, ...this.waiting) - 1;
  }

  board(whole) {
    const between = [...this.allHoles].filter((token) => token > this.admittedThrough);
    const holes = (whole ? between : [...this.holes]).map((token) => [token, token]);
    const lane = { lane: "normal", next_token: this.nextToken, admitted_through: this.admittedThrough, holes };
    const head = { line: "l", incarnation: 1, version: this.version, prev_version: this.published, whole };
    this.published = this.version;
    this.holes.clear();
    return readBoard({ ...head, lanes: [{ ...lane, waiting: this.waiting.size }] });
  }

  status(token) {
    const holes = [...this.allHoles].filter((each) => each > this.admittedThrough && each < token).map((each) => [each, each]);
    const head = { line: "l", incarnation: 1, lane: "normal", token, version: this.version, poll_after_ms: 1e9 };
    const position = this.position(token);
    const state = position === undefined ? { state: "admitted" } : { state: "waiting", position };
    return readStatus({ ...head, ...state, admitted_through: this.admittedThrough, holes });
  }

  position(token) {
    return this.waiting.has(token) ? 1 + [...this.waiting].filter((each) => each < token).length : undefined;
  }
}

test("places are those of a lane that knows each token", () => {
  let known = 0;
  for (let seed = 0; seed < 60; seed += 1) {
    const random = randomOf(seed);
    const lane = new Naive(random);
    for (let nth = 0; nth < 30; nth += 1) lane.step();
    lane.board(false);
    const token = Math.max(1, ...lane.waiting);
    const [view, places] = [new View(0), new PlacesFromEvents()];
    view.status(lane.status(token), 0);
    places.board(lane.board(true));
    for (let nth = 0; nth < 120; nth += 1) {
      for (let more = 1 + Math.floor(random() * 4); more > 0; more -= 1) lane.step();
      const board = lane.board(random() < 0.1);
      const lost = random() < 0.1;
      if (lost) continue;
      view.board(board, 0);
      places.board(board);
      if (view.asksSoon) view.status(lane.status(token), 0);
      assert.equal(view.last.position, lane.position(token), `seed ${seed}, board ${nth}`);
      for (let each = 1; each < lane.nextToken; each += 1) {
        const { standing, position } = places.standing("normal", each);
        if (standing !== "unknown") {
          known += 1;
          assert.equal(position, lane.position(each), `seed ${seed}, board ${nth}, token ${each}`);
        } else assert.ok(!board.whole, "a whole board knows all");
      }
    }
  }
  assert.ok(known > 100_000, `${known}`);
});

test("a status that changes nothing is not shown, and an older one is not believed", () => {
  const status = (version, position) =>
    readStatus({ line: "l", incarnation: 1, lane: "normal", token: 9, state: "waiting", version, position });
  const view = new View(0);
  assert.ok(view.status(status(5, 9), 0));
  assert.equal(view.status(status(6, 9), 1), undefined);
  assert.ok(view.status(status(7, 8), 2));
  assert.equal(view.status(status(6, 9), 3), undefined);
  assert.equal(view.last.position, 8);
});

test("a watcher that falls behind asks, with the holes", () => {
  const view = new View(0);
  const lane = new Naive(randomOf(1));
  for (let nth = 0; nth < 30; nth += 1) lane.step();
  view.status(lane.status(Math.max(...lane.waiting)), 0);
  assert.ok(!view.wantsHoles && view.pollAt > 1_000);
  view.resync(1);
  assert.ok(view.wantsHoles && view.pollAt <= 251);
});

// ---- arguments and replies

/** A connection that nothing goes over. */
const nowhere = { status: async function* () {}, isClosed: () => false };

test("arguments are checked before anything is sent", async () => {
  const client = new Client(nowhere);
  const bad = { name: "NowservingError", kind: "bad_argument", code: "bad_request" };
  for (const name of ["", "a b", "a.b", "*", ">", "票", "x".repeat(65)]) {
    assert.throws(() => client.line(name), bad);
    assert.throws(() => client.limiter(name), bad);
  }
  assert.throws(() => new Client(nowhere, { prefix: "a b" }), bad);
  const line = client.line("l");
  for (const key of ["", "x".repeat(129), "票".repeat(43), 7]) await assert.rejects(line.enter(key), bad);
  const limiter = client.limiter("d");
  for (const descriptors of [[], [{}], [{ ["k".repeat(257)]: "v" }], [{ k: "v".repeat(1_025) }], Array(17).fill({ k: "v" })]) {
    await assert.rejects(limiter.check(descriptors), bad);
  }
  await assert.rejects(limiter.check([{ k: "v" }], { hits: -1 }), bad);
});

test("a closed connection ends calls at once", async () => {
  const client = new Client({ ...nowhere, isClosed: () => true });
  await assert.rejects(client.line("l").info(), { kind: "connection", code: "unavailable" });
});

test("replies that cannot be read are errors", () => {
  for (const reply of [null, [], {}, { lanes: 1 }, { lanes: [1] }, { line: "l", holes: [1] }]) {
    assert.throws(() => readStatus(reply), { kind: "bad_reply" });
    assert.throws(() => readBoard(reply), { kind: "bad_reply" });
  }
});

// ---- guards

/** A line of one seat in memory; while it is `down` it answers nothing. */
class FakeLine {
  name = "fake";
  queue = [];
  held = new Map();
  down = false;
  goneAs = "kicked";
  lastsMs = 10_000;
  epoch = 0;
  renewals = 0;

  withDeadline() {
    return this;
  }

  check() {
    if (this.down) throw new NowservingError("unavailable", "unavailable", "down");
    if (this.queue.length > 0 && this.held.size === 0) this.held.set(this.queue.shift(), 0);
  }

  status(ticket, state, more = {}) {
    return readStatus({ line: "fake", incarnation: 1, lane: "normal", token: 1, version: 1, ticket, state, ...more });
  }

  async info() {
    this.check();
    return { settings: {} };
  }

  async enter(key) {
    this.check();
    this.queue.push(key);
    this.check();
    return this.status(key, this.held.has(key) ? "admitted" : "waiting");
  }

  track(ticket, { signal }) {
    const step = async () => {
      while (this.queue.includes(ticket) && !signal.aborted) {
        await sleep(10);
        this.check();
      }
      if (signal.aborted) return undefined;
      return this.held.has(ticket) ? this.status(ticket, "admitted") : this.status(ticket, "gone", { reason: this.goneAs });
    };
    return { ticket, step, return: async () => {} };
  }

  async claim(ticket) {
    this.check();
    this.epoch += 1;
    this.held.set(ticket, this.epoch);
    return this.status(ticket, "in_checkout", { epoch: this.epoch, expires_in_ms: this.lastsMs });
  }

  async renew(ticket, epoch) {
    this.check();
    this.renewals += 1;
    if (this.held.get(ticket) !== epoch) throw new NowservingError("refused", "token_gone", "gone");
    return this.status(ticket, "in_checkout", { epoch, expires_in_ms: this.lastsMs });
  }

  async complete(ticket) {
    this.check();
    this.held.delete(ticket);
    this.check();
    return this.status(ticket, "gone");
  }

  async leave(ticket) {
    this.check();
    this.held.delete(ticket);
    this.queue = this.queue.filter((each) => each !== ticket);
    return this.status(ticket, "gone");
  }

  async find() {
    this.check();
    throw new NowservingError("refused", "token_not_found", "no such token");
  }
}

const within = (ms, promise) => Promise.race([promise, sleep(ms).then(() => assert.fail(`not within ${ms} ms`))]);

test("one at a time, in order, and given back after errors", async () => {
  const line = new FakeLine();
  const guard = new Guard(line);
  let running = 0;
  const order = [];
  const work = (nth) =>
    guard.run(async (slot) => {
      running += 1;
      assert.equal(running, 1);
      assert.equal(slot.epoch, nth + 1);
      order.push(nth);
      await sleep(10);
      running -= 1;
      if (nth === 1) throw new RangeError("work");
      return nth;
    });
  const results = await Promise.allSettled([0, 1, 2, 3].map(work));
  assert.deepEqual(results.map(({ value, reason }) => value ?? reason.name), [0, "RangeError", 2, 3]);
  assert.deepEqual(order, [0, 1, 2, 3]);
  await within(1_000, guard.drained());
  assert.equal(line.held.size + line.queue.length, 0);
  await assert.rejects(guard.acquire(), { kind: "no_slot", code: "busy" });
});

test("a lost seat ends the run", async () => {
  const line = new FakeLine();
  line.lastsMs = 150;
  const guard = new Guard(line);
  let signalled;
  const run = guard.run(async ({ signal }) => {
    await sleep(300);
    assert.ok(line.renewals >= 3);
    assert.ok(!signal.aborted);
    line.held.clear();
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    signalled = signal.reason;
    await sleep(60_000, undefined, { ref: false });
  });
  await assert.rejects(within(2_000, run), { kind: "seat_lost" });
  assert.equal(signalled.code, "seat_lost");
  await within(1_000, guard.drained());
});

test("callers that go, are removed, or wait too long leave nothing behind", async () => {
  const line = new FakeLine();
  const guard = new Guard(line);
  const first = await guard.acquire();
  await assert.rejects(guard.acquire({ maxWaitMs: 50 }), { kind: "no_slot", code: "waited_too_long" });
  const abort = new AbortController();
  const second = guard.acquire({ signal: abort.signal });
  await sleep(30);
  abort.abort(new Error("the client went"));
  await assert.rejects(second, /the client went/);
  await sleep(50);
  assert.deepEqual(line.queue, []);
  for (const [reason, code] of [["kicked", "removed"], ["wait_expired", "waited_too_long"]]) {
    line.goneAs = reason;
    const waiting = guard.acquire();
    await sleep(30);
    line.queue = [];
    await assert.rejects(waiting, { kind: "no_slot", code });
  }
  await first.release();
  assert.equal(line.held.size, 0);
});

for (const onUnavailable of ["allow", "deny"]) {
  test(`the cluster is away and comes back: ${onUnavailable}`, async () => {
    const line = new FakeLine();
    const guard = new Guard(line, { onUnavailable });
    line.down = true;
    for (let nth = 0; nth < 2; nth += 1) {
      // The first one is a doubt, and the read that follows it confirms it.
      if (onUnavailable === "deny") await assert.rejects(guard.acquire(), { code: "unavailable" });
      else {
        const slot = await guard.acquire();
        assert.deepEqual([slot.kind, slot.epoch], ["allowed", undefined]);
        await slot.release();
      }
      await sleep(20);
    }
    assert.ok(guard.isAway);
    line.down = false;
    await sleep(1_000);
    assert.ok(!guard.isAway);
    const slot = await guard.acquire();
    assert.equal(slot.kind, "seat");
    await slot.release();
    await within(1_000, guard.drained());
    assert.equal(line.held.size + line.queue.length, 0);
  });
}

test("a connection that is closed for good ends what a guard has under way", async () => {
  const line = new FakeLine();
  const guard = new Guard(line, { onUnavailable: "deny" });
  const slot = await guard.acquire();
  line.check = () => {
    throw new NowservingError("connection", "unavailable", "closed");
  };
  await within(5_000, slot.release());
  await assert.rejects(guard.acquire(), { kind: "no_slot", code: "unavailable" });
  await within(5_000, guard.drained());
});

test("with deny a seat ends with its claim", async () => {
  for (const [onUnavailable, lost] of [["deny", true], ["allow", false]]) {
    const line = new FakeLine();
    line.lastsMs = 200;
    const slot = await new Guard(line, { onUnavailable }).acquire();
    line.down = true;
    await sleep(400);
    assert.equal(slot.signal.aborted, lost, onUnavailable);
    line.down = false;
    await slot.release();
  }
});
