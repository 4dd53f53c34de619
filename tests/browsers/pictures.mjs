// npm run pictures: README's pictures, taken of `nowserving demo --web` while its crowd waits. More of them, to look at, are in
// shots/.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Browser } from "./lib/browsers.mjs";
import { Program, freePort } from "./lib/program.mjs";
import { eventually } from "./lib/wait.mjs";

const here = import.meta.dirname;
const [docs, shots] = [join(here, "../../docs/pictures"), join(here, "shots")];
for (const folder of [docs, shots]) mkdirSync(folder, { recursive: true });

/** The crowd has come, and many of it still wait. */
const CROWD = 400;
const port = await freePort();
const demo = new Program(["demo", "--web", String(port), "--seed", "7"]);
const browser = await Browser.launch("chromium");
try {
  const [, dashboard] = await demo.line(/dashboard: (http:\S+)/);
  await eventually("a crowd", async () => (await (await fetch(`${dashboard}api/overview`)).json()).totals.waiting > CROWD, 60_000);
  const visitor = await browser.visitor({ viewport: { width: 720, height: 780 }, deviceScaleFactor: 1.5, reducedMotion: "reduce" });
  const waits = await visitor.open(`http://127.0.0.1:${port}/`);
  await waits.shows({ heading: "You are in line", place: /\d/, forecast: /\d/, link: /^Live/ });
  const operator = await browser.visitor({ viewport: { width: 1200, height: 780 }, deviceScaleFactor: 1.5, reducedMotion: "reduce" });
  const looks = await operator.open(`${dashboard}#/line/demo`);
  await looks.page.getByText("The last hour").first().waitFor();
  const take = async (tab, name, colorScheme, options) => {
    await tab.page.emulateMedia({ colorScheme });
    await tab.page.screenshot({ path: name, ...options });
  };
  for (const colorScheme of ["light", "dark"]) {
    await take(waits, join(docs, `waiting-${colorScheme}.png`), colorScheme);
    await take(looks, join(docs, `dashboard-${colorScheme}.png`), colorScheme);
  }
  for (const [kind, width, height] of [["wide", 1280, 860], ["phone", 390, 844]]) {
    for (const tab of [waits, looks]) await tab.page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"]) {
      await take(waits, join(shots, `waiting-${kind}-${colorScheme}.png`), colorScheme, { fullPage: true });
      await take(looks, join(shots, `dashboard-${kind}-${colorScheme}.png`), colorScheme, { fullPage: true });
    }
  }
  await waits.page.goto(`http://127.0.0.1:${port}/_nowserving/wait?line=demo&to=/&lang=ar`);
  await waits.shows({ place: /\d/ });
  for (const colorScheme of ["light", "dark"]) await take(waits, join(shots, `waiting-arabic-${colorScheme}.png`), colorScheme, { fullPage: true });
} finally {
  await browser.close();
  await demo.stop("SIGINT");
}
