// What the doctor found, with the commands that mend it.
import { many } from "./words.js";
import { h } from "./dom.js";

const NAMES = { problem: "Problem", warning: "Warning", note: "Note" };
const TONES = { problem: "bad", warning: "warn", note: "soft" };

export const badge = (tone, text, title) => h("span", { class: `badge ${tone}`, title }, text);

/** A command, alone, so that it can be copied. */
function command(app, text) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    app.say("Copied.");
  };
  return h("span", { class: "command" },
    h("code", {}, text),
    // Missing where the page came without TLS from another machine.
    navigator.clipboard && h("button", { type: "button", class: "quiet", onclick: copy, "aria-label": `Copy: ${text}` }, "Copy"));
}

function finding(app, it, nth) {
  return h("li", { key: `${it.code} ${nth}`, class: `finding ${TONES[it.severity] ?? "soft"}` },
    h("p", {}, badge(TONES[it.severity] ?? "soft", NAMES[it.severity] ?? it.severity), " ", it.text),
    it.details?.length > 0 && h("ul", { class: "plain soft" }, it.details.map((text) => h("li", {}, text))),
    it.mend?.map(({ command: text, remark }) => h("p", { class: "mend" },
      text && command(app, text), text && remark && " ", remark && h("span", { class: "soft" }, remark))));
}

/** All of them, or the words for none. */
export function list(app, findings, none = "Nothing is wrong.") {
  if (!findings) return h("p", { class: "soft" }, "Asking …");
  if (!findings.length) return h("p", { class: "good-text" }, none);
  return h("ul", { class: "findings" }, findings.map((it, nth) => finding(app, it, nth)));
}

/** Problems and warnings alone, where others are one click away. */
export function worst(app, findings, more) {
  const bad = (findings ?? []).filter((it) => it.severity !== "note");
  const shown = bad.slice(0, 3);
  if (!shown.length) return null;
  const rest = findings.length - shown.length;
  return h("section", { key: "worst", "aria-label": "Problems and warnings" },
    list(app, shown),
    rest > 0 && h("p", { class: "small" }, h("a", { href: more }, `${many(rest, "more finding")}`)));
}
