// The dashboard of a real gateway, with the lines of a real cluster.
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { BROWSERS, Browser } from "./lib/browsers.mjs";
import { Cluster } from "./lib/cluster.mjs";
import { Gateway } from "./lib/gateway.mjs";

const LINE = "tickets";
let cluster, reading, changing;

before(async () => {
  cluster = await Cluster.start();
  await cluster.create(LINE, "--seats", "2");
  await cluster.others(LINE, 5);
  reading = await Gateway.start(cluster, { [LINE]: "" });
  changing = await Gateway.start(cluster, { [LINE]: "" }, "--allow-changes");
}, { timeout: 120_000 });

after(async () => {
  await reading?.stop();
  await changing?.stop();
  await cluster?.stop();
}, { timeout: 120_000 });

for (const name of BROWSERS) {
  describe(name, () => {
    let browser, visitor;
    before(async () => {
      browser = await Browser.launch(name);
      visitor = await browser.visitor();
    }, { timeout: 60_000 });
    after(async () => { await browser.close(); });
    const test = (what, check) => it(what, { timeout: 120_000 }, check);
    const row = (tab) => tab.page.getByRole("row").filter({ hasText: LINE });

    test("shows the lines, the cluster, and why one waits", async () => {
      const tab = await visitor.open(reading.dashboard);
      await row(tab).getByText("3", { exact: true }).first().waitFor();
      await tab.isAccessible("lines");
      await tab.page.getByRole("link", { name: LINE }).click();
      await tab.page.getByText("The last hour").first().waitFor();
      await tab.isAccessible("a line");
      await tab.page.getByLabel("Number", { exact: true }).fill("5");
      await tab.page.getByRole("button", { name: "Ask", exact: true }).click();
      await tab.page.getByText("What happened to it").waitFor();
      await tab.page.getByRole("link", { name: "Cluster", exact: true }).click();
      await tab.page.getByText("What was looked at").waitFor();
      await tab.isAccessible("the cluster");
      tab.isQuiet();
      await tab.close();
    });

    test("without --allow-changes it offers no change, and the gateway refuses one", async () => {
      const tab = await visitor.open(`${reading.dashboard}#/line/${LINE}`);
      await tab.page.getByText("The last hour").first().waitFor();
      assert.equal(await tab.page.getByRole("button", { name: /…$/ }).count(), 0);
      // A page that offers it all the same is refused.
      const answer = await tab.page.evaluate(async (line) => {
        const body = { phase: "paused", by: "ann", reason: "a trial", request_id: "0".repeat(32), incarnation: 1, if_version: 1 };
        const headers = { "content-type": "application/json" };
        const answer = await fetch(`api/lines/${line}/phase`, { method: "POST", headers, body: JSON.stringify(body) });
        return [answer.status, (await answer.json()).code];
      }, LINE);
      assert.deepEqual(answer, [403, "read_only"]);
      assert.equal((await cluster.ask("line", "show", LINE)).settings.phase, "open");
      await tab.close();
    });

    test("with it, a change is asked for, done, and in the journal with name and reason", async () => {
      const reason = `a trial by ${name}`;
      const tab = await visitor.open(`${changing.dashboard}#/line/${LINE}`);
      await tab.page.getByRole("button", { name: "Pause …", exact: true }).click();
      await tab.page.getByLabel("Your name").fill("ann");
      await tab.page.getByLabel("Reason").fill(reason);
      await tab.isAccessible("a question");
      await tab.page.getByRole("button", { name: "Pause the line", exact: true }).click();
      await tab.page.locator("#trouble").getByText(`${LINE} is paused.`).waitFor();
      assert.equal((await cluster.ask("line", "show", LINE)).settings.phase, "paused");
      const journal = JSON.stringify(await cluster.ask("line", "journal", LINE, "--of-line"));
      assert.ok(journal.includes(`"reason":"${reason}"`), journal);
      assert.ok(journal.includes(`"by":"ann"`), journal);
      await tab.page.getByRole("button", { name: "Open …", exact: true }).click();
      await tab.page.getByLabel("Reason").fill(reason);
      await tab.page.getByRole("button", { name: "Open the line", exact: true }).click();
      await tab.page.locator("#trouble").getByText(`${LINE} is open.`).waitFor();
      tab.isQuiet();
      await tab.close();
    });
  });
}
