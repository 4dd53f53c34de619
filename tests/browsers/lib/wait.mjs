// Waiting for conditions.
import assert from "node:assert/strict";

export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** What `check` returns, once that is true. Fails with its last answer, or error, after `ms`. */
export async function eventually(what, check, ms = 30_000) {
  const end = Date.now() + ms;
  let last;
  do {
    try {
      last = await check();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    await pause(50);
  } while (Date.now() < end);
  assert.fail(`${what}: not within ${ms / 1000} s; last: ${last?.message ?? JSON.stringify(last)}`);
}
