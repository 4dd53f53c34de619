// Charts of the last hour: SVG without a library, so that colours follow the stylesheet (dark, forced colours), nothing
// needs a canvas, and the CSP stays strict. Labels are HTML, which is not stretched with the plot.
import { clock, known, many } from "./words.js";
import { h } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 100;

const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
/** The end of a scale of counts: round, and not below 4. */
function roundCount(most) {
  const least = Math.max(most, 4);
  const power = 10 ** Math.floor(Math.log10(least));
  return STEPS.map((step) => step * power).find((end) => end >= least && Number.isInteger(end)) ?? Math.ceil(least);
}

const MINUTE = 60_000;
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1_440, 2_880, 5_760, 11_520].map((minutes) => minutes * MINUTE);
const roundTime = (most) => TIMES.find((end) => end >= most) ?? most;
export const scales = { count: roundCount, time: roundTime };

const x = (at, count) => (count < 2 ? WIDTH : (at / (count - 1)) * WIDTH);
const y = (value, end) => HEIGHT - (value / end) * HEIGHT;
const digits = (value) => Math.round(value * 10) / 10;

/** The parts between gaps, each a list of places. */
function parts(values) {
  const found = [];
  let part = null;
  values.forEach((value, at) => {
    if (!known(value)) {
      part = null;
    } else if (part) {
      part.push(at);
    } else {
      part = [at];
      found.push(part);
    }
  });
  return found;
}

function lineOf(values, end) {
  return parts(values).filter((part) => part.length > 1).map((part) => {
    const points = part.map((at) => `${digits(x(at, values.length))} ${digits(y(values[at], end))}`);
    return `M${points.join("L")}`;
  }).join("");
}

/** Values alone between gaps. A line of hardly any length with round ends is a dot, also in a plot that is stretched. */
function dotsOf(values, end) {
  return parts(values).filter((part) => part.length === 1)
    .map(([at]) => `M${digits(x(at, values.length))} ${digits(y(values[at], end))}h-.1`).join("");
}

function areaOf(values, end) {
  return parts(values).filter((part) => part.length > 1).map((part) => {
    const points = part.map((at) => `${digits(x(at, values.length))} ${digits(y(values[at], end))}`);
    const [first, last] = [part[0], part.at(-1)].map((at) => digits(x(at, values.length)));
    return `M${first} ${HEIGHT}L${points.join("L")}L${last} ${HEIGHT}Z`;
  }).join("");
}

const plot = (attributes, ...children) =>
  h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", ...attributes }, ...children);

/** Beside a number that says the present value, so it is hidden from screen readers. */
export function spark(values) {
  if (!values?.some(known)) return null;
  const end = Math.max(1, ...values.filter(known));
  return plot({ class: "spark", "aria-hidden": "true" },
    h("path", { class: "area", d: areaOf(values, end) }),
    h("path", { class: "stroke", d: lineOf(values, end) }),
    h("path", { class: "stroke dots", d: dotsOf(values, end) }));
}

/**
 * One chart. `series`: `{name, values}`, the first one is drawn as an area, a second one dashed over it. `times`: when
 * each value was taken. `over`: the place that the pointer is over, in all charts of a view, or null; `point(place)` sets it.
 */
export function chart({ title, series, times, format, scale, over, point }) {
  const [main, other] = series;
  const all = series.flatMap((it) => it.values).filter(known);
  const end = scale(Math.max(0, ...all));
  const some = main.values.filter(known);
  const at = over ?? main.values.length - 1;
  const value = (it) => [format(it.values[at]), series.length > 1 && ` ${it.name}`];
  const hour = times.length > 1;
  const summary = some.length
    ? `${title}, ${clock(times[0])} to ${clock(times.at(-1))}: at least ${format(Math.min(...some))}, at most ${format(Math.max(...some))}, ` +
      `at the end ${format(main.values.at(-1))}.${other ? ` ${other.name}: ${format(other.values.at(-1))}.` : ""}`
    : `${title}: nothing is known yet.`;
  return h("figure", { class: "chart", key: title },
    h("figcaption", {},
      h("span", { class: "name" }, title),
      h("span", { class: "value" }, value(main), other && [", ", value(other)], over !== null && h("span", { class: "soft" }, ` at ${clock(times[at])}`))),
    h("div", {
      class: "plot",
      onpointermove: (event) => point(placeOf(event, times.length)),
      onpointerdown: (event) => point(placeOf(event, times.length)),
      onpointerleave: () => point(null),
    },
    h("span", { class: "end", "aria-hidden": "true" }, format(end)),
    plot({ role: "img", "aria-label": summary },
      h("path", { class: "grid", d: `M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}` }),
      h("path", { class: "area", d: areaOf(main.values, end) }),
      h("path", { class: "stroke", d: lineOf(main.values, end) }),
      h("path", { class: "stroke dots", d: dotsOf(main.values, end) }),
      other && h("path", { class: "other", d: lineOf(other.values, end) }),
      other && h("path", { class: "other dots", d: dotsOf(other.values, end) }),
      over !== null && h("path", { class: "rule", d: `M${digits(x(over, times.length))} 0V${HEIGHT}` }))),
    h("p", { class: "axis", "aria-hidden": "true" },
      hour && [times[0], times[Math.floor((times.length - 1) / 2)], times.at(-1)]
        .map((ms) => clock(ms)).map((label, nth, labels) => h("span", {}, label === labels[nth - 1] ? "" : label))),
    !some.length && h("p", { class: "soft none" }, "Nothing is known yet."));
}

function placeOf(event, count) {
  const { left, width } = event.currentTarget.getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (event.clientX - left) / width));
  return Math.round(share * (count - 1));
}

const ROWS = 13;
/** The same numbers for people who do not see the charts, or want them exact: a row each five minutes of an hour. */
export function table(charts, times) {
  const columns = charts.flatMap(({ title, series, format }) =>
    series.map((it) => ({ head: series.length > 1 ? `${title}: ${it.name}` : title, values: it.values, format })));
  const step = Math.max(1, Math.round((times.length - 1) / (ROWS - 1)));
  const places = times.map((_, at) => at).filter((at) => (times.length - 1 - at) % step === 0).reverse();
  return h("table", { class: "numbers" },
    h("caption", {}, `The newest first, ${many(places.length, "row")}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), columns.map((it) => h("th", { scope: "col", class: "n" }, it.head)))),
    h("tbody", {}, places.map((at) => h("tr", {},
      h("th", { scope: "row" }, clock(times[at])), columns.map((it) => h("td", { class: "n" }, it.format(it.values[at])))))));
}
