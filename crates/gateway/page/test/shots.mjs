// node shots.mjs [STATE…]: pictures of the states into shots/.
import { mkdirSync } from "node:fs";
import { Gateway } from "./server.mjs";
import { previews } from "./render.mjs";
import { launch } from "./browser.mjs";
mkdirSync("shots", { recursive: true });
const gateway = await new Gateway().listen();
const browser = await launch();
const kinds = [
  ["light", "en", 1280, 860, "light"], ["dark", "en", 1280, 860, "dark"],
  ["390", "en", 390, 844, "light"], ["ar", "ar", 390, 844, "dark"], ["ja", "ja", 390, 844, "light"], ["zh", "zh-Hant", 390, 844, "dark"], ["de", "de", 390, 844, "light"], ["4k", "en", 3840, 2160, "light"],
];
for (const [kind, lang, width, height, colorScheme] of kinds) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  const page = await context.newPage();
  for (const name of process.argv.length > 2 ? process.argv.slice(2) : previews) {
    if (name === "enter") continue;
    gateway.set(name);
    await page.goto(`${gateway.origin}/preview/${name}?lang=${lang}`);
    await page.waitForTimeout(150);
    await page.screenshot({ path: `shots/${name}-${kind}.png`, fullPage: true });
  }
  await context.close();
}
await browser.close();
await gateway.close();
