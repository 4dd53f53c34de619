// npm test. FULL=1 runs axe over every state, language, colour scheme and width; without it, over every state in each language
// once, and in English twice.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { ROOT, catalogue, json, languages, previews, render } from "./render.mjs";
import { Gateway } from "./server.mjs";
import { AXE, eventually, launch, pause, tab } from "./browser.mjs";

const SHOP = join(ROOT, "test", "shop");
const test = (name, check) => it(name, { timeout: 120_000 }, check);
const states = previews.map((preview) => [preview, json(join(ROOT, "preview", `${preview}.json`)).page]);

let browser;
const open = [];
before(async () => { browser = await launch(); });
after(async () => {
  for (const gateway of open) await gateway.close();
  await browser.close();
});

async function gateway(preview = "waiting", over = {}, options = {}) {
  const one = await new Gateway(options).listen();
  one.set(preview, over);
  open.push(one);
  return one;
}

const text = (page, name) => page.locator(`#card [data-text=${name}]:visible`).first().innerText();
const heading = (page, wanted) => eventually(`heading “${wanted}”`, async () => (await page.locator("h1").innerText()) === wanted);
const place = (page, wanted) => eventually(`place ${wanted}`, async () => (await text(page, "place")) === wanted);

/** What Chromium cannot be asked for headless: a tab in the background. */
const hideable = (context) => context.addInitScript(() => {
  let state = "visible";
  Object.defineProperty(Document.prototype, "visibilityState", { get: () => state });
  window.setVisibility = (next) => { state = next; document.dispatchEvent(new Event("visibilitychange")); };
});
const setVisibility = (page, state) => page.evaluate((next) => window.setVisibility(next), state);

describe("catalogues", () => {
  const flat = (value, path = "") => typeof value === "string" ? [[path, value]] : Object.entries(value).flatMap(([k, v]) => flat(v, `${path}.${k}`));
  const raw = (lang) => new Map(flat(json(join(ROOT, "catalogues", `${lang}.json`))));
  const english = raw("en");
  const places = (s) => (s.match(/\{\w+\}/g) ?? []).sort().join();

  for (const lang of languages) {
    test(`${lang} has every text with its placeholders`, () => {
      const other = raw(lang);
      assert.deepEqual([...other.keys()].sort(), [...english.keys()].sort());
      for (const [key, value] of english) assert.equal(places(other.get(key)), places(value), `${lang}${key}`);
      assert.equal(other.get(".lang"), lang);
    });
  }

  test("every state has made-up data", () => {
    const shown = new Set(states.map(([, page]) => page));
    assert.deepEqual(Object.keys(catalogue("en").live.states).filter((s) => !shown.has(s)), []);
  });
});

describe("rendered", () => {
  for (const lang of languages) {
    test(`nothing unknown is printed (${lang})`, () => {
      for (const [preview] of states) {
        const html = render(preview, lang).replace(/<main [^\n]*\n/, "");
        const seen = html.replace(/<template[\s\S]*?<\/template>/g, "").replace(/<[^>]+>/g, "");
        assert.doesNotMatch(seen, /\{\w*\}|undefined|none\b|null|NaN|\bfalse\b|\btrue\b/, preview);
      }
    });
  }

  test("text of others is escaped", () => {
    const html = render("waiting-notice", "en", { over: { to: "/'\"><script>alert(1)</script>", visit: { notice: { text: "</main><script>alert(2)</script>'" } } } });
    assert.doesNotMatch(html, /<script>/);
    assert.match(html, /data-page='[^'<>]*'/);
  });

  test("no inline script or style, and every file is below /_nowserving/", () => {
    const html = render("waiting");
    assert.doesNotMatch(html, /<style|style=|\son\w+=|<script(?![^>]*src=)/);
    for (const [, url] of html.matchAll(/<(?:link|script|img)[^>]*(?:src|href)="([^"]+)"/g)) assert.match(url, /^&#x2f;_nowserving&#x2f;/);
  });
});

describe("axe, overflow, CSP", () => {
  const kinds = [["light", 1280, 800], ["dark", 390, 844], ["light", 390, 844], ["dark", 1280, 800]];
  for (const [i, lang] of languages.entries()) {
    for (const [j, [colorScheme, width, height]] of kinds.entries()) {
      if (!process.env.FULL && (lang === "en" ? j > 1 : j !== i % 2)) continue;
      test(`${lang}, ${colorScheme}, ${width}`, async () => {
        const one = await gateway();
        const context = await browser.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
        await context.addInitScript(AXE);
        const found = [];
        for (const [preview, name] of states) {
          if (name === "enter") continue; // it goes on at once
          one.set(preview);
          const page = await tab(context, `${one.origin}/preview/${preview}?lang=${lang}`);
          await page.locator("summary:visible").evaluateAll((all) => all.forEach((s) => { s.parentElement.open = true; }));
          const { violations } = await page.evaluate(() => window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
          for (const v of violations) found.push(`${preview}: ${v.id} ${v.nodes.map((n) => n.target.join(" ")).join(", ")}`);
          if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) found.push(`${preview}: wider than the window`);
          for (const problem of page.problems) found.push(`${preview}: ${problem}`);
          await page.close();
        }
        await context.close();
        assert.deepEqual(found, []);
      });
    }
  }

  test("320 px, text of 200 %, and 4K", async () => {
    const one = await gateway();
    for (const [width, height, scale] of [[320, 640, 1], [390, 844, 2], [3840, 2160, 1]]) {
      const context = await browser.newContext({ viewport: { width, height } });
      for (const preview of ["waiting-lanes", "pre-open", "pre-open-draw", "admitted", "idle"]) {
        for (const lang of ["de", "ar"]) {
          one.set(preview);
          const page = await tab(context, `${one.origin}/preview/${preview}?lang=${lang}`);
          if (scale > 1) await page.evaluate((s) => { document.documentElement.style.fontSize = `${s * 100}%`; }, scale);
          assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${preview} ${lang} ${width}`);
          if (width === 3840) assert.ok(await page.evaluate(() => parseFloat(getComputedStyle(document.body).fontSize)) >= 24);
          await page.close();
        }
      }
      await context.close();
    }
  });
});

describe("without script", () => {
  test("the page says the same as with script", async () => {
    const one = await gateway();
    const plain = await browser.newContext({ javaScriptEnabled: false });
    const scripted = await browser.newContext();
    const read = async (context, preview) => {
      const page = await context.newPage();
      await page.goto(`${one.origin}/preview/${preview}`);
      const all = await page.locator("#card :is(h1, p, dt, dd, li):visible:not([role=timer]):not(.auto):not([data-text=opens_at])").allInnerTexts();
      await page.close();
      return all.map((t) => t.trim()).filter(Boolean);
    };
    for (const [preview, name] of states) {
      if (name === "enter") continue;
      one.set(preview);
      assert.deepEqual(await read(scripted, preview), await read(plain, preview), preview);
    }
    await plain.close();
    await scripted.close();
  });

  test("it reloads itself, which can be stopped; “Check now”, leaving and entering are forms", async () => {
    const one = await gateway();
    const context = await browser.newContext({ javaScriptEnabled: false });
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    assert.equal(await page.locator("meta[http-equiv=refresh]").getAttribute("content"),
      "20; url=/_nowserving/wait?line=spring-sale&to=%2Fcheckout%3Fitem%3D42");
    one.set("waiting", { position: 7, ahead: 6, turn: 7 });
    await page.getByRole("button", { name: "Check now" }).click();
    await place(page, "7");
    assert.match(page.url(), /line=spring-sale&to=/);
    await page.getByRole("link", { name: "Stop reloading" }).click();
    assert.equal(await page.locator("meta[http-equiv=refresh]").count(), 0);
    await page.getByRole("button", { name: "Check now" }).click();
    assert.match(page.url(), /refresh=off/);
    await page.getByText("Leave the line").click();
    await page.getByRole("button", { name: "Give up my place" }).click();
    await heading(page, "You have left the line");
    await page.getByRole("button", { name: "Take a new number" }).click();
    await heading(page, "You are in line");
    assert.deepEqual(one.posts.map(([name]) => name), ["leave", "enter"]);
    assert.equal(one.posts[0][1].to, "/checkout?item=42");
    one.set("admitted");
    await page.goto(`${one.origin}/_nowserving/wait`);
    await page.getByRole("link", { name: "Enter now" }).click();
    await heading(page, "The shop");
    await context.close();
  });
});

describe("with script", () => {
  test("each event changes the page", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.send("place", { position: 12, ahead: 11, turn: 12, eta_ms: 60_000, eta_p90_ms: 170_000, held_back_by: { by: "admission_rate" } });
    await place(page, "12");
    assert.equal(await text(page, "forecast"), "1 to 3 minutes");
    assert.match(await text(page, "held"), /steady pace/);
    assert.match(await page.title(), /^\(12\) /);
    assert.ok(await page.locator("#track").isVisible());
    one.send("place", { position: 11, ahead: 10, turn: 11, eta_ms: null, eta_p90_ms: null, held_back_by: { by: "called" } });
    await place(page, "11");
    assert.equal(await page.locator("[data-text=forecast]:visible").count(), 0);
    assert.match(await text(page, "number"), /4,718/); // a place says nothing of the number, which stands
    one.send("notice", { text: "Gate B is closed.", lang: "en" });
    await eventually("the notice", () => page.locator("#notice").getByText("Gate B is closed.").isVisible());
    assert.equal(await page.locator("[role=status]").textContent(), "Gate B is closed.");
    one.send("notice", { text: null });
    await eventually("no notice", async () => !(await page.locator("#notice").isVisible()));
    // It may come with a whole visit, too: after a new connection, or by a status.
    const said = (text) => eventually(`said: ${text}`, async () => text.test(await page.locator("[role=status]").textContent()));
    one.go("phase", "waiting", { notice: { text: "Gate C is closed.", lang: "en" } });
    await said(/^Gate C is closed\.$/);
    one.go("phase", "paused", { notice: { text: "Gate D is closed.", lang: "en" } });
    await said(/^The line is paused\. .+ Gate D is closed\.$/);
    one.go("phase", "waiting");
    await heading(page, "You are in line");
    await eventually("no notice", async () => !(await page.locator("#notice").isVisible()));
    one.go("phase", "paused");
    await heading(page, "The line is paused");
    one.go("phase", "call-ahead");
    await heading(page, "Almost your turn");
    assert.equal(await page.locator("html").getAttribute("data-tone"), "near");
    one.go("phase", "pre-open-draw");
    await heading(page, "Not open yet");
    assert.match(await text(page, "opens_in"), /^2:1[45]:\d\d$/);
    assert.equal(await page.locator("[data-text=place]:visible").count(), 0);
    one.go("phase", "drawing");
    await heading(page, "The order is being drawn");
    one.go("phase", "waiting");
    await heading(page, "You are in line");
    one.go("gone", "idle");
    await heading(page, "You were away too long");
    await eventually("the stream is closed", () => one.streams.size === 0);
    await page.getByRole("button", { name: "Take a new number" }).click();
    await heading(page, "You are in line");
    assert.deepEqual(page.problems, []);
    await context.close();
  });

  test("forecasts and times are the same from the server and from the script", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    for (const lang of ["en", "ar"]) {
      const page = await tab(context, `${one.origin}/_nowserving/wait?lang=${lang}`);
      await eventually("a stream", () => one.streams.size === 1);
      const values = [[0, 1], [30_000, 60_000], [30_000, 60_001], [59_999, 61_000], [120_000, 120_000], [720_000, 950_000], [1_190_000, 1_210_000],
        [3_600_000, 5_400_000], [3_600_000, 5_400_001], [100_000, 6_000_000], [7_200_000, 7_200_000], [40_000_000, 44_000_000], [90_000_000, 200_000_000]];
      for (const [eta_ms, eta_p90_ms] of values) {
        for (const position of eta_ms === 0 ? [1, 999, 1000, 12345, 999999, 1234567] : [5]) {
          const over = { position, ahead: position - 1, turn: position, eta_ms, eta_p90_ms, keeps_ms: eta_ms, claim_timeout_ms: eta_p90_ms };
          const html = render("waiting", lang, { over: { visit: over } });
          const served = (name) => new RegExp(`data-text="${name}"[^>]*>([^<]*)<`).exec(html)[1].trim();
          one.send("phase", one.set("waiting", over));
          await place(page, served("place"));
          for (const name of ["ahead", "forecast", "keeps", "claim"]) await eventually(`${name}`, async () => (await page.locator(`#card [data-text=${name}]`).textContent()) === served(name), 2_000);
        }
      }
      await page.close();
      await eventually("no stream", () => one.streams.size === 0);
    }
    await context.close();
  });

  test("admission: announced, focus on “Enter now”, then in by itself", async () => {
    const one = await gateway();
    one.over = { auto_enter_s: 3 };
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait#seat-7`);
    await eventually("a stream", () => one.streams.size === 1);
    one.go("admitted", "admitted");
    await heading(page, "It is your turn");
    assert.match(await page.locator("#go").evaluate((go) => go.href), /\/checkout\?item=42#seat-7$/);
    assert.equal(await page.evaluate(() => document.activeElement.id), "go");
    assert.match(await page.locator("[role=status]").textContent(), /^It is your turn\. .* Time left: 10[89]\s+s\.$/);
    assert.match(await page.title(), /^● It is your turn/);
    assert.match(await text(page, "left"), /^1:4\d$/);
    assert.equal(one.shop.length, 0);
    await eventually("the shop", () => one.shop.length === 1);
    // A context that is closed while its page is under way may never be closed.
    await heading(page, "The shop");
    assert.equal(one.shop[0], "?item=42");
    await context.close();
  });

  test("it can be told to stay", async () => {
    const one = await gateway("admitted");
    one.over = { auto_enter_s: 2 };
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await page.getByRole("button", { name: "Stay on this page" }).click();
    await pause(3_500);
    assert.equal(one.shop.length, 0);
    assert.equal(await page.evaluate(() => document.activeElement.id), "go");
    await context.close();
  });

  test("admitted while hidden: not in by itself; once it is looked at, yes", async () => {
    const one = await gateway();
    one.over = { auto_enter_s: 2 };
    const context = await browser.newContext();
    await hideable(context);
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    await setVisibility(page, "hidden");
    one.go("admitted", "admitted");
    await heading(page, "It is your turn");
    await pause(4_000);
    assert.equal(one.shop.length, 0);
    await setVisibility(page, "visible");
    await eventually("the shop", () => one.shop.length === 1);
    await heading(page, "The shop");
    await context.close();
  });

  test("the second step of entering is taken at once, and not in circles", async () => {
    const one = await gateway("enter");
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await heading(page, "You are in line");
    assert.equal(one.posts.length, 1);
    one.entered = "enter";
    one.set("enter");
    await page.goto(`${one.origin}/_nowserving/wait`).catch(() => {});
    await pause(2_000);
    assert.equal(one.posts.length, 3);
    await context.close();
  });

  test("a full line: the number comes by itself", async () => {
    const one = await gateway("full", { retry_after_ms: 1_000 });
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await heading(page, "The line is full");
    one.set("enter");
    await heading(page, "You are in line");
    assert.deepEqual(one.posts.map(([name]) => name), ["enter"]);
    await context.close();
  });
});

describe("keyboard alone", () => {
  test("leave the line, and take a new number", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    const seen = [];
    const to = async (name) => {
      for (let i = 0; i < 20; i++) {
        await page.keyboard.press("Tab");
        const [label, outline] = await page.evaluate(() => [document.activeElement.innerText, getComputedStyle(document.activeElement).outlineStyle]);
        seen.push(label);
        assert.notEqual(outline, "none", `focus is visible on ${label}`);
        if (label === name) return;
      }
      assert.fail(`${name} is not reached: ${seen}`);
    };
    await to("Leave the line");
    await page.keyboard.press("Enter");
    await to("Give up my place");
    await page.keyboard.press("Enter");
    await heading(page, "You have left the line");
    await to("Take a new number");
    await page.keyboard.press("Space");
    await heading(page, "You are in line");
    one.go("admitted", "admitted");
    await heading(page, "It is your turn");
    await page.keyboard.press("Enter");
    await heading(page, "The shop");
    await context.close();
  });
});

describe("tabs", () => {
  test("two tabs share one stream, and the second goes on when the first is closed", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const [first, second] = [await tab(context, `${one.origin}/_nowserving/wait`), await tab(context, `${one.origin}/_nowserving/wait?lang=de`)];
    await pause(500);
    assert.equal(one.opened, 1);
    one.send("place", { position: 99, ahead: 98, turn: 99 });
    await place(first, "99");
    await place(second, "99");
    await first.close();
    await eventually("the other tab's stream", () => one.opened === 2 && one.streams.size === 1);
    one.send("place", { position: 98, ahead: 97, turn: 98 });
    await place(second, "98");
    one.go("admitted", "admitted");
    await heading(second, "Sie sind dran");
    assert.equal(one.polls, 0);
    await context.close();
  });

  test("a tab that sleeps with the stream loses it to the one that is looked at", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const first = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    const client = await context.newCDPSession(first);
    await client.send("Debugger.enable");
    await client.send("Debugger.pause"); // its script answers nothing any more
    first.evaluate(() => 1).catch(() => {});
    const second = await tab(context, `${one.origin}/_nowserving/wait`);
    await second.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
    await eventually("a second stream", () => one.opened === 2);
    one.send("place", { position: 31, ahead: 30, turn: 31 });
    await place(second, "31");
    await client.send("Debugger.resume").catch(() => {});
    await client.send("Debugger.disable").catch(() => {});
    await eventually("the first has given its stream up", () => one.streams.size === 1);
    await place(first, "31");
    await context.close();
  });
});

describe("breaks", () => {
  test("a stream that breaks is opened again, and nobody is worried", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.cut();
    one.set("waiting", { position: 55, ahead: 54, turn: 55 });
    await eventually("a stream again", () => one.opened === 2);
    await place(page, "55");
    assert.match(await page.locator("#link-text").innerText(), /^Live/);
    await context.close();
  });

  test("a refused stream: status instead, then the stream again", async () => {
    const one = await gateway();
    one.refuse = 503;
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    one.set("waiting", { position: 44, ahead: 43, turn: 44 });
    await place(page, "44");
    assert.ok(one.polls >= 1);
    one.refuse = 0;
    await eventually("a stream", () => one.streams.size === 1, 30_000);
    await context.close();
  });

  test("no connection: until when the place is kept, then that it is not certain, then what holds", async () => {
    const one = await gateway("waiting", { keeps_ms: 20_000 });
    const context = await browser.newContext();
    await context.addInitScript(AXE);
    const axe = async () => {
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
        assert.deepEqual((await page.evaluate(() => window.axe.run())).violations.map((v) => v.id), []);
      }
    };
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.down = true;
    one.cut();
    await pause(2_000);
    assert.match(await page.locator("#link-text").innerText(), /^Live/);
    await eventually("the loss", async () => /Your place is kept until .* at least/.test(await page.locator("#link-text").innerText()));
    assert.match(await page.locator("[role=status]").textContent(), /No connection/);
    assert.ok(await page.getByRole("button", { name: "Check now" }).isVisible());
    await axe();
    await eventually("the doubt", async () => /It is not certain/.test(await page.locator("#link-text").innerText()), 30_000);
    assert.equal(await page.locator(".badge").getAttribute("data-kept"), "unsure");
    await axe();
    one.set("idle");
    one.down = false;
    await page.getByRole("button", { name: "Check now" }).click({ timeout: 1_000 }).catch(() => {}); // or it is back by itself
    await heading(page, "You were away too long");
    await context.close();
  });

  test("the cluster is away: the place stays in sight, and is kept", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.send("phase", { page: "unavailable", retry_after_ms: 1000 });
    one.send("beat", {});
    await eventually("the loss", async () => /time stands still/.test(await page.locator("#link-text").innerText()));
    await place(page, "238");
    assert.equal(await page.locator(".badge").getAttribute("data-kept"), "kept");
    one.go("phase", "waiting", { position: 237, ahead: 236, turn: 237 });
    await place(page, "237");
    assert.match(await page.locator("#link-text").innerText(), /^Live/);
    await context.close();
  });

  test("the line is deleted: the page never says that the place is kept, also if the cluster is away then, or the address is limited", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.go("gone", "uncertain", { retry_after_ms: 1_000 });
    await heading(page, "One moment, please");
    assert.match(await page.locator("main").innerText(), /not certain that your place is still kept/);
    assert.equal(await page.locator(".badge").getAttribute("data-kept"), "unsure");
    for (const state of ["limited", "unavailable"]) {
      one.set(state, { retry_after_ms: 1_000 });
      const polls = one.polls;
      await eventually("two more questions", () => one.polls >= polls + 2);
      assert.equal(await page.locator(".badge").getAttribute("data-kept"), "unsure");
    }
    one.set("forgotten");
    await heading(page, "Your number is not valid any more");
    await context.close();
  });

  test("over the limit of its address: the page comes back by itself when it is of use, and takes a number", async () => {
    const one = await gateway("limited", { retry_after_ms: 1_000 });
    const context = await browser.newContext();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await heading(page, "Please wait a little");
    assert.equal((await text(page, "retry")).replaceAll("\u00a0", " "), "This page checks again by itself in 1 s.");
    await eventually("a status", () => one.polls >= 1);
    assert.equal(one.posts.length, 0);
    one.set("enter");
    await heading(page, "You are in line");
    assert.deepEqual(one.posts.map(([name]) => name), ["enter"]);
    assert.deepEqual(page.problems, []);
    await context.close();
  });

  test("over the limit with a place and without a stream: it stays in sight, and is not called kept for longer than it is", async () => {
    const one = await gateway("waiting", { keeps_ms: 200_000 });
    one.refuse = 503;
    one.limited = { page: "limited", retry_after_ms: 300_000 };
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    for (const tries of [1, 2, 3]) {
      await eventually("a refused stream", () => one.opened === tries);
      await pause(300);
      await page.clock.runFor(tries * 10_000 + 1_000);
      await eventually("a status", () => one.polls === tries);
    }
    await pause(300);
    // Now the status is asked for when it is of use.
    await page.clock.runFor(200_000);
    assert.deepEqual([one.polls, one.opened], [3, 3]);
    await place(page, "238");
    assert.equal(await page.locator(".badge").getAttribute("data-kept"), "unsure");
    one.limited = null;
    one.set("waiting", { position: 9, ahead: 8, turn: 9 });
    await page.clock.runFor(161_000);
    await place(page, "9");
    assert.equal(await page.locator(".badge").getAttribute("data-kept"), "kept");
    await context.close();
  });

  test("over the limit with a place: its stream is not limited, and goes on", async () => {
    const one = await gateway();
    one.refuse = 503;
    one.limited = { page: "limited", retry_after_ms: 300_000 };
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a refused stream", () => one.opened === 1);
    await pause(300);
    one.refuse = 0;
    await page.clock.runFor(11_000);
    await eventually("a stream", () => one.streams.size === 1);
    one.send("place", { position: 31, ahead: 30, turn: 31 });
    await place(page, "31");
    assert.equal(one.polls, 1);
    await eventually("it is live", async () => /^Live/.test(await page.locator("#link-text").innerText()));
    await context.close();
  });

  test("refused again and again: three tries a minute, and none is the last", async () => {
    const one = await gateway("enter");
    one.entered = "enter";
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("three tries", () => one.posts.length === 3);
    await pause(500);
    await heading(page, "One moment");
    await page.clock.runFor(50_000);
    await pause(300);
    assert.equal(one.posts.length, 3);
    one.entered = "waiting";
    await page.clock.runFor(11_000);
    await heading(page, "You are in line");
    assert.equal(one.posts.length, 4);
    await context.close();
  });

  test("a stream that is silent for too long is opened again", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    await page.clock.runFor(42_000);
    await page.clock.runFor(11_000);
    await eventually("a status", () => one.polls === 1);
    await eventually("a stream again", () => one.opened === 2);
    await context.close();
  });

  test("a laptop that slept asks at once", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    one.set("waiting", { position: 8, ahead: 7, turn: 8 });
    await page.clock.fastForward(25_000);
    await place(page, "8");
    await eventually("a stream again", () => one.opened === 2 && one.streams.size === 1);
    await context.close();
  });

  test("looked at again, or back from the shop", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    await context.clock.install();
    await hideable(context);
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    await setVisibility(page, "hidden");
    await page.clock.fastForward(25_000);
    one.set("waiting", { position: 21, ahead: 20, turn: 21 });
    await setVisibility(page, "visible");
    await place(page, "21");
    await eventually("a stream again", () => one.opened === 2 && one.streams.size === 1);
    await page.evaluate(() => window.dispatchEvent(new PageTransitionEvent("pagehide", { persisted: true })));
    await eventually("no stream", () => one.streams.size === 0);
    one.set("waiting", { position: 20, ahead: 19, turn: 20 });
    await page.evaluate(() => window.dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true })));
    await page.clock.fastForward(100);
    await place(page, "20");
    await eventually("one stream", () => one.streams.size === 1);
    await context.close();
  });
});

describe("what a screen reader hears", () => {
  test("at most one place a minute, and each change of state", async () => {
    const one = await gateway();
    const context = await browser.newContext();
    await context.clock.install();
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await eventually("a stream", () => one.streams.size === 1);
    await page.evaluate(() => {
      window.said = [];
      new MutationObserver(() => window.said.push(document.querySelector("[role=status]").textContent)).observe(document.querySelector("[role=status]"), { childList: true, characterData: true, subtree: true });
    });
    const said = () => page.evaluate(() => window.said);
    for (let position = 30; position > 20; position--) one.send("place", { position, ahead: position - 1, turn: position });
    await place(page, "21");
    assert.deepEqual(await said(), []);
    one.send("beat", {});
    await page.clock.runFor(35_000);
    one.send("beat", {});
    await place(page, "21");
    await pause(300);
    await page.clock.runFor(30_000);
    await eventually("the place", async () => (await said()).length === 1);
    assert.match((await said())[0], /^Your place in line: 21\. People before you: 20\./);
    one.send("place", { position: 20, ahead: 19, turn: 20 });
    await place(page, "20");
    assert.equal((await said()).length, 1);
    one.go("phase", "paused");
    await heading(page, "The line is paused");
    await eventually("the state", async () => (await said()).length === 2);
    assert.match((await said())[1], /^The line is paused\./);
    assert.equal(await page.locator("[role=status], [aria-live]").count(), 1);
    await context.close();
  });
});

describe("a shop's own folder", () => {
  test("is laid over templates, catalogues and files", async () => {
    const one = await gateway("waiting", {}, { shop: SHOP });
    const context = await browser.newContext();
    await context.addInitScript(AXE);
    const page = await tab(context, `${one.origin}/_nowserving/wait`);
    await heading(page, "You are in the queue");
    assert.ok(await page.getByAltText("Harbour Tickets").isVisible());
    assert.equal(await page.getByRole("link", { name: "Help" }).getAttribute("href"), "https://harbour.example/help");
    assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).getPropertyValue("--accent").trim()), "#7a1f5c");
    assert.deepEqual((await page.evaluate(() => window.axe.run())).violations.map((v) => v.id), []);
    await page.goto(`${one.origin}/_nowserving/wait?lang=de`);
    await heading(page, "Sie sind in der Warteschlange");
    assert.ok(await page.getByRole("link", { name: "Hilfe" }).isVisible());
    assert.deepEqual(page.problems, []);
    await context.close();
  });
});
