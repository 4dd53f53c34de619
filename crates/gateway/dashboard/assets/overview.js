// All lines, those that need somebody first.
import * as findings from "./findings.js";
import { DASH, decimal, duration, heldBack, known, many, number, perMinute, phaseName } from "./words.js";
import { h } from "./dom.js";
import { spark } from "./chart.js";

const PAGE = 50;
const SORTS = {
  pressure: "pressure", waiting: "people who wait", held: "seats held", entered: "entrants", eta: "forecast", refused: "refusals", name: "name",
};
const TYPING_MS = 300;

/** What the gateway is asked for. */
export function query({ sort, filter, first }) {
  const words = new URLSearchParams({ first: first ?? PAGE });
  if (sort) words.set("sort", sort);
  if (filter) words.set("filter", filter);
  return words.toString();
}

export const lineHref = (name) => `#/line/${encodeURIComponent(name)}`;

export function marks(line) {
  return [
    line.stuck && findings.badge("bad", "stuck", "People wait, and nobody is admitted until somebody acts"),
    line.full && findings.badge("warn", "full", "Newcomers are refused"),
    line.open_gate && findings.badge("info", `gate ${line.open_gate}`, "The gate holds nobody back"),
    line.phase !== "open" && findings.badge("soft", phaseName(line.phase)),
  ];
}

/** How much of something is taken: the words beside it say the same. */
export function bar(taken, all, tone = "") {
  const share = all > 0 ? Math.min(1, taken / all) : taken > 0 ? 1 : 0;
  return h("span", { class: `bar ${tone}`, "aria-hidden": "true" }, h("span", { style: { "--share": share.toFixed(3) } }));
}

export const held = (line) => line.admitted + line.in_checkout;

function row(line) {
  const why = heldBack(line.held_back_by, line);
  const labels = Object.entries(line.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  return h("tr", { key: line.line, class: line.stuck ? "stuck" : "" },
    h("th", { scope: "row" },
      h("a", { href: lineHref(line.line) }, line.line), " ", h("span", { class: "marks" }, marks(line)),
      labels && h("span", { class: "sub" }, labels),
      h("span", { class: "sub narrow" }, why === DASH ? null : `Held back by ${why}`)),
    h("td", { class: "wide why" }, why),
    h("td", { class: "wide n" }, decimal(line.pressure)),
    h("td", { class: "n" }, number(line.waiting)),
    h("td", { class: "middle" }, spark(line.recent)),
    h("td", { class: "middle n" }, h("span", { class: "held" }, `${number(held(line))} of ${number(line.seats)}`, bar(held(line), line.seats))),
    h("td", { class: "middle n" }, perMinute(line.per_second?.admitted)),
    h("td", { class: "n" }, duration(line.newcomer_eta_ms)),
    h("td", { class: "wide n" }, number(line.refused)));
}

function table(lines, sort) {
  return h("table", { class: "lines", key: "lines" },
    h("caption", { class: "unseen" }, `Lines by ${SORTS[sort] ?? sort}`),
    h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "Line"),
      h("th", { scope: "col", class: "wide" }, "Held back by"),
      h("th", { scope: "col", class: "wide n" }, h("abbr", { title: "People who wait, per seat: how often all seats must change hands" }, "Pressure")),
      h("th", { scope: "col", class: "n" }, "Waiting"),
      h("th", { scope: "col", class: "middle" }, "Last hour"),
      h("th", { scope: "col", class: "middle n" }, "Seats held"),
      h("th", { scope: "col", class: "middle n" }, "Admitted a minute"),
      h("th", { scope: "col", class: "n" }, "Newcomer waits"),
      h("th", { scope: "col", class: "wide n" }, "Refused"))),
    h("tbody", {}, lines.map(row)));
}

const figure = (name, value, more, tone = "") => h("div", { class: tone },
  h("dt", {}, name), h("dd", {}, value, more && h("span", { class: "sub" }, more)));

function totals({ head, totals: it, health, gateway }) {
  const asked = known(head.asked_ms_ago); // zeros are no figures before
  const nodes = health.nodes > 0 ? `${number(health.alive)} of ${number(health.nodes)} alive` : DASH;
  const led = health.nodes > 0 && `${many(health.shards, "shard")}, led ${health.leads.join("/")}`;
  return h("dl", { class: "tiles", key: "totals" },
    figure("Lines", asked ? `${number(it.lines)}${it.more ? "+" : ""}` : DASH, it.stuck > 0 && `${number(it.stuck)} stuck`, it.stuck > 0 ? "bad" : ""),
    figure("People who wait", asked ? number(it.waiting) : DASH),
    figure("Seats held", asked ? number(it.held) : DASH, asked && `of ${number(it.seats)}`),
    figure("Nodes", nodes, health.wrong?.length ? health.wrong.join("; ") : led, health.wrong?.length ? "bad" : ""),
    gateway && figure("Open pages", number(gateway.streams), `of ${number(gateway.streams_max)} this gateway takes`));
}

let typing;
function controls(app) {
  const { sort = "pressure", filter = "" } = app.route.query;
  const typed = (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => app.go({ ...app.route.query, filter: event.target.value.trim() || undefined, first: undefined }), TYPING_MS);
  };
  return h("form", { class: "controls", role: "search", key: "controls", onsubmit: (event) => event.preventDefault() },
    h("label", {}, "Filter", h("input", {
      type: "search", value: filter, oninput: typed, autocomplete: "off", spellcheck: "false", placeholder: "words, or label=value",
    })),
    h("label", {}, "Sort by", h("select", { onchange: (event) => app.go({ ...app.route.query, sort: event.target.value }) },
      Object.entries(SORTS).map(([name, text]) => h("option", { value: name, selected: name === sort }, text)))));
}

export function view(app) {
  const { overview, findings: found } = app.got;
  if (!overview) return [h("h1", { tabindex: "-1" }, "Lines"), h("p", { class: "soft" }, "Asking the gateway …")];
  const { lines, totals: all } = overview;
  const more = () => app.go({ ...app.route.query, first: lines.length + 2 * PAGE });
  const none = !known(app.head.asked_ms_ago) ? "The lines are not known yet."
    : app.route.query.filter ? "No line fits the filter." : "There are no lines. Create one: nowserving line create.";
  return [
    h("h1", { tabindex: "-1" }, "Lines"),
    totals(overview),
    findings.worst(app, found?.findings, "#/cluster"),
    controls(app),
    lines.length ? table(lines, app.route.query.sort ?? "pressure") : h("p", { class: "soft", key: "none" }, none),
    lines.length < all.lines && h("p", { key: "more" },
      h("span", { class: "soft" }, `${number(lines.length)} of ${number(all.lines)} lines. `),
      h("button", { type: "button", onclick: more }, "Show more")),
    all.more && h("p", { class: "soft", key: "capped" }, `The cluster has more lines: the first ${known(all.lines) ? number(all.lines) : ""} by name are looked at.`),
  ];
}
