// Changes of a line. Each one asks first, says what it will do, and wants a name and a reason for the journal.
import { Refused, ask, randomId } from "./api.js";
import { h, patch } from "./dom.js";
import { known, many, number, phaseName, phaseWords, token } from "./words.js";

/** As in the contract: `by` and `reason` have 1 to 128 bytes. */
const TEXT_BYTES_MAX = 128;
const SEATS_MAX = 1_000_000;
const CALL_MAX = 1_024;
const NAME = "nowserving by";

const dialog = document.getElementById("ask");
const VERBS = { open: "Open", paused: "Pause", draining: "Drain", closed: "Close" };
const inIt = (line) => line.waiting + line.admitted + line.in_checkout;

/** What a phase does to those who are in the line. */
function phaseMeans({ phase }, { line }) {
  const heldNow = line.admitted + line.in_checkout;
  const waiting = `People who wait: ${number(line.waiting)}`;
  switch (phase) {
    case "closed": return `Everybody in the line loses the place. ${waiting}; people with a seat: ${number(heldNow)}. This cannot be taken back.`;
    case "paused": return `It goes on issuing numbers and admits nobody. ${waiting}; they keep their places, and seats that are held stay held.`;
    case "draining": return `It issues no more numbers, and admits those who wait. ${waiting}.`;
    default: return `Then ${phaseWords(phase)}. ${waiting}; free seats that are filled at once: ${number(Math.max(0, line.seats - heldNow))}.`;
  }
}

const amount = (name, label, most, value) => h("label", {}, label, h("input", { type: "number", name, min: "0", max: most, step: "1", required: true, value }));

/** By operation: the question, what it means, the fields of its own, what is sent, and the words when it is done. */
const KINDS = {
  phase: {
    title: (it) => `${VERBS[it.phase]} ${it.name}?`,
    button: (it) => `${VERBS[it.phase]} the line`,
    means: phaseMeans,
    fields: () => [],
    body: (it) => ({ phase: it.phase }),
    done: (it) => `${it.name} is ${phaseName(it.phase)}.`,
    sure: (it, { line }) => it.phase === "closed" && inIt(line) > 0 && `Yes, end the visits of all ${number(inIt(line))}`,
  },
  seats: {
    title: (it) => `Change the seats of ${it.name}?`,
    button: () => "Change the seats",
    means: (it, { line, shown }) => `Now: ${number(shown.settings.seats)}. Seats that are held stay held, also above the new number.`
      + (line.seats === shown.settings.seats ? "" : ` In force are the ${number(line.seats)} that a backend told: the setting counts once it is silent.`),
    fields: (it, { shown }) => [amount("seats", "Seats", SEATS_MAX, shown.settings.seats)],
    body: (it, fields) => ({ seats: Number(fields.seats) }),
    done: (it, answer, body) => `${it.name} is set to ${many(body.seats, "seat")}.`,
  },
  "call-next": {
    title: (it) => `Call people of ${it.name}?`,
    button: () => "Call them",
    means: (it, { line }) => `Admits the next people in their order, as far as free seats, the quota and the rate allow. People who wait: ${number(line.waiting)}. `
      + "With a lane: the first of that lane, before others.",
    fields: (it, { shown }) => [
      h("label", {}, "How many", h("input", { type: "number", name: "n", min: "1", max: CALL_MAX, step: "1", required: true, value: "1" })),
      shown.board.lanes.length > 1 && h("label", {}, "Lane", h("select", { name: "lane" },
        h("option", { value: "" }, "all, in their order"), shown.board.lanes.map(({ lane }) => h("option", { value: lane }, lane)))),
    ],
    body: (it, fields) => ({ n: Number(fields.n), ...(fields.lane ? { lane: fields.lane } : {}) }),
    done: (it, answer) => {
      const all = answer.admitted ?? [];
      const named = all.slice(0, 5).map((one) => token(one.lane, number(one.token)));
      if (all.length > named.length) named.push(`${number(all.length - named.length)} more`);
      return all.length ? `Admitted: ${named.join(", ")}.` : "Nobody could be admitted: no free seat, no unit of the quota or the rate, or nobody waits.";
    },
  },
  kick: {
    title: (it) => `End the visit of ${token(it.lane, number(it.token))}?`,
    button: () => "End the visit",
    means: (it) => (it.state === "waiting" ? "The person loses the place, and can only take a new number at the end." : "The person loses the seat at once.")
      + " This cannot be taken back.",
    fields: () => [],
    body: (it) => ({ lane: it.lane, token: it.token }),
    done: (it, answer) => (answer.kicked > 0 ? `${token(it.lane, number(it.token))} was ended.` : `${token(it.lane, number(it.token))} was gone already: nobody was ended.`),
  },
};

/** What is asked now: the operation, the line as it was when it was asked, and how far it is. */
let open = null;
let app = null;

/** `it`: the operation `op` with its fields; `got`: the line that it is about. */
export function begin(of, it, got) {
  app = of;
  open = { kind: KINDS[it.op], it: { ...it, name: got.line.line }, got, id: randomId(), sending: false, error: null, sent: null };
  // Fields of an earlier question must not stay.
  dialog.replaceChildren();
  draw();
  dialog.showModal();
  dialog.querySelector("h2").focus();
}

function close() {
  open = null;
  dialog.close();
}

dialog.addEventListener("cancel", (event) => {
  if (open?.sending) event.preventDefault();
  else open = null;
});

function remembered() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function remember(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    // No storage: the name is typed again.
  }
}

/** The limit is in bytes, which no attribute of an input can say. */
function checkText({ target }) {
  const { length } = new TextEncoder().encode(target.value.trim());
  const wrong = length === 0 ? "Say it in a few words." : length > TEXT_BYTES_MAX ? `${length} bytes; ${TEXT_BYTES_MAX} are the most.` : "";
  target.setCustomValidity(wrong);
}

/** Lost on the way, or the cluster does not know: the same request again finds out, and is made once at most. */
const isUncertain = (error) => !(error instanceof Refused) || ["outcome_unknown"].includes(error.code) || [502, 504].includes(error.status);

function said(error) {
  if (isUncertain(error)) {
    return `It is not known whether this was done: ${error.message}. “Try again” sends the same request, which is done once at most.`;
  }
  if (error.code === "version_conflict") return "Somebody has changed the line meanwhile, so nothing was done. Close this, and look at the line again.";
  return `Nothing was done: ${error.message}.`;
}

async function send(event) {
  event.preventDefault();
  const now = open;
  if (now.sending) return;
  const { kind, it, got } = now;
  if (!now.sent) {
    const fields = Object.fromEntries(new FormData(event.target));
    now.sent = {
      ...kind.body(it, fields),
      by: app.by ?? fields.by.trim(),
      reason: fields.reason.trim(),
      request_id: now.id,
      incarnation: got.shown.incarnation,
      ...(it.op === "phase" || it.op === "seats" ? { if_version: got.shown.settings_version } : {}),
    };
  }
  now.sending = true;
  now.error = null;
  draw();
  try {
    const answer = await ask(`lines/${encodeURIComponent(it.name)}/${it.op}`, now.sent);
    remember(now.sent.by);
    close();
    app.done(kind.done(it, answer, now.sent));
  } catch (error) {
    now.sending = false;
    now.error = error;
    // A copy of a refused request is refused: the next one is another.
    if (!isUncertain(error)) Object.assign(now, { sent: null, id: randomId() });
    draw();
    // A browser closes it at the second Escape, whatever the page wants.
    if (!dialog.open) dialog.showModal();
    // The field that had the focus may be switched off now.
    dialog.querySelector("[type=submit]").focus();
  }
}

function draw() {
  const { kind, it, got, sending, error, sent } = open;
  const sure = kind.sure?.(it, got);
  const danger = it.op === "kick" || it.phase === "closed";
  const again = error && isUncertain(error);
  patch(dialog, [
    h("form", { onsubmit: send, autocomplete: "off" },
      h("h2", { id: "ask-title", tabindex: "-1" }, kind.title(it)),
      h("p", { key: "means" }, kind.means(it, got)),
      h("fieldset", { key: "fields", disabled: sending || Boolean(sent) },
        h("legend", { class: "unseen" }, "For the journal"),
        kind.fields(it, got),
        app.by
          ? h("p", { key: "by" }, "By ", h("strong", {}, app.by), ", as this gateway knows you.")
          : h("label", { key: "by" }, "Your name", h("input", { name: "by", required: true, value: remembered(), oninput: checkText, autocomplete: "name" })),
        h("label", { key: "reason" }, "Reason", h("input", { name: "reason", required: true, oninput: checkText })),
        sure && h("label", { key: "sure", class: "check" }, h("input", { type: "checkbox", required: true }), sure),
        h("p", { key: "note", class: "soft small" }, "Both are written into the line’s journal.")),
      error && h("p", { class: "bad-text", role: "alert", key: "error" }, said(error)),
      h("p", { class: "actions", key: "buttons" },
        h("button", { type: "button", onclick: close, disabled: sending }, again ? "Close" : "Cancel"),
        h("button", { type: "submit", class: danger ? "danger main" : "main", "aria-disabled": sending ? "true" : null }, sending ? "Sending …" : again ? "Try again" : kind.button(it)))),
  ]);
}

/** What a button may offer: the gateway allows it, and it is one that is known here. */
export const offered = (may, op) => known(KINDS[op]) && (may ?? []).includes(op);
