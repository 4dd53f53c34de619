// What README tells a new user to try: `nowserving dev --web`, and a browser.
import { after, before, it } from "node:test";
import { Browser } from "./lib/browsers.mjs";
import { Cluster } from "./lib/cluster.mjs";
import { freePort } from "./lib/program.mjs";

const LINE = "shop-1";
let cluster, browser, url;

before(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/`;
  [cluster, browser] = await Promise.all([Cluster.start("--web", String(port), "--web-line", LINE), Browser.launch("chromium")]);
}, { timeout: 120_000 });

after(async () => {
  await browser?.close();
  await cluster?.stop();
}, { timeout: 120_000 });

it("a visitor of dev --web waits, sees the place move, goes in, and completes the visit", { timeout: 120_000 }, async () => {
  await cluster.create(LINE, "--seats", "1");
  const others = await cluster.others(LINE, 2);
  const tab = await (await browser.visitor()).open(url);
  await tab.shows({ heading: "You are in line", place: "2", link: /^Live/ });
  await others[1].leave();
  await tab.shows({ place: "1" });
  await others[0].leave();
  await tab.shows({ heading: "You are in the shop" });
  await tab.press("button");
  await tab.shows({ heading: "Thank you" });
  tab.isQuiet();
});
