// What visitors go through, with real browsers, a real gateway and a real cluster of three nodes. No answer is made up.
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { BROWSERS, Browser } from "./lib/browsers.mjs";
import { Cluster } from "./lib/cluster.mjs";
import { Front } from "./lib/front.mjs";
import { Gateway } from "./lib/gateway.mjs";
import { eventually, pause } from "./lib/wait.mjs";

/** Each scenario has a line of its own: settings of the line, and of its gateway. */
const LINES = {
  script: [["--seats", "1"], "auto_enter_s = 2"],
  plain: [["--seats", "1"]],
  keys: [["--seats", "1"]],
  tab: [["--seats", "1"]],
  tabs: [["--seats", "1"]],
  nap: [["--seats", "1"]],
  sleep: [["--seats", "1", "--waiting-idle-timeout", "6s"]],
  leader: [["--seats", "1"]],
  restart: [["--seats", "1"]],
  beside: [["--seats", "1"]],
  down: [["--seats", "1", "--claim-timeout", "10m"]],
  hang: [["--seats", "1", "--claim-timeout", "10m"]],
  forbidden: [["--seats", "1"]],
  dropped: [["--seats", "1"]],
  deleted: [["--seats", "1"]],
  day: [["--seats", "1", "--phase", "pre_open"]],
};
/** How all of the cluster is away, and is back; each with a line of its own. */
const AWAY = {
  down: ["is stopped, NATS with it, and started again", () => cluster.down(), () => cluster.up()],
  hang: ["hangs for a while", () => cluster.signal("SIGSTOP"), () => cluster.signal("SIGCONT")],
};
const LIVE = "You are in line | kept | live";
const LOST = "You are in line | kept | lost";
/** Longer than the gateway's stream may be silent, after which the page asks for itself. */
const NAP_MS = 16_000;

let cluster, gateway, front;
const lineOf = (scenario, name) => `${scenario}-${name}`;
/** Open ones, as a gateway counts them. */
const streams = (count, of = gateway) => eventually(`${count} streams`, async () => (await of.metric("nowserving_gateway_streams")) === count);

before(async () => {
  cluster = await Cluster.start();
  const lines = {};
  for (const name of BROWSERS) {
    for (const [scenario, [settings, configured = "auto_enter_s = 0"]] of Object.entries(LINES)) {
      lines[lineOf(scenario, name)] = configured;
      await cluster.create(lineOf(scenario, name), ...settings);
    }
  }
  gateway = await Gateway.start(cluster, lines);
  front = await Front.start(cluster, gateway);
}, { timeout: 180_000 });

after(async () => {
  await front?.stop();
  await gateway?.stop();
  await cluster?.stop();
}, { timeout: 120_000 });

for (const name of BROWSERS) {
  describe(name, () => {
    let browser;
    /** What is closed after each test, the last one first. */
    const opened = [];
    before(async () => { browser = await Browser.launch(name); }, { timeout: 60_000 });
    after(async () => { await browser.close(); });

    /** A line with so many others in it, of whom the first has the only seat, and a visitor's address in the shop behind it. */
    async function line(scenario, count) {
      const of = lineOf(scenario, name);
      return { line: of, url: `${front.origin}/${of}/?item=42`, others: await cluster.others(of, count) };
    }

    const closing = (one) => {
      opened.push(one);
      return one;
    };
    const visitor = async (of = browser) => closing(await of.visitor());

    const test = (what, check) => it(what, { timeout: 180_000 }, async () => {
      try {
        await check();
      } finally {
        for (const one of opened.splice(0).reverse()) await one.close();
        await streams(0);
      }
    });

    test("waits with script, sees the place move, and goes in by itself", async () => {
      const { line: of, url, others } = await line("script", 3);
      const tab = await (await visitor()).open(url);
      const first = await tab.shows({ heading: "You are in line", place: "3", ahead: "2", kept: "kept", link: /^Live/ });
      assert.match(first.title, /^\(3\) You are in line – Nordlicht$/);
      assert.match(first.held, /Everybody inside is still busy/);
      await tab.isAccessible("waiting");
      await others[1].leave();
      await tab.shows({ place: "2", ahead: "1", number: first.number });
      await others[0].leave();
      await tab.shows({ place: "1", ahead: "0" });
      await others[2].leave();
      await tab.shows({ heading: "The shop", path: `/${of}/?item=42` });
      assert.equal(await tab.page.locator("#pass").innerText(), "with a pass");
      const shown = await cluster.ask("line", "show", of);
      assert.equal(shown.counts.issued, 4);
      tab.isQuiet();
    });

    test("waits without script, asks by hand, leaves, comes again and goes in", async () => {
      const { line: of, url, others } = await line("plain", 2);
      const tab = await (await visitor(closing(await Browser.strict(name, { script: false })))).open(url);
      // By itself: the second step, and later each reload.
      const first = await tab.shows({ heading: "You are in line", place: "2", reloads: 1 });
      await others[1].leave();
      await tab.press("#check button");
      await tab.shows({ place: "1", number: first.number });
      await tab.press(".leave summary");
      await tab.press(".leave button");
      await tab.shows({ heading: "You have left the line", last_number: /./ });
      await tab.press("[data-if=enter] button");
      const second = await tab.shows({ heading: "You are in line", place: "1" });
      assert.notEqual(second.number, first.number);
      await others[0].leave();
      // Nobody presses anything: the page reloads itself, and does not enter.
      await tab.shows({ heading: "It is your turn", kept: "seat" }, 60_000);
      await tab.press("#go");
      await tab.shows({ heading: "The shop", path: `/${of}/?item=42` });
    });

    test("by keyboard alone: leaves, comes again, and the focus is on “Enter now” at its turn", async () => {
      const { line: of, url, others } = await line("keys", 1);
      const tab = await (await visitor()).open(url);
      await tab.shows({ heading: "You are in line", link: /^Live/ });
      await tab.tabTo("Leave the line");
      await tab.page.keyboard.press("Enter");
      await tab.tabTo("Give up my place");
      await tab.page.keyboard.press("Enter");
      await tab.shows({ heading: "You have left the line" });
      await tab.tabTo("Take a new number");
      await tab.page.keyboard.press("Space");
      await tab.shows({ heading: "You are in line", link: /^Live/ });
      await others[0].leave();
      await tab.shows({ heading: "It is your turn", focus: "go", left: /\d/ });
      await tab.isAccessible("admitted");
      await tab.page.keyboard.press("Enter");
      await tab.shows({ heading: "The shop", path: `/${of}/?item=42` });
      tab.isQuiet();
    });

    test("a tab that is closed and opened again has the same number", async () => {
      const { url, others } = await line("tab", 3);
      const one = await visitor();
      const tab = await one.open(url);
      const first = await tab.shows({ place: "3", link: /^Live/ });
      await streams(1);
      await tab.close();
      await streams(0);
      await others[1].leave();
      const again = await one.open(url);
      await again.shows({ heading: "You are in line", place: "2", number: first.number, link: /^Live/ });
      again.isQuiet();
    });

    test("two tabs have one number and one stream; the second goes on when the first is closed", async () => {
      const { line: of, url, others } = await line("tabs", 3);
      const one = await visitor();
      const first = await one.open(url);
      const { number: given } = await first.shows({ place: "3", link: /^Live/ });
      const second = await one.open(url);
      await second.shows({ place: "3", number: given, link: /^Live/ });
      await others[1].leave();
      await first.shows({ place: "2", number: given });
      await second.shows({ place: "2", number: given });
      assert.equal(front.opened.get(of), 1);
      await streams(1);
      await first.close();
      await eventually("the second has a stream", () => front.opened.get(of) === 2);
      await others[2].leave();
      await second.shows({ place: "1", number: given, link: /^Live/ });
      await streams(1);
      assert.equal((await cluster.ask("line", "show", of)).counts.issued, 4);
      second.isQuiet();
    });

    test("a laptop that slept for a while has its place, and the page is right at once", async () => {
      const { url, others } = await line("nap", 3);
      const tab = await (await visitor()).open(url);
      const first = await tab.shows({ place: "3", link: /^Live/ });
      browser.sleep();
      try {
        front.forget();
        await others[1].leave();
        await pause(NAP_MS);
      } finally {
        browser.wake();
      }
      await tab.shows({ heading: "You are in line", place: "2", number: first.number, kept: "kept", link: /^Live/ });
      await others[2].leave();
      await tab.shows({ place: "1" });
      tab.isQuiet();
    });

    test("a laptop that slept for too long is told so, and how to get a new number", async () => {
      const { line: of, url } = await line("sleep", 1);
      const tab = await (await visitor()).open(url);
      const first = await tab.shows({ place: "1", link: /^Live/ });
      browser.sleep();
      try {
        front.forget();
        await eventually("the number is recycled", async () => (await cluster.ask("line", "show", of)).counts.gone.idle === 1);
        await pause(NAP_MS);
      } finally {
        browser.wake();
      }
      const lost = await tab.shows({ heading: "You were away too long", kept: "lost", more: /Please take a new number/ });
      assert.equal(lost.last_number.match(/\d+/)[0], first.number.match(/\d+/)[0]);
      await tab.isAccessible("idle");
      await tab.press("[data-if=enter] button");
      const second = await tab.shows({ heading: "You are in line", place: "1", link: /^Live/ });
      assert.notEqual(second.number, first.number);
      tab.isQuiet();
    });

    test("the leader is killed: nobody sees an error, and places go on", async () => {
      const { line: of, url, others } = await line("leader", 3);
      const tab = await (await visitor()).open(url);
      const first = await tab.shows({ place: "3", link: /^Live/ });
      await tab.note();
      await cluster.killLeader(of);
      await others[1].leave();
      await tab.shows({ place: "2", number: first.number, link: /^Live/ });
      assert.deepEqual(await tab.noted(), [LIVE]);
      tab.isQuiet();
    });

    for (const [how, signal] of [["stopped", "SIGTERM"], ["killed", "SIGKILL"]]) {
      test(`the gateway is ${how} and started again: the page says that the place is kept, and has the same number`, async () => {
        const { url, others } = await line("restart", 3);
        const tab = await (await visitor()).open(url);
        const first = await tab.shows({ place: "3", link: /^Live/ });
        await gateway.stop(signal);
        try {
          await tab.shows({ heading: "You are in line", place: "3", kept: "kept", number: first.number, link: /^No connection since .* Your place is kept until .* at least/ });
          await tab.isAccessible("without a connection");
        } finally {
          await gateway.start();
        }
        await others[1].leave();
        await tab.shows({ heading: "You are in line", place: "2", number: first.number, link: /^Live/ }, 60_000);
        for (const other of [others[0], others[2]]) await other.leave();
        await tab.shows({ heading: "It is your turn" });
        await tab.press(".leave summary");
        await tab.press(".leave button");
        await tab.shows({ heading: "You have left the line" });
        tab.isQuiet();
      });
    }

    test("one of two gateways is killed: the visitor goes on by the other one, with the same number, into the shop", async () => {
      const { line: of, url, others } = await line("beside", 3);
      const other = await Gateway.start(cluster, { [of]: "auto_enter_s = 0" });
      front.gateways.unshift(other);
      try {
        const tab = await (await visitor()).open(url);
        const first = await tab.shows({ place: "3", link: /^Live/ });
        await streams(1, other);
        await tab.note();
        await other.stop("SIGKILL");
        await others[1].leave();
        await tab.shows({ place: "2", number: first.number, link: /^Live/ }, 60_000);
        await streams(1);
        // Whether the page had time to say that it has no connection or not: the place was kept.
        for (const noted of await tab.noted()) assert.ok([LIVE, LOST].includes(noted), noted);
        for (const left of [others[0], others[2]]) await left.leave();
        await tab.shows({ heading: "It is your turn", number: first.number });
        await tab.press("#go");
        await tab.shows({ heading: "The shop", path: `/${of}/?item=42` });
        assert.equal((await cluster.ask("line", "show", of)).counts.issued, 4);
        tab.isQuiet();
      } finally {
        front.gateways.shift();
        await other.stop("SIGKILL");
      }
    });

    for (const [scenario, [how, goes, returns]] of Object.entries(AWAY)) {
      test(`the whole cluster ${how}: the page says that the place is kept, and goes on with the same number by itself`, async () => {
        const { line: of, url, others } = await line(scenario, 3);
        const tab = await (await visitor()).open(url);
        const first = await tab.shows({ place: "3", link: /^Live/ });
        const plain = await (await visitor(closing(await Browser.strict(name, { script: false })))).open(url);
        const second = await plain.shows({ heading: "You are in line", place: "4" });
        await tab.note();
        let newcomer;
        try {
          await goes();
          await tab.shows({ heading: "You are in line", place: "3", kept: "kept", number: first.number, link: /^The line cannot be reached .* Your place is kept/ });
          await tab.isAccessible("without a cluster");
          await plain.shows({ heading: "One moment, please", kept: "kept", lead: /Your place is kept/, reloads: 1 }, 60_000);
          newcomer = await (await visitor()).open(url);
          await newcomer.shows({ heading: "One moment, please", kept: "none", lead: /you have no number yet/ });
          // It asks, and enters only when that is of use: a page tries three times a minute at most.
          const since = front.asked.length;
          const later = (asked) => front.asked.slice(since).filter((it) => it === asked).length;
          await eventually("the newcomer has asked", () => later(`GET /_nowserving/v1/lines/${of}/status`) > 1);
          assert.equal(later("POST /_nowserving/enter"), 0);
        } finally {
          await returns();
        }
        // Nobody presses anything.
        await tab.shows({ heading: "You are in line", place: "3", number: first.number, link: /^Live/ }, 60_000);
        assert.deepEqual(await tab.noted(), [LIVE, LOST]);
        await plain.shows({ heading: "You are in line", place: "4", number: second.number }, 60_000);
        await newcomer.shows({ heading: "You are in line", place: "5", link: /^Live/ }, 60_000);
        await others[1].leave();
        await tab.shows({ place: "2", number: first.number });
        assert.equal((await cluster.ask("line", "show", of)).counts.issued, 6);
        tab.isQuiet();
        newcomer.isQuiet();
      });
    }

    for (const script of [true, false]) {
      test(`cookies are forbidden, ${script ? "with" : "without"} script: told so, and no circle`, async () => {
        const { line: of, url } = await line("forbidden", 1);
        const told = { heading: "Please allow cookies", more: /Allow cookies for this site/, kept: "none", reloads: 0 };
        const strict = closing(await Browser.strict(name, { script, cookies: false }));
        const since = front.asked.length;
        const tab = await (await strict.visitor()).open(url);
        await tab.shows(told);
        if (script) await tab.isAccessible("cookies");
        await tab.press("[data-if=enter] button");
        await eventually("the form is sent", () => front.asked.includes("POST /_nowserving/enter", since));
        await tab.shows(told);
        // The form, and without script the second step before it: nothing goes on by itself.
        const pages = front.asked.slice(since).filter((asked) => !asked.includes("/page/"));
        assert.deepEqual(pages, [...(script ? [] : ["GET /_nowserving/wait"]), "POST /_nowserving/enter"]);
        assert.equal((await cluster.ask("line", "show", of)).counts.issued, 1);
        tab.isQuiet();
      });
    }

    test("cookies are dropped on the way: told so, and no circle", async () => {
      const { line: of, url } = await line("dropped", 1);
      front.dropsCookies = true;
      try {
        const tab = await (await visitor()).open(url);
        await tab.shows({ heading: "Please allow cookies", kept: "none", reloads: 0 });
        tab.isQuiet();
      } finally {
        front.dropsCookies = false;
      }
      assert.equal((await cluster.ask("line", "show", of)).counts.issued, 1);
    });

    test("the line is deleted and created again: the page promises no place, then says that the number has ended", async () => {
      const { line: of, url } = await line("deleted", 2);
      const tab = await (await visitor()).open(url);
      await tab.shows({ heading: "You are in line", place: "2", kept: "kept", link: /^Live/ });
      await cluster.ask("line", "delete", of, "--force", "--yes");
      await tab.shows({ heading: "One moment, please", kept: "unsure" });
      await tab.isAccessible("uncertain");
      await cluster.create(of, "--seats", "1");
      await tab.shows({ heading: "Your number is not valid any more", kept: "lost", more: /You can take a new number/ });
    });

    test("an operator's day: each state is said in words, and accessible", async () => {
      const { line: of, url } = await line("day", 1);
      const tab = await (await visitor()).open(url);
      const set = (...words) => cluster.ask("line", ...words, "--reason", "a trial");
      const reaches = async (state, wanted) => {
        const seen = await tab.shows(wanted);
        await tab.isAccessible(state);
        return seen;
      };
      const first = await reaches("pre_open", { heading: "Not open yet", kept: "kept", place: "2" });
      await set("open", of);
      await reaches("waiting", { heading: "You are in line", place: "1", number: first.number });
      await set("pause", of);
      await reaches("paused", { heading: "The line is paused", kept: "kept" });
      await set("open", of);
      await reaches("waiting", { heading: "You are in line" });
      await set("drain", of);
      await reaches("draining", { heading: "You are in line", ending: /takes no new people/ });
      await set("kick", of, "--token", `normal:${first.number.match(/\d+/)[0]}`);
      await reaches("kicked", { heading: "Your number was withdrawn", kept: "lost" });
      await tab.press("[data-if=enter] button");
      await reaches("no newcomers", { heading: "The line takes nobody new", kept: "out" });
      await set("open", of);
      await tab.press("[data-if=wait] button");
      await reaches("kicked", { heading: "Your number was withdrawn", last_number: first.number.replace("is", "was") });
      await tab.press("[data-if=enter] button");
      await reaches("waiting", { heading: "You are in line", place: "1", link: /^Live/ });
      await set("close", of, "--yes");
      await reaches("closed, and gone", { heading: "The line is closed", kept: "over" });
      tab.isQuiet();
    });
  });
}
