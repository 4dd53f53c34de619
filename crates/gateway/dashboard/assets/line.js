// One line: what holds it back, the last hour, lanes, the doctor, one person's question, and its changes.
import * as findings from "./findings.js";
import * as why from "./why.js";
import { bar, held, marks } from "./overview.js";
import { chart, scales, table } from "./chart.js";
import { countsText, decimal, duration, heldBack, known, many, moment, number, perMinute, phaseName, setting, settingName } from "./words.js";
import { Refused, ask } from "./api.js";
import { h } from "./dom.js";

const path = (app) => `lines/${encodeURIComponent(app.route.line)}`;

/** Asks by hand for what the gateway must read a line's journal or tokens for. */
async function fetchInto(app, slot, name) {
  const { local } = app;
  local[slot] = { asking: true };
  app.draw();
  try {
    local[slot] = { answer: await ask(`${path(app)}/${name}`), at: Date.now() };
  } catch (error) {
    local[slot] = { error };
  }
  app.draw();
}

function banner(line, shown) {
  const tone = line.stuck ? "bad" : line.held_back_by?.by === "nothing" || line.held_back_by?.by === "admitting" ? "good" : "info";
  return h("p", { class: `banner ${tone}`, key: "banner" },
    h("strong", {}, "Held back by "), `${heldBack(line.held_back_by, line)}.`,
    known(shown.deleting) && ` The line is being deleted: ${many(shown.deleting, "token")} still to be ended.`);
}

const tile = (name, value, more) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("span", { class: "sub" }, more)));

function tiles(line, shown) {
  const rate = line.per_second;
  return h("dl", { class: "tiles", key: "tiles" },
    tile("People who wait", number(line.waiting), `pressure ${decimal(line.pressure)}; at most ${number(line.queue_limit)} can wait`),
    tile("Seats held", [number(held(line)), h("span", { class: "of" }, ` of ${number(line.seats)}`), bar(held(line), line.seats)],
      `${number(line.admitted)} admitted, ${number(line.in_checkout)} in checkout`),
    tile("Admitted a minute", perMinute(rate?.admitted), rate ? `${perMinute(rate.entered)} enter, ${perMinute(rate.done)} complete` : "known after two answers"),
    tile("A newcomer waits", duration(line.newcomer_eta_ms),
      known(line.newcomer_eta_ms) ? (shown.newcomer_eta_from === "expected" ? "mostly the operator’s guess" : "as measured") : "no forecast"));
}

/** The charts of the history's columns that are there. */
function plots(samples) {
  const column = (name, title) => ({ name: title, values: samples[name] ?? [] });
  return [
    { title: "People who wait", format: number, scale: scales.count, series: [column("waiting", "waiting")] },
    { title: "Admitted and entered a minute", format: decimal, scale: scales.count, series: [column("admitted_per_minute", "admitted"), column("entered_per_minute", "entered")] },
    { title: "Seats held", format: number, scale: scales.count, series: [column("held", "held"), column("seats", "in force")] },
    { title: "A newcomer waits", format: duration, scale: scales.time, series: [column("newcomer_eta_ms", "forecast")] },
  ].filter((it) => it.series[0].values.length > 0);
}

function charts(app, history) {
  if (!history) return null;
  const count = history.samples.waiting?.length ?? 0;
  const times = Array.from({ length: count }, (_, at) => history.at_ms - (count - 1 - at) * history.step_ms);
  const over = app.local.over < count ? app.local.over : null;
  const point = (at) => {
    if (app.local.over === at) return;
    app.local.over = at;
    app.draw();
  };
  const all = plots(history.samples);
  return h("section", { "aria-labelledby": "hour", key: "hour" },
    h("h2", { id: "hour" }, "The last hour"),
    count < 2 && h("p", { class: "soft" }, "The gateway has begun to write down how this line moves: come back in a minute."),
    count > 1 && h("div", { class: "charts" }, all.map((it) => chart({ ...it, times, over: over ?? null, point }))),
    count > 1 && h("details", { key: "numbers" }, h("summary", {}, "The same in numbers"),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The last hour in numbers" }, table(all, times))));
}

function lanes(shown) {
  const heads = ["Waiting", "Next number", "Done through", "Admitted through", "Accepts through"];
  const fields = ["waiting", "next_token", "done_through", "admitted_through", "accepts_through"];
  return h("section", { "aria-labelledby": "lanes", key: "lanes", class: "half" },
    h("h2", { id: "lanes" }, "Lanes"),
    h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Lanes" }, h("table", { class: "lanes" },
      h("caption", { class: "unseen" }, "Lanes, with the pointers of each"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Lane"), heads.map((head) => h("th", { scope: "col", class: "n" }, head)))),
      h("tbody", {}, shown.board.lanes.map((lane) => h("tr", { key: lane.lane },
        h("th", { scope: "row" }, lane.lane, lane.lane === shown.default_lane && h("span", { class: "soft" }, " (default)")),
        fields.map((name) => h("td", { class: "n" }, number(lane[name])))))))),
    h("p", { class: "soft small" }, `Gone: ${countsText(shown.counts.gone)}. Refused: ${countsText(shown.counts.refused)}.`));
}

const OFF = ["5 %", "15 %", "30 %", "50 %", "100 %", "more"];

function forecasts({ forecast: it }) {
  if (!it) return null;
  const judged = it.judged > 0;
  const most = Math.max(1, ...(it.off_by_percent ?? []));
  return h("section", { "aria-labelledby": "forecasts", key: "forecasts", class: "half" },
    h("h2", { id: "forecasts" }, "Forecasts"),
    judged
      ? h("p", {}, "Of ", h("strong", {}, many(it.judged, "forecast")), " that could be judged, ", h("strong", {}, `${Math.round((100 * it.p90_covered) / it.judged)} %`),
        " covered the wait (90 are meant). By how much the median was off:")
      : h("p", { class: "soft" }, "None could be judged yet."),
    judged && h("table", { class: "off tight" },
      h("caption", { class: "unseen" }, "How far forecasts were off"),
      h("thead", { class: "unseen" }, h("tr", {}, h("th", { scope: "col" }, "Off by"), h("th", { scope: "col" }, "Forecasts"))),
      h("tbody", {}, OFF.map((name, at) => h("tr", {},
        h("th", { scope: "row" }, name === "more" ? "more" : `up to ${name}`),
        h("td", {}, h("div", {}, bar(it.off_by_percent[at], most), h("span", { class: "n" }, number(it.off_by_percent[at])))))))),
    h("p", { class: "soft small" }, `${number(it.told)} entrants were given one by measurements, ${number(it.told_expected ?? 0)} one that was mostly the operator’s guess, ${number(it.untold)} none.`));
}

function doctor(app, found) {
  const { closer } = app.local;
  return h("section", { "aria-labelledby": "doctor", key: "doctor", class: "half" },
    h("h2", { id: "doctor" }, "Doctor"),
    findings.list(app, closer?.answer?.findings ?? found, "Nothing is wrong, as far as the line’s own figures show."),
    closer?.error && h("p", { class: "bad-text" }, closer.error.message),
    h("p", { class: "actions" },
      h("button", { type: "button", "aria-disabled": closer?.asking ? "true" : null, onclick: () => closer?.asking || fetchInto(app, "closer", "findings") }, closer?.asking ? "Looking …" : "Look closer"),
      h("span", { class: "soft small" }, closer?.answer ? ["Looked at ", moment(closer.at), "; not repeated by itself."] : "Reads who holds the seats, and the journal.")));
}

function changes(app) {
  const { changes: got } = app.local;
  const toggle = (event) => {
    if (event.target.open && !got) fetchInto(app, "changes", "changes");
  };
  const list = got?.answer?.entries;
  return h("details", { key: "changes", ontoggle: toggle },
    h("summary", {}, "Who changed what"),
    got?.asking && h("p", { class: "soft" }, "Asking …"),
    got?.error && h("p", { class: "bad-text" }, got.error.message),
    list && (list.length ? why.entries(list) : h("p", { class: "soft" }, "Nothing is in the journal.")),
    got?.answer?.more && h("p", { class: "soft" }, "Older ones: nowserving line journal."),
    list && h("p", { class: "actions" }, h("button", { type: "button", onclick: () => fetchInto(app, "changes", "changes") }, "Ask again"),
      h("span", { class: "soft small" }, "Asked at ", moment(got.at), ".")));
}

function settings(shown) {
  const set = Object.entries(shown.settings).filter(([, value]) => known(value) && value !== false && JSON.stringify(value) !== "[]" && JSON.stringify(value) !== "{}");
  return h("details", { key: "settings" },
    h("summary", {}, "Settings"),
    h("dl", { class: "facts" }, set.map(([name, value]) => h("div", { key: name }, h("dt", {}, settingName(name)), h("dd", {}, setting(name, value))))),
    h("p", { class: "soft small" }, "Created ", moment(shown.created_at_ms), `; version ${number(shown.version)}, settings of version ${number(shown.settings_version)}.`));
}

const PHASES = { open: "Open", paused: "Pause", draining: "Drain", closed: "Close" };

/** Only what this gateway allows: read-only has none of it. */
function actions(app, line) {
  const buttons = [
    app.may("phase") && Object.entries(PHASES).filter(([phase]) => phase !== line.phase).map(([phase, verb]) =>
      h("button", { type: "button", key: phase, class: phase === "closed" ? "danger" : "", onclick: () => app.change({ op: "phase", phase }) }, `${verb} …`)),
    app.may("seats") && h("button", { type: "button", key: "seats", onclick: () => app.change({ op: "seats" }) }, "Seats …"),
    app.may("call-next") && h("button", { type: "button", key: "call", onclick: () => app.change({ op: "call-next" }) }, "Call next …"),
  ].flat().filter(Boolean);
  return buttons.length > 0 && h("div", { class: "actions", role: "group", "aria-label": "Change the line", key: "actions" }, buttons);
}

function missing(app, error) {
  const gone = error instanceof Refused && error.code === "line_not_found";
  return [
    h("p", { class: "crumb", key: "crumb" }, h("a", { href: "#/" }, "All lines")),
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: "-1" }, app.route.line)),
    h("p", { class: gone ? "" : "soft" }, gone ? "There is no such line, or it was deleted." : "Asking the line’s leader …"),
  ];
}

export function view(app) {
  const { line: got, history } = app.got;
  const gone = app.errors.line?.code === "line_not_found";
  if (!got || gone) return missing(app, app.errors.line);
  const { line, shown, findings: found } = got;
  const labels = Object.entries(line.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");
  const home = `shard ${shown.shard}, ${known(shown.leader) ? `led by node ${shown.leader}` : "no leader known"}`;
  return [
    h("p", { class: "crumb", key: "crumb" }, h("a", { href: "#/" }, "All lines")),
    h("div", { class: "title", key: "title" },
      h("h1", { tabindex: "-1" }, line.line), h("span", { class: "marks" }, line.phase === "open" && findings.badge("good", phaseName("open")), marks(line)),
      h("p", { class: "soft" }, [labels, home].filter(Boolean).join("; "))),
    banner(line, shown),
    actions(app, line),
    tiles(line, shown),
    charts(app, history),
    doctor(app, found),
    lanes(shown),
    why.view(app, shown),
    forecasts(shown),
    h("section", { key: "more", "aria-label": "More of this line", class: "half" }, changes(app), settings(shown)),
  ];
}
