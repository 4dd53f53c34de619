// The browser, and what all tests with it need.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

export const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const launch = () => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** A page whose errors and CSP violations fail the test. */
export async function tab(context, url) {
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource|net::ERR|ERR_/.test(message.text())) page.problems.push(message.text());
  });
  await page.goto(url);
  return page;
}

export const eventually = async (what, check, ms = 15_000) => {
  const end = Date.now() + ms;
  let last;
  while (Date.now() < end) {
    try {
      last = await check();
      if (last) return last;
    } catch (error) { last = error; }
    await pause(50);
  }
  assert.fail(`${what}: ${last}`);
};
