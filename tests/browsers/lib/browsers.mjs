// The browsers: Debian's own, by the same interface.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium, firefox } from "playwright-core";
import { eventually } from "./wait.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
/** What browsers write of connections that break, which some scenarios do on purpose. */
const NOT_OURS = /Failed to load resource|net::ERR|ERR_|can’t establish a connection|was interrupted while the page was loading/;

const KINDS = {
  chromium: {
    type: chromium,
    options: { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] },
  },
  // By WebDriver BiDi, which a Firefox speaks that nobody has patched.
  firefox: {
    type: firefox,
    options: { executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr", channel: "moz-firefox" },
  },
};

/** Those that are tried. */
export const BROWSERS = (process.env.BROWSERS ?? Object.keys(KINDS).join(" ")).split(" ");

/** Everything that a browser process has started, with itself. Found by the parents, as each has several processes. */
function descendants(root) {
  const children = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    let stat;
    try {
      stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    } catch {
      continue; // it has just ended
    }
    const parent = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
    children.set(parent, [...(children.get(parent) ?? []), Number(pid)]);
  }
  const of = (pid) => [pid, ...(children.get(pid) ?? []).flatMap(of)];
  return { children: children.get(root) ?? [], all: of(root) };
}

export class Browser {
  static async launch(name, options = {}) {
    const browser = new Browser();
    const { type, options: own } = KINDS[name];
    const before = new Set(descendants(process.pid).children);
    browser.browser = await type.launch({ ...own, ...options });
    browser.pids = descendants(process.pid).children.filter((pid) => !before.has(pid));
    return browser;
  }

  /** One whose user has forbidden scripts, or all cookies. */
  static async strict(name, { script = true, cookies = true }) {
    if (name === "firefox") {
      const off = { ...(!script && { "javascript.enabled": false }), ...(!cookies && { "network.cookie.cookieBehavior": 2 }) };
      return Browser.launch(name, { firefoxUserPrefs: off });
    }
    if (cookies) {
      const browser = await Browser.launch(name);
      browser.more = { javaScriptEnabled: script };
      return browser;
    }
    // Chromium has this in the profile alone, which has one visitor.
    const browser = new Browser();
    const { type, options } = KINDS[name];
    browser.profile = mkdtempSync(join(tmpdir(), "nowserving-profile-"));
    mkdirSync(join(browser.profile, "Default"));
    const settings = { profile: { default_content_setting_values: { cookies: 2 } } };
    writeFileSync(join(browser.profile, "Default", "Preferences"), JSON.stringify(settings));
    browser.only = await type.launchPersistentContext(browser.profile, { ...options, ignoreHTTPSErrors: true, javaScriptEnabled: script });
    return browser;
  }

  async close() {
    await (this.only ?? this.browser).close();
    if (this.profile) rmSync(this.profile, { recursive: true, force: true });
  }

  /** Somebody with this browser, without any cookies yet. */
  async visitor(options = {}) {
    const context = this.only ?? await this.browser.newContext({ ignoreHTTPSErrors: true, ...this.more, ...options });
    return new Visitor(context);
  }

  /** A laptop that is closed: none of its processes runs. */
  sleep() {
    for (const pid of this.pids.flatMap((root) => descendants(root).all)) process.kill(pid, "SIGSTOP");
  }

  wake() {
    for (const pid of this.pids.flatMap((root) => descendants(root).all)) process.kill(pid, "SIGCONT");
  }
}

/** Somebody with tabs and cookies. */
export class Visitor {
  constructor(context) {
    this.context = context;
  }

  /** A tab. What goes wrong in its scripts, or against the policy of its content, fails the test. */
  async open(url) {
    const page = await this.context.newPage();
    const problems = [];
    const note = (text) => NOT_OURS.test(text) || problems.push(text);
    page.on("pageerror", (error) => note(String(error)));
    page.on("console", (message) => message.type() === "error" && note(message.text()));
    await page.goto(url);
    return new Tab(page, problems);
  }

  close() {
    return this.context.close();
  }
}

/** What is on a page is read in one go, by a function that needs no other script. */
const READ = () => {
  const seen = (element) => element.getClientRects().length > 0;
  const texts = {};
  for (const element of document.querySelectorAll("#card [data-text]")) {
    if (seen(element)) texts[element.dataset.text] ??= element.innerText.trim();
  }
  const link = document.getElementById("link-text");
  return {
    ...texts,
    title: document.title,
    heading: document.querySelector("h1")?.innerText.trim(),
    kept: document.querySelector(".badge")?.dataset.kept,
    link: link && seen(link) ? link.innerText.trim() : "",
    focus: document.activeElement?.id,
    path: document.getElementById("path")?.innerText,
    reloads: document.querySelectorAll("meta[http-equiv=refresh]").length,
  };
};

export class Tab {
  constructor(page, problems) {
    this.page = page;
    this.problems = problems;
  }

  /** What somebody sees. */
  read() {
    return this.page.evaluate(READ);
  }

  /** Waits until all of these are as wanted: a string, or a pattern. */
  shows(wanted, ms) {
    return eventually(`the page with ${Object.entries(wanted).map(([name, value]) => `${name} ${value}`).join(", ")}`, async () => {
      const seen = await this.read();
      const fits = Object.entries(wanted).every(([name, value]) => value instanceof RegExp ? value.test(seen[name] ?? "") : seen[name] === value);
      if (!fits) throw new Error(JSON.stringify(seen));
      return seen;
    }, ms);
  }

  /** From now on each change of what the page says of place and connection is noted, for `noted`. */
  note() {
    return this.page.evaluate(() => {
      window.noted = new Set();
      const look = () => window.noted.add(`${document.querySelector("h1").innerText} | ${document.querySelector(".badge").dataset.kept} | ${document.getElementById("link").dataset.link}`);
      new MutationObserver(look).observe(document.getElementById("main"), { subtree: true, childList: true, characterData: true, attributes: true });
      look();
    });
  }

  /** What the page has said since `note`, as "You are in line | kept | live". */
  noted() {
    return this.page.evaluate(() => [...window.noted]);
  }

  /** Presses a button, or follows a link, as a mouse does. Without script there is nothing else to wait for. */
  press(selector) {
    return this.page.locator(selector).evaluate((element) => element.click());
  }

  /** Tab, until this has the focus; each stop can be seen. */
  async tabTo(label) {
    const stops = [];
    for (let n = 0; n < 30; n++) {
      await this.page.keyboard.press("Tab");
      const [text, outline] = await this.page.evaluate(() => {
        const at = document.activeElement;
        return [at.innerText?.trim() ?? "", at === document.body ? "body" : getComputedStyle(at).outlineStyle];
      });
      stops.push(text);
      assert.notEqual(outline, "none", `the focus is seen on ${text}`);
      if (text === label) return stops;
    }
    assert.fail(`${label} is not reached by Tab: ${stops}`);
  }

  /** axe has nothing to say about it. */
  async isAccessible(what) {
    // The check must not see a colour on its way to another.
    await this.page.evaluate(() => Promise.all(document.getAnimations().map((animation) => animation.finished.catch(() => {}))));
    if (!(await this.page.evaluate(() => "axe" in window))) await this.page.evaluate(`${AXE}; undefined`);
    const { violations } = await this.page.evaluate((tags) => window.axe.run({ runOnly: tags }), WCAG);
    assert.deepEqual(violations.map((v) => `${what}: ${v.id} ${v.nodes.map((node) => node.target.join(" ")).join(", ")}`), []);
  }

  /** Nothing went wrong that only the console says. */
  isQuiet() {
    assert.deepEqual(this.problems, []);
  }

  close() {
    return this.page.close();
  }
}
