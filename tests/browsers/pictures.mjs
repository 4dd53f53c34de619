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
/** Of the dashboard's history, one each ten seconds: about when the leader dies, half way. */
const SAMPLES = 4;
/** Both pictures end between two parts of their page. */
const HEIGHT = 742;
const port = await freePort();
const demo = new Program(["demo", "--web", String(port), "--seed", "7"]);
const browser = await Browser.launch("chromium");
try {
  const [, dashboard] = await demo.line(/dashboard: (http:\S+)/);
  await eventually("a crowd", async () => (await (await fetch(`${dashboard}api/overview`)).json()).totals.waiting > CROWD, 60_000);
  const visitor = await browser.visitor({ viewport: { width: 720, height: HEIGHT }, reducedMotion: "reduce" });
  const waits = await visitor.open(`http://127.0.0.1:${port}/`);
  await waits.shows({ heading: "You are in line", place: /\d/, forecast: /./, link: /^Live/ });
  const take = async (tab, name, colorScheme, options) => {
    await tab.page.emulateMedia({ colorScheme });
    await tab.page.screenshot({ path: name, ...options });
  };
  for (const colorScheme of ["light", "dark"]) await take(waits, join(docs, `waiting-${colorScheme}.png`), colorScheme);
  await waits.page.setViewportSize({ width: 390, height: 844 });
  for (const lang of ["en", "ar"]) {
    await waits.page.goto(`http://127.0.0.1:${port}/_nowserving/wait?line=demo&to=/&lang=${lang}`);
    for (const colorScheme of ["light", "dark"]) await take(waits, join(shots, `waiting-${lang}-${colorScheme}.png`), colorScheme, { fullPage: true });
  }
  const operator = await browser.visitor({ viewport: { width: 1200, height: HEIGHT }, reducedMotion: "reduce" });
  const looks = await operator.open(`${dashboard}#/line/demo`);
  await eventually("a curve", async () => (await (await fetch(`${dashboard}api/lines/demo/history`)).json()).samples.waiting.length >= SAMPLES, 60_000);
  await looks.page.getByText("The last hour").first().waitFor();
  await looks.page.reload();
  await looks.page.getByText("The last hour").first().waitFor();
  for (const colorScheme of ["light", "dark"]) await take(looks, join(docs, `dashboard-${colorScheme}.png`), colorScheme);
  await looks.page.setViewportSize({ width: 390, height: 844 });
  for (const colorScheme of ["light", "dark"]) await take(looks, join(shots, `dashboard-${colorScheme}.png`), colorScheme, { fullPage: true });
} finally {
  await browser.close();
  await demo.stop("SIGINT");
}
