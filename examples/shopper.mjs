import { setTimeout as sleep } from "node:timers/promises";
import { connect, TimeoutError } from "@nats-io/transport-node"; // npm install @nats-io/transport-node (Node.js 22)

const [url, key] = process.argv.slice(2);
const nc = await connect({ servers: url });
let me = {}, look = () => {}, shown, status;

const repeat = ["unavailable", "not_leader", "outcome_unknown", "overloaded"];

// Repeated until the answer is known: with the same key or ticket the effect is one.
async function ask(op, body) {
  for (;; await sleep(200)) {
    try {
      const reply = await nc.request(`nowserving.line.shop-1.${op}`, JSON.stringify(body), { timeout: 2000 });
      const answer = reply.json();
      if (repeat.includes(answer.error?.code)) continue;
      if (answer.error) throw new Error(answer.error.message);
      return answer;
    } catch (error) {
      // A leader has died; another one takes over within a second or so.
      if (!(error instanceof TimeoutError || error.isNoResponders?.())) throw error;
    }
  }
}

// Only a new place.
function show(position, version, ...forecast) {
  if (position !== shown) console.log("position", position, "at version", version, ...forecast);
  shown = position;
}

// Ranges in order and without overlaps, from `through` on.
function union(ranges, through) {
  const disjoint = [];
  for (const [first, last] of ranges.toSorted(([a], [b]) => a - b)) {
    const from = Math.max(first, (disjoint.at(-1)?.[1] ?? through) + 1);
    if (from <= last) disjoint.push([from, last]);
  }
  return disjoint;
}

// `me` is the newest status, with the version and the holes of the newest board.
function onBoard(board) {
  if (board.undrawn) { // nobody has a place until the draw at the opening is done
    delete me.position;
    return;
  }
  if (!me.position) return sleep(Math.random() * 250).then(() => look()); // drawn: `status` knows
  if (!me.holes || board.version <= me.version) return;
  const missed = board.prev_version > me.version && !board.whole;
  const lane = board.lanes.find((lane) => lane.lane === me.lane);
  if (missed || board.incarnation !== me.incarnation || !lane?.holes) return look(); // `status` knows
  const through = lane.admitted_through, token = me.token;
  const holes = union(lane.holes.concat(board.whole ? [] : me.holes), through);
  Object.assign(me, { version: board.version, holes });
  const isHole = holes.some(([first, last]) => first <= token && token <= last);
  if (token <= through || isHole) return look(); // waits no longer
  const before = holes.filter(([, last]) => last < token).map(([first, last]) => last - first + 1);
  show(token - through - before.reduce((sum, n) => sum + n, 0), me.version);
}

// Subscribed before the first `status`, so that no board is missed.
nc.subscribe("nowserving.event.shop-1.board", { callback: (_, message) => onBoard(message.json()) });
let { ticket } = await ask("enter", { key }); // repeated with the same key: the same number
while (true) {
  const looked = new Promise((resolve) => { look = resolve; });
  status = await ask("status", { ticket, holes: true }); // also says that I am still here
  ticket = status.ticket ?? ticket; // a new one after a move to another lane
  if (status.state !== "waiting") break;
  if (status.version >= (me.version ?? 0)) { // otherwise a board has overtaken it
    me = status;
    show(me.position, me.version, "forecast", me.eta_ms);
  }
  await Promise.race([looked, sleep(status.poll_after_ms, undefined, { ref: false })]);
}
if (status.state === "admitted") {
  const { epoch } = await ask("claim", { ticket });
  status = await ask("complete", { ticket, epoch }); // the checkout is done
}
console.log(status.state, status.reason);
await nc.close();
