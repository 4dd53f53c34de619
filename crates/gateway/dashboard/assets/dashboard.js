// The dashboard: which view is shown, and what it asks the gateway for. README.md has the contract. Nothing is asked for
// while the tab is hidden or paused, and nothing that scans is asked for unless somebody asks.
import * as change from "./change.js";
import * as cluster from "./cluster.js";
import * as line from "./line.js";
import * as overview from "./overview.js";
import * as why from "./why.js";
import { Refused, ask } from "./api.js";
import { duration, known } from "./words.js";
import { h, render } from "./dom.js";

const POLL_MS = 2_000;
const FINDINGS_MS = 15_000;
const AGAIN_MS = 5_000; // after a failure
const OLD_MS = 10_000; // older data is called old

const element = (id) => document.getElementById(id);
const main = element("main");
const visible = () => document.visibilityState === "visible";

// ---- the view, by the part of the address after `#`

function parse() {
  const [path, words] = location.hash.slice(1).split("?");
  const query = Object.fromEntries(new URLSearchParams(words));
  const [, first, name] = path.split("/");
  if (first === "line" && name) return { view: "line", line: decodeURIComponent(name), query };
  return { view: first === "cluster" ? "cluster" : "lines", query };
}

/** Of each view: its words in the title, what draws it, and what it asks for, how often. The first source is the view's own. */
const VIEWS = {
  lines: {
    title: () => "Lines",
    draw: overview.view,
    sources: ({ query }) => [source("overview", `overview?${overview.query(query)}`), source("findings", "findings", FINDINGS_MS)],
  },
  line: {
    title: (route) => route.line,
    draw: line.view,
    sources: (route) => {
      const path = `lines/${encodeURIComponent(route.line)}`;
      return [source("line", path), source("history", `${path}/history`, () => app.got.history?.step_ms)];
    },
  },
  cluster: {
    title: () => "Cluster",
    draw: cluster.view,
    sources: () => [source("cluster", "cluster"), source("findings", "findings", FINDINGS_MS)],
  },
};

function source(name, path, every) {
  return { name, path, every: () => (typeof every === "function" ? every() : every) ?? app.head?.poll_ms ?? POLL_MS };
}

/** What the views know, and can do. */
const app = {
  route: parse(),
  /** The newest answer of each source of this view. */
  got: {},
  errors: {},
  /** What somebody has asked for, opened or typed in this view. */
  local: {},
  head: null,
  draw,
  say,
  done,
  /** The name that the gateway knows the reader by, if it does. */
  get by() {
    return app.head?.by ?? null;
  },
  may: (op) => app.head?.changes === true && change.offered(app.got.line?.may, op),
  change: (it) => change.begin(app, it, app.got.line),
  /** The same view with another query. */
  go(query) {
    const words = new URLSearchParams(Object.entries(query).filter(([, value]) => known(value))).toString();
    history.replaceState(null, "", words ? `#/?${words}` : "#/");
    app.route = parse();
    app.asked.delete("overview");
    round(true);
  },
  /** When each source was asked last. */
  asked: new Map(),
};

// ---- asking

let paused = false;
let timer = null;
let trouble = null; // {since, error}: the gateway does not answer
let heardAt = 0; // the newest answer, by this page's clock
let notice = null; // what a change has done

/** Asks for what is due. `byHand`: once also during a pause, for what somebody has opened meanwhile. */
async function round(byHand = false) {
  clearTimeout(timer);
  if (!visible() || (paused && !byHand)) return;
  const now = performance.now();
  const sources = VIEWS[app.route.view].sources(app.route);
  const due = sources.filter(({ name, every }) => !(now - app.asked.get(name) < every() - 50));
  await Promise.all(due.map((it) => askFor(it, now)));
  const error = app.errors[sources[0].name];
  if (!error || isGone(error)) trouble = null;
  draw();
  clearTimeout(timer); // of a round that ended meanwhile
  if (!paused) timer = setTimeout(round, trouble ? AGAIN_MS : Math.max(500, app.head?.poll_ms ?? POLL_MS));
}

async function askFor({ name, path }, now) {
  app.asked.set(name, now);
  // The answer to what a view that is left, or an earlier filter, has asked is dropped.
  const place = () => VIEWS[app.route.view].sources(app.route).findIndex((it) => it.path === path);
  try {
    const answer = await ask(path);
    if (place() < 0) return;
    app.got[name] = answer;
    delete app.errors[name];
    take(answer.head);
  } catch (error) {
    if (place() < 0) return;
    app.errors[name] = error;
    if (place() === 0 && !isGone(error)) fail(error);
  }
}

const isGone = (error) => error instanceof Refused && error.code === "line_not_found";

function take(head) {
  // What to do about it, and that it is over, is in the findings.
  if (Boolean(head.trouble) !== Boolean(app.head?.trouble)) app.asked.delete("findings");
  app.head = head;
  heardAt = performance.now() - (head.asked_ms_ago ?? 0);
}

function fail(error) {
  if (!trouble) say(`No answer: ${error.message}`);
  trouble = { since: trouble?.since ?? Date.now(), error };
}

// ---- drawing

let focusHeading = false;

function draw() {
  const view = VIEWS[app.route.view];
  const name = app.head?.cluster;
  document.title = [view.title(app.route), name, "nowserving"].filter(Boolean).join(" – ");
  render(element("cluster"), name ? [name] : []);
  for (const link of element("nav").querySelectorAll("a")) {
    const own = link.hash === (app.route.view === "cluster" ? "#/cluster" : "#/");
    if (own) link.setAttribute("aria-current", app.route.view === "line" ? "true" : "page");
    else link.removeAttribute("aria-current");
  }
  drawTrouble();
  drawAge();
  render(main, view.draw(app));
  if (focusHeading) {
    focusHeading = false;
    main.querySelector("h1")?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function drawTrouble() {
  const dismiss = () => { notice = null; drawTrouble(); };
  render(element("trouble"), [
    notice && h("p", { class: "banner good notice", key: "notice" }, h("span", {}, notice), h("button", { type: "button", class: "quiet", onclick: dismiss }, "Dismiss")),
    trouble && h("p", { class: "banner bad", key: "lost" }, lossText(trouble.error)),
    !trouble && app.head?.trouble && h("p", { class: "banner bad", key: "trouble" }, troubleText(app.head.trouble)),
  ]);
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
const oldness = () => (known(app.head?.asked_ms_ago) ? "What is shown is old." : "Nothing is known yet.");

/** A refusal is an answer of the gateway, which says why. */
function lossText(error) {
  return `${sentence(error instanceof Refused ? error.message : `the gateway does not answer: ${error.message}`)} ${oldness()}`;
}

function troubleText(text) {
  if (text.startsWith("not permitted")) return `${sentence(text)} What is shown is what the gateway itself knows.`;
  return `${sentence(text)} ${oldness()}`;
}

/** How old what is shown is: each second, also without an answer. */
function drawAge() {
  const age = known(app.head?.asked_ms_ago) ? Math.max(0, Math.floor((performance.now() - heardAt) / 1000)) * 1000 : null;
  const old = trouble || app.head?.trouble || (age !== null && age > OLD_MS);
  const text = age === null ? "asking" : `${paused ? "held still, " : ""}${duration(age)} old`;
  render(element("age"), [h("span", { class: `dot ${old ? "bad" : paused || age === null ? "warn" : "good"}`, "aria-hidden": "true" }), text]);
}

/** The one live region: losses, answers to what was asked, changes. Figures that move by themselves are not read out. */
function say(text) {
  element("say").textContent = "";
  element("say").textContent = text;
}

function done(text) {
  notice = text;
  say(text);
  app.asked.clear();
  why.changed(app);
  round(true);
}

// ---- by hand

window.addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return;
  app.route = parse();
  Object.assign(app, { got: {}, errors: {}, local: {} });
  app.asked.clear();
  trouble = null;
  notice = null;
  focusHeading = true;
  draw();
  round(true);
});

element("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after `#` is the view's
  main.focus();
});

element("pause").addEventListener("click", ({ currentTarget }) => {
  paused = !paused;
  currentTarget.setAttribute("aria-pressed", String(paused));
  drawAge();
  round();
});

document.addEventListener("visibilitychange", () => round());

setInterval(drawAge, 1_000);
main.replaceChildren();
draw();
round();
