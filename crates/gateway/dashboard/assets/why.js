// "Why not me": one person's token, who was admitted before it and why, and what happened to it. Asked for by hand alone,
// because it reads the line's journal.
import { because, asked, duration, heldBack, journaled, known, many, moment, number, token as tokenName, words } from "./words.js";
import { ask } from "./api.js";
import { badge } from "./findings.js";
import { h } from "./dom.js";

const BY = { token: "Number", key: "Key", ticket: "Ticket" };

/** The form's fields as the gateway takes them; null if something is missing. */
function wanted(form) {
  const { by, value, lane } = Object.fromEntries(new FormData(form));
  const text = value.trim();
  if (!text) return null;
  if (by !== "token") return { [by]: text };
  // `vip:17`, `vip 17`, or `17` with the lane chosen.
  const found = /^(?:(\S+?)[:\s]+)?(\d[\d,]*)$/.exec(text);
  return found && { lane: found[1] ?? lane, token: Number(found[2].replaceAll(",", "")) };
}

async function look(app, question, quiet = false) {
  const { local, route } = app;
  local.why = { ...(quiet ? local.why : {}), question, asking: true };
  app.draw();
  try {
    local.why = { question, answer: await ask(`lines/${encodeURIComponent(route.line)}/why`, question), at: Date.now() };
    if (!quiet) app.say(headline(local.why.answer.token));
  } catch (error) {
    local.why = { question, error };
    app.say(error.message);
  }
  app.draw();
}

/** After a change, the answer that is shown is asked for again. */
export function changed(app) {
  if (app.local.why?.answer) look(app, app.local.why.question, true);
}

function headline(it) {
  const name = tokenName(it.lane, number(it.token));
  switch (it.state) {
    case "waiting": return known(it.position) ? `${name} waits at place ${number(it.position)}` : `${name} waits`;
    case "admitted": return `${name} is admitted and has not entered`;
    case "in_checkout": return `${name} is in checkout`;
    default: return `${name} is gone: ${words(it.reason ?? "forgotten")}`;
  }
}

const fact = (name, value) => value !== null && h("div", {}, h("dt", {}, name), h("dd", {}, value));
const ago = (ms) => `${duration(ms)} ago`;

function facts(it, shown, at) {
  const waits = it.state === "waiting";
  const all = known(it.turn) && it.turn !== it.position;
  return h("dl", { class: "facts" },
    fact("Key", it.key ?? null),
    fact("Entered", known(it.entered_at_ms) ? [moment(it.entered_at_ms), `, ${ago(Math.max(0, at - it.entered_at_ms))}`] : null),
    fact("Before it in its lane", waits && known(it.position) ? number(it.position - 1) : null),
    fact("Before it in all lanes", waits && all ? number(it.turn - 1) : null),
    fact("Forecast", waits && known(it.eta_ms) ? `${duration(it.eta_ms)}, nine in ten within ${duration(it.eta_p90_ms)}` : null),
    fact("The line is held back by", waits ? heldBack(shown.held_back_by, shown.board) : null),
    fact("Its page was last heard of", waits && known(it.last_seen_ms) ? ago(it.last_seen_ms) : null),
    fact("Its seat ends in", known(it.expires_in_ms) ? duration(it.expires_in_ms) : null));
}

function explained(explain) {
  if (!explain) return null;
  if (!known(explain.entered_at_ms)) return h("p", { class: "soft" }, "The journal no longer has its entries.");
  const { overtakers, overtakers_total: total, own_lane_before: own } = explain;
  const rest = total - overtakers.length;
  return [
    h("p", {}, "Admitted before it, after it had entered: ", h("strong", {}, number(own)), " who came earlier in its lane, ",
      h("strong", {}, number(total)), " who came later."),
    overtakers.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Admitted before it although they came later" },
      h("table", { class: "tight" },
        h("caption", {}, "Came later and were admitted first"),
        h("thead", {}, h("tr", {},
          h("th", { scope: "col" }, "Token"), h("th", { scope: "col", class: "n" }, "Later by"),
          h("th", { scope: "col" }, "Admitted"), h("th", { scope: "col" }, "Because"))),
        h("tbody", {}, overtakers.map((it) => h("tr", { key: `${it.lane} ${it.token}` },
          h("th", { scope: "row" }, tokenName(it.lane, number(it.token))),
          h("td", { class: "n" }, duration(Math.max(0, it.entered_at_ms - explain.entered_at_ms))),
          h("td", {}, moment(it.admitted_at_ms)),
          h("td", {}, because(it, explain))))))),
    rest > 0 && h("p", { class: "soft" }, `And ${number(rest)} more.`),
    explain.cut && h("p", { class: "soft" }, "The journal does not reach back to when it entered: there may have been more."),
  ];
}

/** What happened, a row an entry. `newest`: which end comes first is up to the caller. */
export function entries(all) {
  return h("ol", { class: "entries" }, all.map((it) => {
    const who = asked(it);
    return h("li", { key: `${it.version} ${it.lane ?? ""} ${it.token ?? ""}` },
      h("span", { class: "soft" }, moment(it.at_ms)), " ",
      it.lane && known(it.token) && [tokenName(it.lane, number(it.token)), " "],
      journaled(it), who && h("span", { class: "sub" }, who));
  }));
}

function answer(app, { answer: it, at, question }, shown) {
  const { token } = it;
  const live = token.state !== "gone";
  const end = () => app.change({ op: "kick", lane: token.lane, token: token.token, state: token.state });
  return h("div", { class: "answer" },
    h("h3", {}, headline(token)),
    facts(token, shown, it.head?.at_ms ?? at),
    explained(it.explain),
    it.entries?.length > 0 && [h("h4", {}, "What happened to it"), entries(it.entries)],
    it.more && h("p", { class: "soft" }, "It has more entries: nowserving line journal."),
    h("p", { class: "actions" },
      h("button", { type: "button", onclick: () => look(app, question) }, "Ask again"),
      live && app.may("kick") && h("button", { type: "button", class: "danger", onclick: end }, "End this visit …"),
      h("span", { class: "soft small" }, "Asked at ", moment(at), ".")));
}

export function view(app, shown) {
  const local = app.local;
  const by = local.whyBy ?? "token";
  const lanes = shown.board.lanes.map((it) => it.lane);
  const submit = (event) => {
    event.preventDefault();
    const question = wanted(event.target);
    if (question) return look(app, question);
    local.why = { error: new Error("Type a number as on the person’s page, such as 4718 or vip:17.") };
    app.draw();
  };
  const type = { token: { inputmode: "text", placeholder: "4718, or vip:17" }, key: {}, ticket: {} }[by];
  return h("section", { "aria-labelledby": "why", key: "why" },
    h("h2", { id: "why" }, "Why not me?"),
    h("p", { class: "soft" }, "Where one person stands, and who was admitted first. It reads the line’s journal, so it is asked by hand."),
    h("form", { class: "controls", onsubmit: submit },
      h("label", {}, "Find by", h("select", { name: "by", onchange: (event) => { local.whyBy = event.target.value; app.draw(); } },
        Object.entries(BY).map(([name, text]) => h("option", { value: name, selected: name === by }, text)))),
      by === "token" && lanes.length > 1 && h("label", { key: "lane" }, "Lane", h("select", { name: "lane" },
        lanes.map((lane) => h("option", { value: lane, selected: lane === shown.default_lane }, lane)))),
      by === "token" && lanes.length === 1 && h("input", { key: "only", type: "hidden", name: "lane", value: lanes[0] }),
      h("label", { key: `value ${by}`, class: "grow" }, BY[by], h("input", { name: "value", required: true, autocomplete: "off", spellcheck: "false", maxlength: "4096", ...type })),
      h("button", { type: "submit", key: "ask", "aria-disabled": local.why?.asking ? "true" : null }, "Ask")),
    local.why?.asking && h("p", { class: "soft", key: "asking" }, "Asking …"),
    local.why?.error && h("p", { class: "bad-text", key: "error" }, badge("bad", "Refused"), " ", local.why.error.message),
    local.why?.answer && answer(app, local.why, shown));
}
