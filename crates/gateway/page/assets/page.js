// Keeps the waiting page up to date. The server has rendered it already, and without this script it reloads itself.
// README.md has the data, the events and the states. The gateway names the state; nothing here derives it.

const main = document.getElementById("main");
const card = document.getElementById("card");
const { line, shop, urls, lang, group, auto_enter_s, states, words, ...first } = JSON.parse(main.dataset.page);

const BEAT = 15_000; // the gateway sends something at least that often
const SILENT = 2.7 * BEAT; // a stream that was silent for longer is dead, although the browser may not know
const STREAM_TRIES = 3; // after as many failures in a row: status only
const STREAM_AGAIN = 120_000;
const SHOW_LOSS_AFTER = 5_000; // shorter losses worry people for nothing
const SAY_EVERY = 60_000;
const PAUSE_MAX = 3_600_000; // limits can be by the year; a browser's timers end at 24 days

const now = () => performance.now();
const visible = () => document.visibilityState === "visible";
const between = (low, high) => low + Math.random() * (high - low);

// ---- what is known

let page = first.page;
let visit = first.visit;
// The times of the first visit count from the request for this page, later ones from when they came: never too long.
const until = {};
let heardAt = now();
// at: when the loss was noticed; since: the last sign of life, by the wall clock; cluster: the gateway answers, the line does not
let trouble = null;

const PLACE = ["position", "position_capped", "ahead", "turn", "eta_ms", "eta_p90_ms", "eta_from", "held_back_by",
  "call_ahead", "admitted_through"];

function keepTimes(start) {
  for (const name of ["expires", "opens"]) {
    const ms = visit[`${name}_in_ms`];
    until[name] = Number.isFinite(ms) ? start + ms : null;
  }
}
keepTimes(0);

/** Takes an event of the stream, or a status. `age`: how long ago it came, in another tab. */
function take(event, data, age = 0) {
  if (event === "beat") return;
  if (event === "place") {
    const rest = Object.fromEntries(Object.entries(visit).filter(([name]) => !PLACE.includes(name)));
    visit = { ...rest, ...data };
    return paint();
  }
  if (event === "notice") {
    const notice = data?.text ? data : undefined;
    if (notice?.text === visit.notice?.text) return; // each stream begins with it
    visit = { ...visit, notice };
    return paint(page, notice?.text);
  }
  const next = data.page;
  if (!states[next]) return void setTimeout(() => location.replace(urls.here), between(1_000, 5_000)); // a newer gateway's
  if (page === "uncertain" && ["unavailable", "limited"].includes(next)) return; // the place is no more certain by that
  // The last place that is known says more than a page without any.
  if (next === "unavailable" && states[page].layout !== "message") return lose(true);
  if (next === "limited" && states[page].layout !== "message") return lose(trouble?.cluster); // it says nothing of the place
  const before = page;
  const news = data.notice?.text === visit.notice?.text ? undefined : data.notice?.text;
  page = next;
  visit = data;
  keepTimes(now() - age);
  paint(before, news);
}

// ---- words: the same rules as in templates/text.html

const put = (text, fields) => text.replace(/\{(\w+)\}/g, (all, name) => fields[name] ?? all);
const number = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, group);
const known = Number.isFinite;

function hours(minutes) {
  const h = Math.floor(minutes / 60);
  const m = minutes % 60;
  return put(h === 0 ? words.time.minutes : m === 0 ? words.time.hours : words.time.hours_minutes, { h, m });
}

function span(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 120) return put(words.time.seconds, { s });
  if (s < 172_800) return hours(Math.floor(s / 60));
  return put(words.time.days_hours, { d: Math.floor(s / 86_400), h: Math.floor((s % 86_400) / 3600) });
}

function forecast(low, high) {
  if (high <= 60_000) return words.time.under_minute;
  const step = high <= 1_200_000 ? 1 : high <= 5_400_000 ? 5 : high <= 43_200_000 ? 15 : 60;
  const unit = step * 60_000;
  const l = Math.floor(low / unit) * step;
  const h = Math.ceil(high / unit) * step;
  const short = h <= 90;
  const name = l === 0 ? "up_to" : l === h ? "about" : "range";
  const template = short ? { up_to: "up_to_minutes", about: "about_minutes", range: "minutes_range" }[name] : name;
  return put(words.time[template], short ? { low: l, high: h } : { low: hours(l), high: hours(h) });
}

function clock(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  if (s >= 172_800) return span(s * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const [h, m] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60)];
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

const digits = new Intl.Locale(lang, { numberingSystem: "latn" });
function timeOfDay(ms) {
  const today = new Date(ms).toDateString() === new Date().toDateString();
  const day = today ? {} : { weekday: "long", day: "numeric", month: "long" };
  return new Intl.DateTimeFormat(digits, { ...day, hour: "numeric", minute: "2-digit" }).format(ms);
}

// ---- what each element says; null: not known, and not shown

const left = (name) => (until[name] === null ? null : until[name] - now());
const placed = () => known(visit.position);
const uncertain = () => trouble?.shown && !trouble.cluster && states[page].layout === "line"
  && known(visit.keeps_ms) && Date.now() > trouble.since + visit.keeps_ms;

const says = {
  heading: () => words.states[page].heading,
  lead: () => words.states[page].lead,
  more: () => words.states[page].more,
  badge: () => words.kept[kept()],
  place: () => (placed() ? number(visit.position) + (visit.position_capped ? "+" : "") : null),
  ahead: () => (known(visit.ahead) && !visit.position_capped ? number(visit.ahead) : null),
  all: () => (placed() && known(visit.turn) && visit.turn !== visit.position && !visit.position_capped
    ? number(visit.turn - 1) : null),
  forecast: () => (known(visit.eta_ms) && known(visit.eta_p90_ms) ? forecast(visit.eta_ms, visit.eta_p90_ms) : null),
  held: () => (page === "paused" ? null : words.held[visit.held_back_by?.by]),
  ending: () => (visit.phase === "draining" ? words.ending : null),
  claim: () => (known(visit.claim_timeout_ms) ? put(words.claim, { time: span(visit.claim_timeout_ms) }) : null),
  keeps: () => (known(visit.keeps_ms) ? put(words.keeps, { time: span(visit.keeps_ms) }) : null),
  number: () => (known(visit.token) ? put(words.number, { n: number(visit.token) }) : null),
  last_number: () => (known(visit.token) && ["lost", "over"].includes(kept())
    ? put(words.last_number, { n: number(visit.token) }) : null),
  retry: () => (states[page].watch === "poll" && visit.retry_after_ms >= 1000 ? put(words.retry, { time: span(visit.retry_after_ms) }) : null),
  reference: () => (visit.reference ? put(words.reference, { id: visit.reference }) : null),
  enter: () => words.enter[page] ?? words.enter.again,
  left_label: () => words.states[page].left,
  left: () => (left("expires") === null ? null : clock(left("expires"))),
  go: () => words.states[page].go,
  after_left: () => words.states[page].after_left,
  auto: () => put(words.auto, { s: autoLeft }),
  opens_in: () => (left("opens") > 0 ? clock(left("opens")) : null),
  opens_at: () => (left("opens") > 0 ? put(words.opens_at, { when: timeOfDay(Date.now() + left("opens")) }) : null),
  commitment: () => visit.draw?.commitment,
  seed: () => visit.draw?.seed,
};
const shows = {
  enter: () => states[page].action === "enter",
  wait: () => states[page].action === "wait",
};

const kept = () => (uncertain() ? "unsure" : states[page].kept);

function setText(element, text) {
  const hidden = text === null || text === undefined || text === "";
  if (element.hidden !== hidden) element.hidden = hidden;
  if (!hidden && element.textContent !== text) {
    element.textContent = text;
    return true;
  }
  return false;
}

/** The new place comes in softly, if motion is welcome: the stylesheet says so. */
function arrive(element) {
  delete element.dataset.moved;
  requestAnimationFrame(() => { element.dataset.moved = ""; });
}

function fill() {
  for (const element of card.querySelectorAll("[data-if]")) {
    const name = element.dataset.if;
    const show = shows[name] ?? says[name]; // a shop's template can have names of its own
    if (show) element.hidden = !show();
  }
  for (const element of card.querySelectorAll("[data-text]")) {
    const text = says[element.dataset.text];
    const changed = text && setText(element, text());
    if (changed && element.id === "place") arrive(element);
  }
  for (const element of card.querySelectorAll("[data-attr-kept]")) element.dataset.kept = kept();
  const check = card.querySelector("#check");
  if (check) check.hidden = !trouble?.shown; // while the stream lives there is nothing to check
}

/** `news`: the text of an announcement that has not been said yet. */
function paint(before = page, news) {
  const state = states[page];
  if (before !== page) {
    document.documentElement.dataset.tone = state.tone ?? "calm";
    document.getElementById("icon").href = urls.assets + (state.layout === "turn" ? "icon-turn.svg" : "icon.svg");
    if (states[before].layout !== state.layout) {
      const focused = card.contains(document.activeElement);
      card.replaceChildren(document.getElementById(`layout-${state.layout}`).content.cloneNode(true));
      fill();
      wire();
      if (focused && state.layout !== "turn") card.querySelector("h1").focus();
    }
    autoLeft = auto_enter_s;
  }
  fill();
  track();
  const notice = document.getElementById("notice");
  if (setText(notice.firstElementChild, visit.notice?.text)) notice.firstElementChild.lang = visit.notice.lang ?? "";
  notice.hidden = !visit.notice?.text;
  const mark = state.layout === "turn" ? "● " : placed() ? `(${says.place()}) ` : "";
  document.title = `${mark}${says.heading()}${shop ? ` – ${shop}` : ""}`;
  if (before !== page) {
    changed(before, news);
  } else if (news) {
    say(news, true);
  } else if (state.layout === "line") {
    say([[words.place, says.place()], [words.ahead, says.ahead()], [words.forecast, says.forecast()]]
      .filter(([, text]) => text).map(([label, text]) => `${label}: ${text}.`).join(" "));
  }
}

/** How far the place has come since this browser first saw it. */
function track() {
  const bar = card.querySelector("#track");
  if (!bar || !placed() || !known(visit.entered_at_ms) || visit.position_capped) return;
  const name = `nowserving ${line}`;
  let start = visit.position;
  try {
    const seen = JSON.parse(localStorage.getItem(name) ?? "{}");
    if (seen.at === visit.entered_at_ms && seen.start > start) start = seen.start;
    localStorage.setItem(name, JSON.stringify({ at: visit.entered_at_ms, start }));
  } catch {
    // No storage: the bar begins anew with each page.
  }
  bar.hidden = start === visit.position || page === "pre_open";
  bar.style.setProperty("--done", String(1 - (visit.position - 1) / Math.max(1, start - 1)));
}

// ---- the region that screen readers read out

let saidAt = now();
let said = "";
let toSay = null;

/** A change of state is said at once, all else at most once a minute. */
function say(text, atOnce = false) {
  if (!text || (text === said && !atOnce)) return;
  toSay = text;
  if (atOnce || now() - saidAt >= SAY_EVERY) {
    saidAt = now();
    said = toSay;
    toSay = null;
    document.getElementById("say").textContent = said;
  }
}

function changed(before, news) {
  const { heading, lead, more } = words.states[page];
  const timed = states[page].layout === "turn" && left("expires") !== null;
  const time = timed ? put(words.left_say, { time: span(left("expires")) }) : "";
  say([`${heading}.`, lead, more, time, news].filter(Boolean).join(" "), true);
  if (page === "admitted" && before !== "admitted") ring();
  follow();
  if (page === "enter") enterByItself();
}

// ---- its turn: the button, and going in by itself

let autoLeft = auto_enter_s;
let stay = false;
let audio = null;

function wire() {
  const go = card.querySelector("#go");
  if (go) {
    go.hash = location.hash; // the server never sees this part of the shop's address
    go.focus();
    card.querySelector("#stay").addEventListener("click", () => {
      stay = true;
      card.querySelector("#auto").hidden = true;
      go.focus();
    });
  }
  const sound = card.querySelector("#sound");
  if (sound && window.AudioContext) {
    sound.hidden = false;
    sound.setAttribute("aria-pressed", String(audio !== null));
    sound.addEventListener("click", () => {
      audio?.close();
      audio = audio ? null : new AudioContext();
      sound.setAttribute("aria-pressed", String(audio !== null));
      if (audio) ring([523]); // so that people know what to listen for
    });
  }
  for (const form of card.querySelectorAll("[data-check]")) {
    form.addEventListener("submit", (event) => {
      if (states[page].watch === "none") return; // the browser loads the page
      event.preventDefault();
      wake(true);
    });
  }
}

function ring(notes = [523, 659, 784]) {
  if (!audio) return;
  notes.forEach((frequency, i) => {
    const at = audio.currentTime + i * 0.22;
    const [tone, volume] = [audio.createOscillator(), audio.createGain()];
    tone.frequency.value = frequency;
    volume.gain.setValueAtTime(0.2, at);
    volume.gain.exponentialRampToValueAtTime(0.001, at + 0.6);
    tone.connect(volume).connect(audio.destination);
    tone.start(at);
    tone.stop(at + 0.6);
  });
}

/** Only a tab that somebody looks at goes in by itself: otherwise the time inside would run unseen. */
function autoEnter() {
  const auto = card.querySelector("#auto");
  if (!auto) return;
  const on = page === "admitted" && auto_enter_s > 0 && !stay && visible() && !(left("expires") <= 0);
  auto.hidden = !on;
  if (!on) return void (autoLeft = auto_enter_s);
  if (autoLeft <= 0) {
    stay = true;
    const { href, origin } = card.querySelector("#go");
    if (origin === location.origin) location.assign(href);
    return;
  }
  setText(auto.querySelector("[data-text]"), says.auto());
  autoLeft -= 1;
}

let entering = null; // the next try

/** The second step of entering. At most three times a minute: a browser that loses the cookie must not go in circles. */
function enterByItself() {
  clearTimeout(entering);
  if (page !== "enter") return;
  const form = card.querySelector("[data-if=enter]");
  try {
    const name = `nowserving entering ${line}`;
    const tries = JSON.parse(sessionStorage.getItem(name) ?? "[]").filter((at) => Date.now() - at < 60_000);
    if (!navigator.cookieEnabled) throw new Error("no cookies");
    if (tries.length >= 3) {
      // Nothing else happens in this state. The wall clock can have been set back.
      entering = setTimeout(enterByItself, Math.min(60_000 - (Date.now() - tries[0]), 60_000));
      return;
    }
    sessionStorage.setItem(name, JSON.stringify([...tries, Date.now()]));
    form.requestSubmit();
  } catch {
    take("status", { page: "cookies" });
  }
}

// ---- one stream for all tabs: the tab that holds the lock has it, and passes on what comes

const name = `nowserving ${line}`;
let channel = null;
let leading = null; // ends the lock
let waiting = null; // ends the wait for the lock
let locksFail = false;
let source = null;
let failures = 0;
let timer = null; // the next status
let polledAt = -Infinity;
let triedAt = -Infinity; // the stream, after a status

const post = (message) => channel?.postMessage(message);

function heard(pass = true) {
  heardAt = now();
  if (!trouble) return;
  trouble = null;
  showLink();
  fill();
  if (pass) post({ event: "fine" });
}

function lose(cluster = false) {
  const since = trouble?.since ?? Date.now() - (now() - heardAt);
  trouble = { at: trouble?.at ?? now(), since, cluster, shown: trouble?.shown ?? false };
  if (leading) post({ event: "lost", trouble: { since, cluster } });
}

/** Whether what came says something of the place. That the cluster is away, or that the status is limited, does not. */
const ofPlace = (data) => !["unavailable", "limited"].includes(data?.page) || states[page].layout === "message";

function receive(event, data) {
  // A beat is a sign of life of the gateway alone. A status that is limited marks nobody as seen.
  if (event === "beat" ? !trouble?.cluster : ofPlace(data)) heard();
  else if (data?.page !== "limited") heardAt = now();
  post({ event, data, age: 0 });
  take(event, data);
}

function onMessage({ data: message }) {
  const { event, data, age } = message;
  if (event === "ask") {
    if (leading) post({ event: "status", data: { ...visit, ...remaining(), page }, age: 0 });
    return;
  }
  heardAt = now();
  if (event === "lost") {
    trouble = { at: trouble?.at ?? now(), shown: trouble?.shown ?? false, ...message.trouble };
    return;
  }
  if (event === "fine" || (event !== "beat" && ofPlace(data))) heard(false);
  if (event !== "fine") take(event, data, age);
}

function remaining() {
  const times = {};
  for (const name of ["expires", "opens"]) {
    if (until[name] !== null) times[`${name}_in_ms`] = Math.max(0, Math.round(left(name)));
  }
  return times;
}

/** Waits for the lock, or takes it from a tab that does not answer: one that the system has put to sleep. */
async function lead(steal = false) {
  if (leading || (waiting && !steal)) return;
  if (!navigator.locks || locksFail) {
    leading = () => {};
    return begin();
  }
  waiting?.abort();
  waiting = new AbortController();
  const { signal } = waiting;
  try {
    await navigator.locks.request(name, steal ? { steal } : { signal }, () => new Promise((release) => {
      waiting = null;
      if (states[page].watch === "none" || !channel) return release();
      leading = release;
      begin();
    }));
  } catch (error) {
    if (error?.name === "SecurityError") {
      locksFail = true; // a browser that keeps nothing for this site
      waiting = null;
      return lead();
    }
    if (signal.aborted || !leading) return;
    // Another tab took the lock, because this one did not answer.
    leading = null;
    stop();
    lead();
  }
}

/** Gives the lock to another tab. */
function yieldLead() {
  stop();
  waiting?.abort();
  waiting = null;
  leading?.();
  leading = null;
}

function begin() {
  failures = 0;
  if (states[page].watch === "stream") open();
  else later();
}

function stop() {
  source?.close();
  source = null;
  clearTimeout(timer);
  timer = null;
}

/** Follows as the state asks for: by the stream, by status, or not at all. */
function follow() {
  const { watch } = states[page];
  if (watch === "none") {
    yieldLead();
    trouble = null;
  } else if (!leading) {
    lead();
  } else if (watch === "stream" && !source && timer === null) {
    open();
  } else if (watch === "poll") {
    stop();
    later();
  }
  showLink();
}

function open() {
  stop();
  if (!window.EventSource) return poll();
  const stream = new EventSource(urls.events);
  source = stream;
  heardAt = now(); // from here on the stream has its time to say something
  for (const event of ["place", "admitted", "gone", "phase", "notice", "beat"]) {
    stream.addEventListener(event, ({ data }) => {
      if (stream !== source) return;
      failures = 0;
      receive(event, JSON.parse(data));
    });
  }
  stream.addEventListener("error", () => {
    if (stream !== source) return;
    lose();
    // The browser connects again by itself, after the pause that the gateway gave, but not after an answer that is no stream.
    if (stream.readyState === EventSource.CLOSED) failed();
  });
}

function failed() {
  stop();
  failures += 1;
  lose(trouble?.cluster);
  timer = setTimeout(poll, between(2_000, 10_000) * Math.min(failures, 3));
}

/** Asks for the status once, and goes on by the stream if that is likely to work. */
async function poll() {
  stop();
  polledAt = now();
  let data = null;
  try {
    const answer = await fetch(urls.status, {
      headers: { accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout?.(15_000),
    });
    data = await answer.json();
    if (!data?.page) throw new Error(`status ${answer.status}`);
    if (data.page === "unavailable_new" && states[page].kept === "kept") data = { ...data, page: "unavailable" };
  } catch {
    data = null;
  }
  if (!leading) return;
  if (!data) {
    lose();
    timer = setTimeout(poll, between(2_000, 10_000) * Math.min(++failures, 3));
    return;
  }
  receive("status", data);
  if (!leading || source || timer !== null) return;
  // The stream is not limited by address.
  const streams = states[page].watch === "stream" && [page, "limited"].includes(data.page);
  if (streams && (failures < STREAM_TRIES || now() - triedAt > STREAM_AGAIN)) {
    triedAt = now();
    open();
  } else {
    later(data);
  }
}

function later(data = visit) {
  clearTimeout(timer);
  const pause = data.poll_after_ms ?? data.retry_after_ms ?? 15_000;
  timer = setTimeout(poll, Math.min(Math.max(1_000, pause), PAUSE_MAX) * between(1, 1.2));
}

/** The tab is looked at again, or the network is back: do not wait for a pause to end. */
function wake(byHand = false) {
  if (states[page].watch === "none") return;
  if (!leading) {
    const asked = now();
    post({ event: "ask" });
    setTimeout(() => { if (!leading && channel && visible() && heardAt < asked) lead(true); }, 2_000);
  } else if (byHand || trouble || (source ? now() - heardAt > BEAT * 1.4 : now() - polledAt > BEAT)) {
    failures = 0;
    poll();
  }
}

// ---- the line below the card: whether what is shown is live

function showLink() {
  const { watch, layout } = states[page];
  if (watch === "stream" && trouble && !trouble.shown && now() - trouble.at >= SHOW_LOSS_AFTER) {
    trouble.shown = true;
    fill();
    say(lossText(layout), true);
  }
  const lost = trouble?.shown ?? false;
  const link = document.getElementById("link");
  link.hidden = watch !== "stream" || (layout === "turn" && !lost);
  link.dataset.link = lost ? "lost" : "live";
  const element = document.getElementById("link-text");
  const text = lost ? lossText(layout) : words.online;
  if (element.textContent === text) return;
  element.textContent = text;
  fill(); // the badge and "Check now" depend on it
}

function lossText(layout) {
  if (trouble.cluster) return words.lost_cluster;
  const since = timeOfDay(trouble.since);
  if (layout !== "line" || !known(visit.keeps_ms)) return put(words.lost, { since });
  const end = trouble.since + visit.keeps_ms;
  return Date.now() <= end ? put(words.lost_kept, { since, until: timeOfDay(end) }) : put(words.lost_unsure, { since });
}

// ---- each second

let endedAt = -Infinity;
let tickedAt = Date.now();
function tick() {
  // A machine that slept: the clock of this page may have slept, too, and the stream may be dead without a word.
  const slept = Date.now() - tickedAt > BEAT;
  tickedAt = Date.now();
  if (slept && visible()) wake(true);
  for (const element of card.querySelectorAll("[role=timer], [data-text=opens_at]")) setText(element, says[element.dataset.text]());
  for (const element of card.querySelectorAll("[data-if=opens_in]")) element.hidden = !says.opens_in();
  autoEnter();
  if (toSay && now() - saidAt >= SAY_EVERY) say(toSay, true);
  // The time of a seat is over, or the line should be open: the stream says so, but it is worth a question.
  const over = ["expires", "opens"].some((name) => left(name) !== null && left(name) <= -1_000);
  if (over && leading && !trouble && now() - endedAt > 5_000 && now() - polledAt > 5_000 && states[page].layout === "turn") {
    endedAt = now();
    poll();
  }
  if (states[page].watch === "stream") {
    if (leading && source && now() - heardAt > SILENT) {
      lose();
      failed();
    } else if (!leading && visible() && now() - heardAt > SILENT + 5_000) {
      heardAt = now();
      lead(true);
    }
    if (leading && trouble) post({ event: "lost", trouble: { since: trouble.since, cluster: trouble.cluster } });
  }
  showLink();
}

function start() {
  try {
    channel = new BroadcastChannel(name);
    channel.addEventListener("message", onMessage);
  } catch {
    // There is none, or a browser without cookies forbids it: each tab is alone.
    channel = { postMessage() {}, close() {} };
  }
  heardAt = now();
  if (states[page].watch !== "none") {
    lead();
    post({ event: "ask" });
  }
  showLink();
}

document.addEventListener("visibilitychange", () => {
  autoLeft = auto_enter_s;
  if (visible()) wake();
});
window.addEventListener("online", () => wake());
// A page that the browser keeps for "back" must not hold the stream of the other tabs.
window.addEventListener("pagehide", () => {
  yieldLead();
  channel?.close();
  channel = null;
});
window.addEventListener("pageshow", ({ persisted }) => {
  if (!persisted) return;
  stay = true; // whoever comes back from the shop is not sent there again
  start();
  if (states[page].watch !== "none") setTimeout(() => (leading ? poll() : wake()), 50);
});

// A page that the browser loads in advance takes no number and no stream before somebody looks at it.
if (document.prerendering) {
  await new Promise((look) => document.addEventListener("prerenderingchange", look, { once: true }));
}
document.documentElement.dataset.script = "on";
fill();
wire();
track();
start();
if (page === "enter") enterByItself();
tick();
setInterval(tick, 1_000);
