// Nodes, shards, and what the doctor says of them.
import * as findings from "./findings.js";
import { DASH, duration, known, many, nodeState, number, ranges } from "./words.js";
import { h } from "./dom.js";

/** More shards are listed when somebody asks for them. */
const SHARDS_LISTED = 64;

function heard(node, answeredBy) {
  if (node.id === answeredBy) return "this one";
  return known(node.last_heard_ms) ? `${duration(node.last_heard_ms)} ago` : DASH;
}

function caughtUp(node, shards) {
  if (!node.alive) return DASH;
  if (node.caught_up_in >= shards) return "yes";
  const sent = node.snapshots ? `, ${Math.floor((100 * node.snapshots.sent_bytes) / Math.max(1, node.snapshots.total_bytes))} % of snapshots sent` : "";
  return `in ${number(node.caught_up_in)} of ${many(shards, "shard")}${sent}`;
}

function nodes({ nodes: all, shards, answered_by }) {
  return h("section", { "aria-labelledby": "nodes", key: "nodes" },
    h("h2", { id: "nodes" }, "Nodes"),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Nodes" }, h("table", {},
      h("caption", { class: "unseen" }, `Nodes, as node ${answered_by} sees them`),
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "Node"), h("th", { scope: "col" }, "State"), h("th", { scope: "col", class: "n" }, "Leads"),
        h("th", { scope: "col", class: "n" }, "Votes in"), h("th", { scope: "col" }, "Heard"), h("th", { scope: "col" }, "Caught up"),
        h("th", { scope: "col" }, "Version"))),
      h("tbody", {}, all.map((node) => {
        const [word, tone] = nodeState(node, shards.length);
        return h("tr", { key: node.id },
          h("th", { scope: "row" }, node.id),
          h("td", {}, findings.badge(tone, word), node.refused && h("span", { class: "sub" }, node.refused)),
          h("td", { class: "n" }, number(node.leads)),
          h("td", { class: "n" }, number(node.votes_in)),
          h("td", {}, heard(node, answered_by)),
          h("td", {}, caughtUp(node, shards.length)),
          h("td", {}, node.version ?? DASH));
      })))));
}

const wrong = (shard) => !known(shard.leader) || shard.differs?.length > 0;

function shard(it) {
  const behind = Math.max(0, it.committed - it.applied);
  return h("tr", { key: it.shard, class: wrong(it) ? "stuck" : "" },
    h("th", { scope: "row" }, it.shard),
    h("td", {}, known(it.leader) ? `node ${it.leader}` : findings.badge("bad", "none")),
    h("td", { class: "n" }, number(it.term)),
    h("td", { class: "n" }, number(it.applied)),
    h("td", { class: "n" }, number(behind)),
    h("td", {}, (it.voters ?? []).join(" "), it.learners?.length > 0 && `, learning: ${it.learners.join(" ")}`,
      it.differs?.length > 0 && h("span", { class: "sub bad-text" }, `the state of ${many(it.differs.length, "node")} differs: ${it.differs.join(", ")}`)));
}

function shards(app, { shards: all }) {
  const leaders = new Map();
  for (const it of all) leaders.set(it.leader ?? null, [...(leaders.get(it.leader ?? null) ?? []), it.shard]);
  const led = [...leaders].sort(([a], [b]) => (a ?? -1) - (b ?? -1));
  const short = all.length > SHARDS_LISTED && !app.local.allShards;
  const listed = short ? all.filter(wrong) : all;
  const show = () => { app.local.allShards = true; app.draw(); };
  return h("section", { "aria-labelledby": "shards", key: "shards" },
    h("h2", { id: "shards" }, "Shards"),
    h("ul", { class: "plain" }, led.map(([leader, numbers]) => h("li", { class: leader === null ? "bad-text" : "" },
      leader === null ? "Without a leader, so that their lines are not served: " : `Node ${leader} leads ${many(numbers.length, "shard")}: `, ranges(numbers)))),
    listed.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Shards" }, h("table", { class: "tight" },
      h("caption", { class: "unseen" }, "Shards"),
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "Shard"), h("th", { scope: "col" }, "Leader"), h("th", { scope: "col", class: "n" }, "Term"),
        h("th", { scope: "col", class: "n" }, "Applied"), h("th", { scope: "col", class: "n" }, "Behind"), h("th", { scope: "col" }, "Voters"))),
      h("tbody", {}, listed.map(shard)))),
    short && h("p", {}, h("button", { type: "button", onclick: show }, `List all ${number(all.length)} shards`)));
}

export function view(app) {
  const { cluster, findings: found } = app.got;
  const heading = h("h1", { tabindex: "-1" }, "Cluster");
  const doctor = h("section", { "aria-labelledby": "doctor", key: "doctor" },
    h("h2", { id: "doctor" }, "Doctor"),
    findings.list(app, found?.findings),
    app.errors.findings && h("p", { class: "bad-text" }, app.errors.findings.message),
    found?.in_order?.length > 0 && h("details", { key: "order" },
      h("summary", {}, "What was looked at"), h("ul", { class: "plain soft" }, found.in_order.map((text) => h("li", {}, text)))));
  if (!cluster) return [heading, h("p", { class: "soft" }, "Asking the gateway …"), doctor];
  return [heading, doctor, nodes(cluster.status), shards(app, cluster.status)];
}
