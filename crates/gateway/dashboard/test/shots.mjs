// node shots.mjs [SCENE…]: pictures of the scenes into shots/.
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Dashboard } from "./server.mjs";
import { scenes } from "./scenes.mjs";
import { launch } from "../../page/test/browser.mjs";
const shots = join(dirname(fileURLToPath(import.meta.url)), "shots");
mkdirSync(shots, { recursive: true });
const browser = await launch();
const kinds = [["light", 1280, 860, "light"], ["dark", 1280, 860, "dark"], ["390", 390, 844, "light"], ["390-dark", 390, 844, "dark"]];
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(scenes);
for (const [kind, width, height, colorScheme] of kinds) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  for (const name of names) {
    const { hash, set, wait, then } = scenes[name];
    const dashboard = new Dashboard();
    set?.(dashboard);
    await dashboard.listen();
    const page = await context.newPage();
    await page.goto(dashboard.url + hash);
    await page.getByText(wait).first().waitFor();
    await then?.(page);
    await page.waitForTimeout(200);
    await page.screenshot({ path: join(shots, `${name}-${kind}.png`), fullPage: !(await page.locator("dialog[open]").count()) });
    await page.close();
    await dashboard.close();
  }
  await context.close();
}
await browser.close();
