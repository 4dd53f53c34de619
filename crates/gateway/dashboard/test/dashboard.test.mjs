// npm run dashboard (in crates/gateway/page/test).
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { CSP, Dashboard, ROOT, preview } from "./server.mjs";
import { scenes } from "./scenes.mjs";
import { AXE, eventually, launch, pause, tab } from "../../page/test/browser.mjs";
import * as words from "../assets/words.js";

const LINE = "tickets-tour-7";
const test = (name, check) => it(name, { timeout: 120_000 }, check);

let browser;
const open = [];
before(async () => { browser = await launch(); });
after(async () => {
  for (const dashboard of open) await dashboard.close();
  await browser.close();
});

async function dashboard(options) {
  const one = await new Dashboard(options).listen();
  open.push(one);
  return one;
}

/** The scene, drawn. Its requests and problems are at hand. */
async function scene(name, { width = 1280, colorScheme = "light" } = {}) {
  const { hash, set, wait, then } = scenes[name];
  const one = await dashboard();
  set?.(one);
  const context = await browser.newContext({ viewport: { width, height: 860 }, colorScheme });
  await context.addInitScript(AXE);
  const page = await tab(context, one.url + hash);
  await page.getByText(wait).first().waitFor();
  await then?.(page);
  return { one, page, context };
}

/** A view of a made-up gateway of its own. */
async function view(hash, set = () => {}, options = {}, more = {}) {
  const one = await dashboard(options);
  set(one);
  const context = await browser.newContext(more);
  const page = await tab(context, one.url + hash);
  await page.locator("main h1").waitFor();
  return { one, page, context };
}

const button = (page, name) => page.getByRole("button", { name, exact: true });
const count = (one, question) => one.asked.filter((it) => it === question).length;
const says = (page, wanted) => eventually(`role=status says ${wanted}`, async () => wanted.test(await page.locator("#say").innerText()));

describe("files", () => {
  test("no inline script or style, and every path is relative", () => {
    const html = readFileSync(join(ROOT, "index.html"), "utf8");
    assert.doesNotMatch(html, /<style|style=|\son\w+=|<script(?![^>]*src=)/);
    for (const [, url] of html.matchAll(/(?:src|href)="([^"]+)"/g)) assert.match(url, /^(?:assets\/|#)/);
    const sources = readdirSync(join(ROOT, "assets")).filter((name) => name.endsWith(".js")).map((name) => readFileSync(join(ROOT, "assets", name), "utf8"));
    for (const text of sources) {
      for (const [, from] of text.matchAll(/from "([^"]+)"/g)) assert.match(from, /^\.\/[a-z]+\.js$/);
      assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function/);
    }
  });

  test("the CSP of the contract is the one that is tested", () => {
    const readme = readFileSync(join(ROOT, "README.md"), "utf8").replace(/\s+/g, " ");
    assert.ok(readme.includes(CSP));
  });
});

describe("words", () => {
  for (const [ms, text] of [[null, "–"], [0, "0 s"], [40, "40 ms"], [1_500, "2 s"], [61_000, "1 min 1 s"], [600_000, "10 min"], [4_500_000, "1 h 15 min"], [180_000_000, "2 d 2 h"]]) {
    test(`${ms} ms is ${text}`, () => assert.equal(words.duration(ms).replaceAll("\u00a0", " "), text));
  }

  test("every reason of the contract has words", () => {
    const line = { seats: 5, phase: "paused" };
    for (const by of ["nothing", "phase", "draw", "quota", "seats", "called", "admission_rate", "admitting"]) {
      const text = words.heldBack({ by }, line);
      assert.notEqual(text, by);
      assert.doesNotMatch(text, /undefined|null|NaN/);
    }
    assert.equal(words.heldBack({ by: "a_newer_one" }, line), "a_newer_one");
    assert.equal(words.heldBack(null, line), "–");
  });

  test("entries of the journal", () => {
    for (const [entry, text, who] of [
      [{ what: "configured", changes: [{ setting: "claim_timeout_ms", from: 60_000, to: 90_000 }], by: "ann", reason: "slow" }, "configured: claim timeout 1 min → 1 min 30 s", "asked for by ann, “slow”"],
      [{ what: "gone", reason: "no_show", lane: "vip", token: 3 }, "gone: no show", ""],
      [{ what: "moved", to_lane: "vip", to_token: 4, by: "jump" }, "moved to vip 4", "by its holder"],
      [{ what: "kicked", selector: { idle_over_ms: 60_000, state: "waiting" }, by: "ben" }, "kicked: idle for over 1 min, waiting", "asked for by ben"],
      [{ what: "capacity_told" }, "capacity told: the setting is in force again", ""],
    ]) assert.deepEqual([words.journaled(entry).replaceAll("\u00a0", " "), words.asked(entry)], [text, who]);
  });

  test("ranges", () => assert.equal(words.ranges([0, 1, 2, 5, 7, 8]), "0–2, 5, 7–8"));
});

describe("axe finds nothing", () => {
  for (const name of Object.keys(scenes)) {
    for (const [width, colorScheme] of [[1280, "light"], [1280, "dark"], [390, "light"], [390, "dark"]]) {
      test(`${name}, ${width}, ${colorScheme}`, async () => {
        const { page, context } = await scene(name, { width, colorScheme });
        const { violations } = await page.evaluate(() => window.axe.run());
        const found = violations.map((it) => `${it.id}: ${it.nodes.map((node) => node.target.join(" ")).join(", ")}`);
        assert.deepEqual(found, []);
        assert.deepEqual(page.problems, []);
        await context.close();
      });
    }
  }
});

describe("every scene", () => {
  for (const name of Object.keys(scenes)) {
    test(`${name} prints nothing unknown and fits from 320 px on`, async () => {
      const { page, context } = await scene(name);
      assert.doesNotMatch(await page.locator("body").innerText(), /undefined|null|NaN|\[object|Infinity|Invalid/);
      for (const width of [320, 390, 700, 1100, 2560]) {
        await page.setViewportSize({ width, height: 800 });
        const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wider <= 0, `${width}: ${wider} px too wide`);
      }
      await context.close();
    });
  }
});

describe("asking", () => {
  test("works below any path, and asks for nothing that scans", async () => {
    const { one, page, context } = await view("#/", undefined, { below: "/ops/shop-7/queue/" });
    await page.getByRole("link", { name: LINE }).click();
    await page.getByRole("heading", { name: "The last hour" }).waitFor();
    await page.getByRole("link", { name: "Cluster" }).click();
    await page.getByRole("heading", { name: "Shards" }).waitFor();
    await eventually("polls", () => count(one, "GET cluster") > 1);
    assert.deepEqual([...new Set(one.asked)].sort(), ["GET cluster", "GET findings", `GET lines/${LINE}`, `GET lines/${LINE}/history`, "GET overview"]);
    assert.equal(count(one, "GET findings"), 2);
    assert.equal(count(one, `GET lines/${LINE}/history`), 1);
    assert.deepEqual(page.problems, []);
    await context.close();
  });

  test("a hidden tab and a paused one ask for nothing", async () => {
    const { one, page, context } = await view("#/");
    const hide = (hidden) => page.evaluate((state) => {
      Object.defineProperty(Document.prototype, "visibilityState", { configurable: true, get: () => state });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden ? "hidden" : "visible");
    for (const [stop, go] of [[() => hide(true), () => hide(false)], [() => button(page, "Hold still").click(), () => button(page, "Hold still").click()]]) {
      await stop();
      await pause(300);
      const before = one.asked.length;
      await pause(2_600);
      assert.equal(one.asked.length, before);
      await go();
      await eventually("another", () => one.asked.length > before);
    }
    await context.close();
  });

  test("during a pause, what is opened is shown once", async () => {
    const { one, page, context } = await view("#/");
    await button(page, "Hold still").click();
    await page.getByRole("link", { name: LINE }).click();
    await page.getByRole("heading", { name: "Lanes" }).waitFor();
    await pause(2_600);
    assert.equal(count(one, `GET lines/${LINE}`), 1);
    assert.match(await page.locator("#age").innerText(), /^held still, /);
    await context.close();
  });

  test("a gateway that is away is told of, once, and shown as soon as it is back", async () => {
    const { one, page, context } = await view("#/");
    await page.getByRole("link", { name: LINE }).waitFor();
    one.down = true;
    await page.getByText("The gateway does not answer").waitFor();
    await says(page, /^No answer/);
    assert.ok(await page.getByRole("link", { name: LINE }).isVisible());
    one.down = false;
    await page.getByText("The gateway does not answer").waitFor({ state: "detached" });
    await context.close();
  });

  test("without NATS from the start: what is the matter and what to do, and no figures", async () => {
    const { one, page, context } = await view("#/", scenes.unknown.set);
    await page.locator("#trouble").getByText("again and again. To do: start the NATS server. Nothing is known yet.").waitFor();
    await page.getByText("The lines are not known yet.").waitFor();
    await page.getByRole("region", { name: "Problems and warnings" }).getByText("start the NATS server, or name it with --nats").waitFor();
    assert.match(await page.locator("dl.tiles").innerText(), /^Lines\s+–\s+People who wait\s+–\s+Seats held\s+–\s+Nodes\s+–/i);
    assert.equal(await page.locator("#age").innerText(), "asking");
    // It is over: findings are asked for at once, not with their next turn.
    Object.assign(one.head, { trouble: null, asked_ms_ago: 100 });
    Object.assign(one.over, { overview: undefined, findings: undefined });
    await page.getByRole("link", { name: LINE }).waitFor();
    await page.getByText("start the NATS server").first().waitFor({ state: "detached", timeout: 10_000 });
    await context.close();
  });

  test("an answer of the gateway that the cluster is away is no silence of the gateway", async () => {
    const { one, page, context } = await view("#/");
    await page.getByRole("link", { name: LINE }).waitFor();
    one.head.trouble = "the cluster does not answer: no answer in time";
    await page.locator("#trouble").getByText("The cluster does not answer: no answer in time. What is shown is old.").waitFor();
    one.head.trouble = "not permitted: this NATS user may not publish to x";
    await page.locator("#trouble").getByText("What is shown is what the gateway itself knows.").waitFor();
    await context.close();
  });

  test("filter and order are in the address", async () => {
    const { one, page, context } = await view("#/");
    await page.getByLabel("Filter").fill("city=Tainan");
    await eventually("two lines", async () => (await page.locator("table.lines tbody tr").count()) === 2);
    await page.getByLabel("Sort by").selectOption("name");
    await eventually("the question", () => one.asked.some((it) => it === "GET overview") && page.url().includes("sort=name"));
    assert.match(page.url(), /#\/\?filter=city%3DTainan&sort=name$/);
    await page.reload();
    await eventually("two lines", async () => (await page.locator("table.lines tbody tr").count()) === 2);
    assert.equal(await page.getByLabel("Filter").inputValue(), "city=Tainan");
    assert.equal(await page.getByLabel("Sort by").inputValue(), "name");
    await context.close();
  });

  test("more lines are shown when somebody asks for them", async () => {
    const many = (it) => {
      const lines = Array.from({ length: 120 }, (_, nth) => ({ ...it.lines[3], line: `line-${String(nth).padStart(3, "0")}` }));
      return { ...it, lines: lines.slice(0, many.first), totals: { ...it.totals, lines: 120 } };
    };
    many.first = 50;
    const { page, context } = await view("#/", (one) => { one.over.overview = many; });
    await page.getByText("50 of 120 lines.").waitFor();
    many.first = 150;
    await button(page, "Show more").click();
    await eventually("all", async () => (await page.locator("table.lines tbody tr").count()) === 120);
    assert.match(page.url(), /first=150/);
    await context.close();
  });

  test("focus, open details and typed text outlive an answer, also when lines change places", async () => {
    let turned = false;
    const { page, context } = await view("#/", (one) => {
      one.over.overview = (it) => (turned ? { ...it, lines: it.lines.toReversed() } : it);
    });
    await page.getByRole("link", { name: "shop-taipei" }).focus();
    turned = true;
    await eventually("the other order", async () => (await page.locator("table.lines tbody tr th a").first().innerText()) === "pickup");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "shop-taipei");
    await page.keyboard.press("Enter");
    await page.getByText("Settings", { exact: true }).click();
    await page.getByLabel("Number", { exact: true }).fill("47");
    await page.getByLabel("Number", { exact: true }).focus();
    await pause(2_600);
    assert.equal(await page.getByLabel("Number", { exact: true }).inputValue(), "47");
    assert.equal(await page.evaluate(() => document.activeElement.name), "value");
    assert.ok(await page.getByText("waiting idle timeout").isVisible());
    await context.close();
  });

  test("figures that move are not read out", async () => {
    const { one, page, context } = await view("#/");
    await eventually("polls", () => count(one, "GET overview") > 2);
    assert.equal(await page.locator("#say").innerText(), "");
    assert.equal(await page.locator("[role=status], [aria-live]").count(), 1);
    await context.close();
  });
});

describe("a line", () => {
  test("the charts say their numbers, and a pointer reads them", async () => {
    const { page, context } = await view(`#/line/${LINE}`);
    const chart = page.getByRole("img", { name: /^People who wait, \d\d:\d\d to \d\d:\d\d: at least [\d,]+, at most [\d,]+, at the end [\d,]+\.$/ });
    await chart.waitFor();
    assert.equal(await page.getByRole("img").count(), 4);
    await chart.hover();
    await eventually("the time", async () => (await page.getByText(/ at \d\d:\d\d$/).count()) === 4);
    await page.getByText("The same in numbers").click();
    assert.ok((await page.locator("table.numbers tbody tr").count()) >= 12);
    await context.close();
  });

  test("the focus goes to the heading of a view, and the title names it", async () => {
    const { page, context } = await view("#/");
    await page.getByRole("link", { name: LINE }).click();
    await eventually("the focus", () => page.evaluate((name) => document.activeElement.localName === "h1" && document.activeElement.textContent === name, LINE));
    assert.equal(await page.title(), `${LINE} – shop – nowserving`);
    await page.goBack();
    await eventually("the focus", () => page.evaluate(() => document.activeElement.textContent === "Lines"));
    await context.close();
  });

  test("text of others is only text", async () => {
    const evil = "<img src=x onerror=alert(1)>";
    const { page, context } = await view(`#/line/${LINE}`, (one) => {
      one.over[`lines/${LINE}`] = (it) => ({ ...it, findings: [{ severity: "note", code: "x", text: evil, mend: [{ command: evil }] }] });
      one.over[`lines/${LINE}/changes`] = (it) => ({ ...it, entries: [{ version: 1, at_ms: 1, what: "created", by: evil, reason: evil }] });
    });
    await page.getByText("Who changed what").click();
    await page.getByText(`asked for by ${evil}`).waitFor();
    assert.equal(await page.locator("main img").count(), 0);
    assert.deepEqual(page.problems, []);
    await context.close();
  });

  test("a line that was deleted says so", async () => {
    const { page, context } = await view("#/line/no-such-line");
    await page.getByText("There is no such line, or it was deleted.").waitFor();
    await context.close();
  });
});

describe("why not me", () => {
  test("is asked for by number, key or ticket, and never in an address", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`);
    const asks = async (by, label, text, body) => {
      await page.getByLabel("Find by").selectOption(by);
      await page.getByLabel(label, { exact: true }).fill(text);
      await button(page, "Ask").click();
      await eventually("the question", () => one.posts.length > 0);
      assert.deepEqual(one.posts.pop().slice(0, 2), [`lines/${LINE}/why`, body]);
    };
    await asks("token", "Number", "4,718", { lane: "normal", token: 4718 });
    await page.getByRole("heading", { name: "normal 4,718 waits at place 2,702" }).waitFor();
    await says(page, /^normal 4,718 waits at place/);
    await page.getByText("its lane’s boost was larger by 10 min").first().waitFor();
    await page.getByText("And 10 more.").waitFor();
    await asks("token", "Number", "vip:17", { lane: "vip", token: 17 });
    await asks("key", "Key", "ann@shop.example", { key: "ann@shop.example" });
    await asks("ticket", "Ticket", "nst1.abc", { ticket: "nst1.abc" });
    assert.ok(one.asked.every((it) => !/ann|abc|4718/.test(it)));
    assert.ok(!page.url().includes("4718"));
    await context.close();
  });

  test("is not repeated by itself, and its refusals are shown", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`);
    one.answers[`lines/${LINE}/why`] = [[404, { code: "token_not_found", detail: "no live token has this key" }]];
    await page.getByLabel("Find by").selectOption("key");
    await page.getByLabel("Key", { exact: true }).fill("bob");
    await button(page, "Ask").click();
    await page.getByText("no live token has this key").first().waitFor();
    await pause(2_600);
    assert.equal(one.posts.length, 1);
    await page.getByLabel("Find by").selectOption("token");
    await page.getByLabel("Number", { exact: true }).fill("abc");
    await button(page, "Ask").click();
    await page.getByText("Type a number").waitFor();
    assert.equal(one.posts.length, 1);
    await context.close();
  });
});

describe("changes", () => {
  const allowed = (one) => { one.allow(); };
  const fill = async (page, { by = "ann", reason = "the printer is broken" } = {}) => {
    if (by !== null) await page.getByLabel("Your name").fill(by);
    await page.getByLabel("Reason").fill(reason);
  };
  const OPS = `lines/${LINE}`;

  test("read-only shows no control for them", async () => {
    for (const hash of ["#/", "#/cluster", `#/line/${LINE}`]) {
      const { page, context } = await view(hash);
      await page.locator("table:visible").first().waitFor();
      if (hash.includes("line/")) {
        await page.getByLabel("Number", { exact: true }).fill("4718");
        await button(page, "Ask").click();
        await page.getByText("What happened to it").waitFor();
      }
      assert.equal(await page.getByRole("button", { name: /…$/ }).count(), 0);
      assert.equal(await page.locator("dialog[open]").count(), 0);
      await context.close();
    }
  });

  test("only those that the gateway offers, and that this page knows", async () => {
    const { page, context } = await view(`#/line/${LINE}`, (one) => {
      one.allow();
      one.over[OPS] = (it) => ({ ...it, may: ["seats", "a-newer-one"] });
    });
    await button(page, "Seats …").waitFor();
    assert.equal(await page.getByRole("button", { name: /…$/ }).count(), 1);
    await context.close();
  });

  test("each asks first, wants name and reason, and says what was done", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, allowed);
    await button(page, "Pause …").click();
    await page.getByRole("dialog", { name: `Pause ${LINE}?` }).waitFor();
    await page.getByText("People who wait: 20,018; they keep their places").waitFor();
    await button(page, "Pause the line").click();
    assert.equal(one.posts.length, 0); // the name is missing
    await fill(page, { reason: "ü".repeat(65) });
    await button(page, "Pause the line").click();
    assert.equal(one.posts.length, 0); // 130 bytes
    await fill(page);
    await button(page, "Pause the line").click();
    await page.locator("#trouble").getByText(`${LINE} is paused.`).waitFor();
    await says(page, /is paused\.$/);
    const [path, body, headers] = one.posts.pop();
    assert.equal(path, `${OPS}/phase`);
    assert.match(body.request_id, /^[0-9a-f]{32}$/);
    delete body.request_id;
    assert.deepEqual(body, { phase: "paused", by: "ann", reason: "the printer is broken", incarnation: 4096, if_version: 4000 });
    assert.equal(headers["content-type"], "application/json");
    assert.equal(headers["sec-fetch-site"], "same-origin");
    assert.equal(headers.origin, new URL(one.url).origin);
    assert.equal(await page.locator("dialog[open]").count(), 0);
    await button(page, "Seats …").click();
    assert.equal(await page.getByLabel("Your name").inputValue(), "ann"); // remembered; the reason never is
    assert.equal(await page.getByLabel("Reason").inputValue(), "");
    await context.close();
  });

  test("cancelled ones send nothing, by button or key, and the focus goes back", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, allowed);
    for (const cancel of [() => button(page, "Cancel").click(), () => page.keyboard.press("Escape")]) {
      await button(page, "Drain …").click();
      await fill(page);
      await cancel();
      await eventually("closed", async () => (await page.locator("dialog[open]").count()) === 0);
      assert.equal(await page.evaluate(() => document.activeElement.textContent), "Drain …");
    }
    assert.equal(one.posts.length, 0);
    await context.close();
  });

  test("to close a line wants a tick", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, allowed);
    await button(page, "Close …").click();
    await fill(page);
    await button(page, "Close the line").click();
    assert.equal(one.posts.length, 0);
    await page.getByLabel("Yes, end the visits of all 20,218").check();
    await button(page, "Close the line").click();
    await eventually("sent", () => one.posts.at(-1)?.[1].phase === "closed");
    await context.close();
  });

  test("seats, a call and a kick send what the contract has", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, allowed);
    const sent = async (name, wanted) => {
      const [path, body] = await eventually("sent", () => one.posts.find(([it]) => it.endsWith(`/${name}`)));
      const { by, reason, request_id, incarnation, if_version, ...own } = body;
      assert.deepEqual([path, own, Boolean(by && reason && request_id && incarnation)], [`${OPS}/${name}`, wanted, true]);
      assert.equal(if_version, name === "seats" ? 4000 : undefined);
    };
    await button(page, "Seats …").click();
    await fill(page);
    await page.getByLabel("Seats", { exact: true }).fill("220");
    await button(page, "Change the seats").click();
    await sent("seats", { seats: 220 });
    await button(page, "Call next …").click();
    await fill(page);
    await page.getByLabel("How many").fill("2");
    await page.getByRole("dialog").getByLabel("Lane").selectOption("vip");
    await button(page, "Call them").click();
    await page.locator("#trouble").getByText("Admitted: normal 2,037, normal 2,038.").waitFor();
    await sent("call-next", { n: 2, lane: "vip" });
    await page.getByLabel("Number", { exact: true }).fill("4718");
    await button(page, "Ask").click();
    await button(page, "End this visit …").click();
    await fill(page);
    await button(page, "End the visit").click();
    await page.locator("#trouble").getByText("normal 4,718 was ended.").waitFor();
    await sent("kick", { lane: "normal", token: 4718 });
    await context.close();
  });

  test("an unknown outcome is asked again with the same request, a refusal with another", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, allowed);
    one.answers[`${OPS}/phase`] = [
      [502, { title: "Bad Gateway" }], [504, { code: "outcome_unknown", detail: "the outcome is not known" }], [409, { code: "version_conflict", detail: "the line has settings of version 4001" }],
      [403, { code: "forbidden", detail: "this user may not" }],
    ];
    await button(page, "Pause …").click();
    await fill(page);
    await context.setOffline(true);
    await button(page, "Pause the line").click();
    await page.getByText("It is not known whether this was done").waitFor();
    assert.ok(await page.getByLabel("Reason").isDisabled());
    await context.setOffline(false);
    await button(page, "Try again").click();
    await eventually("one", () => one.posts.length === 1);
    await button(page, "Try again").click();
    await eventually("two", () => one.posts.length === 2);
    await button(page, "Try again").click();
    await page.getByText("Somebody has changed the line meanwhile").waitFor();
    await button(page, "Pause the line").click();
    await page.getByText("Nothing was done: this user may not.").waitFor();
    const ids = one.posts.map(([, body]) => body.request_id);
    assert.deepEqual(ids.map((id) => ids.indexOf(id)), [0, 0, 0, 3]);
    assert.deepEqual(one.posts[0][1], one.posts[2][1]);
    await context.close();
  });

  test("the name of somebody whom the proxy knows cannot be another", async () => {
    const { one, page, context } = await view(`#/line/${LINE}`, (it) => { it.allow().head.by = "ann@ops"; });
    await button(page, "Pause …").click();
    await page.getByText("as this gateway knows you").waitFor();
    assert.equal(await page.getByLabel("Your name").count(), 0);
    await fill(page, { by: null });
    await button(page, "Pause the line").click();
    await eventually("sent", () => one.posts.at(-1)?.[1].by === "ann@ops");
    await context.close();
  });

  test("by keyboard alone", async () => {
    const { one, page, context } = await view("#/", allowed);
    await page.getByRole("link", { name: "sneaker-drop" }).waitFor();
    const until = async (check) => {
      for (let presses = 0; presses < 60; presses += 1) {
        if (await page.evaluate(check)) return;
        await page.keyboard.press("Tab");
      }
      assert.fail(String(check));
    };
    await until(() => document.activeElement.id === "skip");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await until(() => document.activeElement.textContent === "sneaker-drop");
    await page.keyboard.press("Enter");
    await button(page, "Open …").waitFor();
    await until(() => document.activeElement.textContent === "Open …");
    await page.keyboard.press("Enter");
    await until(() => document.activeElement.name === "by");
    await page.keyboard.type("ann");
    await until(() => document.activeElement.name === "reason");
    await page.keyboard.type("the printer works again");
    await page.keyboard.press("Enter");
    await eventually("sent", () => one.posts.at(-1)?.[1].reason === "the printer works again");
    await context.close();
  });
});

test("every made-up answer has what the contract names", () => {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  for (const [, fields, names] of readme.matchAll(/^\| `(?:GET|POST) [^|]+\| `\{([^}]+)\}`[^|]*\| ([^|]+) \|$/gm)) {
    for (const [, name] of names.matchAll(/`([a-z-]+)\.json`/g)) {
      const answer = preview(name);
      for (const field of fields.split(", ").filter((it) => !it.endsWith("?"))) assert.ok(field in answer, `${name}.json: ${field}`);
    }
  }
});
