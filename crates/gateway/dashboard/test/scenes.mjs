// What the dashboard is looked at in: which data, and which view of it.
const name = "tickets-tour-7";

const broken = (dashboard) => {
  Object.assign(dashboard.over, {
    overview: (it) => ({ ...it, health: { ...it.health, alive: 2, leads: [9, 6, 0], wrong: ["without a leader: shards 5", "node 3 silent"] } }),
    cluster: (it) => {
      Object.assign(it.status.nodes[2], { alive: false, leads: 0, last_heard_ms: 48_000, version: null });
      Object.assign(it.status.nodes[1], { caught_up_in: 14, snapshots: { sent_bytes: 12, total_bytes: 40 } });
      Object.assign(it.status.shards[5], { leader: null, differs: [2] });
      return it;
    },
    findings: (it) => ({
      ...it, findings: [
        { severity: "problem", code: "no_leader", text: "shard 5 has no leader: its lines are not served", mend: [{ command: "nowserving cluster status --wait" }] },
        { severity: "warning", code: "node_absent", text: "node 3 is silent", mend: [
          { remark: "start it again" }, { command: "nowserving cluster replace-node 3", remark: "if its disk is lost for good" }] },
        ...it.findings],
    }),
  });
};

const empty = (dashboard) => {
  dashboard.over.overview = (it) => ({ ...it, lines: [], totals: { lines: 0, more: false, waiting: 0, held: 0, seats: 0, stuck: 0 }, gateway: undefined });
  dashboard.over.findings = (it) => ({ ...it, findings: [] });
};

const WITHOUT_NATS = "there is no connection to NATS at nats://127.0.0.1:4222, which is tried again and again";
/** The gateway was started before NATS: nothing is known. */
const unknown = (dashboard) => {
  Object.assign(dashboard.head, { cluster: "", trouble: `${WITHOUT_NATS}. To do: start the NATS server`, asked_ms_ago: null });
  dashboard.over.overview = (it) => ({
    ...it, lines: [], totals: { lines: 0, more: false, waiting: 0, held: 0, seats: 0, stuck: 0 },
    health: { nodes: 0, alive: 0, shards: 0, leads: [], wrong: [] },
  });
  dashboard.over.findings = (it) => ({ ...it, in_order: [], findings: [
    { severity: "problem", code: "nats_unreachable", text: WITHOUT_NATS,
      mend: [{ remark: "start the NATS server, or name it with --nats" }] }] });
};

/** A line that was created a moment ago: hardly anything is known. */
const fresh = (dashboard) => {
  dashboard.over[`lines/${name}`] = (it) => {
    Object.assign(it.line, { waiting: 0, admitted: 0, in_checkout: 0, pressure: 0, full: false, held_back_by: { by: "nothing" }, newcomer_eta_ms: null, refused: 0, per_second: null, labels: {} });
    it.shown.board.lanes = it.shown.board.lanes.slice(0, 1);
    it.shown.counts = { issued: 0, waiting: 0, gone: {}, refused: {} };
    it.shown.forecast = { told: 0, untold: 0, judged: 0, p90_covered: 0, off_by_percent: [0, 0, 0, 0, 0, 0] };
    it.findings = [];
    return it;
  };
  dashboard.over[`lines/${name}/history`] = (it) => ({ ...it, samples: { waiting: [0], held: [0], seats: [200], admitted_per_minute: [null], newcomer_eta_ms: [null] } });
};

const asks = (question) => async (page) => {
  await page.getByLabel("Number", { exact: true }).fill(question);
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByText("What happened to it").waitFor();
};

/** `set`: the data; `hash`: the view; `then`: what somebody does there; `wait`: what is on the page once it is drawn. */
export const scenes = {
  lines: { hash: "#/", wait: "tickets-tour-7" },
  broken: { hash: "#/", set: broken, wait: "shard 5 has no leader" },
  empty: { hash: "#/", set: empty, wait: "There are no lines" },
  old: { hash: "#/", set: (dashboard) => { Object.assign(dashboard.head, { trouble: "no node answers", asked_ms_ago: 34_000 }); }, wait: "no node answers" },
  unknown: { hash: "#/", set: unknown, wait: "Nothing is known yet" },
  cluster: { hash: "#/cluster", wait: "What was looked at" },
  "cluster-broken": { hash: "#/cluster", set: broken, wait: "Without a leader" },
  line: { hash: `#/line/${name}`, wait: "The last hour" },
  "line-open": {
    hash: `#/line/${name}`, wait: "The last hour",
    then: async (page) => {
      for (const summary of await page.locator("summary").all()) await summary.click();
      await page.getByText("the second counter").waitFor();
      await page.getByRole("button", { name: "Look closer" }).click();
      await page.getByText("Looked at").waitFor();
    },
  },
  "line-paused": { hash: "#/line/sneaker-drop", set: (dashboard) => dashboard.allow(), wait: "The last hour" },
  fresh: { hash: `#/line/${name}`, set: fresh, wait: "come back in a minute" },
  gone: { hash: "#/line/no-such-line", wait: "There is no such line" },
  why: { hash: `#/line/${name}`, wait: "Why not me", then: asks("4718") },
  "why-gone": { hash: `#/line/${name}`, set: (dashboard) => dashboard.allow(), wait: "Why not me", then: asks("normal:1987") },
  changes: { hash: `#/line/${name}`, set: (dashboard) => dashboard.allow(), wait: "Close …" },
  closing: { hash: `#/line/${name}`, set: (dashboard) => dashboard.allow(), wait: "Close …", then: (page) => page.getByRole("button", { name: "Close …" }).click() },
  calling: { hash: `#/line/${name}`, set: (dashboard) => dashboard.allow(), wait: "Call next …", then: (page) => page.getByRole("button", { name: "Call next …" }).click() },
};
