// The packed package in a real browser, against a made-up gateway.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { chromium } from "playwright-core";

const PACKAGE = process.env.PACKAGE ?? join(import.meta.dirname, "..");

/** The endpoints of a gateway, which answer what the test says. */
class Gateway {
  streams = new Set();
  opened = 0;
  asked = 0;
  /** In place of a stream. */
  refuse = 0;
  down = false;
  retryMs = 100;
  status = { page: "waiting", state: "waiting", lane: "normal", token: 9, position: 8, ahead: 7, poll_after_ms: 1_000 };

  constructor() {
    this.server = createServer((request, response) => void this.answer(request, response));
  }

  async listen() {
    this.server.listen(0, "127.0.0.1");
    await once(this.server, "listening");
    this.origin = `http://127.0.0.1:${this.server.address().port}`;
  }

  async close() {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, "close");
  }

  send(event, data) {
    for (const stream of this.streams) stream.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  cut() {
    for (const stream of this.streams) stream.destroy();
  }

  async answer(request, response) {
    const { pathname } = new URL(request.url, this.origin);
    const end = (code, type, body) => response.writeHead(code, { "content-type": type, "cache-control": "no-store" }).end(body);
    if (pathname === "/") return end(200, "text/html", "<!doctype html><title>Shop</title>");
    if (pathname === "/sdk.js") return end(200, "text/javascript", await readFile(join(PACKAGE, "dist/index.js")));
    if (this.down) return request.socket.destroy();
    if (pathname === "/_nowserving/v1/lines/sale/status") {
      this.asked += 1;
      return end(200, "application/json", JSON.stringify(this.status));
    }
    if (pathname === "/_nowserving/v1/lines/sale/events") {
      this.opened += 1;
      if (this.refuse) return end(this.refuse, "application/problem+json", "{}");
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      response.write(`retry: ${this.retryMs}\n\nevent: phase\ndata: ${JSON.stringify(this.status)}\n\n`);
      this.streams.add(response);
      return response.on("close", () => this.streams.delete(response));
    }
    return end(404, "text/plain", "no such page");
  }
}

let browser, context, gateway;
before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
});
after(() => browser.close());
beforeEach(async () => {
  gateway = new Gateway();
  await gateway.listen();
  context = await browser.newContext();
});
afterEach(async () => {
  await context.close();
  await gateway.close();
});

async function until(what, within = 10_000) {
  const end = performance.now() + within;
  while (!(await what())) {
    assert.ok(performance.now() < end, `not within ${within} ms: ${what}`);
    await sleep(20);
  }
}

/** A tab that follows the line; `seen` are what it was told. */
async function tab({ clock = false } = {}) {
  const page = await context.newPage();
  if (clock) await page.clock.install();
  await page.goto(gateway.origin);
  await page.evaluate(async () => {
    const { follow } = await import("/sdk.js");
    window.visits = [];
    window.links = [];
    window.notices = [];
    window.following = follow("sale", {
      onVisit: (visit) => visits.push(visit),
      onLink: ({ live }) => links.push(live),
      onNotice: (notice) => notices.push(notice?.text ?? null),
    });
  });
  const list = (name) => () => page.evaluate((name) => window[name], name);
  const visits = list("visits");
  return { page, visits, links: list("links"), notices: list("notices"), last: async () => (await visits()).at(-1) };
}

test("places come by the stream, and the end of the visit ends it", async () => {
  const { last, visits, notices } = await tab();
  await until(async () => (await last())?.position === 8);
  gateway.send("place", { position: 7, ahead: 6, eta_ms: 4_000, eta_p90_ms: 9_000 });
  await until(async () => (await last()).position === 7);
  // What a place does not name is as it was, but for what belongs to a place.
  assert.deepEqual([(await last()).token, (await last()).eta_ms], [9, 4_000]);
  gateway.send("place", { position: 6, ahead: 5 });
  await until(async () => (await last()).position === 6);
  assert.equal((await last()).eta_ms, undefined);
  gateway.send("notice", { text: "Back at noon" });
  gateway.send("notice", {});
  await until(async () => (await notices()).length === 2);
  assert.deepEqual(await notices(), ["Back at noon", null]);
  gateway.send("beat", {});
  gateway.send("admitted", { page: "admitted", state: "admitted", token: 9, expires_in_ms: 60_000 });
  await until(async () => (await last()).state === "admitted");
  assert.equal((await last()).position, undefined);
  gateway.send("gone", { page: "completed", state: "gone", reason: "completed" });
  await until(async () => (await last()).state === "gone");
  await until(() => gateway.streams.size === 0);
  await sleep(500);
  assert.deepEqual([gateway.opened, gateway.asked, (await visits()).length], [1, 0, 5]);
});

test("tabs share one stream, and another tab takes it over", async () => {
  const first = await tab();
  await until(async () => (await first.last())?.position === 8);
  gateway.send("admitted", { page: "admitted", state: "admitted", token: 9, expires_in_ms: 60_000 });
  await until(async () => (await first.last()).state === "admitted");
  await sleep(300);
  const second = await tab();
  await until(async () => (await second.last())?.state === "admitted");
  // Its time has gone on since it came to the other tab.
  const { expires_in_ms: left } = await second.last();
  assert.ok(left < 59_800 && left > 30_000, `${left}`);
  assert.equal(gateway.opened, 1);
  gateway.send("place", { position: 3 });
  for (const { last } of [first, second]) await until(async () => (await last()).position === 3);
  gateway.send("notice", { text: "Back at noon", lang: "en" });
  await until(async () => (await second.notices()).length === 1);
  // A tab that comes later is told by the one that has the stream.
  const third = await tab();
  await until(async () => (await third.last())?.position === 3);
  assert.deepEqual([(await third.last()).notice, await third.notices()], [{ text: "Back at noon", lang: "en" }, ["Back at noon"]]);
  await third.page.close();
  await first.page.close();
  await until(() => gateway.opened === 2);
  gateway.send("place", { position: 2 });
  await until(async () => (await second.last()).position === 2);
});

test("a stream that breaks is made again, and nobody is told of a short loss", async () => {
  gateway.retryMs = 2_500;
  const { last, links } = await tab();
  await until(async () => (await last())?.position === 8);
  gateway.status = { ...gateway.status, position: 5, ahead: 4 };
  gateway.cut();
  await until(async () => (await last()).position === 5);
  assert.deepEqual(await links(), []);
});

test("a long loss is told, and its end", async () => {
  const { page, last, links } = await tab({ clock: true });
  await until(async () => (await last())?.position === 8);
  gateway.down = true;
  gateway.cut();
  await until(async () => {
    await page.clock.runFor(1_000);
    return (await links()).length > 0;
  });
  assert.deepEqual(await links(), [false]);
  gateway.down = false;
  gateway.status = { ...gateway.status, position: 4, ahead: 3 };
  await until(async () => {
    await page.clock.runFor(1_000);
    return (await last()).position === 4;
  }, 20_000);
  assert.deepEqual(await links(), [false, true]);
});

test("where streams are refused it asks, at the gateway's pace", async () => {
  gateway.refuse = 503;
  const { page, last, notices } = await tab({ clock: true });
  await until(async () => {
    await page.clock.runFor(1_000);
    return (await last())?.position === 8;
  });
  assert.deepEqual(await notices(), []);
  gateway.status = { ...gateway.status, position: 7, ahead: 6, notice: { text: "Back at noon" } };
  await until(async () => {
    await page.clock.runFor(1_000);
    return gateway.opened >= 3 && (await last()).position === 7;
  }, 30_000);
  assert.deepEqual(await notices(), ["Back at noon"]);
  delete gateway.status.notice;
  // After the third failure there is one more pause.
  const { opened, asked: before } = gateway;
  await until(async () => {
    await page.clock.runFor(1_000);
    return gateway.asked > before;
  });
  const { asked } = gateway;
  // No stream is tried for two minutes, and questions are at least a second apart.
  for (let nth = 0; nth < 20; nth += 1) {
    await page.clock.runFor(1_000);
    // Answers come by the real clock.
    await sleep(30);
  }
  assert.equal(gateway.opened, opened);
  assert.ok(gateway.asked > asked + 4 && gateway.asked <= asked + 20, `${asked}, ${gateway.asked}`);
  // Told once, however often it came, and that it was taken back.
  assert.deepEqual(await notices(), ["Back at noon", null]);
});

test("a visit that was over before ends it", async () => {
  // What ends an EventSource.
  gateway.refuse = 204;
  gateway.status = { page: "completed", state: "gone", reason: "completed" };
  const { page, last } = await tab({ clock: true });
  await until(async () => {
    await page.clock.runFor(1_000);
    return (await last())?.state === "gone";
  });
  await page.clock.runFor(60_000);
  await sleep(100);
  assert.deepEqual([gateway.opened, gateway.asked], [1, 1]);
});

test("a stream that has fallen silent is dead", async () => {
  const { page, last } = await tab({ clock: true });
  await until(async () => (await last())?.position === 8);
  await page.clock.runFor(35_000);
  gateway.send("beat", {});
  await sleep(300);
  await page.clock.runFor(35_000);
  assert.equal(gateway.opened, 1);
  gateway.status = { ...gateway.status, position: 2, ahead: 1 };
  await page.clock.runFor(10_000);
  await until(async () => {
    await page.clock.runFor(1_000);
    return (await last()).position === 2 && gateway.opened === 2;
  });
});

test("a tab that is looked at again asks, and a closed one does not", async () => {
  const { page, last } = await tab({ clock: true });
  await until(async () => (await last())?.position === 8);
  const look = () => page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  await look();
  await sleep(200);
  assert.equal(gateway.asked, 0, "what is known is new");
  await page.clock.runFor(30_000);
  gateway.status = { ...gateway.status, position: 6, ahead: 5 };
  await look();
  await until(async () => (await last()).position === 6);
  assert.equal(gateway.asked, 1);
  await page.evaluate(() => following.close());
  await until(() => gateway.streams.size === 0);
  const { opened } = gateway;
  await page.clock.runFor(60_000);
  await look();
  await sleep(200);
  assert.deepEqual([gateway.opened, gateway.asked], [opened, 1]);
});

test("a line's name is checked", async () => {
  const { page } = await tab();
  const thrown = await page.evaluate(async () => {
    const { follow } = await import("/sdk.js");
    try {
      follow("a/b", { onVisit() {} });
    } catch (error) {
      return error.name;
    }
    return undefined;
  });
  assert.equal(thrown, "TypeError");
});
