// Numbers, times and the words of the contract as people read them: the same as in `nowserving top`, `doctor` and `line journal`.
import { h } from "./dom.js";

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export const known = (value) => value !== null && value !== undefined;
export const DASH = "–";

const grouped = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const orDash = (format) => (value) => (known(value) ? format(value) : DASH);

export const number = orDash((value) => grouped.format(value));
/** Large ones without fractions. */
export const decimal = orDash((value) => (value < 99.95 ? short.format(value) : grouped.format(Math.round(value))));
export const perMinute = (perSecond) => decimal(known(perSecond) ? perSecond * 60 : null);
export const many = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
export const token = (lane, value) => `${lane} ${value}`;

/** In its two largest units, rounded up to the smaller one. A number and its unit are never on two rows. */
export const duration = orDash((ms) => {
  const units = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]];
  if (ms < 1_000) return ms === 0 ? "0\u00a0s" : `${Math.ceil(ms)}\u00a0ms`;
  const at = units.findIndex(([size]) => ms >= size);
  const [size, unit] = units[at];
  const [small, smallUnit] = units[at + 1] ?? [size, null];
  const all = Math.ceil(ms / small);
  const per = size / small;
  const [large, rest] = [Math.floor(all / per), all % per];
  return rest && smallUnit ? `${large}\u00a0${unit} ${rest}\u00a0${smallUnit}` : `${large}\u00a0${unit}`;
});

const timeOnly = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const minuteOnly = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayOnly = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

export const clock = (ms) => minuteOnly.format(ms);

/** A moment, in the reader's time zone; the day only if it is another one. */
export function moment(ms) {
  const date = new Date(ms);
  if (!known(ms) || Number.isNaN(date.getTime())) return DASH;
  const today = date.toDateString() === new Date().toDateString();
  const text = today ? timeOnly.format(date) : `${dayOnly.format(date)}, ${timeOnly.format(date)}`;
  return h("time", { datetime: date.toISOString(), title: date.toISOString() }, text);
}

// ---- lines

const PHASES = {
  pre_open: "it issues numbers and admits nobody yet",
  open: "it issues numbers and admits",
  paused: "it issues numbers and admits nobody",
  draining: "it issues no numbers, and admits those who wait",
  closed: "it issues no numbers and admits nobody",
};
export const phaseWords = (phase) => PHASES[phase] ?? "";
/** `pre_open` as people write it. */
export const phaseName = (phase) => phase.replace("_", "-");

/** Why the line does not admit its next token now. `held` is missing while it was not asked for. */
export function heldBack(held, line) {
  switch (held?.by) {
    case undefined: return DASH;
    case "nothing": return "nothing: nobody waits";
    case "phase": return `the phase, ${phaseName(held.phase ?? line.phase)}: ${phaseWords(held.phase ?? line.phase)}`;
    case "draw": return "the draw, which is not done";
    case "quota": return "the quota: no unit is left";
    case "seats": return line.seats === 0 ? "the seats: it has none" : `the seats: all ${number(line.seats)} are held`;
    case "called": return "that nobody is called: admission is “called”";
    case "admission_rate": return `the admission rate: the next in ${duration(held.next_in_ms ?? 0)}`;
    case "admitting": return "nothing: those who wait are being admitted";
    default: return held.by;
  }
}

/** Counts by name that are not 0, the largest first. */
export const countsOf = (counts) => Object.entries(counts ?? {}).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
export const countsText = (counts) => countsOf(counts).map(([name, count]) => `${number(count)} ${words(name)}`).join(", ") || "none";
/** `checkout_expired` as words. */
export const words = (name) => name.replaceAll("_", " ");

/** A value of a setting: times by their names' ending, lists and objects part by part. */
export function setting(name, value) {
  if (!known(value)) return "not set";
  if (Array.isArray(value)) return value.map((it) => setting(name, it)).join("; ") || "none";
  if (typeof value === "object") {
    const parts = Object.entries(value).filter(([, it]) => known(it));
    return parts.map(([part, it]) => (typeof it === "object" ? setting(part, it) : `${settingName(part)} ${setting(part, it)}`)).join(", ") || "none";
  }
  if (typeof value !== "number") return String(value);
  return name.endsWith("_ms") ? duration(value) : number(value);
}
export const settingName = (name) => words(name.replace(/_ms$/, ""));

// ---- the journal

const changeText = ({ setting: name, from, to }) => `${settingName(name)} ${setting(name, from)} → ${setting(name, to)}`;

function kicked(selector) {
  const parts = [
    known(selector.tokens) && `${number(selector.tokens)} by number`,
    known(selector.keys) && `${number(selector.keys)} by key`,
    known(selector.idle_over_ms) && `idle for over ${duration(selector.idle_over_ms)}`,
    selector.lane && `lane ${selector.lane}`,
    selector.all && "all",
    selector.state && words(selector.state),
  ];
  return parts.filter(Boolean).join(", ");
}

/** What an entry is about, without who asked and why. */
export function journaled(entry) {
  const told = known(entry.seats) ? `: ${many(entry.seats, "seat")}` : ": the setting is in force again";
  const parts = [
    words(entry.what),
    entry.what === "gone" && entry.reason && `: ${words(entry.reason)}`,
    known(entry.scheduled_at_ms) && ` of ${new Date(entry.scheduled_at_ms).toISOString()}`,
    entry.changes && `: ${entry.changes.map(changeText).join("; ") || "nothing"}`,
    entry.what === "capacity_told" && told,
    known(entry.took_part) && `: ${number(entry.took_part)} took part`,
    known(entry.rows) && known(entry.entered) && `: ${number(entry.rows)} rows done, ${number(entry.entered)} entered`,
    known(entry.position) && ` at position ${number(entry.position)}`,
    entry.to_lane && known(entry.to_token) && ` to ${token(entry.to_lane, entry.to_token)}`,
    entry.selector && `: ${kicked(entry.selector)}`,
    known(entry.units) && entry.units !== 1 && `, ${number(entry.units)} units`,
    entry.absolute && ", its lane was absolute",
    known(entry.boost_ms) && `, its lane had a boost of ${duration(entry.boost_ms)}`,
  ];
  return parts.filter(Boolean).join("");
}

const OF_TOKENS = new Set(["entered", "admitted", "taken", "claimed", "gone", "moved"]);
const WAYS = { call: "by a call of its lane", jump: "by its holder", draw: "by the draw" };

/** Who asked, and why, if they said. */
export function asked(entry) {
  const ofToken = OF_TOKENS.has(entry.what);
  const by = ofToken ? entry.operator : entry.by;
  const reason = ofToken ? entry.operator_reason : entry.reason;
  const way = ofToken && entry.by ? (WAYS[entry.by] ?? entry.by) : "";
  return [way, by && `asked for by ${by}`, reason && `“${reason}”`].filter(Boolean).join(", ");
}

/** Why another token was admitted first. */
export function because(overtaker, own) {
  switch (overtaker.by) {
    case "absolute": return "its lane was absolute";
    case "boost": return `its lane’s boost was larger by ${duration(overtaker.boost_ms)}`;
    case "listed_first": return "they tied, and its lane is listed first";
    case "call": return "an operator called its lane alone";
    case "draw": return "the draw at the opening put it first";
    case "take": return "an operator took it out of order";
    case "behind_its_lane": return overtaker.lane === own.lane
      ? `a move had put ${own.token} behind it`
      : `those before ${own.token} in ${own.lane} were not first yet, or the boosts were others`;
    default: return words(overtaker.by);
  }
}

// ---- nodes

/** The state of a node in a word, and how bad that is. */
export function nodeState(node, shards) {
  if (!node.alive) return [node.refused ? "refused" : "silent", "bad"];
  if (node.disk_full) return ["disk full", "bad"];
  if (node.leaving) return ["leaving", "warn"];
  if (node.joining_in > 0) return ["joining", "warn"];
  if (node.drained) return ["drained", "warn"];
  if (node.refuses_snapshots > 0) return ["refuses a snapshot", "bad"];
  if (node.caught_up_in < shards) return ["catching up", "warn"];
  return ["alive", "good"];
}

/** Numbers as ranges: `0–3, 7`. */
export function ranges(numbers) {
  const parts = [];
  for (const it of numbers) {
    const last = parts.at(-1);
    if (last && last[1] === it - 1) last[1] = it;
    else parts.push([it, it]);
  }
  return parts.map(([from, to]) => (from === to ? from : `${from}–${to}`)).join(", ");
}
